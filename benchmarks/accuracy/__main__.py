"""`make accuracy`: the model against every published figure we may show, as docs/accuracy.md has it.

python -m benchmarks.accuracy            print the page
python -m benchmarks.accuracy --quick    only what takes seconds
python -m benchmarks.accuracy --short    without what takes minutes
python -m benchmarks.accuracy --facts    only the single facts that others measured
python -m benchmarks.accuracy --write    write docs/accuracy.md
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import nki
from nki.machine.generations import find
from nki.machine.machine import ASSUMPTIONS
from nki.machine.ranges import ends
from nki.timing.compiler.stage import TRANSFORMATIONS

from . import facts
from .cases import Case, cases

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"

HEAD = """\
# How accurate is the model?

Written by `make accuracy`: published figures and ours. No device was used. How a figure was used for the
model determines how much its row proves: a constant was fitted to `fitted` figures, a rule was derived from
the profile of `rule` figures, `held back` figures were used only for this comparison. Six of the nine
`held back` figures are the fused Mamba kernels at sizes that no rule was read from; their rules come from the
same tutorial, so these rows test other sizes, not other kernels. Percentages are compared in points,
everything else as a ratio.

"""

LEFT_OUT = {
    "the compiler's order of independent instructions": "an engine takes the first one that is ready; "
    "the compiler decides the real order",
    "fragmentation of SBUF": "a tile of any size fits while there are enough free bytes: Mamba v2 "
    "spills from 1,024 columns on with half of SBUF free, our model does not",
    "how the compiler splits wide loads and spills": "one transfer each, as in the kernel",
    "depth of DMA queues, prefetch of descriptors, banks and rows of HBM": "transfers start in order, "
    "in unlimited number",
    "collectives at the same time as DMA of a kernel": "their time depends only on hops and bytes",
    "instruction fetch, semaphores as instructions of their own": "free",
    "throttling by temperature or power": "only the half-rate rule of the PE array",
    "trn3": "no measurement of any kind is published: its rows would be data-sheet rates",
}

TAIL = """\
Numbers without a public source have a range: `nki profile --uncertainty` reports how much
they change a kernel's time.
"""


def left_out() -> str:
    rows = "\n".join(f"| {what} | {change} |" for what, change in LEFT_OUT.items())
    return f"## What the model leaves out\n\n| what | what it would change |\n|---|---|\n{rows}\n\n{TAIL}"


FITTED = """\
## Numbers that were fitted

No document gives these numbers: each was chosen so that the model reproduces published figures, so it
proves nothing about those figures. The range is the one that `nki profile --uncertainty` uses.

| number, of trn2 | value | range | on what |
|---|---|---|---|
"""


def fitted() -> str:
    """The numbers that were chosen so that figures come out, and how far each may be off."""
    machine = find("trn2")
    rows = []
    for field, reason in sorted(ASSUMPTIONS.items()):
        if reason.startswith(("fitted", "inferred")):
            low, high = (plain(end) for end in ends(machine, field))
            rows.append(f"| `{field}` | {plain(getattr(machine, field))} | {low} to {high} | {reason} |")
    return FITTED + "\n".join(rows) + "\n\n"


def plain(value: float | bool) -> str:
    return (
        ("off", "on")[value]
        if isinstance(value, bool)
        else f"{value:,.4g}"
        if value < 1e4
        else f"{value:,.0f}"
    )


def number(value: float) -> str:
    """Four digits, with commas."""
    return f"{value:,.{max(0, 3 - len(str(int(abs(value)))) + 1)}f}"


def row(case: Case, figure: tuple, profile) -> tuple[str, float]:
    """A line of the table, and the error: relative, or in points."""
    name, unit, published, read = figure
    ours = read(profile)
    if unit == "%":
        error = ours - published
        shown = f"{error:+.1f} points"
    else:
        error = ours / published - 1
        shown = f"{ours / published:.2f}"
    cells = (case.name, name, f"{published:,g} {unit}", f"{number(ours)} {unit}", shown, case.target)
    return "| " + " | ".join((*cells, case.use, case.source)) + " |", error


def profiled(case: Case):
    """Return the modelled run of a case, with what the compiler is known to have done."""
    with nki.options(target=case.target):
        program = case.kernel.trace(*case.arguments) if case.only else None
    if program is None:
        return nki.profile(case.kernel, target=case.target)(*case.arguments)
    others = tuple(one.name for one in TRANSFORMATIONS if one.name not in case.only and not one.always)
    with nki.options(without=others):
        return replace(program, transformed=True).profile()


def page(wanted: list[Case], report=lambda what: None) -> str:
    head = "| kernel | figure | published | ours | ratio | platform | use | source |\n" + "|---" * 8 + "|\n"
    lines, errors = [], {"held back": [], "rule": [], "fitted": []}
    for case in wanted:
        report(case.name)
        profile = profiled(case)
        for figure in case.figures:
            line, error = row(case, figure, profile)
            lines.append(line)
            if figure[1] != "%":
                errors[case.use].append(abs(error))
    timed = {case.name for case in wanted}
    missing = [case.name for case in cases() if case.name not in timed]
    note = f"\nNot timed for this page: {'; '.join(missing)}.\n" if missing else ""
    means = [
        f"{use}: {100 * median(found):.1f} % typical (median), {100 * max(found):.1f} % worst, "
        f"of {len(found)} figures"
        for use, found in errors.items()
        if found
    ]
    return (
        HEAD
        + head
        + "\n".join(lines)
        + "\n\nErrors: "
        + "; ".join(means)
        + ".\n"
        + note
        + "\n"
        + fitted()
        + left_out()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only what takes seconds")
    parser.add_argument("--short", action="store_true", help="without what takes minutes")
    parser.add_argument("--facts", action="store_true", help="only the single facts that others measured")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    options = parser.parse_args()
    if options.facts:
        print(facts.table())
        return
    wanted = [case for case in cases() if case.quick or not options.quick]
    wanted = [case for case in wanted if not (options.short and case.long)]
    text = page(wanted, lambda what: print(f"  {what}", file=sys.stderr))
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}", file=sys.stderr)
    else:
        print(text)


if __name__ == "__main__":
    main()
