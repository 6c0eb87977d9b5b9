"""What `nl` offers and no engine has as one instruction: exact float32 results at the price of a compiler's.

Not exported: `nki.language` issues it for nl.divide, nl.floor, nl.cos and their kind (spec/language.md 13).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.context import warn
from ..ir.instruction import Instruction, InstructionCost, NkiInstruction, Operand, Out
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import activations as special
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.operators import Operator
from ..typing import OperatorLike, TileOrNumber
from . import rules
from .enums import VECTOR
from .numerics import column, emit, shaped

# nl.sin and its kind reduce their argument first; the formulas of the tokens are ScalarE's
_REDUCED = {"sin": special.sin, "cos": special.cos, "tan": special.tan}

# passes over the tile, and reciprocals among them, of the instructions a compiler would emit
_PASSES = {"divide": (1, 1), "mod": (4, 1), "fmod": (4, 1), "tan": (7, 1), "sin": (3, 0), "cos": (3, 0)}


def function(
    dst: NkiTensor, op: OperatorLike, x: TileOrNumber, y: TileOrNumber | None = None, name: str | None = None
) -> NkiInstruction:
    """dst = op(x) or op(x, y) in float32; x and y are tiles like dst, [P, 1] tiles or numbers."""
    return issue(Function(dst, x, y, op, name))


class Function(Instruction):
    engines = (VECTOR,)
    cost_formula = "passes x N + reciprocals x the cost of nisa.reciprocal"
    cost_source = "assumed: the instructions a compiler would emit"

    dst: Out
    x: Operand
    y: Operand
    op: Operator

    @property
    def public(self) -> str:  # type: ignore[override]
        return self.op.name

    def check(self, machine: Machine) -> None:
        rules.castable(self, "dst", "x", "y")
        rules.not_both_psum(self, "x", "y")
        for name in ("x", "y"):
            view = getattr(self, name)
            if isinstance(view, View) and view.free_elements != 1:
                rules.matching(self, "dst", name)
            else:
                rules.column(self, name, like="dst")

    def compute(self, dst: np.ndarray, x: Any, y: Any) -> None:
        formula = _REDUCED.get(self.op.name, self.op.formula)
        operands = [self._values(a, v, dst) for a, v in ((x, self.x), (y, self.y)) if v is not None]
        if self.op.name == "arctan":
            self._warn_outside(operands[0])
        emit(dst, self.dst.dtype, formula, *operands)

    @staticmethod
    def _values(array: Any, view: Any, dst: np.ndarray) -> Any:
        """float32 values that broadcast against dst."""
        if not isinstance(view, View) or view.free_elements == 1:
            return column(array, view, dst.ndim)
        return f32(shaped(array, dst), view.dtype)

    def _warn_outside(self, x: np.ndarray) -> None:
        outside = special.outside_valid_range("arctan", x)
        if outside is not None:
            warn(
                "activation-range",
                f"arctan: {float(outside.flat[0]):g} lies outside [-pi/2, pi/2], where hardware is accurate",
                notes=[f"x: {self.x.describe()}"],
                help="for abs(x) > 1 use pi/2 - arctan(1/x), with the sign of x",
            )

    def cost(self, m: Machine) -> InstructionCost:
        passes, reciprocals = _PASSES.get(self.op.name, (2, 0))
        rate = passes * m.vector_one_input + reciprocals * m.vector_reciprocal
        n = self.dst.free_elements
        return InstructionCost(
            rate * n, m.fix_vector_ns, ("vector_one_input", "vector_reciprocal"), m.min_ii_cycles
        )
