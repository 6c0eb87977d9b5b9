"""What if? The one engine that times a modelled run again with something changed.

It has four levels. `same_order_ns` replays the timeline: fast, and a gain is a little understated, because
another order might use the change better. `new_order_ns` simulates again on the same plan of SBUF.
`replanned_ns` edits the kernel, so that SBUF and the engines of copies are chosen anew. `retimed_us` plans
and simulates a whole program with other machine numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..ir.caches import cached_property
from ..ir.dependences import RAW
from ..ir.instruction import InstructionCost
from ..ir.program import Program
from ..ir.rewriting import replace_engine
from ..machine.machine import Machine
from .change import Change
from .compiler.compilation import Compilation
from .core_simulation import DONE, READ, CoreSimulation
from .dma_transfer import DmaTransfer
from .operation import Operation
from .operation_plan import OperationPlan
from .replay import Replay
from .schedule import plan, schedule
from .simulation import Simulation
from .timeline import Timeline


class WhatIf:
    """Times a timeline again with changes."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.replay = Replay(timeline)

    @cached_property
    def unchanged_ns(self) -> float:
        """The replay without a change: what `same_order_ns` is compared with."""
        return self.replay.run()

    def same_order_ns(self, change: Change) -> float:
        """Return ns until the last result, with a change, each engine in the order it had."""
        return self.replay.run(change)

    def new_order_ns(self, change: Change) -> float:
        """Return ns until the last result, with a change, in the order that suits it best."""
        cores = _ChangedSimulation(self.timeline, change).run()
        return max((t for core in cores for t in core.done), default=0.0)

    def replanned_ns(self, edit: Callable[[Compilation], None]) -> float:
        """Return ns until the last result of the edited kernel, planned and scheduled anew."""
        machine = self.timeline.machine
        cores = Simulation(machine, plan(self.timeline.program, edit)).run()
        return max((t for core in cores for t in core.done), default=0.0)


def retimed_us(program: Program, **numbers: Any) -> float:
    """Return the time of a program with other numbers of its machine, planned and scheduled anew."""
    return schedule(replace(program, machine=replace(program.machine, **numbers))).total_us


# ---- a new order ---------------------------------------------------------------------------------


class _ChangedSimulation(Simulation):
    def __init__(self, timeline: Timeline, change: Change):
        self.timeline = timeline
        self.change = change
        super().__init__(timeline.machine, timeline.plans)

    def core(
        self, machine: Machine, plan: OperationPlan, sharers: int, rank: int, order: list[tuple[int, int]]
    ) -> CoreSimulation:
        before = self.timeline.cores[plan.core]
        first = sum(len(p.operations) for p in self.timeline.plans[: plan.core])
        operations = _copies(before, first, self.change)
        return _ChangedCore(self, machine, plan, operations, sharers, first, before.transfers)


def _copies(core: CoreSimulation, first: int, change: Change) -> list[Operation]:
    """Return the operations of a core as planned, with the waits that the change leaves."""
    copies = []
    took_banks = {index for index, _ in core.bank_waits}
    for op in core.operations:
        instruction, kind, other = op.instruction, op.kind, change.on.get(first + op.index)
        if other is not None and instruction is not None:
            instruction, kind = replace_engine(instruction, other), other.name
        copy = Operation(op.index, instruction, kind, op.core, op.position)
        copy.tile, copy.reloads = op.tile, op.reloads
        dropped = change.dropped.get(first + op.index, ())
        if dropped or op.index in took_banks:
            copy.waits = {
                other: why
                for other, why in op.waits.items()
                if (op.index, other) not in core.bank_waits and first + other not in dropped
            }
        else:
            copy.waits = dict(op.waits)
        instead = change.removed.get(first + op.index, first + op.index)
        if instead != first + op.index:
            copy.waits = {instead - first: RAW}
        copies.append(copy)
    return copies


class _ChangedCore(CoreSimulation):
    def __init__(
        self,
        simulation: _ChangedSimulation,
        machine: Machine,
        plan: OperationPlan,
        operations: list[Operation],
        sharers: int,
        first: int,
        known: Mapping[int, DmaTransfer],
    ):
        self.change, self.first, self.known = simulation.change, first, known
        super().__init__(simulation, machine, plan, operations, sharers)

    def transfer(self, op: Operation) -> DmaTransfer:
        made, number = self.known[op.index], self.first + op.index
        times = (self.change.issue.get(number, made.issue_ns), made.dispatch_ns, made.notify_ns)
        work, payload = made.payload_ns, self.change.payload.get(number)
        if payload is not None:  # of a replay: with the share of the bandwidth in it
            engines = range(self.machine.dma_engines)
            parts = [(e, payload) for e in engines] if isinstance(payload, float) else payload
            work = tuple((engine, ns * self.bandwidth_share) for engine, ns in parts)
        return DmaTransfer(made.mode, *times, work, made.nbytes, made.descriptors)

    def cost_of(self, op: Operation) -> InstructionCost:
        number = self.first + op.index
        cost = super().cost_of(op)
        if number in self.change.on and op.instruction is not None:
            cost = op.instruction.cost(self.machine)
        times = self.change.work.get(number, 1.0)
        return cost if times == 1.0 else cost._replace(cycles=max(cost.cycles, cost.shortest) * times)

    def enqueue(self, index: int, now: float) -> None:
        if self.first + index not in self.change.removed:
            super().enqueue(index, now)
            return
        self.start[index] = self.free[index] = self.end[index] = self.done[index] = now
        self._begun(index, now)
        if index in self.users.of_engine:
            self._post(now, READ, index)
        self._post(now, DONE, index)

    def _release(self, index: int, now: float) -> None:
        """Release the users of an operation; those of a removed one see its operands, without a latency."""
        if self.first + index not in self.change.removed:
            super()._release(index, now)
            return
        for user in self.users.of_result[index]:
            self._satisfied(user, index, now, now)
