"""Replay: the schedule of a Timeline again, in the same order, with a few things changed.

Every engine and DMA trigger keeps the order in which it took its operations, so a replay is one pass over
them instead of a simulation. With nothing changed it gives the times of the Timeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir.caches import cached_property
from ..ir.instruction import WHOLE_ARRAY, PeTile
from .change import Change, Payload
from .columns import Work
from .core_simulation import CoreSimulation
from .dma_transfer import DmaTransfer
from .edges import moments_of
from .operation import Operation
from .timeline import Timeline
from .timing_rules import DMA as DMA_KIND
from .timing_rules import DONE, FREE, RIVALS, SEEN, Activity, deal

ENGINE, BARRIER, DMA, TENSOR, REMOVED = range(5)  # how an operation runs

Links = Sequence[int]  # moments of other operations
NO_TABLE = (0.0, 0.0)


class ReplayStep(NamedTuple):
    """How an operation runs; operations of one signature share theirs where they can. Times in ns."""

    place: int  # the engine or DMA trigger
    way: int
    before: float  # from begin to work: a table load, a LoadStationary, the dispatch of a transfer
    held: float  # work during which the engine or trigger takes nothing else
    result: float  # from the end of the work until a consumer sees the result
    extra: Any  # partitions of a matmul, payload of a transfer, what names a barrier


GONE = ReplayStep(0, REMOVED, 0.0, 0.0, 0.0, None)


class ReplayColumns(NamedTuple):
    """The operations of a replay, in the order in which they were begun, as one list per field.

    A link is the index of a moment: i is when operation i in this order is DONE; others follow them all.
    """

    steps: list[ReplayStep]
    links: list[Links]  # not before these moments
    across: list[Links]  # not before these results and the latency between engines

    def ordered(self, order: Sequence[int]) -> ReplayColumns:
        """Return the columns in this order."""
        steps, links, across = self
        return ReplayColumns([steps[i] for i in order], [links[i] for i in order], [across[i] for i in order])

    def changed(self, change: Change, owners: Sequence[int], at: Sequence[int]) -> ReplayColumns:
        """Return the columns with a change.

        `owners` has the number of the operation of each moment, `at` the index of each operation.
        """
        new = ReplayColumns(list(self.steps), list(self.links), list(self.across))
        for number, others in change.dropped.items():
            i = at[number]
            for column in (new.links, new.across):
                if column[i]:
                    column[i] = [link for link in column[i] if owners[link] not in others]
        edits: tuple[tuple[Mapping[int, Any], Callable[[ReplayStep, Any], ReplayStep]], ...] = (
            (change.work, lambda step, times: step._replace(held=step.held * times)),
            (change.tables, lambda step, ns: step._replace(before=ns)),
            (change.issue, lambda step, ns: step._replace(held=ns)),
            (change.payload, lambda step, payload: step._replace(extra=payload)),
        )
        for values, edit in edits:
            _replace(new.steps, [at[number] for number in values], values.values(), edit)
        for number, instead in change.removed.items():
            i = at[number]
            new.steps[i] = GONE
            if instead != number:
                new.links[i], new.across[i] = (at[instead],), ()
        return new


def _replace(
    steps: list[ReplayStep],
    chosen: Iterable[int],
    values: Iterable[Any],
    edit: Callable[[ReplayStep, Any], ReplayStep],
) -> None:
    """Edit the chosen steps; those that share a step, and get the same value, share the new one."""
    known: dict[tuple, tuple[ReplayStep, ReplayStep]] = {}  # with the old one, so that its identity lasts
    for i, value in zip(chosen, values, strict=True):
        old = steps[i]
        key = (id(old), id(value))
        found = known.get(key)
        if found is None:
            found = known[key] = (old, edit(old, value))
        steps[i] = found[1]


class Replay:
    """The timeline as steps that can be run again."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.machine = timeline.machine
        self.cores: list[CoreSimulation] = timeline.cores
        self.operations = timeline.operations
        self.order = list(self.cores[0].order) if self.cores else []  # numbers, as they were begun
        self.first = [core.columns.first for core in self.cores]  # the number of each core's operation 0
        self.tables = {  # table loads before operations: (start, ns)
            first + i: (start, end - start)
            for first, core in zip(self.first, self.cores, strict=True)
            for start, end, i in core.table_loads
        }
        self.places: dict[tuple[int, str], int] = {}
        self.others: dict[tuple[int, int], int] = {}  # (operation in order, moment) -> its index
        by_number = self.columns = ReplayColumns([], [], [])
        for core in self.cores:
            self._add_links(core)
        by_number.steps[:] = self._steps()
        self.columns = by_number.ordered(self.order)
        self.owners = [*self.order, *(self.order[i] for i, _ in self.others)]

    @cached_property
    def at(self) -> list[int]:
        """When each operation was begun, by number: its index in the order of all."""
        return np.argsort(self.order).tolist()

    def _link(self, i: int, moment: int) -> int:
        """Return the link to a moment of operation i of the order."""
        new = len(self.order) + len(self.others)
        return i if moment == DONE else self.others.setdefault((i, moment), new)

    def number(self, op: Operation) -> int:
        return self.first[op.core] + op.index

    def payload(self, number: int) -> Payload:
        """Return the work of a transfer on the DMA engines."""
        return self.columns.steps[self.at[number]].extra

    # ---- from the timeline -----------------------------------------------------------------------

    def _add_links(self, core: CoreSimulation) -> None:
        """Add the moments that the operations of a core wait for, by the rules of the simulation."""
        kinds = np.frombuffer(core.columns.kinds, np.uint8)
        producers, users, why = core.edges
        moments = moments_of(kinds, producers, users, why)
        links = (kinds[producers] == DMA_KIND) | (moments == SEEN)
        across = ~links & (kinds[producers] != kinds[users])  # otherwise the order of the engine implies it
        numbers = np.array(self.at, np.int64)[core.columns.first + producers.astype(np.int64)]
        (others,) = np.nonzero(links & (moments != DONE))
        pairs = zip(numbers[others].tolist(), moments[others].tolist(), strict=True)
        numbers[others] = [self._link(i, moment) for i, moment in pairs]
        for column, chosen in ((self.columns.links, links), (self.columns.across, across)):
            order = np.argsort(users[chosen], kind="stable")
            found = numbers[chosen][order].tolist()
            ends = np.cumsum(np.bincount(users[chosen], minlength=len(kinds))).tolist()
            column += [tuple(found[a:b]) if a < b else () for a, b in zip([0, *ends], ends, strict=False)]

    def _steps(self) -> list[ReplayStep]:
        """Return how each operation runs."""
        steps: list[Any] = [None] * len(self.operations)
        visits: Counter[tuple] = Counter()
        free: dict[tuple[int, str, float], int] = {}
        on_tile: dict[int, dict[PeTile, int]] = {c: {} for c in range(len(self.cores))}
        known: dict[tuple, ReplayStep] = {}  # by the identity of what is shared
        for first, core in zip(self.first, self.cores, strict=True):
            self._add_transfers(first, core, steps)
        kinds = np.concatenate([np.frombuffer(core.kinds, np.uint8) for core in self.cores])
        order = np.array(self.order, np.int64)
        for number in order[kinds[order] != DMA_KIND].tolist():
            op = self.operations[number]
            core = self.cores[op.core]
            work = core.columns.work[op.index]
            assert work is not None
            if work.is_barrier:
                steps[number] = self._barrier(op, work.result, visits)
            elif op.kind == "tensor":
                steps[number] = self._matmul(op, work, on_tile[op.core], known)
            else:
                steps[number] = self._compute(op, self._rivals(op, free) if op.kind in RIVALS else ())
        return steps

    def _place(self, core: int, name: str) -> int:
        return self.places.setdefault((core, name), len(self.places))

    def _add_transfers(self, first: int, core: CoreSimulation, steps: list[Any]) -> None:
        """Add the steps of a core's transfers; those of one signature share theirs."""
        made: dict[int, ReplayStep] = {}
        for index, moved in core.transfers.items():
            step = made.get(id(moved))
            if step is None:
                times = (moved.dispatch_ns, moved.issue_ns, moved.notify_ns)
                payload = self._payload(moved, core.bandwidth_share)
                place = self._place(core.plan.core, moved.mode)
                step = made[id(moved)] = ReplayStep(place, DMA, *times, payload)
            steps[first + index] = step
        for number, partner in core.simulation.partners.items():
            if first <= number < first + core.size and number < partner:
                self._join(number, partner)

    def _join(self, number: int, partner: int) -> None:
        """Make both halves of a sendrecv wait for what either waits for."""
        for column in (self.columns.links, self.columns.across):
            column[number] = column[partner] = [*column[number], *column[partner]]

    def _payload(self, moved: DmaTransfer, share: float) -> Payload:
        payload = [(engine, ns / share) for engine, ns in moved.payload_ns]
        equal = len(payload) == self.machine.dma_engines and len({ns for _, ns in payload}) == 1
        return payload[0][1] if equal else payload

    def _barrier(self, op: Operation, lasts: float, visits: Counter[tuple]) -> ReplayStep:
        assert op.instruction is not None
        point = (op.core, op.instruction.rendezvous())
        visits[point] += 1
        place = self._place(op.core, op.kind)
        return ReplayStep(place, BARRIER, 0.0, lasts, 0.0, (point[1], visits[point]))

    def _compute(self, op: Operation, rivals: Links) -> ReplayStep:
        core, i, number = self.cores[op.core], op.index, self.number(op)
        if rivals:
            self.columns.links[number] = [*self.columns.links[number], *rivals]
        held, result = core.free[i] - core.start[i], core.done[i] - core.free[i]
        _, table = self.tables.get(number, NO_TABLE)
        return ReplayStep(self._place(op.core, op.kind), ENGINE, table, held, result, None)

    def _matmul(
        self, op: Operation, work: Work, on_tile: dict[PeTile, int], known: dict[tuple, ReplayStep]
    ) -> ReplayStep:
        """Parts of the PE array are places of their own; a matmul waits for those it overlaps."""
        tile, number = work.pe_tile, self.number(op)
        if on_tile and on_tile.keys() != {tile}:
            others = [i for other, i in on_tile.items() if other != tile and other.overlaps(tile)]
            before = [self._link(i, FREE) for i in others]
            self.columns.links[number] = [*self.columns.links[number], *before]
        on_tile[tile] = self.at[number]
        step = known.get((op.core, id(work)))
        if step is None:
            place = self._place(op.core, "tensor" if tile is WHOLE_ARRAY else f"tensor {tile}")
            times = (self.machine.matmul_after_load_ns, work.service, work.result)
            step = known[op.core, id(work)] = ReplayStep(place, TENSOR, *times, work.array_rows)
        return step

    def _rivals(self, op: Operation, free: dict[tuple[int, str, float], int]) -> Links:
        """Return the operation on a shared port whose end this one waited for, if any.

        `free` maps core, engine and time to the operation that ended then.
        """
        core, i, number = self.cores[op.core], op.index, self.number(op)
        begun, _ = self.tables.get(number, (core.start[i], 0.0))
        found: Links = ()
        if core.ready[i] < begun and (op.core, op.kind, begun) not in free:  # not its data, not its engine
            others = (free.get((op.core, rival, begun)) for rival in RIVALS[op.kind])
            found = tuple(self._link(other, FREE) for other in others if other is not None)
        free[op.core, op.kind, core.free[i]] = self.at[number]
        return found

    # ---- the replay ------------------------------------------------------------------------------

    def run(self, change: Change | None = None) -> float:
        """Return ns until the last result, with the change."""
        columns = self.columns if change is None else self.columns.changed(change, self.owners, self.at)
        count, tells = len(self.order), self._tells
        moments = [0.0] * len(self.owners)
        idle = [0.0] * len(self.places)
        engines = [DmaEngines(self.machine) for _ in self.cores]
        arrays = [Activity(self.machine) for _ in self.cores]
        move = [engines[core].move for core, _ in self.places]
        array_of = [arrays[core] for core, _ in self.places]
        to_engine, to_dma = self.machine.semaphore_ns, self.machine.compute_to_dma_ns
        gap = self.machine.same_engine_gap_ns
        arrived: dict[tuple, tuple[int, int, float]] = {}  # first of two cores at a barrier
        # One loop without calls: it passes over every operation for every what-if.
        rows = zip(range(count), *columns, strict=True)
        for i, (place, way, before, held, result, extra), links, across in rows:
            begin = idle[place] if way < TENSOR else 0.0
            for other in links:
                if moments[other] > begin:
                    begin = moments[other]
            if across:
                latency = to_dma if way == DMA else to_engine
                for other in across:
                    ready = moments[other] + latency
                    if ready > begin:
                        begin = ready
            if way == DMA:
                idle[place] = begin + held
                moments[i] = move[place](begin + before, extra) + result
                for _, asked in tells.get(i, ()):
                    moments[asked] = begin
                continue
            if way == REMOVED:
                moments[i] = begin
                for _, asked in tells.get(i, ()):
                    moments[asked] = begin
                continue
            if way == TENSOR:  # the stationary operand is loaded while the array works on
                begin = max(begin + before, idle[place])
                before = 0.0
                array = array_of[place]
                slow = array.slowdown(begin)
                held *= slow
                array.add(begin, begin + held, extra, slow)
            elif way == BARRIER and len(self.cores) > 1:
                if extra not in arrived:
                    arrived[extra] = (i, place, begin)
                    continue
                there, where, came = arrived.pop(extra)
                begin = max(begin, came)
                moments[there] = idle[where] = begin + held
                for moment, asked in tells.get(there, ()):
                    moments[asked] = begin + held + (gap if moment == SEEN else 0.0)
            idle[place] = end = begin + before + held
            moments[i] = end + result
            if i in tells:
                for moment, asked in tells[i]:
                    moments[asked] = end + result + gap if moment == SEEN else end
        return max(moments[:count], default=0.0)

    @cached_property
    def _tells(self) -> dict[int, list[tuple[int, int]]]:
        """The moments but DONE that are asked for, and their indices, by operation of the order.

        Of a transfer that is BEGUN, of an instruction FREE or SEEN.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for (i, moment), index in self.others.items():
            found.setdefault(i, []).append((moment, index))
        return found


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
