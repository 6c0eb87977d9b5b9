"""Run the five matmul kernels, check each against numpy, and show their modelled times on Trainium.

python examples/matmul/demo.py [--size M K N] [--model-size M K N] [--target trn2] [--html FILE] [--json]
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from threadpoolctl import threadpool_info

import nki
from kernels import STEPS, single_tile


def blas_threads():
    """Return how many threads numpy multiplies on; kernels get as many."""
    counts = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    return max(counts, default=os.cpu_count() or 1)


def measure(kernel, lhsT, rhs):
    """One row of the table: the kernel's counts, its time, and whether numpy agrees."""
    if kernel is single_tile:
        lhsT, rhs = lhsT[:128, :128].copy(), rhs[:128, :512].copy()
    threads = blas_threads()
    start = time.perf_counter()
    expected = lhsT.T @ rhs
    numpy_seconds = time.perf_counter() - start
    with nki.options(threads=threads):
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
        "threads": threads,
        "numpy_ratio": seconds / numpy_seconds,
        "max_error": float(np.abs(run.result - expected).max() / scale),
    }


def model(kernel, m, k, n):
    """Return the kernel's modelled figures at a size, without arithmetic."""
    lhsT, rhs = nki.TensorSpec((k, m), "float32"), nki.TensorSpec((k, n), "float32")
    profile = nki.profile(kernel)(lhsT, rhs)
    timeline = profile.timeline
    row = {
        "kernel": kernel.__name__,
        "shape": [m, k, n],
        "modelled_ms": timeline.total_ns / 1e6,
        "mfu_percent": timeline.mfu_percent,
        "spill_bytes": timeline.spill_bytes,
    }
    for engine in ("tensor", "vector", "dma"):
        row[f"{engine}_active_percent"] = timeline.active_percent(engine)
    return row, profile


def columns(shown, *names):
    for name in names:
        shown.add_column(name, justify="left" if name == "kernel" else "right")


def table(rows, target):
    mib = 1 << 20
    m, k, n = rows[-1]["shape"]
    shown = Table(title=f"Run here: C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], float32, {target}")
    columns(shown, "kernel", "instr.", "DMAs", "MiB", "loads A, B", "SBUF MiB", "PSUM MiB", "time", "x numpy")
    for row in rows:
        shown.add_row(
            row["kernel"],
            f"{row['instructions']:,}",
            f"{row['dma_transfers']:,}",
            f"{row['dma_bytes'] / mib:,.0f}",
            f"{row['lhsT_loads']:g}, {row['rhs_loads']:g}",
            f"{row['sbuf_peak_bytes'] / mib:.1f}" + ("*" if row["spill_bytes"] else ""),
            f"{row['psum_peak_bytes'] / mib:.2f}",
            f"{row['seconds']:.2f} s",
            f"{row['numpy_ratio']:.2f}",
        )
    shown.caption = (
        "single_tile does one 128x128x512 product. Loads: times each input travels to SBUF.\n"
        f"Time: of the first call. x numpy: that over numpy's, each on {rows[-1]['threads']} thread(s)."
    )
    if any(row["spill_bytes"] for row in rows):
        shown.caption += "\n* more than SBUF holds: the compiler would spill to HBM"
    return shown


def modelled_table(rows, target):
    m, k, n = rows[-1]["shape"]
    shown = Table(title=f"Modelled on {target}: C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], float32")
    columns(shown, "kernel", "time", "TensorE", "VectorE", "DMA", "MFU", "spilled GB")
    for row in rows:
        shown.add_row(
            row["kernel"],
            f"{row['modelled_ms']:.2f} ms",
            f"{row['tensor_active_percent']:.1f} %",
            f"{row['vector_active_percent']:.1f} %",
            f"{row['dma_active_percent']:.1f} %",
            f"{row['mfu_percent']:.1f} %",
            f"{row['spill_bytes'] / 1e9:.2f}",
        )
    shown.caption = "Percentages: how long the engine is active. Modelled, not measured."
    return shown


def main():
    # the tables mark kernels that overflow SBUF with a star
    warnings.filterwarnings("ignore", message="SBUF overflows", category=nki.NkiWarning)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs=3, type=int, default=(2048, 4096, 4096), metavar=("M", "K", "N"))
    parser.add_argument(
        "--model-size",
        nargs=3,
        type=int,
        default=(4096, 8192, 8192),
        metavar=("M", "K", "N"),
        help="for the model",
    )
    parser.add_argument("--target", default="trn2", help="trn1, trn2 or trn3")
    parser.add_argument(
        "--html", default="matmul-profile.html", help="where to write the report of the last kernel"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = options.target
    m, k, n = options.size
    rng = np.random.default_rng(0)
    lhsT = rng.standard_normal((k, m), dtype=np.float32)
    rhs = rng.standard_normal((k, n), dtype=np.float32)

    rows, modelled = [], []
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 100)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=2 * len(STEPS))
        for kernel in STEPS:
            progress.update(task, description=f"running {kernel.__name__}")
            rows.append(measure(kernel, lhsT, rhs))
            progress.advance(task)
        if not options.json:
            console.print(table(rows, options.target))  # modelling takes longer
        for kernel in STEPS:
            progress.update(task, description=f"modelling {kernel.__name__}")
            size = (128, 128, 512) if kernel is single_tile else options.model_size
            row, profile = model(kernel, *size)
            modelled.append(row)
            progress.advance(task)
        progress.update(task, description="writing the report")
        Path(options.html).write_text(profile.html())
    if options.json:
        print(json.dumps({"run": rows, "modelled": modelled}, indent=2))
    else:
        console.print(modelled_table(modelled, options.target))
    wrong = [row["kernel"] for row in rows if row["max_error"] > 1e-5]
    if wrong:
        console.print(f"[red]wrong results: {', '.join(wrong)}[/red]")
        return 1
    console.print(f"All five agree with numpy. The profile of {STEPS[-1].__name__} is in {options.html}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
