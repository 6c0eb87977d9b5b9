"""`make accuracy`: the model against every published figure we may show, as docs/accuracy.md has it.

python -m benchmarks.accuracy            print the page
python -m benchmarks.accuracy --quick    only what takes seconds
python -m benchmarks.accuracy --short    without what takes minutes
python -m benchmarks.accuracy --facts    only the single facts that others measured
python -m benchmarks.accuracy --covered  how many published times lie within the interval of --uncertainty
python -m benchmarks.accuracy --write    write docs/accuracy.md

Kernels of others are timed where their repositories are checked out in build/public (--public).
"""

import argparse
import sys
from pathlib import Path

from . import facts
from .cases import cases
from .coverage import coverage
from .page import page, rows

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "accuracy.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only what takes seconds")
    parser.add_argument("--short", action="store_true", help="without what takes minutes")
    parser.add_argument("--facts", action="store_true", help="only the single facts that others measured")
    parser.add_argument("--covered", action="store_true", help="only how many times --uncertainty covers")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    parser.add_argument("--public", type=Path, default=ROOT / "build" / "public", help="folder of checkouts")
    options = parser.parse_args()
    if options.facts:
        print(facts.table())
        return
    every = cases(options.public)
    wanted = [case for case in every if case.quick or not options.quick]
    wanted = [case for case in wanted if not (options.short and case.long)]
    report = lambda what: print(f"  {what}", file=sys.stderr)  # noqa: E731
    if options.covered:
        print(coverage(wanted, report))
        return
    timed = {case.name for case in wanted}
    text = page(rows(wanted, report), [case.name for case in every if case.name not in timed])
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}", file=sys.stderr)
    else:
        print(text)


if __name__ == "__main__":
    main()
