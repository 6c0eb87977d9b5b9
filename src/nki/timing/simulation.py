"""The simulation of a launch: its cores on one clock, and where they wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop
from itertools import count
from typing import Any

from ..errors import error
from ..machine.machine import Machine
from ..progress import Progress
from .columns import CoreColumns, columns_of
from .core_simulation import CoreSimulation
from .operation_plan import OperationPlan


def simulate(
    machine: Machine,
    plans: Sequence[OperationPlan],
    starts: Sequence[float] = (0.0,),
    progress: Progress | None = None,
) -> list[CoreSimulation]:
    """Return the cores of a launch, run to their end.

    Operations then also wait for those that freed their PSUM banks.
    """
    simulation = Simulation(columns_of(machine, plans), starts)
    if progress is not None:
        progress.expect(0, [core.order for core in simulation.cores[:1]])
    cores = simulation.run()
    for core in cores:
        if core.of_rank == 0:
            core.plan.add_bank_waits(core.bank_waits)
    return cores


class Simulation:
    """The cores of a launch on one clock. Times of all operations are filled by `run`."""

    def __init__(self, columns: Sequence[CoreColumns], starts: Sequence[float] = (0.0,)):
        self.starts = starts  # of each rank, in ns; one stands for all if they do the same
        self.events: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self.ticks = count()  # events of one moment are handled as they were posted
        self.cores: list[CoreSimulation] = []
        for rank in range(len(starts)):
            order: list[int] = []
            self.cores += [CoreSimulation(self, one, rank, order) for one in columns]
        self.expected = self._expected(len(starts))
        self.arrived: dict[tuple, tuple[CoreSimulation, int]] = {}  # first of two cores at a barrier
        self.arrivals: dict[tuple, list[tuple[CoreSimulation, int]]] = {}  # transfers that begin together
        self.partners: dict[int, int] = {}  # numbers of transfers that began together

    def run(self) -> list[CoreSimulation]:
        """Run all events, and return the cores of each rank."""
        for core in self.cores:
            core.begin(self.starts[core.of_rank])
        events = self.events
        while events:
            now, _, event, argument = heappop(events)
            event(argument, now)
        for core in self.cores:
            check_all_ran(core)
            core.compact()
        cores, self.cores = self.cores, []  # no reference cycle: what is dropped is freed at once
        return cores

    def arrive(self, core: CoreSimulation, index: int, now: float) -> None:
        """Arrive at a barrier: both cores go on when the second has arrived."""
        instruction = core.instruction(index)
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
            mine, theirs = (c.columns.first + i for c, i in here)
            self.partners[mine], self.partners[theirs] = theirs, mine
        for one, waiting in here:
            del one.joint[waiting]
            one.enqueue(waiting, now)

    def _expected(self, ranks: int) -> Counter[tuple]:
        """Return how many transfers begin together at each point."""
        return Counter(point for core in self.cores for point in core.joint.values())


def check_all_ran(core: CoreSimulation) -> None:
    """Raise if an operation never ran: declared edges may contradict the data."""
    if not any(core.missing):
        return
    stuck = [op for op in core.operations if core.done[op.index] == 0.0 and core.missing[op.index] > 0]
    if stuck:
        waits = [core.operations[i] for i in stuck[0].waits if core.done[i] == 0.0]
        raise error(
            "schedule",
            "the declared order contradicts the data: an instruction would wait forever",
            notes=[f"{stuck[0].instruction!r}", *(f"waits for {op.instruction!r}" for op in waits[:2])],
            help="check the edges of with_schedule and depends_on",
        )
