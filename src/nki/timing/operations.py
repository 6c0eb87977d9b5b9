"""Operations: what the scheduler places in time, and what each must wait for.

A program becomes operations in three steps: every access of every tile is a region; overlapping
regions give dependencies (RAW, WAR, WAW); and SBUF is planned in program order, which adds the waits
for reused space and, when live tiles exceed it, spills to HBM (machine.md 4, design.md "Memory").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ..hardware.machine import Machine
from ..hardware.memories import SBUF
from ..program.instruction import Cost, Instruction
from ..tensors import View
from ..tensors.storage import Storage
from .pools import Pool, accesses
from .regions import ORDER, Operation, Region, Space, region


class Planner:
    """Turns the instructions of one core into operations."""

    def __init__(
        self,
        machine: Machine,
        instructions: Iterable[Instruction],
        core: int = 0,
        block_of: Mapping[int, int] | None = None,
    ):
        self.machine = machine
        self.instructions = list(instructions)
        self.core = core
        self.block_of = block_of or {}  # position -> its no_reorder block
        self.last_in_block: dict[tuple[int, str], int] = {}
        self.operations: list[Operation] = []
        self.spaces: dict[Any, Space] = defaultdict(Space)
        self.accesses = [accesses(i) for i in self.instructions]
        self.costs: list[Cost] = []
        self.alike: list[
            int
        ] = []  # a number for each instruction: those of one number are alike but for data
        self._price()
        self.regions: dict[int, Region] = {}  # of on-chip views, by signature
        self.silent = self._one_sided_hbm()
        self.plain_loads = self._plain_loads()
        self.load_of = {id(tile): position for position, tile in self.plain_loads.items()}
        self.loaded_early: set[int] = set()
        self.sbuf = Pool(self, machine.sbuf_usable_bytes)
        self.spill_bytes = 0

    def _price(self) -> None:
        """What each instruction costs; those alike are priced once."""
        numbers: dict[tuple, int] = {}
        prices: list[Cost] = []
        for instruction in self.instructions:
            number = numbers.setdefault(instruction.key(), len(prices))
            if number == len(prices):
                prices.append(instruction.cost(self.machine))
            self.alike.append(number)
            self.costs.append(prices[number])

    def region(self, view: View) -> Region:
        if not view.storage.on_chip:
            return region(view)
        box = self.regions.get(view.sig)
        if box is None:
            box = self.regions[view.sig] = region(view)
        return box

    def _keep_order(self, op: Operation) -> None:
        """Inside no_reorder, instructions of one queue keep the order of the program."""
        block = self.block_of.get(op.position)
        if block is not None:
            before = self.last_in_block.get((block, op.kind))
            if before is not None:
                op.wait_for(before, ORDER)
            self.last_in_block[block, op.kind] = op.index

    def _one_sided_hbm(self) -> set[int]:
        """HBM storages that are only read or only written: nothing there can conflict by accident."""
        read: set[int] = set()
        written: set[int] = set()
        for access in self.accesses:
            read.update(id(v.storage) for v in access.reads if not v.on_chip)
            written.update(id(v.storage) for v in access.writes if not v.on_chip)
        return read ^ written

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
        return self.operations

    def load_early(self, position: int) -> None:
        self.loaded_early.add(position)
        self._add(position)

    def _add(self, position: int) -> None:
        """The operation of an instruction, with its tiles in place and its waits known."""
        access = self.accesses[position]
        self.sbuf.prepare(position, access)
        op = self.new(position, self.instructions[position].engine_name())
        self._keep_order(op)
        for view in access.reads:
            if id(view.storage) not in self.silent:
                self.space(view.storage).read(op, self.region(view))
        for view in access.writes:
            if id(view.storage) not in self.silent:
                self.space(view.storage).write(op, self.region(view))
        self.sbuf.used(position, op, access)

    def _plain_loads(self) -> dict[int, Storage]:
        """Copies of constant HBM data into whole fresh tiles: they may happen any time before their use."""
        found: dict[int, Storage] = {}
        seen: set[int] = set()
        for position, access in enumerate(self.accesses):
            movable = not self.instructions[position].on_chip and position not in self.block_of
            if movable and len(access.reads) == len(access.writes) == 1:
                source, target = access.reads[0], access.writes[0]
                if (
                    not source.on_chip
                    and id(source.storage) in self.silent
                    and target.buffer is SBUF
                    and target.storage.address is None
                    and id(target.storage) not in seen
                    and target.covers_storage()
                ):
                    found[position] = target.storage
            seen.update(id(v.storage) for v in (*access.reads, *access.writes) if v.on_chip)
        return found

    def cost_of(self, op: Operation) -> Cost:
        return self.costs[op.position]

    def space(self, storage: Storage) -> Space:
        return self.spaces[storage.buffer if storage.address is not None else id(storage)]

    def new(self, position: int, kind: str) -> Operation:
        instruction = self.instructions[position] if position >= 0 else None
        op = Operation(len(self.operations), instruction, kind, self.core, position)
        self.operations.append(op)
        return op


class Lookahead:
    """Fetches what coming instructions will need: loads within fetch_ahead_ns, what SBUF had no room for (put
    off, or dropped and needed again) within refetch_ahead_ns.

    Time here is the work of the busiest engine so far: what the kernel would take if data were there.
    """

    def __init__(self, planner: Planner):
        self.planner = planner
        clocks = engine_clocks(planner.machine)
        work = dict.fromkeys(clocks, 0.0)
        self.moments = []
        for instruction, cost in zip(planner.instructions, planner.costs, strict=True):
            self.moments.append(max(work.values()))
            name = instruction.engine_name()
            if name in work:
                work[name] += cost.interval / clocks[name]
        self.loads = self.again = 0  # how far both have looked

    def fetch(self, position: int) -> None:
        m, sbuf = self.planner.machine, self.planner.sbuf
        now = self.moments[position]
        self.loads, self.again = max(self.loads, position), max(self.again, position)
        while self._within(self.loads, now + m.fetch_ahead_ns):
            if not sbuf.fetch(position, self.loads, self.planner.accesses[self.loads]):
                break
            self.loads += 1
        if not sbuf.is_short:
            return
        while self._within(self.again, now + m.refetch_ahead_ns):
            sbuf.refetch(self.again, self.planner.accesses[self.again])
            self.again += 1

    def _within(self, position: int, horizon: float) -> bool:
        return position < len(self.moments) and self.moments[position] <= horizon


def engine_clocks(m: Machine) -> dict[str, float]:
    """GHz of each engine."""
    return {
        "tensor": m.tensor_ghz,
        "vector": m.vector_ghz,
        "scalar": m.scalar_ghz,
        "gpsimd": m.gpsimd_ghz,
        "sync": m.gpsimd_ghz,
    }
