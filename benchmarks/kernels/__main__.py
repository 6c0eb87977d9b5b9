"""Every kernel, or those whose names contain a word: python -m benchmarks.kernels [word ...] [--json]"""

import argparse
import json
import os
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import PLATFORM, Figures, cases, measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="word", help="part of a kernel's name")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument(
        "--brief", action="store_true", help="with --json, only what the pages of nkilib show"
    )
    options = parser.parse_args()
    chosen = [c for c in cases() if not options.words or any(word in c.kernel_name for word in options.words)]
    if not chosen:
        parser.error(f"no kernel is named like {' or '.join(options.words)}")
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = PLATFORM
    found = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for case in chosen:
            progress.update(task, description=f"{case.kernel_name} {case.label}")
            found.append(measure(case))
            progress.advance(task)
    if options.json and options.brief:
        print("[\n" + ",\n".join(map(brief, found)) + "\n]")
    elif options.json:
        print(json.dumps([figures.to_dict() for figures in found], indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(table(found))
    return 0


BRIEF = ("kernel", "size", "modelled_us", "bound_us", "bound", "limit_us", "limit")


def brief(figures: Figures) -> str:
    """Return a line of benchmarks/kernels/times.json."""
    row = figures.to_dict()
    row |= {name: round(row[name], 1) for name in ("modelled_us", "limit_us")}
    row |= {"bound_us": float(f"{row['bound_us']:.3g}")}
    return json.dumps({name: row[name] for name in BRIEF})


HEADINGS = ("kernel, size", "modelled us", "bound us", "by", "ratio", "busiest", "SBUF MiB")
NUMBERS = ("modelled us", "bound us", "ratio", "SBUF MiB")


def table(found: list[Figures]) -> Table:
    """Return a table with the sizes of each kernel below its name."""
    shown = Table(
        title=f"Library kernels on {PLATFORM}: modelled time and lower bound of any schedule",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in HEADINGS:
        justify = "right" if heading in NUMBERS else "left"
        shown.add_column(heading, justify=justify, no_wrap=heading != HEADINGS[0])
    kernel = ""
    for figures in found:
        if figures.kernel != kernel:
            shown.add_row(figures.kernel)
            kernel = figures.kernel
        shown.add_row(*cells(figures))
    return shown


def cells(f: Figures) -> list[str]:
    sbuf = f"{f.sbuf_peak_bytes / 2**20:.1f}" + (" spills" if f.spill_bytes else "")
    times = [f"{f.modelled_us:,.1f}", f"{f.bound_us:,.1f}", f.bound, f"{f.ratio:.2f}"]
    return [f"  {f.size}", *times, f.busiest, sbuf]


if __name__ == "__main__":
    sys.exit(main())
