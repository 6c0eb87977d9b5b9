"""The operations of a core as the simulation reads them: one column per field, prepared once.

A what-if changes rows of some columns and shares the others.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..ir.instruction import WHOLE_ARRAY, Instruction, InstructionCost, PeTile
from ..ir.rewriting import replace_engine
from ..ir.view import View
from ..machine.machine import Machine
from .change import Change, Payload
from .dma_transfer import RANKS, DmaTransfer, transfer_of
from .edges import Edges, Users, priorities
from .instruction_facts import facts_of
from .operation_plan import OperationPlan, engine_clocks
from .psum_banks import BankPlan
from .timing_rules import DMA, ENGINES, KIND_NUMBERS, KINDS, service_times

MODES = ("software", "hardware", "static", RANKS)  # the DMA triggers
TRIGGERS = {mode: DMA + number for number, mode in enumerate(MODES)}  # their places, after the engines
PLACES = len(ENGINES) + len(MODES)
REMOVED = len(KINDS)  # the kind, as a producer, of what a what-if leaves out
NOWHERE = PLACES  # and its place


class Work(NamedTuple):
    """How an engine works on an instruction, in ns; the same for all of one signature."""

    service: float
    held: float  # until the engine takes the next
    slow_service: float  # the same while the PE array has half its rate, or VectorE shares its bus
    slow_held: float
    drain: float  # from the end of the work to the end of the bar
    result: float  # from the end of the work until a consumer sees the result
    table: str | None  # the activation function whose table ScalarE needs
    array_rows: int
    pe_tile: PeTile
    is_barrier: bool


class CoreColumns:
    """What the simulation of one core reads."""

    def __init__(self, machine: Machine, plan: OperationPlan, sharers: int, first: int):
        self.machine, self.plan, self.sharers = machine, plan, sharers
        self.first = first  # number of its first operation, over all cores
        self.bandwidth_share = _bandwidth_share(machine, sharers)
        self.edges: Edges = plan.table.edges
        self.kinds = bytearray(map(KIND_NUMBERS.__getitem__, plan.table.kinds))
        self.release_kinds = self.kinds  # as producers
        self.work, self.transfers, self.places = self._work()
        self.positions = plan.table.positions
        in_psum = np.zeros(len(plan.instructions) + 1, np.uint8)  # the last is for what has no position
        in_psum[plan.uses.psum.position] = True
        self.uses_psum = bytearray(in_psum[self.positions])
        self.banks = BankPlan(machine, plan.uses, plan.without_inputs)
        self._connect()

    def _connect(self) -> None:
        """Prepare who waits for whom."""
        self.users = Users(self.edges, self.kinds)
        self.priorities = priorities(self.edges, self.kinds)
        waits = np.bincount(self.edges.user, minlength=len(self.kinds))
        self.missing = array("i", waits.astype(np.intc).tobytes())

    def _work(self) -> tuple[list[Work | None], list[DmaTransfer | None], bytearray]:
        """Return the work of each operation on its engine, its transfer, and its engine or trigger.

        Operations of one signature on one engine share them.
        """
        positions = np.array(self.plan.table.positions, np.int64)
        signatures = np.array([*self.plan.signatures, 0])[positions]
        spills = ~np.arange(len(positions))  # each is of its own
        keys = np.where(positions < 0, spills, signatures * len(KINDS) + np.frombuffer(self.kinds, np.uint8))
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        found = [self._work_of(index) for index in first.tolist()]
        places = [
            self.kinds[index] if transfer is None else TRIGGERS[transfer.mode]
            for index, (_, transfer) in zip(first, found, strict=True)
        ]
        each = numbers.tolist()
        return (
            list(map([work for work, _ in found].__getitem__, each)),
            list(map([transfer for _, transfer in found].__getitem__, each)),
            bytearray(np.array(places, np.uint8)[numbers].tobytes()),
        )

    def _work_of(self, index: int) -> tuple[Work | None, DmaTransfer | None]:
        op = self.plan.table.operation(index, self.plan.instructions, self.plan.core)
        if op.is_dma:
            return None, transfer_of(op, self.machine, self.sharers, self.bandwidth_share)
        assert op.instruction is not None
        return work_of(op.instruction, op.kind, self.plan.cost_of(op), self.machine), None

    # ---- what-ifs --------------------------------------------------------------------------------

    def changed(self, change: Change) -> CoreColumns:
        """Return the columns with a change."""
        first, last = self.first, self.first + len(self.kinds)
        mine = Change(
            *(
                {number - first: value for number, value in field.items() if first <= number < last}
                for field in change.fields()
            )
        )
        new = copy.copy(self)
        new._change_work(mine)
        new._change_transfers(mine)
        new._remove(mine)
        instead = {i: other - first for i, other in mine.removed.items() if other != first + i}
        dropped = {i: {other - first for other in others} for i, others in mine.dropped.items()}
        new.edges = self.edges.changed(dropped, instead)
        if new.edges is not self.edges or mine.on:
            new._connect()
        return new

    def _change_work(self, change: Change) -> None:
        """Change the engine, and the cycles, of instructions."""
        if not (change.on or change.work):
            return
        self.kinds, self.places, self.work = self.kinds.copy(), self.places.copy(), list(self.work)
        self.release_kinds = self.kinds
        works: dict[tuple, Work] = {}
        for index in {**change.on, **change.work}:
            op, times = self.plan.operations[index], change.work.get(index, 1.0)
            on = change.on.get(index)
            if op.instruction is None or op.is_dma:
                continue
            name = op.kind if on is None else on.name
            self.kinds[index] = self.places[index] = KIND_NUMBERS[name]
            key = (self.plan.signatures[op.position], name, times)
            if key not in works:
                moved = op.instruction if on is None else replace_engine(op.instruction, on)
                cost = self.plan.cost_of(op) if on is None else moved.cost(self.machine)
                if times != 1.0:
                    cost = cost._replace(cycles=max(cost.cycles, cost.shortest) * times)
                works[key] = work_of(moved, name, cost, self.machine)
            self.work[index] = works[key]

    def _change_transfers(self, change: Change) -> None:
        if not (change.issue or change.payload):
            return
        self.transfers = list(self.transfers)
        known: dict[tuple, DmaTransfer] = {}
        for index in {**change.issue, **change.payload}:
            made = self.transfers[index]
            assert made is not None
            issue, payload = change.issue.get(index, made.issue_ns), change.payload.get(index)
            key = (id(made), issue, payload if payload is None or isinstance(payload, float) else id(payload))
            if key not in known:
                work = made.payload_ns if payload is None else self._payload(payload)
                times = (issue, made.dispatch_ns, made.notify_ns)
                known[key] = DmaTransfer(made.mode, *times, work, made.nbytes, made.descriptors)
            self.transfers[index] = known[key]

    def _payload(self, payload: Payload) -> tuple[tuple[int, float], ...]:
        """Return the work of DMA engines without the share of the bandwidth, which a change has in it."""
        engines = range(self.machine.dma_engines)
        parts = [(e, payload) for e in engines] if isinstance(payload, float) else payload
        return tuple((engine, ns * self.bandwidth_share) for engine, ns in parts)

    def _remove(self, change: Change) -> None:
        """Leave operations out: they take no time, and their users see their operands without a latency."""
        if change.removed:
            self.places, self.release_kinds = self.places.copy(), self.kinds.copy()
            for index in change.removed:
                self.places[index], self.release_kinds[index] = NOWHERE, REMOVED


def columns_of(machine: Machine, plans: Sequence[OperationPlan]) -> list[CoreColumns]:
    """Return the columns of each core."""
    found: list[CoreColumns] = []
    first = 0
    for plan in plans:
        found.append(CoreColumns(machine, plan, len(plans), first))
        first += len(plan.table)
    return found


def work_of(instruction: Instruction, engine: str, cost: InstructionCost, machine: Machine) -> Work:
    """Return how an engine works on an instruction."""
    facts, clock = facts_of(instruction, engine, machine), engine_clocks(machine)[engine]
    usual = slow = service_times(cost, cost.cycles, clock, facts.slowdown)
    if engine == "tensor":
        slow = service_times(cost, cost.cycles, clock, machine.half_rate_slowdown)
    elif engine == "vector" and isinstance(out := instruction.operands()[0], View):
        slow = service_times(cost, max(cost.cycles, out.free_elements), clock, facts.slowdown)
    drain = machine.tensor_drain_ns if engine == "tensor" else cost.fix_ns
    tile = WHOLE_ARRAY if facts.pe_tile == WHOLE_ARRAY else facts.pe_tile
    return Work(*(*usual, *slow, drain, cost.fix_ns), facts.table, facts.array_rows, tile, facts.is_barrier)


def _bandwidth_share(machine: Machine, sharers: int) -> float:
    """Return the share of the DMA engines' rate that is left where cores share an HBM stack."""
    wanted = machine.dma_engines * machine.dma_bytes_per_ns * sharers
    return min(1.0, machine.hbm_gbs / wanted)
