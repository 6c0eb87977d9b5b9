"""The operations of a core: what the simulation places in time, and what each must wait for.

A program becomes operations in two steps. SBUF is allocated in program order, which puts them in order, adds
waits for reused space and, when live tiles exceed SBUF, spills to HBM (spec/machine.md 4). Then accesses of
the same bytes give dependences (`waits`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..ir.caches import cached_property
from ..ir.dependences import RAW
from ..ir.instruction import InstructionCost, State
from ..ir.transfer_instruction import TransferInstruction
from ..machine.machine import Machine
from .access_columns import AccessColumns, Accesses, Numbers, accesses
from .entries import CoreInstructions
from .operation import ORDER, Operation
from .operation_table import OperationTable
from .sbuf_pool import SbufPool
from .uses import SBUF_TILE, TileUses, as_array
from .waits import EARLY, LATE, AccessWaits, Apart, Found, PlannedWaits, joined, space_waits


class OperationPlan:
    """Turns the instructions of one core into operations."""

    def __init__(
        self,
        machine: Machine,
        listed: CoreInstructions,
        found: AccessColumns,
        core: int = 0,
        block_of: Mapping[int, int] | None = None,
        transformations: Mapping[str, int] | None = None,
        as_written: bool = False,
    ):
        self.machine = machine
        self.instructions, self.signatures = listed.instructions, listed.signatures
        self.engines = [i.engine_name() for i in self.instructions]
        self.examples = dict(zip(reversed(self.signatures), reversed(self.instructions), strict=True))
        self.prices = {number: i.cost(machine) for number, i in self.examples.items()}  # by signature
        self.core = core
        self.transformations = transformations or {}  # of the compiler: how much each changed, by name
        self.block_of = block_of or {}  # position -> its no_reorder block
        heads = {number for number, i in self.examples.items() if State.loop in i.state}
        loops = (at for at, number in enumerate(self.signatures) if number in heads) if heads else iter(())
        self.first_loop = next(loops, len(self.instructions))  # where the first dynamic loop begins
        self.table = OperationTable()
        self.waits = PlannedWaits()
        self.bank_waits: list[tuple[int, int]] = []  # (operation, the one that freed its PSUM bank)
        self.as_written = as_written
        self.apart: Apart = {}
        self.found = found  # until all are planned
        self.uses = TileUses(found, machine)
        self.loaded_early = bytearray(len(self.instructions))  # by position: whether it was
        self.operation_at = [-1] * len(self.instructions)  # by position
        whole = self._written_whole()
        self.is_made_once: list[bool] = self._made_once(whole).tolist()  # of each tile
        self.without_inputs = self._without_inputs()
        self.loads = as_array(self._loads(whole))  # of each tile: its plain load, or -1
        self._begin_at, self._end_at, self._ended = self._begins_and_ends()
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
        return accesses(self.instructions[position])

    def cost_of(self, op: Operation) -> InstructionCost:
        return self.prices[self.signatures[op.position]]

    def add_bank_waits(self, found: Sequence[tuple[int, int]]) -> None:
        """Make operations wait for those that freed their PSUM banks."""
        self.bank_waits += found
        self.__dict__.pop("operations", None)

    def add_waits(self, found: Iterable[tuple[int, int]]) -> None:
        """Make operations wait for the results of others."""
        users, producers = np.array([*found], np.int64).reshape(-1, 2).T
        producer, user, why = self.table.edges
        planned = Found.of(user, producer, why, LATE)
        self.table.edges, _ = joined([planned, Found.of(users, producers, RAW, EARLY)])
        self.__dict__.pop("operations", None)

    # ---- tiles -----------------------------------------------------------------------------------

    def _without_inputs(self) -> set[int]:
        """Return the positions that use PSUM and read nothing."""
        reads = np.bincount(self.found.position[~self.found.is_write], minlength=len(self.instructions))
        used = np.unique(self.uses.psum.position)
        return {*used[reads[used] == 0].tolist()}

    def _written_whole(self) -> np.ndarray:
        """Return which tiles their first use writes as a whole, and nothing else."""
        found, tiles = self.found, self.uses.sbuf
        (writes,) = np.nonzero(found.is_write)
        counts = np.bincount(found.position[writes], minlength=len(self.instructions))
        write_at = np.zeros(len(self.instructions), np.int64)
        write_at[found.position[writes]] = writes
        first = write_at[tiles.first]
        alone = (counts[tiles.first] == 1) & (found.storage[first] == tiles.storage)
        return alone & found.is_whole[first]

    def _made_once(self, whole: np.ndarray) -> np.ndarray:
        """Return which tiles one instruction writes, as a whole and before all else."""
        tiles = self.uses.sbuf
        writers = np.concatenate([[0], np.cumsum(tiles.is_write)])
        return whole & (writers[tiles.start[1:]] - writers[tiles.start[:-1]] == 1)

    def _loads(self, whole: np.ndarray) -> Numbers:
        """Return the first use of each tile if it copies constant HBM data and may run early, else -1."""
        found, first = self.found, self.uses.sbuf.first
        (reads,) = np.nonzero(~found.is_write)
        counts = np.bincount(found.position[reads], minlength=len(self.instructions))
        read_at = np.zeros(len(self.instructions), np.int64)
        read_at[found.position[reads]] = reads
        transfers = {n for n, i in self.examples.items() if isinstance(i, TransferInstruction)}
        moves = np.fromiter(map(transfers.__contains__, self.signatures), np.bool_, len(self.signatures))
        moves[self.first_loop :] = False
        moves[[*self.block_of]] = False
        constant = self.uses.is_one_sided[found.storage[read_at[first]]]
        return np.where(whole & moves[first] & (counts[first] == 1) & constant, first, -1)

    def _begins_and_ends(self) -> tuple[array[int], array[int], array[int]]:
        """Return where tiles are used first and last.

        Those that position i uses first are the tiles from begin_at[i] to begin_at[i + 1], those that it uses
        last are ended[end_at[i] : end_at[i + 1]].
        """
        tiles, positions = self.uses.sbuf, np.arange(len(self.instructions) + 1)
        ended = np.argsort(tiles.access[tiles.start[1:] - 1])
        begin_at, end_at = (np.searchsorted(at, positions) for at in (tiles.first, tiles.last[ended]))
        return as_array(begin_at), as_array(end_at), as_array(ended)

    @cached_property
    def _tiles_at(self) -> list[list[tuple[int, ...]]]:
        """The tiles in SBUF that each instruction reads, and writes, each once."""
        chosen = self.uses.where == SBUF_TILE
        position, is_write = self.found.position[chosen], self.found.is_write[chosen]
        tile, size = self.uses.sbuf.tile, len(self.instructions)
        return [grouped(position[some], tile[some], size) for some in (~is_write, is_write)]

    def tiles_read(self, position: int) -> tuple[int, ...]:
        """Return the tiles in SBUF that an instruction reads."""
        return self._tiles_at[0][position]

    def tiles(self, position: int) -> tuple[int, ...]:
        """Return the tiles in SBUF that an instruction reads, and those that it writes."""
        reads, writes = self._tiles_at
        return reads[position] + writes[position]

    # ---- planning --------------------------------------------------------------------------------

    def plan(self) -> None:
        """Plan the operations of all instructions."""
        look, sbuf, loaded_early = Lookahead(self), self.sbuf, self.loaded_early
        loaded = dict(zip(self.loads, range(len(self.loads)), strict=True))  # position -> its tile
        for position in range(len(self.instructions)):
            sbuf.now = position
            if position >= look.due or sbuf.lacking:
                look.fetch(position)
            if not loaded_early[position]:
                tile = loaded.get(position)
                if tile is None or not sbuf.defers(position, tile):
                    self.add(position)
        self._finish()

    def begin_early(self, position: int) -> None:
        """Add the operation of a load, whose tile has space, before its turn."""
        self.loaded_early[position] = True
        self.operation_at[position] = self.table.begin(position)

    def kind(self, index: int) -> str:
        """Return the kind of an operation."""
        position = self.table.positions[index]
        return self.engines[position] if position >= 0 else self.table.moves[index]

    def add(self, position: int) -> None:
        """Add the operation of an instruction, with its tiles allocated."""
        sbuf, first, last = self.sbuf, self._begin_at[position], self._begin_at[position + 1]
        if first != last or sbuf.away:
            for tile in self.tiles(position) if sbuf.away else range(first, last):
                if tile not in sbuf.resident:
                    sbuf.make_resident(tile, position)
        self.operation_at[position] = self.table.begin(position)
        first, last = self._end_at[position], self._end_at[position + 1]
        if first != last:
            for tile in self._ended[first:last]:
                sbuf.release(tile)

    def _finish(self) -> None:
        """Find what the operations wait for, and drop what only planning needs."""
        self._add_order()
        operation_at, made_once = np.array(self.operation_at, np.int32), np.array(self.is_made_once, np.bool_)
        self.sbuf.end()
        self.__dict__.pop("_tiles_at", None)
        del self.operation_at, self.is_made_once, self.loads, self._begin_at, self._end_at, self._ended
        waits = AccessWaits(self.found, self.uses, operation_at, self.as_written)
        found = [
            *self.waits.found(),
            *waits.all(made_once, self.waits, self.sbuf.stayed),
            *space_waits(self.uses, self.sbuf, operation_at),
        ]
        edges, self.apart = joined(found)
        self.table.finish(self.engines, edges)
        self.sbuf.finish()
        self.uses.finish()
        del self.found, self.waits

    # ---- order -----------------------------------------------------------------------------------

    def _add_order(self) -> None:
        """Add the waits that have other causes than data: rendezvous, no_reorder blocks, dynamic loops."""
        waiting = {number for number, i in self.examples.items() if i.rendezvous() is not None}
        if not (waiting or self.block_of or self.first_loop < len(self.instructions)):
            return
        last: dict[object, int] = {}  # of the queue of a block, or of an engine's rendezvous
        head = -1  # operation at which the iteration began
        for index, position in enumerate(self.table.positions):
            if position < 0:
                continue
            engine = self.engines[position]
            if engine != "dma" and self.signatures[position] in waiting:
                # two engines that swap what waits for the other core wait forever
                self._follow(index, last, ("rendezvous", engine))
            if position in self.block_of:
                self._follow(index, last, (self.block_of[position], engine))
            if position >= self.first_loop:
                head = self._order_by_loops(position, index, head)

    def _follow(self, index: int, last: dict[object, int], queue: object) -> None:
        """Make an operation wait for the one before it in a queue."""
        if queue in last:
            self.waits.add(index, last[queue], ORDER)
        last[queue] = index

    def _order_by_loops(self, position: int, index: int, head: int) -> int:
        """Begin each iteration of a dynamic loop when all operations before it are done."""
        if State.loop not in self.instructions[position].state:
            self.waits.add(index, head, RAW)
            return head
        for other in range(max(0, head), index):
            self.waits.add(index, other, RAW)
        return index


def grouped(position: Numbers, tile: Numbers, size: int) -> list[tuple[int, ...]]:
    """Return the tiles of each of so many positions, each once; positions are sorted."""
    found: list[tuple[int, ...]] = [()] * size
    for at, one in zip(position.tolist(), tile.tolist(), strict=True):
        if one not in found[at]:
            found[at] += (one,)
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
        # the tiles that are loaded, by their first readers, and one after the last
        readers, self.tiles = _first_readers(plan)
        self.readers = [*readers, len(self.moments)]
        self.dues = as_array(np.searchsorted(self.load_reach, self.readers, "right"))  # when each is in reach
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
        """Fetch while SBUF lacks nothing: each tile is loaded for its first reader."""
        readers, tiles, number = self.readers, self.tiles, self.next_reader
        while readers[number] < last and self.sbuf.load(position, tiles[number]):
            number += 1
        self.next_reader, self.due = number, self.dues[number]
        return max(ahead, min(last, readers[number]))


def _first_readers(plan: OperationPlan) -> tuple[list[int], list[int]]:
    """Return the tiles that plain loads load, by their first readers after the load, and these positions."""
    tiles, found = plan.uses.sbuf, plan.found
    chosen = plan.uses.where == SBUF_TILE
    loads = np.array(plan.loads, np.int64)
    position, is_read = found.position[chosen], ~found.is_write[chosen]
    (reads,) = np.nonzero(is_read & (loads[tiles.tile] >= 0) & (position > loads[tiles.tile]))
    _, first = np.unique(tiles.tile[reads], return_index=True)
    reads = reads[np.sort(first)]
    return position[reads].tolist(), tiles.tile[reads].tolist()


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
