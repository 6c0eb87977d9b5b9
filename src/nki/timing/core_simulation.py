"""A discrete-event simulation of one core: its engines and its DMA system (spec/machine.md 4-11).

An engine takes the first instruction of the program whose operands are ready. Transfers are triggered in the
order of their first use, so loads run ahead as far as SBUF space allows. Deterministic.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from ..ir.instruction import WHOLE_ARRAY, Instruction, InstructionCost, PeTile, State
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..machine.machine import Machine
from .dma_engines import DmaEngines
from .dma_transfer import RANKS, DmaTransfer, transfer_of
from .instruction_facts import Facts, cannot_overlap, facts_of
from .operation import SPACE, Operation
from .operation_plan import OperationPlan, engine_clocks
from .psum_banks import Banks, StarvedQueues
from .timing_rules import ENGINES, Activity, done_waits, operation_times
from .users import Users

DONE, READ, READY, IDLE, BANKS_FREED = range(5)  # what happens at an event
MODES = ("software", "hardware", "static", RANKS)  # the DMA triggers
RIVALS = {"vector": ("gpsimd", "scalar"), "gpsimd": ("vector",), "scalar": ("vector",)}


class CoreSimulation:
    """One core: five engines, a DMA trigger per mode, sixteen DMA engines.

    An engine that becomes idle takes the earliest instruction of the program whose operands are ready,
    which is what the compiler's list scheduling arranges.
    """

    def __init__(
        self,
        simulation: Any,
        machine: Machine,
        plan: OperationPlan,
        operations: list[Operation],
        sharers: int,
        rank: int = 0,
        order: list[tuple[int, int]] | None = None,
    ):
        self.simulation = simulation
        self.events, self.tick = simulation.events, simulation.ticks.__next__
        self.sharers, self.of_rank = sharers, rank
        self.order = [] if order is None else order  # (core, operation) of the rank as they were begun
        self.machine = machine
        self.plan = plan
        self.operations = operations
        size = len(self.operations)
        self.start = array("d", bytes(8 * size))  # ns
        self.free = array("d", bytes(8 * size))  # the engine can take the next; operands have been read
        self.done = array("d", bytes(8 * size))  # a consumer sees the result
        self.end = array("d", bytes(8 * size))  # end of the bar a profiler draws
        self.blocked_by: list[int] = [-1] * size  # the operation that decided the start
        self.transfers: dict[int, DmaTransfer] = {}
        self.triggered = array("d", bytes(8 * size))  # transfers: ns
        self.table_loads: list[tuple[float, float, int]] = []
        self.barriers: dict[Any, int] = {}  # visits of each
        self.ready = array("d", bytes(8 * size))
        self.loadable = array("d", bytes(8 * size))  # the same, but for the order of its own engine
        self.missing = [len(op.waits) for op in self.operations]
        self.users = Users(machine, self.operations)
        self.kinds, self.rank = self.users.kinds, self.users.priorities()
        self.joint = self._joint(len(simulation.starts))  # transfers that begin together with others'
        self.clocks = engine_clocks(machine)
        self.waiting: dict[str, list[tuple[int, int]]] = {name: [] for name in (*ENGINES, *MODES)}
        self.idle_at = dict.fromkeys((*ENGINES, *MODES), 0.0)
        self.last_on: dict[str, int] = {}
        self.table: str | None = None
        self.activity = Activity(machine)
        self.pe_tiles: dict[PeTile, int] = {}  # the last matmul on each part of the PE array
        self.banks = Banks(machine, plan.uses, plan.without_inputs)
        self.done_waits = done_waits(machine)
        self.tensor_free = 0.0  # when all parts of the PE array are free
        self.facts: dict[tuple[int, str], Facts] = {}  # by signature and engine
        self.starved = StarvedQueues(self.banks)
        self.last_freed = (-1, 0.0)  # the operation that freed banks last, and when
        self.bank_waits: set[tuple[int, int]] = set()  # (operation, the one that freed its bank)
        self.bandwidth_share = self._bandwidth_share(sharers)
        self.dma_engines = DmaEngines(machine, self.bandwidth_share)
        self.made: dict[int, DmaTransfer] = {}  # by signature

    def _bandwidth_share(self, sharers: int) -> float:
        """Return the share of the DMA engines' rate that is left where cores share an HBM stack."""
        wanted = self.machine.dma_engines * self.machine.dma_bytes_per_ns * sharers
        return min(1.0, self.machine.hbm_gbs / wanted)

    def _joint(self, ranks: int) -> dict[int, tuple]:
        """Return the rendezvous point, and the visit, of transfers that begin together with others'."""
        found: dict[int, tuple] = {}
        visits: Counter[Any] = Counter()
        for op in self.operations if self.sharers > 1 or ranks > 1 else ():
            point = self._rendezvous(op.instruction, ranks) if op.is_dma and op.instruction else None
            if point is not None:
                visits[point] += 1
                found[op.index] = (*point, visits[point])
        return found

    def _rendezvous(self, instruction: Instruction, ranks: int) -> tuple | None:
        """Return where a transfer waits for others: the other core (sendrecv), or all ranks (collective)."""
        if instruction.rendezvous() is not None:
            return ("transfer", self.of_rank, instruction.rendezvous()) if self.sharers > 1 else None
        assert isinstance(instruction, TransferInstruction)
        members = tuple(sorted(instruction.members(self.of_rank))) if ranks > 1 else ()
        joint = self.sharers > 1 and State.ranks in instruction.state and State.peer in instruction.touches()
        if not joint and len(members) < 2:
            return None
        lane = -1 if joint else self.plan.core
        return ("ranks", lane, members or (self.of_rank,))

    # ---- the event loop --------------------------------------------------------------------------

    def begin(self, moment: float) -> None:
        for op in self.operations:
            if not op.waits:
                if moment > 0:
                    self._post(moment, READY, op.index)
                else:
                    self._queue(op.index, 0.0)

    def handle(self, now: float, what: int, which: Any) -> None:
        if what == DONE:
            self._release(which, now)
            position = self.operations[which].position
            if position in self.banks.tiles:
                freed = self.banks.used(position)
                if freed:
                    self._post(now + self.machine.semaphore_ns, BANKS_FREED, (which, freed))
        elif what == READ:
            for user in self.users.of_engine[which]:
                self._satisfied(user, which, now, now)
        elif what == READY:
            self._queue(which, now)
        elif what == BANKS_FREED:
            freed_by, banks = which
            self._free_banks(freed_by, banks, now)
        else:
            self._take_next(which, now)

    def _post(self, time: float, what: int, which: object) -> None:
        heappush(self.events, (time, self.tick(), self, what, which))

    def visit(self, instruction: Instruction) -> int:
        """Count a visit of a barrier, and return how many there were."""
        key = instruction.rendezvous()
        self.barriers[key] = self.barriers.get(key, 0) + 1
        return self.barriers[key]

    def _release(self, index: int, now: float) -> None:
        """Release the operations that wait until this one is done."""
        kinds, loadable, missing, ready = self.kinds, self.loadable, self.missing, self.ready
        waits = self.done_waits[kinds[index]]
        for user in self.users.of_result[index]:
            wait, same_engine = waits[kinds[user]]
            moment = now + wait
            if not same_engine and moment > loadable[user]:
                loadable[user] = moment
            if moment >= ready[user]:
                ready[user] = moment
                self.blocked_by[user] = index
            missing[user] -= 1
            if missing[user] == 0:
                self._all_satisfied(user, now)

    def _satisfied(self, user: int, by: int, moment: float, now: float) -> None:
        """Record one thing that an operation waited for."""
        if moment >= self.ready[user]:
            self.ready[user] = moment
            self.blocked_by[user] = by
        self.missing[user] -= 1
        if self.missing[user] == 0:
            self._all_satisfied(user, now)

    def _all_satisfied(self, index: int, now: float) -> None:
        if self.ready[index] <= now:
            self._queue(index, now)
        else:
            self._post(self.ready[index], READY, index)

    def _queue(self, index: int, now: float) -> None:
        """Queue a ready operation: for the other core where two must begin together, then for the engine."""
        if index in self.joint:
            self.simulation.begin_together(self, index, now)
        else:
            self.enqueue(index, now)

    def enqueue(self, index: int, now: float) -> None:
        """Queue an operation for its engine or DMA trigger."""
        op = self.operations[index]
        place = op.kind
        if op.is_dma:
            transfer = self.transfers[index] = self.transfer(op)
            place = transfer.mode
        heappush(self.waiting[place], (self.rank[index], index))
        self._take_next(place, now)

    def _free_banks(self, freed_by: int, banks: int, now: float) -> None:
        """Free PSUM banks, and retry the operations that wait for some."""
        self.banks.give_back(freed_by, banks, now)
        self.last_freed = (freed_by, now)
        for place in self.starved.places():
            self._take_next(place, now)

    def _release_starved(self, tiles: Sequence[Storage], taker: int, now: float) -> None:
        """Queue the operations that wait for tiles whose banks were taken just now, and retry the others."""
        for place, index in self.starved.take_users(tiles):
            self.ready[index], self.blocked_by[index] = now, taker
            heappush(self.waiting[place], (self.rank[index], index))
            self._post(now, IDLE, place)
        for place in self.starved.places():
            self._post(now, IDLE, place)

    def transfer(self, op: Operation) -> DmaTransfer:
        """Return the transfer of a DMA; those with the same signature share one."""
        if op.instruction is None:
            return transfer_of(op, self.machine, self.sharers, self.bandwidth_share)
        number = self.plan.signatures[op.position]
        made = self.made.get(number)
        if made is None:
            made = self.made[number] = transfer_of(op, self.machine, self.sharers, self.bandwidth_share)
        return made

    def cost_of(self, op: Operation) -> InstructionCost:
        return self.plan.cost_of(op)

    def _take_next(self, place: str, now: float) -> None:
        """Begin the first operation that waits for an engine or trigger, if it is idle and not blocked."""
        if self.idle_at[place] > now:
            return
        index = self._first_with_banks(place)
        if index < 0:
            return
        position = self.operations[index].position
        transfer = self.transfers.get(index)
        if transfer is None:
            until = self._must_wait(place, index, now)
            if until > now:
                self._post(until, IDLE, place)
                return
        heappop(self.waiting[place])
        if position in self.banks.tiles:
            self._take_banks(index, position, now)
        last_on = self.last_on
        if self.ready[index] < now and place in last_on:
            self.blocked_by[index] = last_on[place]
        last_on[place] = index
        self.order.append((self.plan.core, index))
        if transfer is not None:
            self.idle_at[place] = until = now + transfer.issue_ns
            self._move(index, transfer, now)
        else:
            self.idle_at[place] = until = self._compute(index, place, now)
        if until < math.inf:
            self._post(until, IDLE, place)

    def _first_with_banks(self, place: str) -> int:
        """Return the first operation that waits for an engine or trigger and finds its banks, or -1."""
        waiting, banks, starved = self.waiting[place], self.banks, self.starved
        while waiting or place in starved.queues:
            for rank, index in starved.pop_ready(place, waiting[0][0] if waiting else math.inf):
                freed_by, when = self.last_freed
                if when > self.ready[index]:
                    self.ready[index], self.blocked_by[index] = when, freed_by
                heappush(waiting, (rank, index))
            if not waiting:
                break
            index = waiting[0][1]
            position = self.operations[index].position
            if position not in banks.tiles or banks.has_room(position):
                return index
            starved.add(place, position, *heappop(waiting))
        return -1

    def _take_banks(self, index: int, position: int, now: float) -> None:
        """Take PSUM banks for an instruction, which waits for the operations that had them before."""
        tiles, taken = self.banks.take(position)
        for freed_by, when in taken:
            if freed_by >= 0:
                self.operations[index].wait_for(freed_by, SPACE)
                self.bank_waits.add((index, freed_by))
                self.loadable[index] = max(self.loadable[index], when)
        if taken:
            self._release_starved(tiles, index, now)

    # ---- compute engines -------------------------------------------------------------------------

    def _must_wait(self, engine: str, index: int, now: float) -> float:
        """Return when the operations are over that it cannot run beside: those on a shared port, or on the
        same part of the PE array (spec/machine.md 3.1, 5.2).
        """
        if engine == "tensor":
            tile = self._facts(self.operations[index]).pe_tile
            if tile is WHOLE_ARRAY:
                return self.tensor_free
            busy = [i for t, i in self.pe_tiles.items() if t is WHOLE_ARRAY or t.overlaps(tile)]
            return max([self.free[i] for i in busy], default=0.0)
        for rival in RIVALS.get(engine, ()):
            other = self.last_on.get(rival)
            if other is None or not now < self.free[other] < math.inf:
                continue
            if cannot_overlap(self.operations[index], self.operations[other], self.machine):
                return self.free[other]
        return 0.0

    def _compute(self, index: int, engine: str, now: float) -> float:
        """Start an instruction; return when its engine can take the next."""
        op = self.operations[index]
        facts = self._facts(op)
        if facts.is_barrier:
            self.start[index] = now
            self.idle_at[engine] = math.inf
            self.simulation.arrive(self, index, now)
            return self.idle_at[engine]
        start, slow, cost = now, facts.slowdown, self.cost_of(op)
        cycles = cost.cycles
        if engine == "tensor":  # the stationary operand is loaded meanwhile, once it is there
            start = max(now, self.loadable[index] + self.machine.matmul_after_load_ns)
            slow = self.activity.slowdown(start)
        elif engine == "scalar":
            start = self._load_table(index, facts.table, now)
        elif engine == "vector" and self._shares_bus(now):
            cycles = max(cycles, self._instruction(index).operands()[0].free_elements)
        free, end, done = operation_times(
            self.machine, engine, cost, cycles, self.clocks[engine], slow, start
        )
        self.start[index], self.free[index], self.end[index], self.done[index] = start, free, end, done
        if index in self.users.of_engine:
            self._post(free, READ, index)
        self._post(done, DONE, index)
        if engine != "tensor":
            return free
        self.activity.add(start, free, facts.array_rows, slow)
        self.pe_tiles[facts.pe_tile] = index
        self.tensor_free = max(self.tensor_free, free)
        if facts.pe_tile != WHOLE_ARRAY:  # the next may be for another tile
            return min(free, start + self.machine.matmul_min_cycles / self.clocks[engine])
        return free

    def _instruction(self, index: int) -> Instruction:
        instruction = self.operations[index].instruction
        assert instruction is not None
        return instruction

    def _shares_bus(self, now: float) -> bool:
        """True while GpSimdE works: then VectorE has no fast modes (spec/machine.md 3.1)."""
        other = self.last_on.get("gpsimd")
        return self.machine.shared_bus_stops_fast_modes and other is not None and self.free[other] > now

    def _facts(self, op: Operation) -> Facts:
        """Return what is the same for all instructions of one signature."""
        key = (self.plan.signatures[op.position], op.kind)
        facts = self.facts.get(key)
        if facts is None:
            facts = self.facts[key] = facts_of(self._instruction(op.index), op.kind, self.machine)
        return facts

    def finish(self, index: int, now: float) -> None:
        """Finish a barrier: its engine goes on."""
        place = self.operations[index].kind
        until = now + self.plan.cost_of(self.operations[index]).fix_ns
        self.free[index] = self.end[index] = self.done[index] = self.idle_at[place] = until
        if index in self.users.of_engine:
            self._post(until, READ, index)
        self._post(until, DONE, index)
        self._post(until, IDLE, place)

    def _load_table(self, index: int, function: str | None, start: float) -> float:
        """Return when ScalarE can start: it loads a table when the function changes."""
        if function is None or function in self.machine.activation_table_free or function == self.table:
            return start
        self.table = function
        self.table_loads.append((start, start + self.machine.activation_table_ns, index))
        return start + self.machine.activation_table_ns

    # ---- DMA -------------------------------------------------------------------------------------

    def _move(self, index: int, transfer: DmaTransfer, now: float) -> None:
        """Move the data of a transfer: each DMA engine works in order of arrival."""
        first, last = self.dma_engines.move(now + transfer.dispatch_ns, transfer.payload_ns)
        self.start[index] = first
        self.end[index] = self.free[index] = last
        self.done[index] = done = last + transfer.notify_ns
        self.triggered[index] = now
        self._begun(index, now)
        self._post(done, DONE, index)

    def _begun(self, index: int, now: float) -> None:
        """Release the operations that wait until a transfer has begun."""
        for user in self.users.of_begin.get(index, ()):
            self._satisfied(user, index, now, now)
