"""The operations of a core: what the simulation places in time, and what each must wait for.

A program becomes operations in two steps: accesses of the same bytes give dependences (`ir.dependences`),
and SBUF is allocated in program order. That adds waits for reused space and, when live tiles exceed SBUF,
spills to HBM (spec/machine.md 4).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np

from ..ir.boxes import box, space_of
from ..ir.caches import cached_property
from ..ir.dependences import RAW, AccessHistory, TensorHistory, Waits, wait
from ..ir.effects import effects
from ..ir.instruction import InstructionCost, State
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..machine.machine import Machine
from .entries import Entry
from .operation import ORDER, Operation
from .operation_table import OperationTable
from .sbuf_pool import SbufPool
from .uses import Accesses, TileUses, accesses, all_accesses


class OperationPlan:
    """Turns the instructions of one core into operations."""

    def __init__(
        self,
        machine: Machine,
        items: Sequence[Entry],
        core: int = 0,
        block_of: Mapping[int, int] | None = None,
        transformations: Mapping[str, int] | None = None,
        as_written: bool = False,
    ):
        self.machine = machine
        self.instructions = [item.instruction for item in items]
        self.signatures = [item.signature for item in items]
        self.engines = [i.engine_name() for i in self.instructions]
        examples = dict(zip(reversed(self.signatures), reversed(self.instructions), strict=True))
        self.core = core
        self.transformations = transformations or {}  # of the compiler: how much each changed, by name
        self.block_of = block_of or {}  # position -> its no_reorder block
        self.last_in_block: dict[tuple[int, str], int] = {}
        heads = {number for number, i in examples.items() if State.loop in i.state}
        loops = (at for at, number in enumerate(self.signatures) if number in heads) if heads else iter(())
        self.first_loop = next(loops, len(items))  # position of the head of the first dynamic loop
        self.loop_head = -1  # operation at which the iteration began
        self.table = OperationTable()
        self.bank_waits: list[tuple[int, int]] = []  # (operation, the one that freed its PSUM bank)
        self.as_written = as_written
        self.spaces: dict[Any, AccessHistory] = {}  # of storages that are still to be used
        self.apart: dict[int, set[int]] = {}  # operation -> those it waits for that share no byte with it
        self.done = all_accesses(item.done for item in items)  # until all are planned
        self.uses = TileUses(self.done, machine)
        self.without_inputs = {at for at in self.uses.in_psum if not self.done[at][0]}
        self.prices = {number: i.cost(machine) for number, i in examples.items()}  # by signature
        self.costs = [self.prices[number] for number in self.signatures]
        self.last_rendezvous: dict[
            str, int
        ] = {}  # engine -> its last operation that waits for the other core
        # signatures of instructions that wait for the other core
        self.rendezvous = {number for number, i in examples.items() if i.rendezvous() is not None}
        self.is_ordered = bool(self.rendezvous or self.block_of)
        # HBM storages that are only read or only written: accesses there cannot conflict
        one_sided = self.uses.hbm_read ^ self.uses.hbm_written
        self._mark_tiles(one_sided)
        made_once = [storage for storage, tile in self.uses.sbuf.items() if tile.is_made_once]
        self.unordered = one_sided.union(made_once)  # the pool adds the waits for what is made once
        self.loaded_early = bytearray(len(items))  # by position: whether it was
        self.sbuf = SbufPool(self, self.uses, machine.sbuf_usable_bytes)
        self.spill_bytes = 0

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations as objects, made when they are asked for: a simulation needs none."""
        return self.made_operations(self.bank_waits)

    def made_operations(self, bank_waits: Iterable[tuple[int, int]]) -> list[Operation]:
        """Return new objects of the operations, which also wait for those that freed their PSUM banks."""
        return self.table.operations(self.instructions, self.core, bank_waits)

    def accesses(self, position: int) -> Accesses:
        """Return what an instruction reads and writes, computed anew: planning drops it."""
        return accesses(effects(self.instructions[position]))

    def add_bank_waits(self, found: Sequence[tuple[int, int]]) -> None:
        """Make operations wait for those that freed their PSUM banks."""
        self.bank_waits += found
        self.__dict__.pop("operations", None)

    def add_waits(self, found: Iterable[tuple[int, int]]) -> None:
        """Make operations wait for the results of others."""
        waits = [op.waits for op in self.operations]
        for index, other in found:
            wait(waits[index], index, other, RAW)
        self.table.replace_waits(waits)
        self.__dict__.pop("operations", None)

    def _add_order(self, position: int, index: int, waits: Waits) -> None:
        """Add the waits of an operation that have other causes than its data."""
        engine = self.engines[position]
        if engine != "dma" and self.signatures[position] in self.rendezvous:
            self._order_rendezvous(engine, index, waits)
        self._order_in_block(position, index, waits)
        if position >= self.first_loop:
            self._order_by_loops(position, index, waits)

    def _order_in_block(self, position: int, index: int, waits: Waits) -> None:
        """Make an operation inside no_reorder wait for the previous one of its queue and block."""
        block = self.block_of.get(position)
        if block is not None:
            queue = (block, self.engines[position])
            before = self.last_in_block.get(queue)
            if before is not None:
                wait(waits, index, before, ORDER)
            self.last_in_block[queue] = index

    def _order_rendezvous(self, engine: str, index: int, waits: Waits) -> None:
        """Keep the order of what waits for the other core: two engines that swap it wait forever."""
        if engine in self.last_rendezvous:
            wait(waits, index, self.last_rendezvous[engine], ORDER)
        self.last_rendezvous[engine] = index

    def _order_by_loops(self, position: int, index: int, waits: Waits) -> None:
        """Begin each iteration of a dynamic loop when all operations before it are done."""
        if State.loop in self.instructions[position].state:
            for other in range(max(0, self.loop_head), index):
                wait(waits, index, other, RAW)
            self.loop_head = index
        else:
            wait(waits, index, self.loop_head, RAW)

    def plan(self) -> None:
        """Plan the operations of all instructions."""
        look, sbuf, loaded_early = Lookahead(self), self.sbuf, self.loaded_early
        for position, written in enumerate(self.uses.written):
            if position >= look.due or sbuf.lacking:
                look.fetch(position)
            if loaded_early[position]:
                continue
            is_load = bool(written) and written[0].load == position
            if not (is_load and sbuf.defers(position, written[0])):
                self.add(position)
        self.sbuf.finish()
        self.table.finish()
        self.spaces.clear()
        self.done.clear()
        self.unordered.clear()

    def load_early(self, position: int) -> None:
        self.loaded_early[position] = True
        self.add(position)

    def add(self, position: int) -> None:
        """Add the operation of an instruction, with its tiles allocated and its waits."""
        sbuf = self.sbuf
        for tile in sbuf.read[position]:
            if not tile.is_resident:
                sbuf.make_resident(tile, position)
        for tile in sbuf.written[position]:
            if not tile.is_resident:
                sbuf.make_resident(tile, position)
        index, waits = self.table.begin(position, self.engines[position])
        if self.is_ordered or position >= self.first_loop:
            self._add_order(position, index, waits)
        unordered, spaces, (reads, writes) = self.unordered, self.spaces, self.done[position]
        for view in reads:
            storage = view.storage
            if storage not in unordered:
                (spaces.get(storage) or self.space(storage)).read(index, box(view), waits)
        for view in writes:
            storage = view.storage
            if storage not in unordered:
                (spaces.get(storage) or self.space(storage)).write(index, box(view), waits)
        sbuf.used(position, index, waits)

    def _mark_tiles(self, constant: Set[Storage]) -> None:
        """Mark the tiles that one instruction writes, as a whole and before all else.

        Where that is a copy of constant HBM data, it may run ahead of its use.
        """
        whole: dict[int, bool] = {}  # by signature: it writes all of its tile
        for storage, tile in self.uses.sbuf.items():
            position = tile.positions[0]
            reads, writes = self.done[position]
            if len(writes) != 1 or writes[0].storage is not storage:
                continue
            signature = self.signatures[position]
            if signature not in whole:
                whole[signature] = writes[0].covers_storage()
            if not whole[signature]:
                continue
            tile.is_made_once = tile.writers == 1
            movable = position not in self.block_of and position < self.first_loop
            transfer = isinstance(self.instructions[position], TransferInstruction)
            if movable and transfer and len(reads) == 1 and reads[0].storage in constant:
                tile.load = position

    def cost_of(self, op: Operation) -> InstructionCost:
        return self.costs[op.position]

    def space(self, storage: Storage) -> AccessHistory:
        """Return the accesses of a storage, or of all that share its memory.

        nki 0.6.0 does not tell slices of a tensor on chip apart (kiln's notes): ring buffers that are slices
        of one tensor wait for each other.
        """
        key = space_of(storage)
        found = self.spaces.get(key)
        if found is None:
            whole = self.as_written and storage.on_chip and storage.address is None
            found = TensorHistory(self.apart) if whole else AccessHistory()
        self.spaces[key] = self.spaces[storage] = found
        return found


