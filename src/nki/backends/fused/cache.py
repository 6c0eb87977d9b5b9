"""Plans that were made before, in memory, under the content of their programs (`content`).

So a kernel whose Python runs at every call is planned once. `files` keeps plans for other processes.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from .steps import CorePlan, Plan, Product

PLANS = 256
WEIGHT = 100_000  # operands of all plans; about 300 bytes each


class PlanCache:
    """Plans by key, the least recently used forgotten first. Safe under threads and after a fork."""

    def __init__(self, plans: int = PLANS, weight: int = WEIGHT):
        self.plans, self.limit = plans, weight
        self.kept: OrderedDict[bytes, tuple[Plan, int]] = OrderedDict()
        self.weight = 0
        self.hits = self.misses = 0
        self.lock = threading.Lock()

    def find(self, key: bytes) -> Plan | None:
        with self.lock:
            found = self.kept.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self.kept.move_to_end(key)
            return found[0]

    def keep(self, key: bytes, plan: Plan) -> None:
        weight = sum(map(_weight, plan.cores))
        with self.lock:
            if weight > self.limit or key in self.kept:
                return
            self.kept[key] = plan, weight
            self.weight += weight
            while self.weight > self.limit or len(self.kept) > self.plans:
                self.weight -= self.kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget every plan."""
        with self.lock:
            self.kept.clear()
            self.weight = 0


def _weight(core: CorePlan) -> int:
    """The operands that a core's part of a plan names."""
    found = 0
    for step in core.steps:
        if isinstance(step, Product):
            found += 4 + len(step.left.tiles) + len(step.right.tiles) + len(step.copies)
        else:
            found += 1 + len(step.reads) + len(step.outs) + 2 * len(step.parts)
    return found


plans = PlanCache()


def _after_fork() -> None:
    plans.lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


__all__ = ["PlanCache", "plans"]
