"""What the instructions of a core share beside memory. `compute` finds it as `current().engine_state`."""

from __future__ import annotations

import numpy as np


class Accumulators:
    """The accumulator registers of one engine. Lane i holds the value of partition i of an operand."""

    __slots__ = ("values", "defined", "user")

    def __init__(self, values: np.ndarray, defined: int = 0, user: str = ""):
        self.values = values
        self.defined = defined  # the first lanes, which hold a value
        self.user = user  # the instruction that began or continued the chain

    def copy(self) -> Accumulators:
        return Accumulators(self.values.copy(), self.defined, self.user)


class EngineState:
    """The accumulator registers of VectorE and ScalarE, and what the executor found in PSUM."""

    __slots__ = ("vector", "scalar", "matmul_written")

    def __init__(self, lanes: int):
        self.vector = Accumulators(np.full(lanes, np.nan, np.float32))
        self.scalar = Accumulators(np.full(lanes, np.nan, np.float32))
        # Which elements of an `Accumulated` dst matmuls wrote before: a mask, or True or False where all
        # agree. None: `accumulate` asks for a sum, and nothing wrote some of them.
        self.matmul_written: np.ndarray | bool | None = False

    def copy(self) -> EngineState:
        found = EngineState(0)
        found.vector, found.scalar = self.vector.copy(), self.scalar.copy()
        found.matmul_written = self.matmul_written
        return found