class Lookahead:
    """Fetches what later instructions need: loads within fetch_ahead_ns, and what SBUF had no space for
    (deferred, or dropped and needed again) within refetch_ahead_ns.

    Time here is the work of the busiest engine so far: what the kernel would take if data were there.
    """

    def __init__(self, plan: OperationPlan):
        self.machine, self.sbuf = plan.machine, plan.sbuf
        self.moments = _moments(plan)
        self.load_reach = self._reach(plan.machine.fetch_ahead_ns)
        # the positions that use what a plain load loads, and one after the last
        loaded = (tile.positions[1:] for tile in plan.uses.sbuf.values() if tile.load >= 0)
        self.readers = [*sorted(set(chain.from_iterable(loaded))), len(self.moments)]
        self.next_reader = 0
        self.loads = self.reloads = 0  # positions up to which both have fetched
        self.due = 0  # where the next reader comes into reach: until then there is nothing to load
        self.position = -1  # where it fetched last

    def _reach(self, ahead_ns: float) -> array[int]:
        """Return, for each position, the first one that comes later than so many ns after it."""
        found = np.searchsorted(self.moments, self.moments + ahead_ns, "right")
        return array("q", found.astype(np.int64).tobytes())

    @cached_property
    def reload_reach(self) -> array[int]:
        return self._reach(self.machine.refetch_ahead_ns)

    def fetch(self, position: int) -> None:
        sbuf, ahead, last = self.sbuf, max(self.loads, position), self.load_reach[position]
        if self.position < position - 1:  # there was nothing to load in between
            ahead = max(ahead, self.load_reach[position - 1])
        self.position = position
        if sbuf.lacking:
            while ahead < last and sbuf.fetch(position, ahead):
                ahead += 1
        else:
            ahead = self._fetch_loads(position, ahead, last)
        self.loads, self.reloads = ahead, max(self.reloads, position)
        if sbuf.lacking:
            last = self.reload_reach[position]
            while self.reloads < last:
                sbuf.refetch(self.reloads)
                self.reloads += 1

    def _fetch_loads(self, position: int, ahead: int, last: int) -> int:
        """Fetch while SBUF lacks nothing: positions that read nothing loaded are passed over."""
        readers, number = self.readers, self.next_reader
        while readers[number] < ahead:
            number += 1
        while readers[number] < last and self.sbuf.fetch(position, readers[number]):
            number += 1
        self.next_reader, self.due = number, bisect_right(self.load_reach, readers[number])
        return max(ahead, min(last, readers[number]))


def _moments(plan: OperationPlan) -> np.ndarray:
    """Return the work of the busiest engine before each instruction, in ns."""
    numbers = {name: number for number, name in enumerate({*plan.engines})}
    engines = np.array(list(map(numbers.__getitem__, plan.engines)), np.int8)
    held = {number: cost.interval for number, cost in plan.prices.items()}
    intervals = np.array(list(map(held.__getitem__, plan.signatures)))
    done = np.zeros(len(engines) + 1)
    for name, clock in engine_clocks(plan.machine).items():
        (at,) = np.nonzero(engines == numbers.get(name, -1))
        done[at + 1] = np.cumsum(intervals[at] / clock)
    return np.maximum.accumulate(done)[:-1]


def engine_clocks(m: Machine) -> dict[str, float]:
    """Return the clock of each engine in GHz."""
    return {
        "tensor": m.tensor_ghz,
        "vector": m.vector_ghz,
        "scalar": m.scalar_ghz,
        "gpsimd": m.gpsimd_ghz,
        "sync": m.gpsimd_ghz,
    }
