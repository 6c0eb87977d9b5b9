"""What is wrong with a Program as a whole: races between its cores, more live at once than fits."""

from __future__ import annotations

from ..ir.program import Diagnostic, Program
from ..options import Options
from .capacity import capacity
from .races import races


def findings(program: Program, options: Options) -> tuple[Diagnostic, ...]:
    """All that only the whole program shows. A program never changes: it is asked once."""
    known = program.__dict__.setdefault("_findings", {})
    if options.reserve_psum_bank not in known:
        known[options.reserve_psum_bank] = (*races(program), *capacity(program, options.reserve_psum_bank))
    return known[options.reserve_psum_bank]
