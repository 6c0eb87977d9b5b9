"""What if? The schedule of a Timeline run again with a few things changed.

Every engine and DMA trigger keeps the order in which it took its operations, so a replay is one pass over
them instead of a simulation. With nothing changed it gives the times of the Timeline again; what a change
gains is a little understated, because a new order might use it better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .operations import ORDER, RAW, WAR, Operation
from .schedule import MEETINGS, RIVALS, Activity
from .timeline import Timeline
from .transfer import Transfer

ENGINE, TENSOR, DMA, MEETING, GONE = range(5)  # how an operation runs
BEGUN, FREE, DONE = range(3)  # its moments, in this order in the list of all moments

Links = tuple[tuple[int, float], ...]


class Step(NamedTuple):
    """An operation as the replay runs it. Times in ns."""

    moment: int  # where its three moments stand
    links: Links  # (moment of another operation, how much later this may begin)
    place: int  # the engine or DMA trigger
    way: int
    before: float  # from its begin to its work: a table load, the dispatch of a transfer
    held: float  # its place takes the next one so much later
    result: float  # from the end of its work until a consumer sees the result
    extra: Any  # partitions of a matmul, payload of a transfer, what names a meeting


@dataclass(frozen=True)
class Change:
    """What is different in a what-if. Operations are numbered over all cores; the rest stays as it was."""

    gone: Mapping[int, int] = field(default_factory=dict)  # -> the operation whose result serves instead
    work: Mapping[int, float] = field(default_factory=dict)  # -> times its work on the engine
    tables: frozenset[int] = frozenset()  # need no table load
    transfers: Mapping[int, Transfer] = field(default_factory=dict)  # -> the transfer it becomes
    dropped: Mapping[int, set[int]] = field(default_factory=dict)  # -> what it no longer waits for

    def __or__(self, other: Change) -> Change:
        """Both changes; they concern different operations."""
        return Change(
            {**self.gone, **other.gone},
            {**self.work, **other.work},
            self.tables | other.tables,
            {**self.transfers, **other.transfers},
            {**self.dropped, **other.dropped},
        )

    def __bool__(self) -> bool:
        return any((self.gone, self.work, self.tables, self.transfers, self.dropped))


class Replay:
    """The operations of a timeline in the order in which they were begun."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.machine = timeline.machine
        self.cores = timeline.cores
        self.first: list[int] = []  # the number of each core's operation 0
        self.operations = timeline.operations
        self.places: dict[tuple[int, str], int] = {}
        self.tables: dict[int, float] = {}
        for core in self.cores:
            number = self.first[-1] + len(before.operations) if self.first else 0
            self.first.append(number)
            self.tables.update({number + i: end - start for start, end, i in core.table_loads})
            before = core
        self.steps = self._steps()
        self.at = {step.moment // 3: i for i, step in enumerate(self.steps)}

    def number(self, op: Operation) -> int:
        return self.first[op.core] + op.index

    # ---- from the timeline -----------------------------------------------------------------------

    def _steps(self) -> list[Step]:
        met: Counter[tuple] = Counter()
        last: dict[tuple[int, str], Operation] = {}
        steps = []
        for c, index in self.cores[0].simulation.order if self.cores else ():
            op = self.cores[c].operations[index]
            if op.is_dma:
                steps.append(self._transfer(op))
                continue
            step = self._meeting(op, met) if op.instruction.public in MEETINGS else self._compute(op)
            if op.kind in RIVALS:
                step = self._behind_rival(op, step, last)
                last[c, op.kind] = op
            steps.append(step)
        return steps

    def _place(self, core: int, name: str) -> int:
        return self.places.setdefault((core, name), len(self.places))

    def _transfer(self, op: Operation, dropped: Any = (), transfer: Transfer | None = None) -> Step:
        core = self.cores[op.core]
        moved = core.transfers[op.index] if transfer is None else transfer
        share = core.bandwidth_share
        payload: Any = [(engine, ns / share) for engine, ns in moved.payload_ns]
        if len(payload) == self.machine.dma_engines and len({ns for _, ns in payload}) == 1:
            payload = payload[0][1]
        place = self._place(op.core, moved.mode)
        times = (moved.dispatch_ns, moved.issue_ns, moved.notify_ns)
        return Step(3 * self.number(op), self._links(op, dropped), place, DMA, *times, payload)

    def _meeting(self, op: Operation, met: Counter[tuple]) -> Step:
        ins: Any = op.instruction
        kind = (op.core, ins.public, getattr(ins, "pipe_id", None))
        met[kind] += 1
        m = self.machine
        lasts = m.core_barrier_ns if ins.public == "core_barrier" else m.sendrecv_ns
        place = self._place(op.core, op.kind)
        return Step(
            3 * self.number(op), self._links(op), place, MEETING, 0.0, lasts, 0.0, (kind[1:], met[kind])
        )

    def _compute(self, op: Operation, dropped: Any = (), times: float = 1.0, table: bool = True) -> Step:
        core, i, number = self.cores[op.core], op.index, self.number(op)
        place, links = self._place(op.core, op.kind), self._links(op, dropped)
        if op.kind == "tensor":
            cost = core.planner.cost_of(op)
            work = times * cost.cycles / core.clocks["tensor"]
            rows = op.instruction.operands()[1].shape[0]  # type: ignore[union-attr]
            return Step(3 * number, links, place, TENSOR, 0.0, work, cost.fix_ns, rows)
        start = core.start[i]
        held, done = core.free[i] - start, core.done[i] - start
        before = self.tables.get(number, 0.0) if table else 0.0
        return Step(3 * number, links, place, ENGINE, before, times * held, done - held, None)

    def _links(self, op: Operation, dropped: Any = ()) -> Links:
        """The moments an operation waits for, as the simulation releases it."""
        operations, base, m = self.cores[op.core].operations, self.first[op.core], self.machine
        is_dma, kind = op.is_dma, op.kind
        links = []
        for index, why in op.waits.items():
            if dropped and base + index in dropped:
                continue
            producer = operations[index]
            moment = 3 * (base + index)
            if producer.is_dma:
                links.append((moment + (BEGUN if why == ORDER else DONE), 0.0))
            elif producer.kind != kind:
                latency = m.compute_to_dma_ns if is_dma else m.semaphore_ns
                links.append((moment + (FREE if why == WAR else DONE), latency))
            elif why == RAW:  # else the order of the engine says it
                links.append((moment + DONE, m.same_engine_gap_ns))
        return tuple(links)

    def _behind_rival(self, op: Operation, step: Step, last: dict[tuple[int, str], Operation]) -> Step:
        """Where a shared port made the operation wait, a link to the one that held it."""
        core = self.cores[op.core]
        begun = core.start[op.index] - step.before
        for rival in RIVALS[op.kind]:
            other = last.get((op.core, rival))
            if other is not None and core.free[other.index] == begun:
                step = step._replace(links=(*step.links, (3 * self.number(other) + FREE, 0.0)))
        return step

    # ---- the replay ------------------------------------------------------------------------------

    def run(self, change: Change | None = None) -> float:
        """ns until the last result, with the change."""
        steps = self._changed(change) if change else self.steps
        moments = [0.0] * (3 * len(self.operations))
        idle = [0.0] * len(self.places)
        rings = [Rings(self.machine) for _ in self.cores]
        arrays = [Activity(self.machine) for _ in self.cores]
        ring_of = [rings[core] for core, _ in self.places]
        array_of = [arrays[core] for core, _ in self.places]
        arrived: dict[Any, tuple[Step, float]] = {}
        for step in steps:
            moment, links, place, way, before, held, result, extra = step
            begin = idle[place] if way != GONE else 0.0
            for other, later in links:
                ready = moments[other] + later
                if ready > begin:
                    begin = ready
            moments[moment] = begin
            if way == DMA:
                idle[place] = begin + held
                end = ring_of[place].move(begin + before, extra)
                moments[moment + 1] = end
                moments[moment + 2] = end + result
                continue
            begin += before
            if way == TENSOR:
                array = array_of[place]
                held *= array.slowdown(extra, begin)
                array.add(begin, begin + held)
            elif way == GONE:
                moments[moment + 1] = moments[moment + 2] = begin
                continue
            elif way == MEETING and len(self.cores) > 1:
                if extra not in arrived:
                    arrived[extra] = (step, begin)
                    continue
                other_step, other_begin = arrived.pop(extra)
                begin = max(begin, other_begin)
                self._finish(other_step, begin, moments, idle)
            idle[place] = moments[moment + 1] = begin + held
            moments[moment + 2] = begin + held + result
        return max(moments[DONE::3], default=0.0)

    @staticmethod
    def _finish(step: Step, begin: float, moments: list[float], idle: list[float]) -> None:
        until = begin + step.held
        moments[step.moment + FREE] = moments[step.moment + DONE] = idle[step.place] = until

    def _changed(self, change: Change) -> list[Step]:
        steps = list(self.steps)
        named = {*change.work, *change.tables, *change.transfers, *change.dropped}
        for number in named.difference(change.gone):
            op, dropped = self.operations[number], change.dropped.get(number, ())
            if op.is_dma:
                step = self._transfer(op, dropped, change.transfers.get(number))
            else:
                times = change.work.get(number, 1.0)
                step = self._compute(op, dropped, times, number not in change.tables)
            steps[self.at[number]] = step
        for number, instead in change.gone.items():
            links = ((3 * instead + DONE, 0.0),) if instead != number else ()
            old = steps[self.at[number]]
            steps[self.at[number]] = old._replace(links=links, way=GONE, before=0.0)
        return steps


class Rings:
    """The DMA engines of a core: each works through what is dealt to it, in order of arrival."""

    def __init__(self, machine: Any):
        self.skew = machine.dma_skew_ns
        self.count = machine.dma_engines
        self.free = [0.0] * self.count  # of each engine
        self.level: float | None = 0.0  # all are free at this, each its skew later: `free` is not kept

    def move(self, arrival: float, payload: Any) -> float:
        """When the last engine has moved its part. Equal parts on all engines are one number."""
        if isinstance(payload, float):
            if self.level is not None:
                begin = arrival if arrival > self.level else self.level
                self.level = begin + payload
                return self.level + (self.count - 1) * self.skew
            payload = [(engine, payload) for engine in range(self.count)]
        return self._deal(arrival, payload)

    def _deal(self, arrival: float, payload: list[tuple[int, float]]) -> float:
        free, skew, last = self.free, self.skew, arrival
        if self.level is not None:
            free[:] = [self.level + engine * skew for engine in range(self.count)]
            self.level = None
        for engine, ns in payload:
            begin = max(free[engine], arrival + engine * skew)
            free[engine] = begin + ns
            last = max(last, free[engine])
        return last
