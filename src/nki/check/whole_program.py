"""The checks of a whole Program: races, products in PSUM that go on, more live at once than fits."""

from __future__ import annotations

from ..ir.caches import per_program
from ..ir.items import Diagnostic
from ..ir.program import Program
from ..options import Options
from .capacity import capacity
from .psum import continued_products
from .races import races


def findings(program: Program, options: Options) -> tuple[Diagnostic, ...]:
    """Return the diagnostics that only the whole program shows."""
    return _findings(program, options.reserve_psum_bank)


@per_program
def _findings(program: Program, reserve_psum_bank: bool) -> tuple[Diagnostic, ...]:
    return (*races(program), *continued_products(program), *capacity(program, reserve_psum_bank))
