"""A page of `nki explain`: what a kind of error or warning means, a wrong kernel and a right one."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

PRELUDE = """\
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl
"""

KERNEL = """\
@nki.jit
def kernel(x):  # float32[128, 512]
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
{lines}
    nisa.dma_copy(out, tile)
    return out

kernel(np.ones((128, 512), np.float32))
"""


@dataclass(frozen=True)
class Page:
    """`wrong` and `right` are the lines that matter of a kernel that loads x and stores out.

    Code that speaks of a kernel itself is whole. A page without code is about something that no kernel shows.
    """

    meaning: str
    wrong: str = ""
    right: str = ""
    target: str = "trn2"

    @property
    def wrong_code(self) -> str:
        return code(self.wrong)

    @property
    def right_code(self) -> str:
        return code(self.right)


def code(lines: str) -> str:
    """The whole program of a sample, without its imports."""
    lines = textwrap.dedent(lines).strip("\n")
    if not lines or "kernel" in lines:
        return lines + "\n" if lines else ""
    return KERNEL.format(lines=textwrap.indent(lines, "    "))
