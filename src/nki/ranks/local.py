"""All ranks in this process, one at a time: they switch where they wait for each other, in rank order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..kernel.kernel import Kernel
from ..launch.scheduler import HOST, Scheduler, TaskId
from ..launch.world import Parts, Rendezvous, World, using
from .errors import raised_on
from .inputs import CallOf

LARGEST = 128  # ranks


class LocalExchange:
    """What the ranks of one process exchange."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.arrived: dict[Rendezvous, dict[int, np.ndarray]] = {}
        self.taken: dict[Rendezvous, tuple[Parts, set[int]]] = {}  # what was exchanged, who has it
        self.shown: set[Any] = set()


class LocalWorld(World):
    """A rank beside others in one process."""

    backend = "local"
    in_process = True
    keeps_random_state = False  # every rank begins as the process stands

    def __init__(self, rank: int, size: int, shared: LocalExchange):
        super().__init__(rank, size)
        self.shared, self.scheduler, self.shown = shared, shared.scheduler, shared.shown

    def exchange(self, key: Rendezvous, data: np.ndarray) -> Sequence[np.ndarray]:
        shared, count = self.shared, len(key.members)
        arrived = shared.arrived.setdefault(key, {})
        arrived[self.rank] = data
        shared.scheduler.wait(key.what, lambda: len(arrived) == count, line=key.line)
        if key not in shared.taken:
            shared.taken[key] = Parts([arrived[rank] for rank in key.members]), set()
        parts, taken = shared.taken[key]
        taken.add(self.rank)
        if len(taken) == count:
            del shared.taken[key], shared.arrived[key]
        return parts


def run_local(kernel: Kernel, calls: list[CallOf], timeout: float | None) -> list[Any]:
    """Return what each rank returns. A timeout is not needed: a deadlock is detected at once."""
    return run_together([partial(_called, kernel, call) for call in calls])


def _called(kernel: Kernel, call: CallOf) -> Any:
    return kernel(*call.args, **call.kwargs)


def run_together(parts: Sequence[Callable[[], object]]) -> list[Any]:
    """Return the result of each rank's part, in rank order."""
    shared, size = LocalExchange(), len(parts)
    jobs = [
        (TaskId(rank, HOST), partial(_rank, part, LocalWorld(rank, size, shared)))
        for rank, part in enumerate(parts)
    ]
    return shared.scheduler.run(jobs)


def _rank(part: Callable[[], object], world: World) -> Any:
    try:
        with using(world):
            return part()
    except Exception as problem:
        raise raised_on(problem, world.rank) from problem.__cause__
