"""Run every benchmark, or those named: python -m benchmarks [name ...] [--json]"""

import argparse
import importlib
import json
import pkgutil
import sys

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import benchmarks


def main():
    found = pkgutil.iter_modules(benchmarks.__path__)
    names = sorted(m.name for m in found if not m.name.startswith("_") and not m.ispkg)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    options = parser.parse_args()
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    rows = []
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 100)
    chosen = options.names or names
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for name in chosen:
            progress.update(task, description=name)
            rows += [(name, *row) for row in importlib.import_module(f"benchmarks.{name}").run()]
            progress.advance(task)
    if options.json:
        print(
            json.dumps([dict(zip(("benchmark", "measure", "value", "limit"), r, strict=True)) for r in rows])
        )
        return 0
    table = Table(title="Benchmarks: ratios within one run")
    for heading in ("benchmark", "measure", "value", "at most"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
