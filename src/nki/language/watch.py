"""Watching values while a program runs: warnings of `nl` functions that depend on the data."""

from __future__ import annotations

import numpy as np

from ..ir.context import warn
from ..ir.instruction import In, Instruction, InstructionCost, State
from ..machine import dtypes
from ..machine.machine import Machine

EXACT_IN_FLOAT32 = 1 << 24
INTEGERS = (dtypes.int32, dtypes.uint32)


class WatchIntegers(Instruction):
    """Not an instruction of the hardware: warns when 32-bit integers meet float32 arithmetic."""

    public = "watch_integers"
    reaches_hbm = True
    simulator_only = True
    state = (State.output,)
    cost_formula = "0"
    cost_source = "not on hardware"

    function: str
    tile: In
    number: int  # the largest integer beside the tile

    def compute(self, tile: np.ndarray) -> None:
        largest = max(self.number, int(tile.max()), -int(tile.min()))
        if largest > EXACT_IN_FLOAT32:
            warn(
                "int-precision",
                f"{self.function}: the integer {largest} exceeds 2^24, where float32 arithmetic loses bits",
                notes=[self.tile.describe()],
                help="hardware computes most integer arithmetic in float32; split words into 16-bit halves",
            )

    def cost(self, machine: Machine) -> InstructionCost:
        return InstructionCost(0, 0.0)
