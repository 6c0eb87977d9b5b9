"""The operations of a core: what the simulation places in time, and what each must wait for.

A program becomes operations in two steps: accesses of the same bytes give dependences (`ir.dependences`),
and SBUF is allocated in program order. That adds waits for reused space and, when live tiles exceed SBUF,
spills to HBM (spec/machine.md 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.boxes import box, space_of
from ..ir.dependences import RAW, AccessHistory, TensorHistory
from ..ir.instruction import InstructionCost, State
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..machine.machine import Machine
from ..machine.memories import SBUF
from .entries import Entry
from .operation import ORDER, Operation
from .sbuf_pool import SbufPool
from .uses import TileUses, accesses


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
        self.engines = [i.engine_name() for i in self.instructions]
        self.core = core
        self.transformations = transformations or {}  # of the compiler: how much each changed, by name
        self.block_of = block_of or {}  # position -> its no_reorder block
        self.last_in_block: dict[tuple[int, str], int] = {}
        loops = (at for at, i in enumerate(self.instructions) if State.loop in i.state)
        self.first_loop = next(loops, len(items))  # position of the head of the first dynamic loop
        self.loop_head = -1  # operation at which the iteration began
        self.operations: list[Operation] = []
        self.as_written = as_written
        self.spaces: dict[Any, AccessHistory] = {}  # of storages that are still to be used
        self.apart: dict[int, set[int]] = {}  # operation -> those it waits for that share no byte with it
        self.accesses = [accesses(item.done) for item in items]
        self.uses = TileUses(self.accesses)
        self.without_inputs = {at for at in self.uses.in_psum if not self.accesses[at].reads}
        self.signatures = [item.signature for item in items]
        self.costs = self._price()
        self.unordered = self._one_sided_hbm()
        self.plain_loads = self._plain_loads()
        self.load_of = {tile: position for position, tile in self.plain_loads.items()}
        self.loaded_early: set[int] = set()
        self.sbuf = SbufPool(self, self.uses, machine.sbuf_usable_bytes)
        self.spill_bytes = 0

    def _price(self) -> list[InstructionCost]:
        """Return what each instruction costs; those with the same signature are priced once."""
        prices: dict[int, InstructionCost] = {}
        for instruction, number in zip(self.instructions, self.signatures, strict=True):
            if number not in prices:
                prices[number] = instruction.cost(self.machine)
        return [prices[number] for number in self.signatures]

    def _order_in_block(self, op: Operation) -> None:
        """Make an operation inside no_reorder wait for the previous one of its queue and block."""
        block = self.block_of.get(op.position)
        if block is not None:
            before = self.last_in_block.get((block, op.kind))
            if before is not None:
                op.wait_for(before, ORDER)
            self.last_in_block[block, op.kind] = op.index

    def _order_by_loops(self, op: Operation) -> None:
        """Begin each iteration of a dynamic loop when all operations before it are done."""
        assert op.instruction is not None
        if State.loop in op.instruction.state:
            for other in range(max(0, self.loop_head), op.index):
                op.wait_for(other, RAW)
            self.loop_head = op.index
        else:
            op.wait_for(self.loop_head, RAW)

    def _one_sided_hbm(self) -> set[Storage]:
        """Return the HBM storages that are only read or only written: accesses there cannot conflict."""
        read = {view.storage for reads, _ in self.accesses for view in reads}
        written = {view.storage for _, writes in self.accesses for view in writes}
        return {storage for storage in read ^ written if not storage.on_chip}

    def plan(self) -> list[Operation]:
        look = Lookahead(self)
        for position in range(len(self.instructions)):
            look.fetch(position)
            if position in self.loaded_early:
                continue
            target = self.plain_loads.get(position)
            if target is not None and self.sbuf.defers(position, target):
                continue
            self._add(position)
        self.sbuf.finish()
        self.spaces.clear()
        return self.operations

    def load_early(self, position: int) -> None:
        self.loaded_early.add(position)
        self._add(position)

    def _add(self, position: int) -> None:
        """Add the operation of an instruction, with its tiles allocated and its waits."""
        self.sbuf.prepare(position)
        op = self.new(position, self.engines[position])
        if self.block_of:
            self._order_in_block(op)
        if position >= self.first_loop:
            self._order_by_loops(op)
        unordered, (reads, writes) = self.unordered, self.accesses[position]
        index, waits, spaces = op.index, op.waits, self.spaces
        for view in reads:
            storage = view.storage
            if storage not in unordered:
                (spaces.get(storage) or self.space(storage)).read(index, box(view), waits)
        for view in writes:
            storage = view.storage
            if storage not in unordered:
                (spaces.get(storage) or self.space(storage)).write(index, box(view), waits)
        self.sbuf.used(position, op)

    def _plain_loads(self) -> dict[int, Storage]:
        """Return the copies of constant HBM data into whole new tiles: they may run ahead of their use."""
        found: dict[int, Storage] = {}
        uses, unordered = self.uses.sbuf, self.unordered
        for position, (reads, writes) in enumerate(self.accesses):
            transfer = isinstance(self.instructions[position], TransferInstruction)
            movable = transfer and position not in self.block_of and position < self.first_loop
            if movable and len(reads) == len(writes) == 1:
                source, target = reads[0].storage, writes[0].storage
                if (
                    source in unordered
                    and target.buffer is SBUF
                    and target.address is None
                    and uses[target][0] == position
                    and writes[0].covers_storage()
                ):
                    found[position] = target
        return found

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

    def new(self, position: int, kind: str) -> Operation:
        instruction = self.instructions[position] if position >= 0 else None
        op = Operation(len(self.operations), instruction, kind, self.core, position)
        self.operations.append(op)
        return op


class Lookahead:
    """Fetches what later instructions need: loads within fetch_ahead_ns, and what SBUF had no space for
    (deferred, or dropped and needed again) within refetch_ahead_ns.

    Time here is the work of the busiest engine so far: what the kernel would take if data were there.
    """

    def __init__(self, plan: OperationPlan):
        self.plan = plan
        clocks = engine_clocks(plan.machine)
        work = dict.fromkeys(clocks, 0.0)
        self.moments: list[float] = []
        longest = 0.0
        for name, cost in zip(plan.engines, plan.costs, strict=True):
            self.moments.append(longest)
            if name in work:
                work[name] += cost.interval / clocks[name]
                longest = max(longest, work[name])
        self.loads = self.reloads = 0  # positions up to which both have fetched

    def fetch(self, position: int) -> None:
        m, sbuf, moments = self.plan.machine, self.plan.sbuf, self.moments
        horizon = moments[position] + m.fetch_ahead_ns
        ahead, last = max(self.loads, position), len(moments)
        while ahead < last and moments[ahead] <= horizon and sbuf.fetch(position, ahead):
            ahead += 1
        self.loads, self.reloads = ahead, max(self.reloads, position)
        if not sbuf.is_short:
            return
        horizon = moments[position] + m.refetch_ahead_ns
        while self.reloads < last and moments[self.reloads] <= horizon:
            sbuf.refetch(self.reloads)
            self.reloads += 1


def engine_clocks(m: Machine) -> dict[str, float]:
    """Return the clock of each engine in GHz."""
    return {
        "tensor": m.tensor_ghz,
        "vector": m.vector_ghz,
        "scalar": m.scalar_ghz,
        "gpsimd": m.gpsimd_ghz,
        "sync": m.gpsimd_ghz,
    }
