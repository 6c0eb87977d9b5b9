"""Running a plan on numpy arrays.

Values lie in one array, an arena that the next call of the plan reuses. Instructions that are not part of a
product compute on the arrays of their operands; a fence goes to the numpy executor. If anything is reported
(a warning, an error), the attempt is dropped and the reference backend runs the program.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np

from ...ir.context import activate
from ...ir.instruction import Instruction
from ...ir.layout import Shape
from ...ir.program import Diagnostic, Loop
from ...ir.storage import Storage
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType, bfloat16, f32
from ..lowered import Lowered
from ..protocol import ExecutingCore
from ..reference.backend import run_loop
from ..reference.memory import FULL, Memory, aligned
from .arrays import pool
from .blocks import blocks
from .steps import (
    ARENA,
    COMMON,
    MAX_PACKED,
    REGION,
    ArrayRef,
    FusedPlan,
    GemmStep,
    InstructionStep,
    Matrix,
    PackStep,
    ParallelSteps,
    PlanStep,
    RepeatedUnit,
)
from .threads import run_parts

CHAIN_THREADS = 4  # more of them would wait for the interpreter's lock
MIN_TILE = 1 << 18  # bytes; to pack smaller tiles is no work for several threads


class Diagnosed(Exception):
    """An instruction reports a diagnostic about values: the reference reports it, with lines."""


class ChainCore:
    """What the instructions of a chain may use of their core: accumulator registers of its own."""

    pending_warnings: list[tuple] | None = None
    instruction = None

    def __init__(self, core: ExecutingCore):
        self.machine, self.index, self.execution = core.machine, core.index, core.execution
        self.engine_state = core.engine_state.copy()

    def diagnose(self, *_: object) -> None:
        raise Diagnosed


class PlanRunner:
    """Runs one core's part of a plan."""

    def __init__(self, plan: FusedPlan, lowered: Lowered, core: ExecutingCore, threads: int):
        self.plan, self.lowered, self.core = plan, lowered, core
        self.part = plan.cores[core.index]
        self.items = lowered.items[core.index]
        self.memories: MutableMapping[Storage, Memory] = core.memories
        self.arena = np.empty(0, np.uint8)
        self.packs = np.empty(0, np.float32)
        self.raws: dict[int, np.ndarray] = {}
        self.threads = threads

    def run(self) -> None:
        """Run the steps, and then the units."""
        pending = self._diagnostics()
        with self._memory():
            self._report(pending, 0, self.part.steps)
            self._steps(pending)
            if self.part.units:
                self._units()

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """Hold an arena and memory for packed factors."""
        self.arena, packs = pool.take(self.part.arena), pool.take(self.part.packed)
        self.packs = packs[: packs.size // 4 * 4].view(np.float32)
        self.raws[ARENA] = self.arena
        try:
            yield
        finally:
            self.core.instruction = None
            for array in (self.arena, packs):
                pool.give_back(array)

    def _steps(self, pending: list[Diagnostic]) -> None:
        steps = self.part.steps
        done = 0  # by the chains
        for number, step in enumerate(steps):
            if number in self.part.chains:
                done = self._chains(number, self.part.chains[number])
            if number < done:
                continue
            if isinstance(step, GemmStep):
                self._gemm(step, self.packs)
            elif isinstance(step, PackStep):
                run_parts(self._packing(step.factor, self.array(step.target)), self.threads)
            elif step.kind == "fence":
                self._fence(step)
                self._report(pending, number + 1, steps)
            else:
                self._instruction(step)

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
            raw = self._raw(storage)
        return np.ndarray(shape, dtype.storage, raw, offset, strides)

    def _raw(self, storage: int) -> np.ndarray:
        raw = self.raws.get(storage)
        if raw is None:
            raw = self.raws[storage] = self.memories[self.lowered.storages[storage]].raw
        return raw

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

    def _chains(self, first: int, parallel: ParallelSteps) -> int:
        """Run chains on all threads; return the number of the next step."""
        for storage in parallel.storages:
            self._raw(storage)  # no two threads look up the same memory for the first time
        starts = (first, *parallel.ends)
        runners = [self._for_chain() for _ in parallel.ends]
        parts = [partial(PlanRunner._chain, *chain) for chain in zip(runners, pairwise(starts), strict=True)]
        run_parts(parts, min(self.threads, CHAIN_THREADS))
        for which, last in parallel.registers:
            setattr(self.core.engine_state, which, getattr(runners[last].core.engine_state, which))
        return starts[-1]

    def _for_chain(self) -> PlanRunner:
        """Return a runner with registers and a region of its own."""
        found = copy(self)
        found.core = cast("ExecutingCore", ChainCore(self.core))  # all that a chain needs of it
        found.raws, found.threads = self.raws.copy(), 1
        return found

    def _units(self) -> None:
        """Run all repetitions of all units; threads share them."""
        runners = [[self._for_unit(unit, shifts) for shifts in unit.shifts] for unit in self.part.units]
        parts = [partial(PlanRunner._unit, runner) for some in runners for runner in some]
        threads = min(self.threads, CHAIN_THREADS, len(parts))
        for runner in chain.from_iterable(runners):
            runner.threads = self.threads // threads
        run_parts(parts, threads)
        for which, unit, last in self.part.registers:
            setattr(self.core.engine_state, which, getattr(runners[unit][last].core.engine_state, which))

    def _for_unit(self, unit: RepeatedUnit, shifts: dict[int, int]) -> PlanRunner:
        """Return a runner of one repetition: its arrays in HBM are moved, and tiles have their own memory."""
        found = self._for_chain()
        found.part = unit.plan
        found.raws[COMMON] = self.arena
        tiles = [self.lowered.storages[number] for number in unit.tiles]
        found.memories = ChainMap({tile: Memory(tile) for tile in tiles}, self.memories)
        for storage, shift in shifts.items():
            found.raws[storage] = self._raw(storage)[shift:]
        return found

    def _unit(self) -> None:
        before = activate(self.core)
        try:
            with self._memory():
                self._steps([])
        finally:
            activate(before)

    def _chain(self, limits: tuple[int, int]) -> None:
        before = activate(self.core)
        region = self.raws[REGION] = pool.take(self.part.region)
        try:
            for step in self.part.steps[slice(*limits)]:
                if isinstance(step, GemmStep):
                    self._small_gemm(step)
                elif isinstance(step, InstructionStep):
                    self._instruction(step)
        finally:
            pool.give_back(region)
            activate(before)

    def _small_gemm(self, product: GemmStep) -> None:
        """Compute a product with memory of its own for packed factors."""
        packed = pool.take(MAX_PACKED)
        try:
            self._gemm(product, packed[:MAX_PACKED].view(np.float32))
        finally:
            pool.give_back(packed)

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
        dst = self._output(step.outputs[0].target, operands[0])
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

    def _output(self, target: ArrayRef | None, view: View) -> np.ndarray:
        if target is not None:
            return self.array(target)
        return self.memories[view.storage].write(view)  # type: ignore[no-any-return]

    def _compute(self, step: InstructionStep, instruction: Instruction) -> None:
        arrays: list[Any] = list(instruction.operands())
        written: Any = step.written
        for (i, source), (_, widened) in zip(step.reads, instruction.access.reads, strict=True):
            if source is not None and not widened:  # most are
                arrays[i] = self.array(source)
            else:
                arrays[i] = self._input(source, arrays[i], widened)
        for i, target, before in step.outputs:
            if target is None and instruction.accumulates:
                arrays[i], written = self.core.executor._accumulate_at(arrays[i], instruction)
                continue
            old = None if before is None else self.array(before)
            arrays[i] = self._output(target, arrays[i])
            if old is not None:
                _copy_bits(arrays[i], old)
        if instruction.accumulates:
            self.core.engine_state.matmul_written = written
        instruction.compute(*arrays)

    # ---- products --------------------------------------------------------------------------------

    def _gemm(self, product: GemmStep, packed: np.ndarray) -> None:
        left, packing = self._matrix(product.left, packed)
        right, more = self._matrix(product.right, packed[product.left.nbytes // 4 :])
        tiles = [*packing, *more]
        run_parts(tiles, self.threads if product.packed_bytes > MIN_TILE * len(tiles) else 1)
        if product.target is not None:
            out = self.array(product.target)
        else:
            shape = product.left.columns, product.right.columns
            out = np.ndarray(shape, np.float32, self.arena, product.result)
        run_parts(blocks(left.T, right, out, self.threads), self.threads)
        for row, rows, column, columns, ref in product.copies:
            target = self.array(ref)
            target[...] = out[row : row + rows, column : column + columns].reshape(target.shape)

    def _matrix(self, factor: Matrix, memory: np.ndarray) -> tuple[np.ndarray, list[Callable[[], None]]]:
        """Return a factor, and the functions that pack it."""
        if factor.view is not None:
            return self.array(factor.view), []
        size = factor.rows * factor.columns
        if factor.transposed:
            packed = memory[:size].reshape(factor.columns, factor.rows).T
        else:
            packed = memory[:size].reshape(factor.rows, factor.columns)
        return packed, self._packing(factor, packed)

    def _packing(self, factor: Matrix, packed: np.ndarray) -> list[Callable[[], None]]:
        """Return the functions that pack the tiles of a factor."""
        parts: list[Callable[[], None]] = []
        for row, step, rows, column, columns, source in factor.tiles:
            target = packed[row : row + step * rows : step, column : column + columns]
            parts.append(partial(widen, target, self.array(source).reshape(target.shape), source.dtype))
        return parts


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
