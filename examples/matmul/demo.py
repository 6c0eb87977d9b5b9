"""Run the five matmul kernels, check each against numpy, and show what each one moves and keeps.

python examples/matmul/demo.py [--size M K N] [--target trn2] [--json]
"""

import argparse
import json
import os
import sys
import time

import numpy as np
from kernels import STEPS, single_tile
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nki.execute.blas import one_blas_thread


def measure(kernel, lhsT, rhs):
    """One row of the table: the kernel's counts, its time, and whether numpy agrees."""
    if kernel is single_tile:
        lhsT, rhs = lhsT[:128, :128].copy(), rhs[:128, :512].copy()
    with one_blas_thread():
        start = time.perf_counter()
        expected = lhsT.T @ rhs
        numpy_seconds = time.perf_counter() - start
    start = time.perf_counter()
    run = kernel.run(lhsT, rhs)
    seconds = time.perf_counter() - start
    scale = np.abs(expected).max()
    counts = run.statistics
    return {
        "kernel": kernel.__name__,
        "shape": [lhsT.shape[1], lhsT.shape[0], rhs.shape[1]],
        "instructions": counts.instructions,
        "dma_transfers": counts.dma_transfers,
        "dma_bytes": counts.dma_bytes,
        "lhsT_loads": counts.hbm_read_bytes["lhsT"] / lhsT.nbytes,
        "rhs_loads": counts.hbm_read_bytes["rhs"] / rhs.nbytes,
        "sbuf_peak_bytes": counts.sbuf_peak_bytes,
        "psum_peak_bytes": counts.psum_peak_bytes,
        "spill_bytes": counts.spill_bytes,
        "seconds": seconds,
        "numpy_ratio": seconds / numpy_seconds,
        "max_error": float(np.abs(run.result - expected).max() / scale),
    }


def table(rows, target):
    mib = 1 << 20
    shown = Table(title=f"C = A @ B on {target}, float32; loads: times each input travels to SBUF")
    for name in ("kernel", "M x K x N", "instr.", "DMAs", "MiB", "loads A, B", "SBUF MiB", "PSUM MiB", "time", "x numpy"):
        shown.add_column(name, justify="left" if name in ("kernel", "M x K x N") else "right")
    for row in rows:
        loads = f"{row['lhsT_loads']:g}, {row['rhs_loads']:g}"
        sbuf = f"{row['sbuf_peak_bytes'] / mib:.1f}" + ("*" if row["spill_bytes"] else "")
        shown.add_row(
            row["kernel"],
            "x".join(map(str, row["shape"])),
            f"{row['instructions']:,}",
            f"{row['dma_transfers']:,}",
            f"{row['dma_bytes'] / mib:,.0f}",
            loads,
            sbuf,
            f"{row['psum_peak_bytes'] / mib:.2f}",
            f"{row['seconds']:.2f} s",
            f"{row['numpy_ratio']:.2f}",
        )
    if any(row["spill_bytes"] for row in rows):
        shown.caption = "* more than SBUF holds: the compiler would spill to HBM"
    return shown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs=3, type=int, default=(2048, 4096, 4096), metavar=("M", "K", "N"))
    parser.add_argument("--target", default="trn2", help="trn1, trn2 or trn3")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    options = parser.parse_args()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = options.target
    m, k, n = options.size
    rng = np.random.default_rng(0)
    lhsT = rng.standard_normal((k, m), dtype=np.float32)
    rhs = rng.standard_normal((k, n), dtype=np.float32)

    rows = []
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 100)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("running kernels", total=len(STEPS))
        for kernel in STEPS:
            progress.update(task, description=f"running {kernel.__name__}")
            rows.append(measure(kernel, lhsT, rhs))
            progress.advance(task)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        console.print(table(rows, options.target))
    wrong = [row["kernel"] for row in rows if row["max_error"] > 1e-5]
    if wrong:
        console.print(f"[red]wrong results: {', '.join(wrong)}[/red]")
        return 1
    if not options.json:
        console.print("All five agree with numpy.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
