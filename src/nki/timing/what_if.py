"""What if? The schedule of a Timeline run again with a few things changed.

Every engine and DMA trigger keeps the order in which it took its operations, so a replay is one pass over
them instead of a simulation. With nothing changed it gives the times of the Timeline again; what a change
gains is a little understated, because a new order might use it better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from .operations import ORDER, RAW, WAR, Operation
from .schedule import MEETINGS, RIVALS, Activity
from .timeline import Timeline
from .transfer import Transfer

ENGINE, TENSOR, DMA, MEETING, GONE = range(5)  # how an operation runs
BEGUN, FREE, DONE = range(3)  # its moments, in this order in the list of all moments

Links = tuple[tuple[int, float], ...]  # (moment of another operation, how much later one may begin)
Payload = float | list[tuple[int, float]]  # ns, equal on all DMA engines, or [(engine, ns)]


@dataclass(frozen=True)
class Change:
    """What is different in a what-if. Operations are numbered over all cores; the rest stays as it was."""

    gone: Mapping[int, int] = field(default_factory=dict)  # -> whose result serves instead; itself: its own
    work: Mapping[int, float] = field(default_factory=dict)  # -> times its work on the engine
    tables: Mapping[int, float] = field(default_factory=dict)  # -> ns of the table load before it
    issue: Mapping[int, float] = field(default_factory=dict)  # -> ns that the trigger is held
    payload: Mapping[int, Payload] = field(default_factory=dict)  # -> what the DMA engines have to do
    dropped: Mapping[int, set[int]] = field(default_factory=dict)  # -> what it no longer waits for

    def __or__(self, other: Change) -> Change:
        """Both; where they speak of the same, the other."""
        return Change(*({**getattr(self, f.name), **getattr(other, f.name)} for f in fields(self)))


class Steps(NamedTuple):
    """The operations in the order in which they were begun: a list for each thing about them. Times in ns."""

    moment: list[int]  # where their moments stand
    links: list[Links]
    place: list[int]  # the engine or DMA trigger
    way: list[int]
    before: list[float]  # from begin to work: a table load, the dispatch of a transfer
    held: list[float]  # work that keeps the place from the next one
    result: list[float]  # from the end of the work until a consumer sees the result
    extra: list[Any]  # partitions of a matmul, payload of a transfer, what names a meeting

    def changed(self, change: Change, at: list[int]) -> Steps:
        """The same with a change; `at` says where each operation stands."""
        new = Steps(*map(list, self))
        for number, dropped in change.dropped.items():
            links = self.links[at[number]]
            new.links[at[number]] = tuple(link for link in links if link[0] // 3 not in dropped)
        for number, times in change.work.items():
            new.held[at[number]] *= times
        for number, ns in change.tables.items():
            new.before[at[number]] = ns
        for number, ns in change.issue.items():
            new.held[at[number]] = ns
        for number, payload in change.payload.items():
            new.extra[at[number]] = payload
        for number, instead in change.gone.items():
            new.way[at[number]] = GONE
            if instead != number:
                new.links[at[number]] = ((3 * instead + DONE, 0.0),)
        return new


class Replay:
    """The timeline as steps, ready to be run again."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.machine = timeline.machine
        self.cores = timeline.cores
        self.operations = timeline.operations
        self.first: list[int] = []  # the number of each core's operation 0
        self.tables: dict[int, float] = {}  # ns of the table load before an operation
        count = 0
        for core in self.cores:
            self.first.append(count)
            self.tables.update({count + i: end - start for start, end, i in core.table_loads})
            count += len(core.operations)
        self.is_dma = [op.is_dma for op in self.operations]
        self.places: dict[tuple[int, str], int] = {}
        self.payloads: dict[int, Payload] = {}
        rows = list(self._rows())
        self.steps = Steps(*map(list, zip(*rows, strict=True)) if rows else ([] for _ in Steps._fields))
        self.at = [0] * count  # where an operation stands
        for i, moment in enumerate(self.steps.moment):
            self.at[moment // 3] = i

    def number(self, op: Operation) -> int:
        return self.first[op.core] + op.index

    def payload(self, number: int) -> Payload:
        """What a transfer asks of the DMA engines."""
        return self.steps.extra[self.at[number]]

    # ---- from the timeline -----------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple]:
        """What Steps holds, operation by operation."""
        met: Counter[tuple] = Counter()
        last: dict[tuple[int, str], Operation] = {}
        for c, index in self.cores[0].simulation.order if self.cores else ():
            op = self.cores[c].operations[index]
            links = self._links(op)
            if self.is_dma[self.first[c] + index]:
                yield self._transfer(op, links)
                continue
            if op.kind in RIVALS:
                links += self._rivals(op, last)
                last[c, op.kind] = op
            if op.instruction.public in MEETINGS:  # type: ignore[union-attr]
                yield self._meeting(op, links, met)
            else:
                yield self._compute(op, links)

    def _place(self, core: int, name: str) -> int:
        return self.places.setdefault((core, name), len(self.places))

    def _transfer(self, op: Operation, links: Links) -> tuple:
        core = self.cores[op.core]
        moved = core.transfers[op.index]
        payload = self.payloads.get(id(moved.payload_ns))  # transfers of one shape share it
        if payload is None:
            payload = self.payloads[id(moved.payload_ns)] = self._payload(moved, core.bandwidth_share)
        times = (moved.dispatch_ns, moved.issue_ns, moved.notify_ns)
        return (3 * self.number(op), links, self._place(op.core, moved.mode), DMA, *times, payload)

    def _payload(self, moved: Transfer, share: float) -> Payload:
        payload = [(engine, ns / share) for engine, ns in moved.payload_ns]
        alike = len(payload) == self.machine.dma_engines and len({ns for _, ns in payload}) == 1
        return payload[0][1] if alike else payload

    def _meeting(self, op: Operation, links: Links, met: Counter[tuple]) -> tuple:
        ins: Any = op.instruction
        point = (op.core, ins.public, getattr(ins, "pipe_id", None))
        met[point] += 1
        m, place = self.machine, self._place(op.core, op.kind)
        lasts = m.core_barrier_ns if ins.public == "core_barrier" else m.sendrecv_ns
        names = (*point[1:], met[point])
        return (3 * self.number(op), links, place, MEETING, 0.0, lasts, 0.0, names)

    def _compute(self, op: Operation, links: Links) -> tuple:
        core, i, number = self.cores[op.core], op.index, self.number(op)
        place = self._place(op.core, op.kind)
        if op.kind == "tensor":
            cost = core.planner.cost_of(op)
            work = cost.cycles / core.clocks["tensor"]
            rows = op.instruction.operands()[1].shape[0]  # type: ignore[union-attr]
            return (3 * number, links, place, TENSOR, 0.0, work, cost.fix_ns, rows)
        else:
            held, result = core.free[i] - core.start[i], core.done[i] - core.free[i]
            before = self.tables.get(number, 0.0)
            return (3 * number, links, place, ENGINE, before, held, result, None)

    def _links(self, op: Operation) -> Links:
        """The moments an operation waits for, as the simulation releases it."""
        operations, base, m = self.cores[op.core].operations, self.first[op.core], self.machine
        kind, is_dma = op.kind, self.is_dma
        across = m.compute_to_dma_ns if is_dma[base + op.index] else m.semaphore_ns
        links = []
        for index, why in op.waits.items():
            moment = 3 * (base + index)
            if is_dma[base + index]:
                links.append((moment + (BEGUN if why == ORDER else DONE), 0.0))
            elif operations[index].kind != kind:
                links.append((moment + (FREE if why == WAR else DONE), across))
            elif why == RAW:  # else the order of the engine says it
                links.append((moment + DONE, m.same_engine_gap_ns))
        return tuple(links)

    def _rivals(self, op: Operation, last: dict[tuple[int, str], Operation]) -> Links:
        """The operation on a shared port whose end this one waited for."""
        core = self.cores[op.core]
        begun = core.start[op.index] - self.tables.get(self.number(op), 0.0)
        others = [last.get((op.core, rival)) for rival in RIVALS[op.kind]]
        held = [other for other in others if other is not None and core.free[other.index] == begun]
        return tuple((3 * self.number(other) + FREE, 0.0) for other in held)

    # ---- the replay ------------------------------------------------------------------------------

    def run(self, change: Change | None = None) -> float:
        """ns until the last result, with the change."""
        steps = self.steps if change is None else self.steps.changed(change, self.at)
        moments = [0.0] * (3 * len(self.operations))
        idle = [0.0] * len(self.places)
        engines = [DmaEngines(self.machine) for _ in self.cores]
        arrays = [Activity(self.machine) for _ in self.cores]
        move = [engines[core].move for core, _ in self.places]
        array_of = [arrays[core] for core, _ in self.places]
        arrived: dict[tuple, tuple[int, int, float]] = {}
        for moment, links, place, way, before, held, result, extra in zip(*steps, strict=True):
            begin = idle[place] if way != GONE else 0.0
            for other, later in links:
                ready = moments[other] + later
                if ready > begin:
                    begin = ready
            moments[moment] = begin
            if way == DMA:
                idle[place] = begin + held
                end = move[place](begin + before, extra)
                moments[moment + 1] = end
                moments[moment + 2] = end + result
                continue
            if way == GONE:
                moments[moment + 1] = moments[moment + 2] = begin
                continue
            if way == TENSOR:
                array = array_of[place]
                held *= array.slowdown(extra, begin)
                array.add(begin, begin + held)
            elif way == MEETING and len(self.cores) > 1:
                if extra not in arrived:
                    arrived[extra] = (moment, place, begin)
                    continue
                there, where, came = arrived.pop(extra)
                begin = max(begin, came)
                moments[there + 1] = moments[there + 2] = idle[where] = begin + held
            idle[place] = moments[moment + 1] = end = begin + before + held
            moments[moment + 2] = end + result
        return max(moments[DONE::3], default=0.0)


class DmaEngines:
    """The DMA engines of a core: each works through what is dealt to it, in order of arrival."""

    def __init__(self, machine: Any):
        self.skew = machine.dma_skew_ns
        self.count = machine.dma_engines
        self.free = [0.0] * self.count  # of each engine
        self.level: float | None = 0.0  # engine 0 is free then, each other its skew later; `free` is not kept

    def move(self, arrival: float, payload: Payload) -> float:
        """When the last engine has moved its part."""
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
