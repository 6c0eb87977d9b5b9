"""Placement: the order of the members of every step, and the address of every value.

The values that a step reads should lie in the order of its members, so that it reads them as one strided
view. So the order is found backwards: the members of a step come in the order in which their results are
read. Values of one size that a step reads from several others lie side by side, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ...ir.liveness import allocate
from .batches import DeviceStep
from .schedule import AccumulatorValue

Rank = tuple[int, int, int]  # the first step that reads a value, the member, and the operand


class StepBuffer:
    """Memory for values of one size that a step reads, each for several repetitions."""

    __slots__ = ("nbytes", "times", "owners")

    def __init__(self, times: int):
        self.owners: list[Any] = []
        self.nbytes, self.times = 0, times

    def add(self, owner: Any) -> None:
        self.owners.append(owner)
        self.nbytes += owner.nbytes * self.times

    def finish(self, at: int) -> None:
        for owner in self.owners:
            owner.at = at
            at += owner.nbytes * self.times


def place(steps: Sequence[DeviceStep], repeated: int) -> tuple[int, set[Any]]:
    """Order the members of the steps, and set the address of every value.

    From step `repeated` on they are those of a unit, which may run several times. Returns the bytes of the
    arena, and what has memory for each repetition.
    """
    ranks = _ordered(steps)
    writers: dict[tuple, set[int]] = defaultdict(set)  # of what a step reads, by size
    for number, step in enumerate(steps):
        for item in step.items:
            for output in step.outputs_of(item):
                writers[_reader(step, ranks.get(output), output)].add(number)
    buffers: dict[Any, StepBuffer] = {}
    buffer_of: dict[Any, StepBuffer] = {}
    for number, step in enumerate(steps):
        for item in step.items:
            for k, output in enumerate(step.outputs_of(item)):
                reader = _reader(step, ranks.get(output), output)
                if output.__class__ is AccumulatorValue:  # which is written in place, member by member
                    key: tuple = (number, k)
                else:
                    key = reader if reader and len(writers[reader]) > 1 else (number, k, "sorted")
                buffer_of[output] = buffers.setdefault(key, StepBuffer(step.times))
                buffer_of[output].add(output)
    unread = (len(steps), 0, 0)
    for key, buffer in buffers.items():
        if len(key) > 2:
            buffer.owners.sort(key=lambda owner: ranks.get(owner, unread))
    used = [_used(step, buffer_of) for step in steps]
    before = {buffer for some in used[:repeated] for buffer in some}
    inside = dict.fromkeys(buffer for some in used[repeated:] for buffer in some)
    if inside:  # what comes before a unit stays until its last repetition
        used[-1] += [buffer for buffer in inside if buffer in before]
    arena = allocate(used, StepBuffer.finish)
    return arena, {owner for buffer in inside if buffer not in before for owner in buffer.owners}


def _reader(step: DeviceStep, rank: Rank | None, output: Any) -> tuple:
    """Return what identifies the first step that reads a value, for values of its size."""
    return () if rank is None else (step.stage[0], rank[0], output.nbytes, "read")


def _ordered(steps: Sequence[DeviceStep]) -> dict[Any, Rank]:
    """Order the members of every step as their largest results are read; return where each value is read."""
    ranks: dict[Any, Rank] = {}
    unread = (len(steps), 0, 0)
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]

        def rank_of(item: Any, step: DeviceStep = step) -> Rank:
            outputs = step.outputs_of(item)
            return ranks.get(outputs[0], unread) if outputs else (len(steps), step.stored_at(item), 0)

        step.items.sort(key=rank_of)
        for position in range(len(step.items) - 1, -1, -1):
            for k, value in enumerate(step.inputs_of(step.items[position])):
                ranks[value] = (number, position, k)
    return ranks


def _used(step: DeviceStep, buffer_of: dict[Any, StepBuffer]) -> list[StepBuffer]:
    """Return the buffers that a step writes and reads."""
    found: dict[StepBuffer, None] = {}
    for item in step.items:
        for value in (*step.outputs_of(item), *step.inputs_of(item)):
            found[buffer_of[value]] = None
    return list(found)
