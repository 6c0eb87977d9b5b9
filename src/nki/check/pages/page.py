"""A page of `nki explain`: what a kind of error or warning means, a wrong kernel and a right one."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

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


_PART = re.compile(r"^```python (wrong|right)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read_pages(file: Path) -> dict[str, Page]:
    """Read the pages of a Markdown file: a heading is a kind, and code blocks are marked wrong or right."""
    _, *parts = re.split(r"^## (.+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {kind: _read_page(text) for kind, text in zip(parts[::2], parts[1::2], strict=True)}


def _read_page(text: str) -> Page:
    samples = {label: lines for label, lines in _PART.findall(text)}
    target, prose = "trn2", _PART.sub("", text)
    named = re.search(r"^Target: (\w+)$", prose, re.MULTILINE)
    if named is not None:
        target, prose = named[1], prose.replace(named[0], "")
    return Page(" ".join(prose.split()), samples.get("wrong", ""), samples.get("right", ""), target)


def code(lines: str) -> str:
    """The whole program of a sample, without its imports."""
    lines = textwrap.dedent(lines).strip("\n")
    if not lines or "kernel" in lines:
        return lines + "\n" if lines else ""
    return KERNEL.format(lines=textwrap.indent(lines, "    "))
