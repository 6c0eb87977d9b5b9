"""docs/accuracy.md: published figures beside ours, by family and by how the model uses them."""

import math
from collections import defaultdict
from typing import NamedTuple

from nki.machine.generations import find
from nki.machine.machine import ASSUMPTIONS
from nki.machine.ranges import ends

from . import evidence, facts, public_kernels
from .case import Case

HEAD = """\
# How accurate is the model?

Written by `make accuracy`: figures that others measured on devices and published, and ours. No device was
used. How a figure was used for the model determines how much its row proves: a constant was fitted to
`fitted` figures, a rule was read from `read` ones, `same source` figures are other rows of a source that
rules were read from, `never used` figures only check the model.

An error is max(r, 1/r) of the ratio r of ours to the published figure; that of a family is the geometric mean
over its rows. The bias is the geometric mean of r: below 1 the model is too fast. Percentages are compared in
points, and are not part of either.

"""

LEFT_OUT = {
    "scaled products in one instruction, and results that the compiler puts in PSUM": "adamw of NKIBench",
    "the first table load of ScalarE, which the compiler puts at the start of a kernel": "1.3 us on trn2: "
    "the model has it before the first function",
    "the compiler's order of independent instructions": "an engine takes the first one that is ready; "
    "the compiler decides the real order. In nki 0.6.0 it is that of the kernel: the rows of MoE decode",
    "fragmentation of SBUF": "a tile of any size fits while there are enough free bytes: Mamba v2 "
    "spills from 1,024 columns on with half of SBUF free, our model does not",
    "how the compiler splits wide loads and spills": "one transfer each, as in the kernel",
    "depth of DMA queues, prefetch of descriptors, banks and rows of HBM": "transfers start in order, "
    "in unlimited number",
    "collectives at the same time as DMA of a kernel": "their time depends only on hops and bytes; "
    "reduce-scatter and all-to-all are priced like all-reduce, which differs by up to 2 (kiln's notes)",
    "instruction fetch, semaphores as instructions of their own": "free",
    "throttling by temperature or power": "only the clock of the PE array by its own load, on trn2",
    "the cost of profiling": "a profiled run takes 4 to 10 us more (traces), and ranks kernels with hardware "
    "descriptors wrongly",
    "trn3": "no measurement of any kind is published: its rows would be data-sheet rates",
}

TAIL = """\
Numbers without a public source have a range: `nki profile --uncertainty` reports how much
they change a kernel's time. Its interval is widened by what the model leaves out: by 1.3 on trn1 and 1.1 on
trn2, for kernels of the old API by 1.5 and by 1.25: so nine of ten published times of each of these groups
lie within. Where each family of kernels was held out in turn, and the factor chosen by the other families of
its group, 118 of 129 held-out times were covered. `python -m benchmarks.accuracy --covered` counts the
published times within their interval.
"""

FITTED = """\
## Numbers that were fitted

No document gives these numbers: each was chosen so that the model reproduces published figures, so it
proves nothing about those figures. The range is the one that `nki profile --uncertainty` uses.

| number, of trn2 | value | range | on what |
|---|---|---|---|
"""

FACTS = """\
## Single facts

Each fact is something that others measured of a device; a small kernel of ours shows the same thing
(`python -m benchmarks.accuracy --facts`). Where the source gives a range, the ratio is to its nearest end.

"""


class Row(NamedTuple):
    """A figure beside ours."""

    case: Case
    what: str
    unit: str
    published: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.ours / self.published

    def line(self) -> str:
        shown = f"{self.ours - self.published:+.1f} points" if self.unit == "%" else f"{self.ratio:.2f}"
        case, published = self.case, f"{self.published:,g} {self.unit}"
        cells = (case.name, self.what, published, f"{number(self.ours)} {self.unit}", shown, case.target)
        return "| " + " | ".join((*cells, case.use, case.source)) + " |"


def rows(wanted: list[Case], report=lambda what: None) -> list[Row]:
    """Return the figures of all cases, each modelled once."""
    found = []
    for case in wanted:
        report(case.name)
        profile = case.profile()
        found += [Row(case, what, unit, value, read(profile)) for what, unit, value, read in case.figures]
    return found


def error(ratios: list[float]) -> float:
    """Return the geometric mean of max(r, 1/r)."""
    return math.exp(sum(abs(math.log(r)) for r in ratios) / len(ratios))


def bias(ratios: list[float]) -> float:
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios))


def summary(found: list[Row]) -> str:
    """Return the errors by family, platform and use, and by use alone."""
    lines = ["| family | platform | use | rows | error | bias | worst |", "|---" * 7 + "|"]
    groups: dict[tuple, list[float]] = defaultdict(list)
    for row in found:
        if row.unit != "%":
            groups[row.case.family, row.case.target, row.case.use].append(row.ratio)
            groups["all", row.case.target, ""].append(row.ratio)
            groups["all", "", row.case.use].append(row.ratio)
    for (family, target, use), ratios in sorted(groups.items(), key=lambda item: item[0][0] == "all"):
        worst = max(ratios, key=lambda r: abs(math.log(r)))
        cells = (f"{value:.2f}" for value in (error(ratios), bias(ratios), worst))
        lines.append("| " + " | ".join((family, target, use, str(len(ratios)), *cells)) + " |")
    return "\n".join(lines) + "\n\n"


def fitted() -> str:
    """Return the numbers that were chosen so that figures come out, and how far each may be off."""
    machine = find("trn2")
    lines = []
    for field, reason in sorted(ASSUMPTIONS.items()):
        if reason.startswith(("fitted", "inferred")):
            low, high = (plain(end) for end in ends(machine, field))
            lines.append(f"| `{field}` | {plain(getattr(machine, field))} | {low} to {high} | {reason} |")
    return FITTED + "\n".join(lines) + "\n\n"


def left_out() -> str:
    lines = "\n".join(f"| {what} | {change} |" for what, change in LEFT_OUT.items())
    return f"## What the model leaves out\n\n| what | what it would change |\n|---|---|\n{lines}\n\n{TAIL}"


def covered(found: list[Row]) -> str:
    """Return how many times of whole kernels the widening of an interval covers by itself."""
    totals = [
        (row.ratio, row.case.target, row.case.family.endswith("old API"))
        for row in found
        if row.what.startswith("total")
    ]
    inside, count = evidence.covered(totals, public_kernels.SECTION)
    return f"Of {count} times of whole kernels on this page that widening alone covers {inside}.\n"


def plain(value: float | bool) -> str:
    if isinstance(value, bool):
        return ("off", "on")[value]
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def number(value: float) -> str:
    """Four digits, with commas."""
    return f"{value:,.{max(0, 3 - len(str(int(abs(value)))) + 1)}f}"


def page(found: list[Row], missing: list[str]) -> str:
    """Return the page; `missing` are the cases that were not timed for it."""
    head = "| kernel | figure | published | ours | ratio | platform | use | source |\n" + "|---" * 8 + "|\n"
    note = f"Not timed for this page: {'; '.join(missing)}.\n\n" if missing else ""
    table = head + "\n".join(row.line() for row in found) + "\n\n"
    measured = HEAD + summary(found) + "## Kernels\n\n" + table + note
    return (
        measured
        + FACTS
        + facts.table()
        + "\n"
        + public_kernels.SECTION.read_text(encoding="utf-8")
        + fitted()
        + evidence.table()
        + left_out()
        + covered(found)
    )
