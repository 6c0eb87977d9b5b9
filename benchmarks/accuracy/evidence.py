"""Which published times of whole kernels the page has, and why it has not the others."""

import re
from pathlib import Path

from nki.timing.uncertainty import SPREAD

HEAD = """\
## Published times, by source

| rows of the sources | platform | here |
|---|---|---|
"""

WHOLE_KERNELS = (  # ids of the collection of public figures, platform, where they are or why not
    (
        "F01 to F08, traces of attention",
        "trn2",
        "rows attention 512 and 1024; engines and opcodes in compiler.md",
    ),
    ("N29 to N36, kiln's MoE decode", "trn1", "rows MoE decode"),
    (
        "N49 to N54, kiln's MoE prefill",
        "trn1",
        "not modelled: which tiles it works on depends on the routing of tokens at run time; "
        "B31 to B38 are its parts",
    ),
    (
        "N60, kiln's mixers and FFN",
        "trn1",
        "not kernels: XLA graphs that stream weights at half the rate of B23",
    ),
    ("N76, kiln's core passes of MoE", "trn1", "not modelled: a part of a kernel; its instruction is B31"),
    (
        "N81, kiln's KDA decode",
        "trn1",
        "not modelled: host's clock, and 0.14 ms of the least time is the launch (B39); "
        "that float32 takes four passes is B46",
    ),
    (
        "N84, N85, splits of work and of loads in MoE prefill",
        "trn1",
        "as N49; what a load costs its trigger is B34",
    ),
    (
        "P01 to P05, pantheonneuron's bf16 matmuls",
        "trn1",
        "not modelled: rates over seconds, in which the limit of power is at 0.77 (B21); "
        "the model is of one launch",
    ),
    ("P06, the same by XLA", "trn1", "not a kernel"),
)


def table() -> str:
    """Return what became of each published time of a whole kernel."""
    lines = (f"| {rows} | {platform} | {what} |\n" for rows, platform, what in WHOLE_KERNELS)
    return HEAD + "".join(lines) + "\n"


def covered(ratios: list[tuple[float, str, bool]], section: Path) -> tuple[int, int]:
    """Return how many times lie within what an interval is widened by, and how many there are.

    A ratio comes with its platform, and whether the compiler transforms the kernel. Those of the section of
    public kernels, all of the old API, are counted too.
    """
    rows = re.findall(r"\| ([0-9.]+) \| (trn\d) \|", section.read_text(encoding="utf-8"))
    every = [*ratios, *((float(ratio), platform, True) for ratio, platform in rows)]
    inside = [max(r, 1 / r) <= SPREAD[platform][transformed] for r, platform, transformed in every]
    return sum(inside), len(every)
