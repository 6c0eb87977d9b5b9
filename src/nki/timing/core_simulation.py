"""A discrete-event simulation of one core: its engines and its DMA system (spec/machine.md 4-11).

An engine takes the first instruction of the program whose operands are ready. Transfers are triggered in the
order of their first use, so loads run ahead as far as SBUF space allows. Deterministic.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import MutableSequence, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Any, cast

import numpy as np

from ..ir.caches import cached_property
from ..ir.instruction import WHOLE_ARRAY, Instruction, PeTile
from .columns import NOWHERE, PLACES, CoreColumns, Work
from .dma_engines import DmaEngines
from .dma_transfer import DmaTransfer
from .edges import Edges, MomentUsers
from .instruction_facts import cannot_overlap, psum_tiles
from .joint_transfers import joint_transfers
from .operation import Operation
from .operation_plan import engine_clocks
from .psum_banks import Banks, StarvedQueues
from .timing_rules import DMA, KIND_NUMBERS, RIVALS, Activity, done_waits

TENSOR, VECTOR, SCALAR, GPSIMD = (KIND_NUMBERS[name] for name in ("tensor", "vector", "scalar", "gpsimd"))
RIVAL_PLACES = [[KIND_NUMBERS[rival] for rival in RIVALS.get(name, ())] for name in KIND_NUMBERS]

Times = MutableSequence[float]
Numbers = MutableSequence[int]


class CoreSimulation:
    """One core: five engines, a DMA trigger per mode, sixteen DMA engines.

    An engine that becomes idle takes the earliest instruction of the program whose operands are ready,
    which is what the compiler's list scheduling arranges. An event is a method, called with the moment.
    Columns are lists while it runs, since Python reads and writes these faster, and arrays afterwards.
    """

    def __init__(self, simulation: Any, columns: CoreColumns, rank: int, order: list[int]):
        self.simulation, self.columns = simulation, columns
        self.events, self.tick = simulation.events, simulation.ticks.__next__
        self.machine, self.plan, self.sharers = columns.machine, columns.plan, columns.sharers
        self.of_rank = rank
        self.order: Numbers = order  # the numbers of the rank's operations as they were begun
        self.size = size = len(columns.kinds)
        self.start: Times = [0.0] * size  # ns
        self.free: Times = [0.0] * size  # the engine can take the next; operands have been read
        self.done: Times = [0.0] * size  # a consumer sees the result
        self.end: Times = [0.0] * size  # end of the bar a profiler draws
        self.blocked_by: Numbers = [-1] * size  # the operation that decided the start
        self.triggered: Times = [0.0] * size  # transfers: ns
        self.table_loads: list[tuple[float, float, int]] = []
        self.barriers: dict[Any, int] = {}  # visits of each
        self.ready: Times = [0.0] * size
        self.loadable: Times = [0.0] * size  # of matmuls: the same, but for the order of TensorE
        self.missing = list(columns.missing)  # what each still waits for
        self.kinds, self.places = columns.kinds, columns.places
        self.work, self.moves = cast(list[Work], columns.work), cast(list[DmaTransfer], columns.transfers)
        self.queue_keys = [first * size + i for i, first in enumerate(columns.priorities)]
        users = columns.users
        self.of_begin, self.of_engine, self.of_result = users.of_begin, users.of_engine, users.of_result
        self.psum, self.uses_psum = columns.positions, columns.uses_psum
        self.joint = joint_transfers(columns, rank, len(simulation.starts))
        self.waiting: list[list[int]] = [[] for _ in range(PLACES)]  # by `queue_keys`
        self.idle_at = [0.0] * (PLACES + 1)  # NOWHERE is never busy
        self.resume = [-1] * PLACES  # the tick of a `_take_next` that is posted once something waits
        self.last_on = [-1] * PLACES
        self.table: str | None = None
        self.clocks = engine_clocks(self.machine)
        self.activity = Activity(self.machine)
        self.pe_tiles: dict[PeTile, int] = {}  # the last matmul on each part of the PE array
        self.banks = Banks(columns.banks)
        self.psum_tiles = cache(lambda index: psum_tiles(self.instruction(index)))
        # of what a what-if leaves out, users see its operands without a latency
        self.done_waits = [*done_waits(self.machine), [0.0] * (DMA + 1)]
        self.tensor_free = 0.0  # when all parts of the PE array are free
        self.starved = StarvedQueues(self.banks)
        self.last_freed = (-1, 0.0)  # the operation that freed banks last, and when
        self.bank_waits: list[tuple[int, int]] = []  # (operation, the one that freed its bank)
        self.bandwidth_share = columns.bandwidth_share
        self.dma_engines = DmaEngines(self.machine, self.bandwidth_share)

    def compact(self) -> None:
        """Turn the times into arrays, and drop what is read only while operations run."""
        for name in ("start", "free", "done", "end", "triggered", "ready", "loadable"):
            setattr(self, name, array("d", getattr(self, name)))
        self.blocked_by, self.order = array("i", self.blocked_by), array("i", self.order)
        del self.missing, self.queue_keys, self.waiting, self.psum_tiles

    def instruction(self, index: int) -> Instruction:
        """Return the instruction of an operation, which is no spill."""
        return self.plan.instructions[self.columns.positions[index]]

    @cached_property
    def transfers(self) -> dict[int, DmaTransfer]:
        """The transfers in the order in which they were begun; once all were."""
        begun = np.array(self.order, np.int64) - self.columns.first
        mine = begun[(begun >= 0) & (begun < self.size)].tolist()
        all_of_them = self.columns.transfers
        return {index: transfer for index in mine if (transfer := all_of_them[index]) is not None}

    @property
    def edges(self) -> Edges:
        """The waits of the operations, those for PSUM banks last; once all ran."""
        return self.columns.edges.with_space(self.bank_waits)

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations; ranks wait for PSUM banks in their own ways."""
        return self.plan.operations if self.of_rank == 0 else self.plan.made_operations(self.bank_waits)

    # ---- waiting for other operations ------------------------------------------------------------

    def begin(self, moment: float) -> None:
        for index, waits in enumerate(self.columns.missing):
            if not waits:
                if moment > 0:
                    heappush(self.events, (moment, self.tick(), self.enqueue, index))
                else:
                    self.enqueue(index, 0.0)

    def _finish(self, index: int, now: float) -> None:
        """Release what waits for the result of an operation: others, and the PSUM banks that it used last."""
        first, missing, ready = self.of_result.first, self.missing, self.ready
        begin, end = first[index], first[index + 1]
        if begin < end:
            loadable, kinds, blocked_by = self.loadable, self.kinds, self.blocked_by
            kind = self.columns.release_kinds[index]
            waits = self.done_waits[kind]
            feeds = TENSOR < kind <= DMA  # the PE array from outside
            for user in self.of_result.users[begin:end]:
                moment = now + waits[kinds[user]]
                if feeds and moment > loadable[user]:
                    loadable[user] = moment
                if moment >= ready[user]:
                    ready[user] = moment
                    blocked_by[user] = index
                left = missing[user] = missing[user] - 1
                if left == 0:
                    self._enqueue_at(user, ready[user], now)
        if self.uses_psum[index]:
            self._used_banks(index, now)

    def _operands_read(self, index: int, now: float) -> None:
        """Release the operations that wait until the engine of this one is free."""
        self._release(self.of_engine, index, now)

    def _release(self, waiting: MomentUsers, index: int, now: float) -> None:
        """Record that a moment of an operation has come, which others wait for."""
        ready, missing = self.ready, self.missing
        for user in waiting.of(index):
            if now >= ready[user]:
                ready[user] = now
                self.blocked_by[user] = index
            missing[user] -= 1
            if missing[user] == 0:
                self._enqueue_at(user, ready[user], now)

    def _enqueue_at(self, index: int, when: float, now: float) -> None:
        """Queue an operation at the moment at which it is ready."""
        if when <= now:
            self.enqueue(index, now)
            return
        place = self.places[index]
        if when < self.idle_at[place] < math.inf and not self.joint:  # it is not taken before then
            heappush(self.waiting[place], self.queue_keys[index])
            if self.resume[place] >= 0:
                self._post_resume(place)
        else:
            heappush(self.events, (when, self.tick(), self.enqueue, index))

    def enqueue(self, index: int, now: float) -> None:
        """Queue a ready operation for its engine or DMA trigger; one of a pair waits for the other."""
        if self.joint and index in self.joint:
            self.simulation.begin_together(self, index, now)
            return
        place = self.places[index]
        if place == NOWHERE:
            self._skip(index, now)
            return
        waiting, is_idle = self.waiting[place], self.idle_at[place] <= now
        alone = is_idle and not (waiting or self.uses_psum[index] or place in self.starved.queues)
        if alone and (place >= DMA or self._must_wait(place, index, now) <= now):
            self._begin(index, place, now)
            return
        heappush(waiting, self.queue_keys[index])
        if is_idle:
            self._take_next(place, now)
        elif self.resume[place] >= 0:
            self._post_resume(place)

    def _post_resume(self, place: int) -> None:
        """Post that an engine or trigger takes the next when it is idle: now something waits for it."""
        heappush(self.events, (self.idle_at[place], self.resume[place], self._take_next, place))
        self.resume[place] = -1

    def _skip(self, index: int, now: float) -> None:
        """Finish at once what a what-if leaves out."""
        self.start[index] = now
        self._begun(index, now)
        self._post_end(index, now, now, now)

    def _post_end(self, index: int, free: float, end: float, done: float) -> None:
        """Record when an operation ends, and post what others wait for."""
        self.free[index], self.end[index], self.done[index] = free, end, done
        first = self.of_engine.first
        if first[index] < first[index + 1]:
            heappush(self.events, (free, self.tick(), self._operands_read, index))
        heappush(self.events, (done, self.tick(), self._finish, index))

    # ---- PSUM banks ------------------------------------------------------------------------------

    def _used_banks(self, index: int, now: float) -> None:
        freed = self.banks.used(self.psum[index])
        if freed:
            when = now + self.machine.semaphore_ns
            heappush(self.events, (when, self.tick(), self._free_banks, (index, freed)))

    def _free_banks(self, freed: tuple[int, int], now: float) -> None:
        """Free PSUM banks, and retry the operations that wait for some."""
        freed_by, banks = freed
        self.banks.give_back(freed_by, banks, now)
        self.last_freed = (freed_by, now)
        for place in self.starved.places():
            self._take_next(place, now)

    def _release_starved(self, tiles: Sequence[int], taker: int, now: float) -> None:
        """Queue the operations that wait for tiles whose banks were taken just now, and retry the others."""
        for place, index in self.starved.take_users(tiles):
            self.ready[index], self.blocked_by[index] = now, taker
            heappush(self.waiting[place], self.queue_keys[index])
            if self.resume[place] >= 0:
                self._post_resume(place)
            heappush(self.events, (now, self.tick(), self._take_next, place))
        for place in self.starved.places():
            heappush(self.events, (now, self.tick(), self._take_next, place))

    def _first_with_banks(self, place: int) -> int:
        """Return the first operation that waits for an engine or trigger and finds its banks, or -1."""
        waiting, banks, starved, size = self.waiting[place], self.banks, self.starved, self.size
        while waiting or place in starved.queues:
            for rank, index in starved.pop_ready(place, waiting[0] // size if waiting else math.inf):
                freed_by, when = self.last_freed
                if when > self.ready[index]:
                    self.ready[index], self.blocked_by[index] = when, freed_by
                heappush(waiting, rank * size + index)
            if not waiting:
                break
            index = waiting[0] % size
            if not self.uses_psum[index] or banks.has_room(self.psum[index]):
                return index
            starved.add(place, self.psum[index], *divmod(heappop(waiting), size))
        return -1

    def _take_banks(self, index: int, now: float) -> None:
        """Take PSUM banks for an instruction, which waits for the operations that had them before."""
        tiles, taken = self.banks.take(self.psum[index])
        for freed_by, when in taken:
            if freed_by >= 0:
                self.bank_waits.append((index, freed_by))
                self.loadable[index] = max(self.loadable[index], when)
        if taken:
            self._release_starved(tiles, index, now)

    # ---- engines and triggers --------------------------------------------------------------------

    def _take_next(self, place: int, now: float) -> None:
        """Begin the first operation that waits for an engine or trigger, if it is idle and not blocked."""
        if self.idle_at[place] > now:
            return
        waiting = self.waiting[place]
        if place in self.starved.queues:
            index = self._first_with_banks(place)
        elif waiting:
            index = waiting[0] % self.size
            if self.uses_psum[index] and not self.banks.has_room(self.psum[index]):
                index = self._first_with_banks(place)
        else:
            return
        if index < 0:
            return
        until = self._must_wait(place, index, now) if place < DMA else 0.0
        if until > now:
            heappush(self.events, (until, self.tick(), self._take_next, place))
            return
        heappop(waiting)
        if self.uses_psum[index]:
            self._take_banks(index, now)
        self._begin(index, place, now)

    def _begin(self, index: int, place: int, now: float) -> None:
        """Begin an operation on its engine or trigger."""
        last = self.last_on[place]
        if last >= 0 and self.ready[index] < now:
            self.blocked_by[index] = last
        self.last_on[place] = index
        self.order.append(self.columns.first + index)
        until = self._compute(index, place, now) if place < DMA else self._move(index, place, now)
        self.idle_at[place] = until
        if until < math.inf:
            tick = self.tick()
            if self.waiting[place] or place in self.starved.queues:
                heappush(self.events, (until, tick, self._take_next, place))
                tick = -1
            self.resume[place] = tick

    def _must_wait(self, engine: int, index: int, now: float) -> float:
        """Return when the operations are over that it cannot run beside: those on a shared port, or on the
        same part of the PE array (spec/machine.md 3.1, 5.2).
        """
        if engine == TENSOR:
            tile = self.work[index].pe_tile
            if tile is WHOLE_ARRAY:
                return self.tensor_free
            busy = [i for t, i in self.pe_tiles.items() if t is WHOLE_ARRAY or t.overlaps(tile)]
            return max([self.free[i] for i in busy], default=0.0)
        for rival in RIVAL_PLACES[engine]:
            other = self.last_on[rival]
            if other >= 0 and now < self.free[other] < math.inf and self._collide(index, other):
                return self.free[other]
        return 0.0

    def _collide(self, index: int, other: int) -> bool:
        if GPSIMD in (self.kinds[index], self.kinds[other]):
            return self.machine.vector_gpsimd_serial
        return cannot_overlap(self.psum_tiles(index), self.psum_tiles(other), self.machine)

    def _compute(self, index: int, engine: int, now: float) -> float:
        """Start an instruction; return when its engine can take the next."""
        work = self.work[index]
        if work.is_barrier:
            self.start[index] = now
            self.idle_at[engine] = math.inf
            self.simulation.arrive(self, index, now)
            return self.idle_at[engine]
        if engine == TENSOR:
            return self._multiply(index, work, now)
        start, service, held = now, work.service, work.held
        if engine == SCALAR:
            start = self._load_table(index, work.table, now)
        elif engine == VECTOR and self._shares_bus(now):
            service, held = work.slow_service, work.slow_held
        self.start[index] = start
        free = start + held
        self._post_end(index, free, start + service + work.drain, start + service + work.result)
        return free

    def _multiply(self, index: int, work: Work, now: float) -> float:
        """Start a matmul: its stationary operand is loaded while others run, once it is there."""
        start = max(now, self.loadable[index] + self.machine.matmul_after_load_ns)
        slow = self.activity.slowdown(start)
        service, held = (work.service, work.held) if slow == 1.0 else (work.slow_service, work.slow_held)
        self.start[index] = start
        free = start + held
        self._post_end(index, free, start + service + work.drain, start + service + work.result)
        self.activity.add(start, free, work.array_rows, slow)
        self.pe_tiles[work.pe_tile] = index
        self.tensor_free = max(self.tensor_free, free)
        if work.pe_tile is not WHOLE_ARRAY:  # the next may be for another tile
            return min(free, start + self.machine.matmul_min_cycles / self.machine.tensor_ghz)
        return free

    def _shares_bus(self, now: float) -> bool:
        """True while GpSimdE works: then VectorE has no fast modes (spec/machine.md 3.1)."""
        other = self.last_on[GPSIMD]
        return self.machine.shared_bus_stops_fast_modes and other >= 0 and self.free[other] > now

    def visit(self, instruction: Instruction) -> int:
        """Count a visit of a barrier, and return how many there were."""
        key = instruction.rendezvous()
        self.barriers[key] = self.barriers.get(key, 0) + 1
        return self.barriers[key]

    def finish(self, index: int, now: float) -> None:
        """Finish a barrier: its engine goes on."""
        place, until = self.places[index], now + self.work[index].result
        self.idle_at[place] = until
        self.resume[place] = -1
        self._post_end(index, until, until, until)
        heappush(self.events, (until, self.tick(), self._take_next, place))

    def _load_table(self, index: int, function: str | None, start: float) -> float:
        """Return when ScalarE can start: it loads a table when the function changes."""
        if function is None or function in self.machine.activation_table_free or function == self.table:
            return start
        self.table = function
        self.table_loads.append((start, start + self.machine.activation_table_ns, index))
        return start + self.machine.activation_table_ns

    def _move(self, index: int, trigger: int, now: float) -> float:
        """Move the data of a transfer; return when its trigger can take the next.

        Each DMA engine works in order of arrival.
        """
        transfer = self.moves[index]
        self.idle_at[trigger] = until = now + transfer.issue_ns
        first, last = self.dma_engines.move(now + transfer.dispatch_ns, transfer.payload_ns)
        self.start[index] = first
        self.end[index] = self.free[index] = last
        self.done[index] = done = last + transfer.notify_ns
        self.triggered[index] = now
        if self.of_begin.users:
            self._begun(index, now)
        heappush(self.events, (done, self.tick(), self._finish, index))
        return until

    def _begun(self, index: int, now: float) -> None:
        """Release the operations that wait until a transfer has begun."""
        self._release(self.of_begin, index, now)
