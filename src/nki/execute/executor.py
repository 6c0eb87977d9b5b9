"""The numpy executor: the definition of what a program computes.

It hands each instruction the arrays of its operands and lets `compute` fill the outputs.
Indirect operands are resolved here, when the instruction runs (tensor.md 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import error
from ..program import Instruction
from ..view import View
from .indirect import Rows, gather_columns, scalar_shift, scatter_columns

if TYPE_CHECKING:
    from ..core import Core


class Executor:
    """A sink that runs every instruction at once, in program order."""

    def __init__(self, core: Core):
        self.core = core

    def __call__(self, instruction: Instruction) -> None:
        operands = instruction.operands()
        arrays: list[Any] = list(operands)
        after = None
        for i in instruction.read_at:
            view = operands[i]
            if isinstance(view, View):
                if view.indirection is not None:
                    arrays[i] = self._read_indirect(view, instruction)
                elif i in instruction.widened:
                    arrays[i] = view.storage.memory.read_float32(view)
                else:
                    arrays[i] = view.storage.memory.read(view)
        for i in instruction.write_at:
            view = operands[i]
            if isinstance(view, View):
                if view.indirection is not None:
                    arrays[i], done = self._write_indirect(view, instruction, arrays[i])
                    after = done or after
                elif instruction.accumulates:
                    memory = view.storage.memory
                    arrays.append(memory.matmul_written(view))
                    arrays[i] = memory.write(view, by_matmul=True)
                    memory.set_matmul(view, not instruction.is_transpose)
                else:
                    arrays[i] = view.storage.memory.write(view)
        if instruction.stateful:
            instruction.compute(self.core, *arrays)
        else:
            instruction.compute(*arrays)
        if after is not None:
            after()

    def _read_indirect(self, view: View, instruction: Instruction) -> Any:
        ind = view.indirection
        memory = view.storage.memory
        assert ind is not None and memory is not None
        if ind.kind == "vector":
            return Rows(view, memory, instruction)
        if ind.kind == "tensor":
            return gather_columns(view, memory, instruction)
        shift = scalar_shift(view, instruction)
        if shift is None:
            return None  # oob_mode.skip: the transfer does not happen
        array = memory.read(view, shift)
        if view.dtype.castable and self._wants_float32(view, instruction):
            return memory.read_float32(view, shift)
        return array

    @staticmethod
    def _wants_float32(view: View, instruction: Instruction) -> bool:
        return any(instruction.operands()[i] is view for i in instruction.widened)

    def _write_indirect(self, view: View, instruction: Instruction, read: Any) -> tuple[Any, Any]:
        ind = view.indirection
        memory = view.storage.memory
        assert ind is not None and memory is not None
        if ind.kind == "vector":
            return Rows(view, memory, instruction), None
        if ind.kind == "tensor":
            buffer = np.empty(view.shape, view.dtype.storage) if isinstance(read, View) else read
            return buffer, lambda: scatter_columns(view, memory, instruction, buffer)
        shift = scalar_shift(view, instruction)
        if shift is None:
            return None, None
        return memory.write(view, shift), None


def placeholder(view: View) -> Exception:
    return error("placeholder", "this tensor has no data behind it", notes=[view.describe()])
