"""Timeline: when everything happened, and the profiler's figures about it (spec/machine.md 12)."""

from __future__ import annotations

from math import fsum
from typing import Any, NamedTuple

import numpy as np

from ..errors import Site
from ..ir.caches import cached_property
from ..ir.instruction import MatmulInstruction
from ..ir.iterations import Iteration, IterationTable
from ..ir.program import Program
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.memories import MemoryRegion
from .names import TileNames, queue_of
from .operation import Operation
from .operation_plan import OperationPlan
from .timing_rules import KIND_NUMBERS


class Bar(NamedTuple):
    """One operation as a profiler draws it. Times in ns; `end` is the end of the bar."""

    core: int
    operation: int  # its index on its core
    engine: str  # tensor, vector, scalar, gpsimd, sync or dma
    queue: str  # the engine, or one of names.QUEUES
    name: str  # the instruction, "spill" or "reload"
    label: str  # the caller's name=
    start: float
    end: float
    waited_for: int  # index of the operation that decided the start, -1 for none
    why: str  # data, overwrite, rewrite, space, or engine: busy with another instruction
    wait: float  # ns between that engine's or queue's previous work and the start
    site: Site | None  # of a spill: where the tile was allocated
    nbytes: int  # moved by a transfer
    flops: int
    operands: str
    iteration: Iteration = ()  # of the loops around it
    views: tuple[View, ...] = ()  # its operands in memory


class Stay(NamedTuple):
    """The time of a tile in SBUF or PSUM. A reload after a spill begins a new stay."""

    start: float
    end: float
    nbytes: int  # of all partitions that it takes
    tile: Storage


class Occupancy(NamedTuple):
    """How full SBUF or PSUM was: `nbytes[i]` from `times[i]` on; and the tiles."""

    times: np.ndarray
    nbytes: np.ndarray
    owners: list[Stay]


class Timeline:
    """The modelled run of a kernel. Times are ns from its first instruction."""

    def __init__(self, program: Program, plans: list[OperationPlan], cores: list[Any]):
        self.program = program
        self.machine = program.machine
        self.plans = plans
        self.cores = cores  # CoreSimulations, run to their end
        self.iterations = IterationTable()  # where they were recorded

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations of all cores."""
        return [op for plan in self.plans for op in plan.operations]

    def iteration(self, op: Operation) -> Iteration:
        """Return the loops in which an instruction was issued, with the values of their variables."""
        if op.instruction is None or not self.iterations:
            return ()
        handle = op.instruction.handle
        return self.iterations.of(op.core, getattr(handle, "order", handle))

    # ---- times -----------------------------------------------------------------------------------

    @cached_property
    def work_ns(self) -> float:
        """First start to last result, without the fixed cost of a kernel run."""
        return max((t for core in self.cores for t in core.done), default=0.0)

    @property
    def total_ns(self) -> float:
        return self.work_ns + self.machine.kernel_overhead_ns

    @property
    def total_us(self) -> float:
        return self.total_ns / 1e3

    def intervals(self, engine: str, core: int = 0) -> np.ndarray:
        """Return (start, end) of every bar on an engine, or of every transfer for "dma"."""
        c = self.cores[core]
        wanted = np.frombuffer(c.kinds, np.uint8) == KIND_NUMBERS[engine]
        bars = np.stack([np.frombuffer(c.start)[wanted], np.frombuffer(c.end)[wanted]], axis=1)
        if engine == "scalar" and c.table_loads:
            bars = np.concatenate([bars, [load[:2] for load in c.table_loads]])
        return bars[np.lexsort((bars[:, 1], bars[:, 0]))]

    def active_ns(self, engine: str, core: int = 0) -> float:
        """Return the length of the union of an engine's bars."""
        return union_length(self.intervals(engine, core))

    @cached_property
    def bars(self) -> list[Bar]:
        """Every operation, by core and start."""
        found = []
        names = TileNames()
        for number, core in enumerate(self.cores):
            before: dict[str, float] = {}
            for index in sorted(range(len(core.operations)), key=core.start.__getitem__):
                op = core.operations[index]
                transfer = core.transfers.get(index)
                engine = "dma" if op.is_dma else op.kind
                queue = engine if transfer is None else queue_of(op, transfer)
                blocker = core.blocked_by[index]
                found.append(
                    Bar(
                        number,
                        index,
                        engine,
                        queue,
                        op.kind if op.instruction is None else op.instruction.public,
                        (op.instruction.name or "") if op.instruction is not None else "",
                        core.start[index],
                        core.end[index],
                        blocker,
                        op.waits.get(blocker, "engine") if blocker >= 0 else "",
                        max(0.0, core.start[index] - before.get(queue, 0.0)),
                        op.site if op.tile is None else op.tile.site,
                        0 if transfer is None else transfer.nbytes,
                        matmul_flops(op),
                        describe(op, names),
                        self.iteration(op),
                        views_of(op),
                    )
                )
                before[queue] = max(before.get(queue, 0.0), core.end[index])
        return found

    def active_percent(self, engine: str, core: int = 0) -> float:
        return 100 * self.active_ns(engine, core) / self.total_ns if self.total_ns else 0.0

    @cached_property
    def packet_ns(self) -> float:
        """Sum of DMA packet durations over all engines."""
        return fsum(t.packet_ns for core in self.cores for t in core.transfers.values())

    # ---- work ------------------------------------------------------------------------------------

    @cached_property
    def flops(self) -> int:
        """2 x MACs of all matrix products, transposes left out."""
        return sum(matmul_flops(op) for op in self.operations)

    @property
    def mfu_percent(self) -> float:
        peak = self.machine.peak_flops() * len(self.cores)
        return 100 * self.flops / (peak * self.total_ns * 1e-9) if self.total_ns else 0.0

    @cached_property
    def hbm_bytes(self) -> tuple[int, int]:
        """HBM bytes (read, written), spills included."""
        read = written = 0
        for core in self.cores:
            for index, transfer in core.transfers.items():
                op = core.operations[index]
                if op.instruction is None:
                    read += transfer.nbytes if op.kind == "reload" else 0
                    written += transfer.nbytes if op.kind == "spill" else 0
                    continue
                operands = op.instruction.operands()
                read += sum(_hbm_bytes(operands[i]) for i in op.instruction.read_at)
                written += sum(_hbm_bytes(operands[i]) for i in op.instruction.write_at)
        return read, written

    @property
    def mbu_percent(self) -> float:
        moved = sum(self.hbm_bytes)
        return 100 * moved / (self.machine.hbm_gbs * self.total_ns) if self.total_ns else 0.0

    @property
    def spill_bytes(self) -> int:
        return sum(p.spill_bytes for p in self.plans)

    # ---- memory ----------------------------------------------------------------------------------

    def occupancy(self, buffer: MemoryRegion, core: int = 0) -> Occupancy:
        """Return what SBUF or PSUM held over time: each tile from its first start to its last use."""
        lines = self.machine.partitions
        found = [
            Stay(start, end, tile.taken(self.machine) * lines, tile)
            for start, end, tile in self._stays(buffer, core)
        ]
        owners = without_overlap(sorted(found, key=lambda stay: stay[:2]))
        return Occupancy(*steps(owners), owners)

    def _stays(self, buffer: MemoryRegion, core: int) -> list[list[Any]]:
        """Return [start, end, tile] of each stay, in program order."""
        c, plan = self.cores[core], self.plans[core]
        found: list[list[Any]] = []
        present: dict[int, list[Any]] = {}
        for op in c.operations:
            uses = [(op.tile, c.end)]
            if op.tile is None:
                reads, writes = plan.accesses(op.position)
                uses = [(v.storage, c.free) for v in reads] + [(v.storage, c.end) for v in writes]
            for tile, until in uses:
                if tile.buffer is buffer:
                    stay = present.get(id(tile))
                    if stay is None or op.kind == "reload":
                        present[id(tile)] = stay = [c.start[op.index], until[op.index], tile]
                        found.append(stay)
                    elif until[op.index] > stay[1]:
                        stay[1] = until[op.index]
                    stay[0] = min(stay[0], c.start[op.index])
        return found

    def __repr__(self) -> str:
        return f"<Timeline {self.total_us:.1f} us, {len(self.operations)} operations on {self.machine.name}>"


