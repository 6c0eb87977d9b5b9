"""Running a plan on numpy arrays.

Values lie in one array, an arena that the next call of the plan uses again. What is no product is computed by
the instruction itself, on the arrays of its operands; a fence goes to the numpy executor. If anything has
something to say (a warning, an error), the launch runs the program again, one instruction at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..execute.backend import NumpyBackend
from ..execute.memory import FULL, aligned
from ..execute.prepared import prepare
from ..hardware import dtypes
from ..hardware.dtypes import f32
from ..program.program import Diagnostic, Loop, Program, walk
from ..tensors import row_major
from ..tensors.storage import Storage
from .arrays import pool
from .planner import NoPlan, Plan, plan_of
from .products import Factor, Gemm
from .threads import available, beside, together
from .tracking import Task
from .values import Place, Value, of_storage


class Spot(NamedTuple):
    """An array in bytes: of the arena (None), or of a storage's memory."""

    storage: Storage | None
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]


def spot(place: Place) -> Spot:
    """Where a place is, once every value has its own."""
    base, offset, shape, strides, dtype = place
    width = dtype.itemsize
    storage: Storage | None = None
    start = 0
    if base.__class__ is not Value:
        storage = base
    elif base.placed is not None:
        buffer, first, pitch = base.placed
        columns = base.size // base.view.shape[0]
        row, column = divmod(offset, columns)
        offset = first + row * pitch + column
        strides = tuple([s // columns * pitch + s % columns for s in strides])
        start = buffer.at
    else:
        start = base.at
    return Spot(storage, start + offset * width, shape, dtype.storage, tuple([s * width for s in strides]))


def made_at(value: Value) -> Place:
    """Where the task that makes a value writes it."""
    if value.sunk is not None and value.placed is None:
        return value.sunk
    shape = tuple(value.view.shape)
    return Place(value, 0, shape, row_major(shape), value.dtype)


class PlannedBackend(NumpyBackend):
    """Runs a program by its plan where it has one, and else as numpy does, one instruction at a time."""

    def __init__(self, machine: Any, precise: bool, call: object, released: Any):
        super().__init__(machine, precise, call, released)
        self.lent: list[tuple[Any, Storage, np.ndarray]] = []
        self.borrow = lambda storage, raw: self._lend(self.memories.borrow, storage, raw)  # type: ignore[method-assign]
        self.fill = lambda storage, raw: self._lend(self.memories.fill, storage, raw)  # type: ignore[method-assign]
        self.plan: Plan | None = None

    def _lend(self, how: Any, storage: Storage, raw: np.ndarray) -> None:
        self.lent.append((how, storage, raw))
        how(storage, raw)

    def choose(self, program: Program, executor: str) -> bool:
        """Decide how a program will be run; True: by its plan."""
        self.plan = None
        if executor != "reference" and self.memories.precise:
            found = plan_of(program, forced=executor == "plan")
            self.plan = None if isinstance(found, NoPlan) else found
        return self.plan is not None

    def start_again(self) -> None:
        """Everything is as it was lent; from now on one instruction runs at a time."""
        self.plan = None
        self.memories.clear()
        self.memories.chips.clear()
        for how, storage, raw in self.lent:
            how(storage, raw)

    def run(self, program: Program, core: Any) -> None:
        if self.plan is None:
            super().run(program, core)
        else:
            runner = Runner(self.plan, core)
            runner.open_results()
            runner.run()

    def side_by_side(self, cores: Sequence[Any], on: Callable[[Any, Callable[[], None]], Any]) -> bool:
        """Run the cores of a plan at the same time. False: they are to take turns, and nothing was done."""
        if self.plan is None or len(cores) < 2 or not self.plan.independent:
            return False
        threads = cores[0].launch.options.threads or available()
        if threads < 2:
            return False
        runners = [Runner(self.plan, core, max(1, threads // len(cores))) for core in cores]
        for runner in runners:
            runner.open_results()
        beside([partial(on, runner.core, runner.run) for runner in runners])
        return True


class Runner:
    """Runs one core's part of a plan."""

    def __init__(self, plan: Plan, core: Any, threads: int | None = None):
        self.plan, self.core = plan, core
        self.part = plan.cores[core.index]
        self.memories = core.memories
        self.arena = np.empty(0, np.uint8)
        self.packs = np.empty(0, np.float32)
        self.raws: dict[Storage, np.ndarray] = {}
        self.threads = threads or core.launch.options.threads or available()

    def run(self) -> None:
        self.arena, packs = pool.take(self.part.arena), pool.take(self.part.packed)
        self.packs = packs[: packs.size // 4 * 4].view(np.float32)
        steps, said = self.part.steps, self._said()
        try:
            self._say(said, 0, steps)
            for number, step in enumerate(steps):
                if step.__class__ is Gemm:
                    self._gemm(step)
                elif step.kind == "fence":
                    self._fence(step)
                    self._say(said, number + 1, steps)
                else:
                    self._task(step)
        finally:
            self.core.replayed = None
            for array in (self.arena, packs):
                pool.give_back(array)

    # ---- memory ----------------------------------------------------------------------------------

    def open_results(self) -> None:
        """Memory that is written once everywhere: nobody asks on the way what of it is written."""
        for storage, views in self.plan.storages.stores.items():
            if storage not in self.plan.storages.once:
                continue
            memory = self.memories[storage]
            if storage not in self.plan.storages.complete:
                for view in views:
                    memory.write(view)
            else:
                if memory.borrowed:
                    memory.raw, memory.borrowed = aligned(storage.nbytes), False
                    memory.arrays.clear()
                memory.state, memory.map, memory.changed = FULL, None, True

    def _raw(self, storage: Storage) -> np.ndarray:
        found = self.raws.get(storage)
        if found is None:
            found = self.raws[storage] = self.memories[storage].raw
        return found

    def array(self, place: Place) -> np.ndarray:
        where = spot(place)
        buffer = self.arena if where.storage is None else self._raw(where.storage)
        return np.ndarray(where.shape, where.dtype, buffer, where.offset, where.strides)

    # ---- what the kernel's Python said -----------------------------------------------------------

    def _said(self) -> list[Diagnostic]:
        """What is to be said before an instruction that stands in no loop."""
        index = self.core.index
        found = {d.before: [] for d in self.plan.program.said if d.core == index}  # type: ignore[var-annotated]
        if not found:
            return []
        for diagnostic in self.plan.program.said:
            if diagnostic.core == index:
                found[diagnostic.before].append(diagnostic)
        position, ordered = 0, []
        for item in self.plan.program.cores[index]:
            if isinstance(item, Loop):
                position += sum(1 for _ in walk(item.body))
            else:
                ordered += found.get(position, [])
                position += 1
        return ordered

    def _say(self, said: list[Diagnostic], number: int, steps: list[Any]) -> None:
        """Say all that comes before the next fence is over."""
        if not said:
            return
        fence = next((s for s in steps[number:] if s.__class__ is Task and s.kind == "fence"), None)
        while said and (fence is None or said[0].before <= fence.position):  # type: ignore[operator]
            self.core.launch.say(said.pop(0))

    # ---- steps -----------------------------------------------------------------------------------

    def _fence(self, task: Task) -> None:
        core, item = self.core, task.instruction
        self.raws.clear()
        if isinstance(item, Loop):
            prepared = prepare(self.plan.program)
            step = next(s for s in prepared.cores[core.index] if _is(s.item, item))
            prepared._repeat(core, step.item)  # type: ignore[arg-type]
        else:
            core.replayed = item
            core.executor(item)

    def _task(self, task: Task) -> None:
        instruction = task.instruction
        if task.kind == "gather":
            self._gather(task)
            return
        self.core.replayed = instruction
        if task.kind == "memory":
            self.core.executor(instruction)
        elif task.kind == "move":
            self._move(task)
        else:
            self._compute(task)

    def _gather(self, task: Task) -> None:
        value: Value = task.outs[0][1]
        there = value if value.sunk is None else value.within(value.sunk)
        for view, source in task.parts:
            target = there.part(view)
            assert target is not None
            _copy_bits(self.array(target), self.array(source))

    def _move(self, task: Task) -> None:
        index, source = task.reads[0]
        src, dtype = self._input(source, False), task.instruction.operands()[index].dtype
        if task.order == "turn":
            src = src.reshape(src.shape[0], -1).T
        elif task.order is not None:
            src = src.transpose(task.order)
        _, out, _ = task.outs[0]
        target = task.instruction.operands()[0].dtype
        dst = self._output(out, task)
        src = src if src.shape == dst.shape else src.reshape(dst.shape)
        if target is dtype:
            _copy_bits(dst, src)
        else:
            dtypes.store(dst, f32(src, dtype), target)

    def _input(self, source: Any, widened: bool) -> np.ndarray:
        if source.__class__ is Place:
            array = self.array(source)
            return f32(array, source.dtype) if widened else array
        memory = self.memories[source.storage]
        return memory.read_float32(source) if widened else memory.read(source)

    def _output(self, out: Any, task: Task) -> np.ndarray:
        if out.__class__ is Value:
            return self.array(made_at(out))
        if task.store is not None:
            return self.array(of_storage(out))
        return self.memories[out.storage].write(out)

    def _compute(self, task: Task) -> None:
        instruction = task.instruction
        arrays: list[Any] = list(instruction.operands())
        widened = dict(instruction.access.reads)
        for i, source in task.reads:
            arrays[i] = self._input(source, widened[i])
        for i, out, before in task.outs:
            if instruction.accumulates and out.__class__ is not Value:
                arrays[i], written = self.core.executor._accumulate_at(out, instruction)
                task_written: Any = written
            else:
                old = None if before is None else self.array(before)
                arrays[i] = self._output(out, task)
                if old is not None:
                    _copy_bits(arrays[i], old)
                task_written = task.written
        if instruction.accumulates:
            arrays.append(task_written)
        if instruction.state:
            instruction.compute(self.core, *arrays)
        else:
            instruction.compute(*arrays)

    # ---- products --------------------------------------------------------------------------------

    def _gemm(self, gemm: Gemm) -> None:
        left, packing = self._matrix(gemm.left, 0)
        right, more = self._matrix(gemm.right, gemm.left.nbytes // 4)
        together([*packing, *more], self.threads)
        rows, columns = gemm.left.columns, gemm.right.columns
        if gemm.target is not None:
            out = self.array(gemm.target)
        else:
            assert gemm.result is not None
            out = np.ndarray((rows, columns), np.float32, self.arena, gemm.result.at)
        together(_blocks(left.T, right, out), self.threads)
        for value, row, column in gemm.copies:
            assert value.sunk is not None
            height = value.view.shape[0]
            width = value.size // height
            target = self.array(value.sunk)
            target[...] = out[row : row + height, column : column + width].reshape(target.shape)

    def _matrix(self, factor: Factor, at: int) -> tuple[np.ndarray, list[Callable[[], None]]]:
        """A factor, and what is to be done before it holds its numbers."""
        if factor.there is not None:
            return self.array(factor.there), []
        size = factor.rows * factor.columns
        packed = self.packs[at : at + size].reshape(factor.rows, factor.columns)
        parts: list[Callable[[], None]] = []
        for target, place in factor.pieces(packed):
            parts.append(partial(widen, target, self.array(place).reshape(target.shape), place))
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


def widen(target: np.ndarray, source: np.ndarray, place: Place) -> None:
    """target = source as float32."""
    target[...] = source if place.dtype.itemsize > 1 else f32(source, place.dtype)


def _copy_bits(target: np.ndarray, source: np.ndarray) -> None:
    source = source if source.shape == target.shape else source.reshape(target.shape)
    if target.dtype.kind == "V":
        dtypes.bits(target)[...] = dtypes.bits(source)
    else:
        target[...] = source


def _is(prepared: Any, loop: Loop) -> bool:
    return getattr(prepared, "loop", None) is loop


__all__ = ["PlannedBackend", "Runner"]
