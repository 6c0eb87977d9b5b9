"""Plans in memory, by the content of their programs: equal programs share one.

So a kernel whose Python runs at every call is planned once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ...ir.caches import LRUCache
from ...ir.instruction import Instruction
from ...ir.operand_access import OperandAccess
from ...ir.program import Item, Loop
from ...ir.view import View
from ..lowered import Lowered
from .steps import CorePlan, FusedPlan, GemmStep, PackStep

PLANS = 256
BYTES = 64 << 20  # of all plans
OPERAND_BYTES = 300  # of a plan: about as many for each operand
LOOP, END = -1, -2  # in the elements of an instruction's signature

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
        from hashlib import sha256  # few programs are planned

        self.accesses: list[OperandAccess] = []
        self._storages = lowered.storage_numbers
        self._views: dict[
            int, Any
        ] = {}  # by the identity of an access: what gets the views of an instruction
        kinds, known = lowered.storage_kinds
        self._numbers = kinds.copy()
        for items in lowered.items:
            self._numbers.append(END)
            self._items(items)
        digest = sha256(array("q", self._numbers).tobytes()).digest()
        self.key: Key = (lowered.machine, known, digest)

    def _items(self, items: Sequence[Item]) -> None:
        known, number, numbers = self._views, self._storages, self._numbers
        for item in items:
            if isinstance(item, Loop):
                numbers.append(LOOP)
                self._items(item.body)
                numbers.append(END)
                continue
            signature = id(item.access)
            views = known.get(signature)
            if views is None:
                views = known[signature] = self._getter(item)
            parts = views(item)
            if len(parts) == 3:  # most have two or three
                a, b, c = parts
                numbers += (
                    signature,
                    number[a.storage],
                    a.offset,
                    number[b.storage],
                    b.offset,
                    number[c.storage],
                    c.offset,
                )
            else:
                numbers.append(signature)
                for view in parts:
                    numbers += number[view.storage], view.offset

    def _getter(self, instruction: Instruction) -> Any:
        access = instruction.access
        self.accesses.append(access)
        if access.fixed and len(access.views) > 1:
            return attrgetter(*access.views)
        return _touched_views


def _touched_views(instruction: Instruction) -> list[View]:
    """Return the operands, and what the addresses of indirect ones are computed from."""
    views = instruction.views()
    return views + [v.indirection.base for v in views if v.indirection is not None and v.indirection.base]


plans = PlanCache()
