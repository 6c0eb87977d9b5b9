"""Stages: the order of everything, and where in one array the values lie.

Between two fences the tasks are cut into windows, so that what they make stays within a budget of memory. A
window runs in stages: first the products that wait for no other product of the window, then all that needs no
more than them, in the order of the program, then the products that wait for those, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...ir.storage import Storage
from .products import Gemm, merged
from .storages import Storages
from .tracking import Task
from .values import Place, Value

WINDOW = 96 << 20  # bytes of the values of a window
LINE = 64


def in_stages(tasks: Sequence[Task], storages: Storages, window: int = WINDOW) -> list[Any]:
    """What is done, in order: Gemms and Tasks."""
    steps: list[Any] = []
    number, held = 0, 0
    open_tasks: list[Task] = []
    depths = _Depths(storages)
    for task in tasks:
        if task.kind == "fence":
            steps += _staged(open_tasks)
            steps.append(task)
            open_tasks, held, number = [], 0, number + 1
            depths = _Depths(storages)
            continue
        made = sum(v.nbytes for _, v, _ in task.outs if v.__class__ is Value and v.sunk is None)
        if held + made > window and open_tasks:
            steps += _staged(open_tasks)
            open_tasks, held, number = [], 0, number + 1
            depths = _Depths(storages)
        held += made
        depths.set(task, number)
        open_tasks.append(task)
    steps += _staged(open_tasks)
    return steps


class _Depths:
    """How many products each task of a window comes after, one after the other."""

    def __init__(self, storages: Storages):
        self.storages = storages
        self.written: dict[Any, int] = {}  # memory in place: the depth of its last writer
        self.touched: dict[Any, int] = {}
        self.states: dict[Any, int] = {}

    def set(self, task: Task, window: int) -> None:
        depth = 0
        if task.kind == "product":
            for left, right in task.outs[0][1].terms:
                for value in (left.base, right.base):
                    if value.__class__ is Value and value.stage == window and value.depth > depth:
                        depth = value.depth
            depth += 1
        else:
            for place in _places(task):
                value = place.base
                if value.__class__ is Value and value.stage == window and value.depth > depth:
                    depth = value.depth
            reads = [v.storage for _, v in task.reads if v.__class__ is not Place]
            writes = [v.storage for _, v, _ in task.outs if v.__class__ is not Value]
            writes = [s for s in writes if s not in self.storages.once]
            instruction = task.instruction
            states = instruction.touches() if instruction is not None and instruction.state else ()
            for storage in reads:
                depth = max(depth, self.written.get(_space(storage), 0))
            for storage in writes:
                depth = max(depth, self.touched.get(_space(storage), 0))
            for state in states:
                depth = max(depth, self.states.get(state, 0))
                self.states[state] = depth
            for storage in (*reads, *writes):
                self.touched[_space(storage)] = max(depth, self.touched.get(_space(storage), 0))
            for storage in writes:
                self.written[_space(storage)] = depth
        task.depth = depth
        for _, value, _ in task.outs:
            if value.__class__ is Value:
                value.depth, value.stage = depth, window


def _space(storage: Storage) -> Any:
    return storage if storage.address is None else storage.buffer


def _places(task: Task) -> Iterator[Place]:
    """Everything that a task reads, but memory in place."""
    if task.kind == "product":
        for left, right in task.outs[0][1].terms:
            yield left
            yield right
        return
    for _, place in task.reads:
        if place.__class__ is Place:
            yield place
    for _, _, before in task.outs:
        if before is not None:
            yield before
    for _, place in task.parts:
        yield place


def _staged(tasks: list[Task]) -> list[Any]:
    steps: list[Any] = []
    stages: dict[int, tuple[list[Task], list[Task]]] = {}
    for task in tasks:
        products, others = stages.setdefault(task.depth, ([], []))
        (products if task.kind == "product" else others).append(task)
    for depth in sorted(stages):
        products, others = stages[depth]
        if products:
            steps += merged(products)
        steps += others
    return steps


# ---- where the values lie ------------------------------------------------------------------------


class Arena:
    """Gives out parts of one array; a part that nobody needs any more is given out again."""

    def __init__(self) -> None:
        self.size = 0
        self.free: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int:
        nbytes = -(-nbytes // LINE) * LINE
        waiting = self.free.get(nbytes)
        if waiting:
            return waiting.pop()
        for size in sorted(self.free):  # a larger one is cut
            if size > nbytes and self.free[size]:
                at = self.free[size].pop()
                self.free.setdefault(size - nbytes, []).append(at + nbytes)
                return at
        at = self.size
        self.size += nbytes
        return at

    def give_back(self, at: int, nbytes: int) -> None:
        self.free.setdefault(-(-nbytes // LINE) * LINE, []).append(at)


def laid_out(steps: Sequence[Any]) -> int:
    """Give every value its place in the array; the bytes that the array needs."""
    last: dict[Any, int] = {}
    for number, step in enumerate(steps):
        for memory in _memories(step):
            last[memory] = number
    ends: dict[int, list[Any]] = {}
    for memory, number in last.items():
        ends.setdefault(number, []).append(memory)
    arena = Arena()
    for number, step in enumerate(steps):
        for memory in _memories(step):
            if memory.at < 0:
                memory.at = arena.take(memory.nbytes)
        for memory in ends.get(number, ()):
            arena.give_back(memory.at, memory.nbytes)
    return arena.size


def _memories(step: Any) -> Iterator[Any]:
    """Every value and buffer that a step touches and that has memory in the array."""
    if step.__class__ is Gemm:
        if step.result is not None:
            yield step.result
        for factor in (step.left, step.right):
            if factor.there is not None:
                yield from _memory_of(factor.there.base)
            for tile in factor.tiles:
                yield from _memory_of(tile.place.base)
        return
    for place in _places(step):
        yield from _memory_of(place.base)
    for _, value, _ in step.outs:
        if value.__class__ is Value:
            yield from _memory_of(value)


def _memory_of(base: object) -> Iterator[Any]:
    if base.__class__ is Value:
        if base.placed is not None:
            yield base.placed[0]
        elif base.sunk is None:
            yield base


__all__ = ["Arena", "in_stages", "laid_out"]
