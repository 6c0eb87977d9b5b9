"""Replay: the schedule of a Timeline again, in the same order, with a few things changed.

Every engine and DMA trigger keeps the order in which it took its operations, so a replay is one pass over
them instead of a simulation. With nothing changed it gives the times of the Timeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..ir.instruction import WHOLE_ARRAY, Instruction, PeTile, array_use
from .change import Change, Payload
from .dma_transfer import DmaTransfer
from .operation import Operation
from .timeline import Timeline
from .timing_rules import DONE, FREE, RIVALS, SEEN, Activity, deal, releases

ENGINE, TENSOR, DMA, BARRIER, REMOVED = range(5)  # how an operation runs

Links = tuple[int, ...]  # moments of other operations


class ReplaySteps(NamedTuple):
    """The operations in the order in which they began, as one list per field. Times in ns."""

    moment: list[int]  # index of their first moment
    links: list[Links]  # not before these
    across: list[Links]  # not before these and the latency between engines
    place: list[int]  # the engine or DMA trigger
    way: list[int]
    before: list[float]  # from begin to work: a table load, a LoadStationary, the dispatch of a transfer
    held: list[float]  # work during which the engine or trigger takes nothing else
    result: list[float]  # from the end of the work until a consumer sees the result
    extra: list[Any]  # partitions of a matmul, payload of a transfer, what names a barrier

    def changed(self, change: Change, at: list[int]) -> ReplaySteps:
        """Return the steps with a change; `at` maps an operation to its index."""
        new = ReplaySteps(*(list(column) for column in self))
        for number, dropped in change.dropped.items():
            i = at[number]
            new.links[i] = tuple(moment for moment in self.links[i] if moment // 4 not in dropped)
            new.across[i] = tuple(moment for moment in self.across[i] if moment // 4 not in dropped)
        for number, times in change.work.items():
            new.held[at[number]] *= times
        for number, ns in change.tables.items():
            new.before[at[number]] = ns
        for number, ns in change.issue.items():
            new.held[at[number]] = ns
        for number, payload in change.payload.items():
            new.extra[at[number]] = payload
        for number, instead in change.removed.items():
            new.way[at[number]] = REMOVED
            if instead != number:
                new.links[at[number]], new.across[at[number]] = (4 * instead + DONE,), ()
        return new


class Replay:
    """The timeline as steps that can be run again."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.machine = timeline.machine
        self.cores = timeline.cores
        self.operations = timeline.operations
        self.first: list[int] = []  # the number of each core's operation 0
        self.tables: dict[int, tuple[float, float]] = {}  # table loads before operations: (start, ns)
        count = 0
        for core in self.cores:
            self.first.append(count)
            self.tables.update({count + i: (start, end - start) for start, end, i in core.table_loads})
            count += len(core.operations)
        self.is_dma = [op.is_dma for op in self.operations]
        self.places: dict[tuple[int, str], int] = {}
        self.payloads: dict[int, Payload] = {}
        columns: list[list[Any]] = [[] for _ in ReplaySteps._fields]
        for row in self._rows():
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        self.steps = ReplaySteps(*columns)
        self.at = [0] * count  # index of each operation in the steps
        for i, moment in enumerate(self.steps.moment):
            self.at[moment // 4] = i

    def number(self, op: Operation) -> int:
        return self.first[op.core] + op.index

    def payload(self, number: int) -> Payload:
        """Return the work of a transfer on the DMA engines."""
        return self.steps.extra[self.at[number]]

    # ---- from the timeline -----------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple]:
        """Yield the fields of ReplaySteps, operation by operation."""
        visits: Counter[tuple] = Counter()
        free: dict[tuple[int, str, float], int] = {}
        on_tile: dict[int, dict[PeTile, int]] = {c: {} for c in range(len(self.cores))}
        for number in self.cores[0].order if self.cores else ():
            op = self.operations[number]
            c = op.core
            if self.is_dma[number]:
                yield self._transfer(op)
                continue
            assert op.instruction is not None
            if op.instruction.rendezvous() is not None:
                yield self._barrier(op, op.instruction, visits)
            elif op.kind == "tensor":
                yield self._matmul(op, op.instruction, on_tile[c])
            else:
                yield self._compute(op, self._rivals(op, free) if op.kind in RIVALS else ())

    def _place(self, core: int, name: str) -> int:
        return self.places.setdefault((core, name), len(self.places))

    def _transfer(self, op: Operation) -> tuple:
        core = self.cores[op.core]
        moved = core.transfers[op.index]
        payload = self.payloads.get(id(moved.payload_ns))  # transfers of one shape share it
        if payload is None:
            payload = self.payloads[id(moved.payload_ns)] = self._payload(moved, core.bandwidth_share)
        times = (moved.dispatch_ns, moved.issue_ns, moved.notify_ns)
        links, across = self._links(op)
        partner = core.simulation.partners.get(self.number(op))
        if partner is not None:  # the other half of a sendrecv: both wait for what either waits for
            more = self._links(self.operations[partner])
            links, across = links + more[0], across + more[1]
        return (4 * self.number(op), links, across, self._place(op.core, moved.mode), DMA, *times, payload)

    def _payload(self, moved: DmaTransfer, share: float) -> Payload:
        payload = [(engine, ns / share) for engine, ns in moved.payload_ns]
        equal = len(payload) == self.machine.dma_engines and len({ns for _, ns in payload}) == 1
        return payload[0][1] if equal else payload

    def _barrier(self, op: Operation, instruction: Instruction, visits: Counter[tuple]) -> tuple:
        point = (op.core, instruction.rendezvous())
        visits[point] += 1
        lasts = self.cores[op.core].plan.cost_of(op).fix_ns
        place = self._place(op.core, op.kind)
        named = (point[1], visits[point])
        return (4 * self.number(op), *self._links(op), place, BARRIER, 0.0, lasts, 0.0, named)

    def _compute(self, op: Operation, rivals: Links) -> tuple:
        core, i, number = self.cores[op.core], op.index, self.number(op)
        links, across = self._links(op)
        head = (4 * number, links + rivals, across, self._place(op.core, op.kind))
        held, result = core.free[i] - core.start[i], core.done[i] - core.free[i]
        _, table = self.tables.get(number, (0.0, 0.0))
        return (*head, ENGINE, table, held, result, None)

    def _matmul(self, op: Operation, instruction: Instruction, on_tile: dict[PeTile, int]) -> tuple:
        """Parts of the PE array are places of their own; a matmul waits for those it overlaps."""
        core, links = self.cores[op.core], self._links(op)
        rows, tile = array_use(instruction)
        before = tuple(4 * i + FREE for other, i in on_tile.items() if other != tile and other.overlaps(tile))
        on_tile[tile] = self.number(op)
        cost = core.plan.cost_of(op)
        place = self._place(op.core, "tensor" if tile == WHOLE_ARRAY else f"tensor {tile}")
        lead = self.machine.matmul_after_load_ns
        times = (lead, cost.cycles / self.machine.tensor_ghz, cost.fix_ns)
        return (4 * self.number(op), links[0] + before, links[1], place, TENSOR, *times, rows)

    def _links(self, op: Operation) -> tuple[Links, Links]:
        """Return the moments an operation waits for, by the rules of the simulation."""
        operations, base, is_dma = self.cores[op.core].operations, self.first[op.core], self.is_dma
        links, across = [], []
        for index, why in op.waits.items():
            same = operations[index].kind == op.kind
            moment = releases(is_dma[base + index], same, why)
            if is_dma[base + index] or moment == SEEN:
                links.append(4 * (base + index) + moment)
            elif not same:  # otherwise the order of the engine implies it
                across.append(4 * (base + index) + moment)
        return tuple(links), tuple(across)

    def _rivals(self, op: Operation, free: dict[tuple[int, str, float], int]) -> Links:
        """Return the operation on a shared port whose end this one waited for, if any.

        `free` maps core, engine and time to the operation that ended then.
        """
        core, i, number = self.cores[op.core], op.index, self.number(op)
        begun, _ = self.tables.get(number, (core.start[i], 0.0))
        found: Links = ()
        if core.ready[i] < begun and (op.core, op.kind, begun) not in free:  # not its data, not its engine
            others = (free.get((op.core, rival, begun)) for rival in RIVALS[op.kind])
            found = tuple(4 * other + FREE for other in others if other is not None)
        free[op.core, op.kind, core.free[i]] = number
        return found

    # ---- the replay ------------------------------------------------------------------------------

    def run(self, change: Change | None = None) -> float:
        """Return ns until the last result, with the change."""
        steps = self.steps if change is None else self.steps.changed(change, self.at)
        moments = [0.0] * (4 * len(self.operations))
        idle = [0.0] * len(self.places)
        engines = [DmaEngines(self.machine) for _ in self.cores]
        arrays = [Activity(self.machine) for _ in self.cores]
        move = [engines[core].move for core, _ in self.places]
        array_of = [arrays[core] for core, _ in self.places]
        to_engine, to_dma = self.machine.semaphore_ns, self.machine.compute_to_dma_ns
        gap = self.machine.same_engine_gap_ns
        arrived: dict[tuple, tuple[int, int, float]] = {}  # first of two cores at a barrier
        # One loop without calls: it passes over every operation for every what-if.
        for moment, links, across, place, way, before, held, result, extra in zip(*steps, strict=True):
            begin = 0.0 if way in (REMOVED, TENSOR) else idle[place]
            for other in links:
                if moments[other] > begin:
                    begin = moments[other]
            for other in across:
                ready = moments[other] + (to_dma if way == DMA else to_engine)
                if ready > begin:
                    begin = ready
            if way == TENSOR:  # the stationary operand is loaded while the array works on
                begin = max(begin + before, idle[place])
                before = 0.0
            moments[moment] = begin
            if way == DMA:
                idle[place] = begin + held
                moments[moment + 2] = move[place](begin + before, extra) + result
                continue
            if way == REMOVED:
                moments[moment + 1] = moments[moment + 2] = moments[moment + 3] = begin
                continue
            if way == TENSOR:
                array = array_of[place]
                slow = array.slowdown(begin)
                held *= slow
                array.add(begin, begin + held, extra, slow)
            elif way == BARRIER and len(self.cores) > 1:
                if extra not in arrived:
                    arrived[extra] = (moment, place, begin)
                    continue
                there, where, came = arrived.pop(extra)
                begin = max(begin, came)
                moments[there + 1] = moments[there + 2] = idle[where] = begin + held
                moments[there + 3] = begin + held + gap
            idle[place] = moments[moment + 1] = end = begin + before + held
            moments[moment + 2] = end + result
            moments[moment + 3] = end + result + gap
        return max(moments[DONE::4], default=0.0)


class DmaEngines:
    """The DMA engines of a core: each does its share of every transfer, in order of arrival."""

    def __init__(self, machine: Any):
        self.skew = machine.dma_skew_ns
        self.count = machine.dma_engines
        self.free = [0.0] * (self.count + 1)  # of each engine, and of the link to other ranks
        self.level: float | None = 0.0  # when engine 0 is free, others their skew later

    def move(self, arrival: float, payload: Payload) -> float:
        """Return when the last engine has moved its part."""
        if isinstance(payload, float):
            if self.level is not None:
                begin = arrival if arrival > self.level else self.level
                self.level = begin + payload
                return self.level + (self.count - 1) * self.skew
            payload = [(engine, payload) for engine in range(self.count)]
        return self._deal(arrival, payload)

    def _deal(self, arrival: float, payload: list[tuple[int, float]]) -> float:
        free, skew = self.free, self.skew
        if self.level is not None:
            free[: self.count] = [self.level + engine * skew for engine in range(self.count)]
            self.level = None
        return deal(free, arrival, payload, skew)[1]
