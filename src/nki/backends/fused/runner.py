"""Running a plan on numpy arrays.

Values lie in one array, an arena that the next call of the plan reuses. Instructions that are not part of a
product compute on the arrays of their operands; a fence goes to the numpy executor. If anything is reported
(a warning, an error), the attempt is dropped and the reference backend runs the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ir.instruction import Instruction
from ...ir.layout import Shape
from ...ir.program import Diagnostic, Loop
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType, bfloat16, f32
from ..lowered import Lowered
from ..protocol import ExecutingCore
from ..reference.backend import run_loop
from ..reference.memory import FULL, aligned
from .arrays import pool
from .steps import ARENA, ArrayRef, FusedPlan, GemmStep, InstructionStep, Matrix, OutputRef, PlanStep
from .threads import run_parts


class PlanRunner:
    """Runs one core's part of a plan."""

    def __init__(self, plan: FusedPlan, lowered: Lowered, core: ExecutingCore, threads: int):
        self.plan, self.lowered, self.core = plan, lowered, core
        self.part = plan.cores[core.index]
        self.items = lowered.items[core.index]
        self.memories = core.memories
        self.arena = np.empty(0, np.uint8)
        self.packs = np.empty(0, np.float32)
        self.raws: dict[int, np.ndarray] = {}
        self.threads = threads

    def run(self) -> None:
        self.arena, packs = pool.take(self.part.arena), pool.take(self.part.packed)
        self.packs = packs[: packs.size // 4 * 4].view(np.float32)
        steps, pending = self.part.steps, self._diagnostics()
        self.raws[ARENA] = self.arena
        try:
            self._report(pending, 0, steps)
            for number, step in enumerate(steps):
                if isinstance(step, GemmStep):
                    self._gemm(step)
                elif step.kind == "fence":
                    self._fence(step)
                    self._report(pending, number + 1, steps)
                else:
                    self._instruction(step)
        finally:
            self.core.instruction = None
            for array in (self.arena, packs):
                pool.give_back(array)

    # ---- memory ----------------------------------------------------------------------------------

    def open_results(self) -> None:
        """Mark the write-once results as written: the run does not track which elements are."""
        for number, views in self.plan.results:
            storage = self.lowered.storages[number]
            memory = self.memories[storage]
            if views is not None:
                for offset, shape, strides in views:
                    memory.write(View(storage, offset, Shape(shape), strides, storage.dtype))
            else:
                if memory.borrowed:
                    memory.raw, memory.borrowed = aligned(storage.nbytes), False
                    memory.arrays.clear()
                memory.state, memory.map, memory.changed = FULL, None, True

    def array(self, ref: ArrayRef) -> np.ndarray:
        storage, offset, shape, strides, dtype = ref
        raw = self.raws.get(storage)
        if raw is None:
            raw = self.raws[storage] = self.memories[self.lowered.storages[storage]].raw
        return np.ndarray(shape, dtype.storage, raw, offset, strides)

    # ---- diagnostics -----------------------------------------------------------------------------

    def _diagnostics(self) -> list[Diagnostic]:
        """Return what to report before an instruction that is in no loop, in order."""
        if not self.lowered.diagnostics:
            return []
        return [d for step in self.lowered.cores[self.core.index] for d in step.diagnostics]

    def _report(self, pending: list[Diagnostic], number: int, steps: Sequence[PlanStep]) -> None:
        """Report everything that comes before the end of the next fence."""
        if not pending:
            return
        fence = next(
            (s for s in steps[number:] if isinstance(s, InstructionStep) and s.kind == "fence"), None
        )
        while pending and (fence is None or pending[0].before <= fence.position):  # type: ignore[operator]
            self.core.execution.diagnostics.report(pending.pop(0))

    # ---- steps -----------------------------------------------------------------------------------

    def _fence(self, step: InstructionStep) -> None:
        core, item = self.core, self.items[step.item]
        self.raws = {ARENA: self.arena}
        if isinstance(item, Loop):
            run_loop(core, self.lowered.cores[core.index][step.item].item)  # type: ignore[arg-type]
        else:
            core.instruction = item
            core.executor(item)

    def _instruction(self, step: InstructionStep) -> None:
        if step.kind == "gather":
            for target, source in step.parts:
                _copy_bits(self.array(target), self.array(source))
            return
        instruction = self.items[step.item]
        assert not isinstance(instruction, Loop)
        self.core.instruction = instruction
        if step.kind == "memory":
            self.core.executor(instruction)
        elif step.kind == "move":
            self._move(step, instruction)
        else:
            self._compute(step, instruction)

    def _move(self, step: InstructionStep, instruction: Instruction) -> None:
        operands = instruction.operands()
        ((index, source),) = step.reads
        src = self._input(source, operands[index], False)
        if step.order == "transpose":
            src = src.reshape(src.shape[0], -1).T
        elif step.order is not None:
            src = src.transpose(step.order)
        target, dtype = operands[0].dtype, operands[index].dtype
        dst = self._output(step.outputs[0], operands[0])
        src = src if src.shape == dst.shape else src.reshape(dst.shape)
        if target is dtype:
            _copy_bits(dst, src)
        else:
            dtypes.store(dst, f32(src, dtype), target)

    def _input(self, source: ArrayRef | None, view: View, widened: bool) -> np.ndarray:
        if source is not None:
            array = self.array(source)
            return f32(array, source.dtype) if widened else array
        memory = self.memories[view.storage]
        return memory.read_float32(view) if widened else memory.read(view)  # type: ignore[no-any-return]

    def _output(self, output: OutputRef, view: View) -> np.ndarray:
        if output.target is not None:
            return self.array(output.target)
        return self.memories[view.storage].write(view)  # type: ignore[no-any-return]

    def _compute(self, step: InstructionStep, instruction: Instruction) -> None:
        operands = instruction.operands()
        arrays: list[Any] = list(operands)
        written: Any = step.written
        for (i, source), (_, widened) in zip(step.reads, instruction.access.reads, strict=True):
            arrays[i] = self._input(source, operands[i], widened)
        for output in step.outputs:
            i = output.number
            if instruction.accumulates and output.target is None:
                arrays[i], written = self.core.executor._accumulate_at(operands[i], instruction)
            else:
                old = None if output.before is None else self.array(output.before)
                arrays[i] = self._output(output, operands[i])
                if old is not None:
                    _copy_bits(arrays[i], old)
        if instruction.accumulates:
            self.core.engine_state.matmul_written = written
        instruction.compute(*arrays)

    # ---- products --------------------------------------------------------------------------------

    def _gemm(self, product: GemmStep) -> None:
        left, packing = self._matrix(product.left, 0)
        right, more = self._matrix(product.right, product.left.nbytes // 4)
        run_parts([*packing, *more], self.threads)
        if product.target is not None:
            out = self.array(product.target)
        else:
            shape = product.left.columns, product.right.columns
            out = np.ndarray(shape, np.float32, self.arena, product.result)
        run_parts(_blocks(left.T, right, out), self.threads)
        for row, rows, column, columns, ref in product.copies:
            target = self.array(ref)
            target[...] = out[row : row + rows, column : column + columns].reshape(target.shape)

    def _matrix(self, factor: Matrix, at: int) -> tuple[np.ndarray, list[Callable[[], None]]]:
        """Return a factor, and the functions that pack it."""
        if factor.view is not None:
            return self.array(factor.view), []
        size = factor.rows * factor.columns
        if factor.transposed:
            packed = self.packs[at : at + size].reshape(factor.columns, factor.rows).T
        else:
            packed = self.packs[at : at + size].reshape(factor.rows, factor.columns)
        parts: list[Callable[[], None]] = []
        for row, step, rows, column, columns, source in factor.tiles:
            target = packed[row : row + step * rows : step, column : column + columns]
            parts.append(partial(widen, target, self.array(source).reshape(target.shape), source.dtype))
        return packed, parts


BLOCK = 1024  # rows and columns of a result that one thread works on


def _blocks(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> list[Callable[[], None]]:
    """Return functions that compute left @ right block by block; the blocks depend on its size alone."""
    rows, columns = _cuts(out.shape[0]), _cuts(out.shape[1])
    return [partial(np.matmul, left[r], right[:, c], out=out[r, c]) for c in columns for r in rows]


def _cuts(size: int) -> list[slice]:
    count = max(1, -(-size // BLOCK))
    step = -(-size // count)
    step += -step % 16
    return [slice(start, min(size, start + step)) for start in range(0, size, step)]


def widen(target: np.ndarray, source: np.ndarray, dtype: DType) -> None:
    """Write source to target as float32."""
    if dtype is bfloat16 and source.strides[-1] != 2 and target.strides[-1] == 4:
        wide = target.view(np.uint32)  # element by element the package for bfloat16 is four times slower
        wide[...] = source.view(np.uint16)
        wide <<= np.uint32(16)
    else:
        target[...] = source if dtype.itemsize > 1 else f32(source, dtype)


def _copy_bits(target: np.ndarray, source: np.ndarray) -> None:
    source = source if source.shape == target.shape else source.reshape(target.shape)
    if target.dtype.kind == "V":
        dtypes.bits(target)[...] = dtypes.bits(source)
    else:
        target[...] = source
