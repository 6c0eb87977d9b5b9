"""Running a plan on numpy arrays.

Values lie in one array, an arena that the next call of the plan uses again. What is no product is computed by
the instruction itself, on the arrays of its operands; a fence goes to the numpy executor. If anything is
reported (a warning, an error), the attempt is dropped and the reference backend runs the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...ir.layout import Shape
from ...ir.program import Diagnostic, Loop, Program, walk
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType, bfloat16, f32
from ..reference.memory import FULL, aligned
from ..reference.prepared import prepare
from .arrays import pool
from .steps import ARENA, Made, Matrix, Plan, Product, Spot, Step, Work
from .threads import together


class Runner:
    """Runs one core's part of a plan."""

    def __init__(self, plan: Plan, program: Program, core: Any, threads: int):
        self.plan, self.program, self.core = plan, program, core
        self.part = plan.cores[core.index]
        self.items = program.cores[core.index]
        self.memories = core.memories
        self.arena = np.empty(0, np.uint8)
        self.packs = np.empty(0, np.float32)
        self.raws: dict[int, np.ndarray] = {}
        self.threads = threads

    def run(self) -> None:
        self.arena, packs = pool.take(self.part.arena), pool.take(self.part.packed)
        self.packs = packs[: packs.size // 4 * 4].view(np.float32)
        steps, said = self.part.steps, self._said()
        self.raws[ARENA] = self.arena
        try:
            self._say(said, 0, steps)
            for number, step in enumerate(steps):
                if isinstance(step, Product):
                    self._product(step)
                elif step.kind == "fence":
                    self._fence(step)
                    self._say(said, number + 1, steps)
                else:
                    self._work(step)
        finally:
            self.core.instruction = None
            for array in (self.arena, packs):
                pool.give_back(array)

    # ---- memory ----------------------------------------------------------------------------------

    def open_results(self) -> None:
        """Memory that is written once everywhere: nobody asks on the way what of it is written."""
        for number, views in self.plan.results:
            storage = self.program.storages[number]
            memory = self.memories[storage]
            if views is not None:
                for offset, shape, strides in views:
                    memory.write(View(storage, offset, Shape(shape), strides, storage.dtype))
            else:
                if memory.borrowed:
                    memory.raw, memory.borrowed = aligned(storage.nbytes), False
                    memory.arrays.clear()
                memory.state, memory.map, memory.changed = FULL, None, True

    def array(self, spot: Spot) -> np.ndarray:
        storage, offset, shape, strides, dtype = spot
        raw = self.raws.get(storage)
        if raw is None:
            raw = self.raws[storage] = self.memories[self.program.storages[storage]].raw
        return np.ndarray(shape, dtype.storage, raw, offset, strides)

    # ---- what the kernel's Python said -----------------------------------------------------------

    def _said(self) -> list[Diagnostic]:
        """What is to be said before an instruction that stands in no loop."""
        index = self.core.index
        found: dict[int | None, list[Diagnostic]] = {
            d.before: [] for d in self.program.said if d.core == index
        }
        if not found:
            return []
        for diagnostic in self.program.said:
            if diagnostic.core == index:
                found[diagnostic.before].append(diagnostic)
        position, ordered = 0, []
        for item in self.program.cores[index]:
            if isinstance(item, Loop):
                position += sum(1 for _ in walk(item.body))
            else:
                ordered += found.get(position, [])
                position += 1
        return ordered

    def _say(self, said: list[Diagnostic], number: int, steps: Sequence[Step]) -> None:
        """Say all that comes before the next fence is over."""
        if not said:
            return
        fence = next((s for s in steps[number:] if s.__class__ is Work and s.kind == "fence"), None)
        while said and (fence is None or said[0].before <= fence.position):  # type: ignore[operator]
            self.core.execution.diagnostics.report(said.pop(0))

    # ---- steps -----------------------------------------------------------------------------------

    def _fence(self, work: Work) -> None:
        core, item = self.core, self.items[work.item]
        self.raws = {ARENA: self.arena}
        if isinstance(item, Loop):
            prepared = prepare(self.program)
            step = next(s for s in prepared.cores[core.index] if _is(s.item, item))
            prepared._repeat(core, step.item)  # type: ignore[arg-type]
        else:
            core.instruction = item
            core.executor(item)

    def _work(self, work: Work) -> None:
        if work.kind == "gather":
            for target, source in work.parts:
                _copy_bits(self.array(target), self.array(source))
            return
        instruction = self.core.instruction = self.items[work.item]
        if work.kind == "memory":
            self.core.executor(instruction)
        elif work.kind == "move":
            self._move(work, instruction)
        else:
            self._compute(work, instruction)

    def _move(self, work: Work, instruction: Any) -> None:
        operands = instruction.operands()
        ((index, source),) = work.reads
        src = self._input(source, operands[index], False)
        if work.order == "transpose":
            src = src.reshape(src.shape[0], -1).T
        elif work.order is not None:
            src = src.transpose(work.order)
        target, dtype = operands[0].dtype, operands[index].dtype
        dst = self._output(work.outs[0], operands[0])
        src = src if src.shape == dst.shape else src.reshape(dst.shape)
        if target is dtype:
            _copy_bits(dst, src)
        else:
            dtypes.store(dst, f32(src, dtype), target)

    def _input(self, source: Spot | None, view: View, widened: bool) -> np.ndarray:
        if source is not None:
            array = self.array(source)
            return f32(array, source.dtype) if widened else array
        memory = self.memories[view.storage]
        return memory.read_float32(view) if widened else memory.read(view)  # type: ignore[no-any-return]

    def _output(self, made: Made, view: View) -> np.ndarray:
        if made.target is not None:
            return self.array(made.target)
        return self.memories[view.storage].write(view)  # type: ignore[no-any-return]

    def _compute(self, work: Work, instruction: Any) -> None:
        operands = instruction.operands()
        arrays: list[Any] = list(operands)
        written: Any = work.written
        for (i, source), (_, widened) in zip(work.reads, instruction.access.reads, strict=True):
            arrays[i] = self._input(source, operands[i], widened)
        for made in work.outs:
            i = made.number
            if instruction.accumulates and made.target is None:
                arrays[i], written = self.core.executor._accumulate_at(operands[i], instruction)
            else:
                old = None if made.before is None else self.array(made.before)
                arrays[i] = self._output(made, operands[i])
                if old is not None:
                    _copy_bits(arrays[i], old)
        if instruction.accumulates:
            self.core.engine_state.matmul_written = written
        instruction.compute(*arrays)

    # ---- products --------------------------------------------------------------------------------

    def _product(self, product: Product) -> None:
        left, packing = self._matrix(product.left, 0)
        right, more = self._matrix(product.right, product.left.nbytes // 4)
        together([*packing, *more], self.threads)
        if product.target is not None:
            out = self.array(product.target)
        else:
            shape = product.left.columns, product.right.columns
            out = np.ndarray(shape, np.float32, self.arena, product.result)
        together(_blocks(left.T, right, out), self.threads)
        for row, rows, column, columns, spot in product.copies:
            target = self.array(spot)
            target[...] = out[row : row + rows, column : column + columns].reshape(target.shape)

    def _matrix(self, factor: Matrix, at: int) -> tuple[np.ndarray, list[Callable[[], None]]]:
        """A factor, and what is to be done before it holds its numbers."""
        if factor.there is not None:
            return self.array(factor.there), []
        size = factor.rows * factor.columns
        if factor.turned:
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
    """left @ right in parts, cut by its size alone."""
    rows, columns = _cuts(out.shape[0]), _cuts(out.shape[1])
    return [partial(np.matmul, left[r], right[:, c], out=out[r, c]) for c in columns for r in rows]


def _cuts(size: int) -> list[slice]:
    count = max(1, -(-size // BLOCK))
    step = -(-size // count)
    step += -step % 16
    return [slice(start, min(size, start + step)) for start in range(0, size, step)]


def widen(target: np.ndarray, source: np.ndarray, dtype: DType) -> None:
    """target = source as float32."""
    if dtype is bfloat16 and source.strides[-1] != 2 and target.strides[-1] == 4:
        wide = target.view(np.uint32)  # element by element the package for bfloat16 takes four times as long
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


def _is(prepared: object, loop: Loop) -> bool:
    return getattr(prepared, "loop", None) is loop


__all__ = ["Runner"]
