"""Plans in memory, by the content of their programs: equal programs share one.

So a kernel whose Python runs at every call is planned once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from ...ir.caches import LRUCache
from ...ir.operand_access import OperandAccess
from ...ir.program import Item, Loop
from ..lowered import Lowered
from .steps import CorePlan, FusedPlan, GemmStep, PackStep

PLANS = 256
BYTES = 64 << 20  # of all plans
OPERAND_BYTES = 300  # of a plan: about as many for each operand
BEGIN, END = -1, -2  # of a loop

Key = tuple[Any, ...]


class PlanCache:
    """Plans by the content of their programs."""

    def __init__(self, plans: int = PLANS, nbytes: int = BYTES):
        # the accesses stay alive with a plan, so that no other object gets their identity
        self.plans: LRUCache[Key, tuple[FusedPlan, list[OperandAccess]]] = LRUCache(plans, nbytes)

    def find(self, content: Content) -> FusedPlan | None:
        found = self.plans.find(content.key)
        return None if found is None else found[0]

    def put(self, content: Content, plan: FusedPlan) -> None:
        self.plans.put(content.key, (plan, content.accesses), sum(map(_bytes, plan.cores)))

    def clear(self) -> None:
        self.plans.clear()


def _bytes(core: CorePlan) -> int:
    """Return the bytes of a core's part of a plan, estimated from its operands."""
    found = sum([len(shifts) for unit in core.units for shifts in unit.shifts])
    for step in core.steps:
        if isinstance(step, GemmStep):
            found += 4 + len(step.left.tiles) + len(step.right.tiles) + len(step.copies)
        elif isinstance(step, PackStep):
            found += 1 + len(step.factor.tiles)
        else:
            found += 1 + len(step.reads) + len(step.outputs) + 2 * len(step.parts)
    return OPERAND_BYTES * found + sum([_bytes(unit.plan) for unit in core.units])


class Content:
    """The key of a program: programs with equal plans have equal keys, within a process.

    It is made of the machine, the storages, and of every instruction its signature (the identity of its
    `access`), storages and offsets. Lines, names and the numbers in constants do not count.
    """

    def __init__(self, lowered: Lowered):
        from hashlib import blake2b  # few programs are planned

        self.accesses: list[OperandAccess] = []
        kinds, known = lowered.columns.storage_kinds
        digest = blake2b(kinds.tobytes(), digest_size=32)
        for core, items in enumerate(lowered.items):
            columns = lowered.columns.of(core)
            accesses = [sample.access for sample in columns.samples]
            self.accesses += accesses
            loops = [*_loops(items)] if lowered.columns.has_loops[core] else []
            sizes = len(accesses), len(columns.signature), len(columns.storage), len(loops)
            digest.update(array("q", [*sizes, *loops, *map(id, accesses)]).tobytes())
            for numbers in (columns.signature, columns.storage, columns.offset):
                digest.update(numbers.tobytes())
        self.key: Key = (lowered.machine, known, digest.digest())


def _loops(items: Sequence[Item]) -> Iterator[int]:
    """Iterate over where loops begin and end, and the numbers of instructions between."""
    count = 0
    for item in items:
        if isinstance(item, Loop):
            yield from (count, BEGIN, *_loops(item.body), END)
            count = 0
        else:
            count += 1
    yield count


plans = PlanCache()