def describe(op: Operation, name: TileNames) -> str:
    """Return `dst sums float32[128, 512] sbuf, src ...`, each with the name of its tile if it has one."""
    if op.instruction is None:
        assert op.tile is not None
        return f"{_spaced(name(op.tile))}{op.tile.dtype}{list(op.tile.shape)} {op.tile.where}"
    operands = zip(op.instruction.operand_names, op.instruction.operands(), strict=True)
    return ", ".join(
        f"{n} {_spaced(name(v.storage))}{v.dtype}{list(v.shape)} {v.buffer.value}"
        for n, v in operands
        if isinstance(v, View)
    )


def _spaced(name: str) -> str:
    return f"{name} " if name else ""


def views_of(op: Operation) -> tuple[View, ...]:
    """Return the operands of an instruction in memory, in the order of `describe`."""
    if op.instruction is None:
        return ()
    return tuple(v for v in op.instruction.operands() if isinstance(v, View))


def without_overlap(stays: list[Stay]) -> list[Stay]:
    """Return the stays with those at one explicit address cut, so that they do not overlap in time."""
    found = []
    taken_until: dict[tuple[int, int], float] = {}
    for stay in stays:
        if stay.tile.address is not None:
            place = (stay.tile.address[1], stay.tile.pitch)
            start = max(stay.start, taken_until.get(place, 0.0))
            taken_until[place] = max(stay.end, start)
            stay = stay._replace(start=start, end=max(stay.end, start))
        found.append(stay)
    return found


def steps(stays: list[Stay]) -> tuple[np.ndarray, np.ndarray]:
    """Return (times, bytes from then on) of overlapping stays."""
    moments = np.array([moment for stay in stays for moment in stay[:2]], np.float64)
    changes = np.array([change for stay in stays for change in (stay.nbytes, -stay.nbytes)], np.float64)
    times, where = np.unique(moments, return_inverse=True)
    return times, np.cumsum(np.bincount(where, changes, len(times))).astype(np.int64)


def union_length(intervals: np.ndarray) -> float:
    """Return the total length covered by sorted (start, end) pairs."""
    if len(intervals) == 0:
        return 0.0
    starts, ends = intervals[:, 0], np.maximum.accumulate(intervals[:, 1])
    gaps = np.maximum(0.0, starts[1:] - ends[:-1]).sum()
    return float(ends[-1] - starts[0] - gaps)


def matmul_flops(op: Operation) -> int:
    """Return 2 x MACs of a product on the PE array."""
    instruction = op.instruction if op.kind == "tensor" else None
    return instruction.flops() if isinstance(instruction, MatmulInstruction) else 0


def _hbm_bytes(value: object) -> int:
    return value.nbytes if isinstance(value, View) and not value.on_chip else 0
