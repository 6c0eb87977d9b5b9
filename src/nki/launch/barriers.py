"""Barriers: where the cores of one execution wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ..errors import error, user_site
from ..ir.context import RunningCore
from .interleaving import Interleaving
from .scheduler import GivesUp, Scheduler
from .world import World


class _Arrivals:
    """The cores that have arrived at a barrier, with what they offer."""

    def __init__(self) -> None:
        self.offers: dict[int, Any] = {}
        self.complete = False


class Barriers:
    """Lets cores wait for each other. With one core, or while tracing, there is no scheduler."""

    def __init__(self, cores: int, world: World):
        self.cores = cores
        self.world = world
        self.scheduler: Scheduler | None = None
        self.interleaving: Interleaving | None = None
        self._open: dict[tuple[Hashable, int], _Arrivals] = {}
        self._visits: dict[tuple[int, Hashable], int] = {}  # how often a core came to each barrier

    def start(self) -> Scheduler:
        """Return the scheduler of the cores; ranks of one process share theirs."""
        if self.scheduler is None:
            self.scheduler = self.world.scheduler or Scheduler()
        return self.scheduler

    def interleave(self) -> Interleaving:
        """Run one instruction of each core in turn from now on."""
        self.interleaving = Interleaving(self.start(), self.cores)
        return self.interleaving

    def wait(
        self, core: RunningCore, what: str, ready: Callable[[], bool], gives_up: GivesUp = GivesUp.NEVER
    ) -> bool:
        """Let other tasks run until `ready()`. Returns False if the wait gave up: no other task could run."""
        if self.scheduler is not None:
            running = core.instruction
            site = user_site(2) if running is None else running.site
            return self.scheduler.wait(what, ready, gives_up, site)
        if not ready():
            raise error("deadlock", f"core 0 waits for ever: {what}")
        return True

    def meet(
        self,
        core: RunningCore,
        point: Hashable,
        what: str,
        offer: object = None,
        act: Callable[[Mapping[int, object]], None] | None = None,
        gives_up: GivesUp = GivesUp.NEVER,
    ) -> dict[int, Any]:
        """Wait until every core has come to `point`; returns what each offered, by core.

        The n-th visit of one core meets the n-th visit of the others. The last core to arrive calls `act`
        before any core goes on. If the wait gives up, only this core's offer is returned.
        """
        visit = self._visits[core.index, point] = self._visits.get((core.index, point), 0) + 1
        arrivals = self._open.setdefault((point, visit), _Arrivals())
        offers = arrivals.offers
        offers[core.index] = offer
        if len(offers) < self.cores:
            if self.wait(core, what, lambda: arrivals.complete, gives_up):
                return offers
            self._visits[core.index, point] = visit - 1
        elif self.interleaving is not None:
            self.interleaving.reset()
        del self._open[point, visit]
        if act is not None:
            act(offers)
        arrivals.complete = True
        return offers
