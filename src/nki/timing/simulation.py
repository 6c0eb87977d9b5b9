"""The simulation of a launch: its cores on one clock, and where they wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop
from itertools import count
from typing import Any

from ..errors import error
from ..machine.machine import Machine
from .core_simulation import CoreSimulation
from .operation_plan import OperationPlan


class Simulation:
    """The cores of a launch on one clock. Times of all operations are filled by `run`."""

    def __init__(self, machine: Machine, plans: list[OperationPlan], starts: Sequence[float] = (0.0,)):
        self.starts = starts  # of each rank, in ns; one stands for all if they do the same
        self.events: list[tuple[float, int, CoreSimulation, int, Any]] = []
        self.ticks = count()  # events of one moment are handled as they were posted
        self.cores: list[CoreSimulation] = []
        for rank in range(len(starts)):
            order: list[tuple[int, int]] = []
            self.cores += [self.core(machine, p, len(plans), rank, order) for p in plans]
        self.expected = self._expected(len(starts))
        self.arrived: dict[tuple, tuple[CoreSimulation, int]] = {}  # first of two cores at a barrier
        self.arrivals: dict[tuple, list[tuple[CoreSimulation, int]]] = {}  # transfers that begin together
        self.partners: dict[tuple[int, int], tuple[int, int]] = {}  # transfers that began together

    def core(
        self, machine: Machine, plan: OperationPlan, sharers: int, rank: int, order: list[tuple[int, int]]
    ) -> CoreSimulation:
        """Return a core of a rank; it changes its operations, so that other ranks get copies."""
        own = plan.operations if rank == 0 else [op.copy() for op in plan.operations]
        return CoreSimulation(self, machine, plan, own, sharers, rank, order)

    def run(self) -> list[CoreSimulation]:
        """Run all events, and return the cores of each rank."""
        for core in self.cores:
            core.begin(self.starts[core.of_rank])
        events = self.events
        while events:
            now, _, core, what, which = heappop(events)
            core.handle(now, what, which)
        for core in self.cores:
            check_all_ran(core)
        cores, self.cores = self.cores, []  # no reference cycle: what is dropped is freed at once
        return cores

    def arrive(self, core: CoreSimulation, index: int, now: float) -> None:
        """Arrive at a barrier: both cores go on when the second has arrived."""
        instruction = core.operations[index].instruction
        assert instruction is not None
        point = (core.of_rank, instruction.rendezvous(), core.visit(instruction))
        if core.sharers == 1:
            core.finish(index, now)
        elif point in self.arrived:
            other, waiting = self.arrived.pop(point)
            other.finish(waiting, now)
            core.finish(index, now)
        else:
            self.arrived[point] = (core, index)

    def begin_together(self, core: CoreSimulation, index: int, now: float) -> None:
        """Begin a sendrecv by DMA when the tiles of both cores are ready, a collective when all ranks are."""
        point = core.joint[index]
        here = self.arrivals.setdefault(point, [])
        here.append((core, index))
        if len(here) < self.expected[point]:
            return
        del self.arrivals[point]
        if len(here) == 2 and len(self.starts) == 1:
            mine, theirs = ((c.plan.core, i) for c, i in here)
            self.partners[mine], self.partners[theirs] = theirs, mine
        for one, waiting in here:
            one.enqueue(waiting, now)

    def _expected(self, ranks: int) -> Counter[tuple]:
        """Return how many transfers begin together at each point."""
        return Counter(point for core in self.cores for point in core.joint.values())


def check_all_ran(core: CoreSimulation) -> None:
    """Raise if an operation never ran: declared edges may contradict the data."""
    stuck = [op for op in core.operations if core.done[op.index] == 0.0 and core.missing[op.index] > 0]
    if stuck:
        waits = [core.operations[i] for i in stuck[0].waits if core.done[i] == 0.0]
        raise error(
            "schedule",
            "the declared order contradicts the data: an instruction would wait forever",
            notes=[f"{stuck[0].instruction!r}", *(f"waits for {op.instruction!r}" for op in waits[:2])],
            help="check the edges of with_schedule and depends_on",
        )
