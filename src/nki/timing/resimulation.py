"""The simulation again, with a few things changed: what a change gains when the schedule may use it.

A replay (what_if.py) keeps the order in which engines and triggers took their operations. Where operations
go, become shorter or change their engine, another order is better: here all is scheduled anew, on the same
plan of SBUF.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.instruction import Cost
from ..machine.machine import Machine
from .compiled import on_engine
from .operations import Planner
from .regions import ORDER, RAW, Operation
from .simulation import DONE, READ, CoreSimulation, Simulation
from .timeline import Timeline
from .transfer import Transfer
from .what_if import Change


def rescheduled_ns(timeline: Timeline, change: Change) -> float:
    """ns until the last result, with a change: gone, longer or shorter, started sooner, elsewhere."""
    cores = _Changed(timeline, change).run()
    return max((t for core in cores for t in core.done), default=0.0)


class _Changed(Simulation):
    def __init__(self, timeline: Timeline, change: Change):
        self.timeline = timeline
        self.change = change
        super().__init__(timeline.machine, timeline.planners)

    def core(
        self, machine: Machine, planner: Planner, sharers: int, rank: int, order: list[tuple[int, int]]
    ) -> CoreSimulation:
        before = self.timeline.cores[planner.core]
        first = sum(len(p.operations) for p in self.timeline.planners[: planner.core])
        operations = _copies(before, first, self.change)
        return _ChangedCore(self, machine, planner, operations, sharers, first, before.transfers)


def _copies(core: CoreSimulation, first: int, change: Change) -> list[Operation]:
    """The operations of a core as they were planned, with what the change leaves of their waits."""
    copies = []
    took_banks = {index for index, _ in core.bank_waits}
    for op in core.operations:
        instruction, kind, other = op.instruction, op.kind, change.on.get(first + op.index)
        if other is not None and instruction is not None:
            instruction, kind = on_engine(instruction, other), other.name
        copy = Operation(op.index, instruction, kind, op.core, op.position)
        copy.tile, copy.again = op.tile, op.again
        dropped = change.dropped.get(first + op.index, ())
        if dropped or op.index in took_banks:
            copy.waits = {
                other: why
                for other, why in op.waits.items()
                if (op.index, other) not in core.bank_waits and first + other not in dropped
            }
        else:
            copy.waits = dict(op.waits)
        instead = change.gone.get(first + op.index, first + op.index)
        if instead != first + op.index:
            copy.waits = {instead - first: RAW}
        copies.append(copy)
    return copies


class _ChangedCore(CoreSimulation):
    def __init__(
        self,
        simulation: _Changed,
        machine: Machine,
        planner: Planner,
        operations: list[Operation],
        sharers: int,
        first: int,
        known: Mapping[int, Transfer],
    ):
        self.change, self.first, self.known = simulation.change, first, known
        super().__init__(simulation, machine, planner, operations, sharers)

    def transfer(self, op: Operation) -> Transfer:
        made, number = self.known[op.index], self.first + op.index
        times = (self.change.issue.get(number, made.issue_ns), made.dispatch_ns, made.notify_ns)
        work, payload = made.payload_ns, self.change.payload.get(number)
        if payload is not None:  # of a replay: with the share of the bandwidth in it
            engines = range(self.machine.dma_engines)
            parts = [(e, payload) for e in engines] if isinstance(payload, float) else payload
            work = tuple((engine, ns * self.bandwidth_share) for engine, ns in parts)
        return Transfer(made.mode, *times, work, made.nbytes, made.descriptors)

    def cost_of(self, op: Operation) -> Cost:
        number = self.first + op.index
        cost = super().cost_of(op)
        if number in self.change.on and op.instruction is not None:
            cost = op.instruction.cost(self.machine)
        times = self.change.work.get(number, 1.0)
        return cost if times == 1.0 else cost._replace(cycles=max(cost.cycles, cost.shortest) * times)

    def enqueue(self, index: int, now: float) -> None:
        if self.first + index not in self.change.gone:
            super().enqueue(index, now)
            return
        self.start[index] = self.free[index] = self.end[index] = self.done[index] = now
        for user in self.users[index]:
            if self.operations[user].waits[index] == ORDER:
                self._satisfied(user, index, now, now)
        self._post(now, READ, index)
        self._post(now, DONE, index)
