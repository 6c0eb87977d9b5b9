"""The numpy executor: the definition of what a program computes.

It passes each instruction the arrays of its operands, and `compute` fills the outputs.
Indirect operands are resolved here, when the instruction runs (spec/tensor.md 7).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.instruction import Instruction
from ...ir.layout import Shape
from ...ir.view import View
from ...machine import dtypes
from .indirect import IndexedRows, accumulate_columns, gather_columns, scalar_shift, scatter_columns
from .memories import Memories


class Executor:
    """Runs instructions of one core, one at a time, in program order."""

    def __init__(self, core: Any, memories: Memories):
        self.core = core
        self.memories = memories

    def __call__(self, instruction: Instruction) -> None:
        access = instruction.access
        if not access.fixed:
            self._run_dynamic(instruction)
            return
        operands = instruction.operands()
        arrays: list[Any] = list(operands)
        memories = self.memories
        for i, widened in access.reads:
            view = operands[i]
            memory = memories[view.storage]
            arrays[i] = memory.read_float32(view) if widened else memory.read(view)
        for i in access.writes:
            view = operands[i]
            arrays[i] = memories[view.storage].write(view)
        if access.accumulates:
            arrays[0], self.core.engine_state.matmul_written = self._accumulate_at(operands[0], instruction)
        self._compute(instruction, arrays)

    def _compute(self, instruction: Instruction, arrays: list[Any]) -> None:
        instruction.compute(*arrays)

    def _run_dynamic(self, instruction: Instruction) -> None:
        """Run an instruction whose operands are not simply read and written whole."""
        operands = instruction.operands()
        arrays: list[Any] = list(operands)
        after = None
        for i, widened in instruction.access.reads:
            view = operands[i]
            memory: Any = self.memories[view.storage]
            if view.indirection is not None:
                arrays[i] = self._read_indirect(view, instruction, widened)
            elif widened:
                arrays[i] = memory.read_float32(view)
            elif instruction.partial:
                arrays[i] = self._in_parts(view, instruction.parts(i))
            else:
                arrays[i] = memory.read(view)
        for i in () if instruction.lazy_output else instruction.write_at:
            view = operands[i]
            if isinstance(view, View):
                if instruction.accumulates:
                    arrays[i], self.core.engine_state.matmul_written, after = self._accumulate(
                        view, instruction
                    )
                elif view.indirection is not None:
                    arrays[i], done = self._write_indirect(view, instruction, arrays[i])
                    after = done or after
                elif instruction.partial and (parts := instruction.parts(i)) is not None:
                    if instruction.zero_fills:
                        self.memories[view.storage].clear_unwritten()
                    arrays[i] = self._in_parts(view, parts, written=True)
                elif 0 in view.strides and view.repeats():
                    arrays[i], after = self._write_repeated(view)
                else:
                    memory = self.memories[view.storage]
                    arrays[i] = memory.write(view)
        self._compute(instruction, arrays)
        if after is not None:
            after()

    def _in_parts(self, view: View, parts: list[View] | None, written: bool = False) -> np.ndarray:
        """Return the array of a view of which only some parts count as read or written."""
        memory = self.memories[view.storage]
        for part in [view] if parts is None else parts:
            memory.write(part) if written else memory.read(part)
        return memory.array(view)

    def _write_repeated(self, view: View) -> tuple[np.ndarray, Any]:
        """Return an array for a view that repeats elements, and what stores the last value of each."""
        memory = self.memories[view.storage]
        once = tuple(
            1 if stride == 0 else count for count, stride in zip(view.shape, view.strides, strict=True)
        )
        target = memory.write(View(view.storage, view.offset, Shape(once), view.strides, view.dtype))
        values = np.empty_like(target, shape=view.shape)
        last = tuple(slice(-size, None) for size in once)
        return values, lambda: target.__setitem__(..., values[last])

    def _read_indirect(self, view: View, instruction: Instruction, widened: bool) -> Any:
        ind = view.indirection
        memory = self.memories[view.storage]
        assert ind is not None
        if ind.kind == "vector":
            return IndexedRows(view, instruction)
        if ind.kind == "tensor":
            columns = gather_columns(view, instruction)
            return dtypes.f32(columns, view.dtype) if widened else columns
        shift = scalar_shift(view, instruction)
        if shift is None:
            return None  # oob_mode.skip: the transfer does not happen
        return memory.read_float32(view, shift) if widened else memory.read(view, shift)

    def _accumulate(self, view: View, instruction: Any) -> tuple[np.ndarray, Any, Any]:
        """Return the array of a matmul's dst, which of it matmuls wrote (None: none), what to do after."""
        if view.indirection is not None and view.indirection.kind == "tensor":
            return accumulate_columns(view, instruction)
        return *self._accumulate_at(self._shifted(view, instruction), instruction), None

    def _accumulate_at(self, view: View, instruction: Any) -> tuple[np.ndarray, Any]:
        memory: Any = self.memories[view.storage]
        written = memory.matmul_written(view)
        if instruction.accumulate and written is not True and not memory.is_written(view):
            written = None
        array = memory.write(view, by_matmul=True)
        memory.set_matmul(view, not instruction.is_transpose)
        return array, written

    @staticmethod
    def _shifted(view: View, instruction: Instruction) -> View:
        """Return the view shifted by its run-time index."""
        if view.indirection is None:
            return view
        shift = scalar_shift(view, instruction)
        assert shift is not None
        return View(
            view.storage, view.offset + shift // view.dtype.itemsize, view.shape, view.strides, view.dtype
        )

    def _write_indirect(self, view: View, instruction: Instruction, read: Any) -> tuple[Any, Any]:
        ind = view.indirection
        memory = self.memories[view.storage]
        assert ind is not None
        if ind.kind == "tensor":
            buffer = read
            if isinstance(read, View):
                buffer = np.empty_like(memory.array(ind.base), shape=view.shape)
            return buffer, lambda: scatter_columns(view, instruction, buffer)
        shift = scalar_shift(view, instruction)
        assert shift is not None
        return memory.write(view, shift), None
