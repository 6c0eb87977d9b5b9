"""Counts of a run: instructions, DMA traffic, and how much SBUF and PSUM were live at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion
from .instruction import Instruction
from .storage import Storage
from .transfer_instruction import TransferInstruction
from .view import View

LIVES_KEPT = 512


class Statistics:
    """Filled while a kernel runs; what is kept grows with the tiles that live at once, not with the run."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.instructions = 0
        self.by_instruction: Counter[str] = Counter()
        self.dma_transfers = 0
        self.dma_bytes = 0  # as written
        self.hbm_read_bytes: Counter[str] = Counter()  # by tensor name
        self.hbm_write_bytes: Counter[str] = Counter()
        self._hbm: dict[int, Storage] = {}  # the HBM tensors seen and still there, by id
        self._hbm_sizes: Counter[str] = Counter()  # of all that were seen, by name
        self._cores: dict[int, _Tiles] = {}

    def sink_of(self, core: int) -> Callable[[Instruction], None]:
        """The sink of one core; each has an SBUF and a PSUM of its own."""
        tiles = self._cores[core] = _Tiles(self.machine)
        living, counts = tiles.open, self.by_instruction

        def sink(instruction: Instruction) -> None:  # runs once per instruction: straight-line on purpose
            if instruction.simulator_only:
                return
            self.instructions = now = self.instructions + 1
            counts[instruction.public] += 1
            for view in instruction.operands():
                if isinstance(view, View):
                    life = living.get(id(view.storage))
                    if life is not None and view.indirection is None:
                        life[2] = now
                    else:
                        tiles.use(view, now)
            if isinstance(instruction, TransferInstruction):
                self._count_dma(instruction)

        return sink

    def _count_dma(self, instruction: Instruction) -> None:
        operands = instruction.operands()
        self.dma_transfers += 1
        for i in instruction.write_at:
            view = operands[i]
            if isinstance(view, View):
                nbytes = view.nbytes
                self.dma_bytes += nbytes
                if not view.storage.on_chip:
                    self._count_hbm(view.storage, nbytes, self.hbm_write_bytes)
        for i in instruction.read_at:
            view = operands[i]
            if isinstance(view, View) and not view.storage.on_chip:
                self._count_hbm(view.storage, view.nbytes, self.hbm_read_bytes)

    def _count_hbm(self, storage: Storage, nbytes: int, bytes_by_name: Counter[str]) -> None:
        label = storage.name or _label(storage)
        if id(storage) not in self._hbm:
            self._hbm[id(storage)] = storage
            self._hbm_sizes[label] += storage.nbytes
        bytes_by_name[label] += nbytes

    def retire(self, storage: Storage) -> None:
        """The storage is gone: keep only when it lived and how much it took."""
        self._hbm.pop(id(storage), None)
        for tiles in self._cores.values():
            tiles.retire(storage)

    @staticmethod
    def of(machine: Machine, programs: Iterable[Iterable[Instruction]]) -> Statistics:
        """The counts of recorded programs, one for each core."""
        statistics = Statistics(machine)
        for core, program in enumerate(programs):
            count = statistics.sink_of(core)
            for instruction in program:
                count(instruction)
        statistics.finish()
        return statistics

    def finish(self) -> None:
        for tiles in self._cores.values():
            tiles.room = dict.fromkeys(tiles.room, math.inf)  # nothing is to come: condensing gains nothing
            for storage, _, _ in list(tiles.open.values()):
                tiles.retire(storage)

    # ---- results ---------------------------------------------------------------------------------

    def peak_bytes(self, buffer: MemoryRegion) -> int:
        """Most bytes live at once on a core, over all partitions: each tile takes its column of each, but for
        tiles of few partitions, which lie side by side in SBUF.
        """
        peaks = [tiles.peak(buffer) for tiles in self._cores.values()]
        return max(peaks, default=0) * self.machine.partitions

    @property
    def sbuf_peak_bytes(self) -> int:
        return self.peak_bytes(SBUF)

    @property
    def psum_peak_bytes(self) -> int:
        return self.peak_bytes(PSUM)

    @property
    def spill_bytes(self) -> int:
        """What the compiler would have to spill at the peak: live bytes beyond the usable SBUF."""
        usable = self.machine.sbuf_usable_bytes * self.machine.partitions
        return max(0, self.sbuf_peak_bytes - usable)

    @property
    def reloads(self) -> dict[str, float]:
        """How often each HBM tensor was read in full: 1.0 is once, 4.0 means its bytes came four times."""
        return {name: read / self._hbm_sizes[name] for name, read in self.hbm_read_bytes.items()}


class Life(NamedTuple):
    """A tile that is gone: the first and the last instruction that used it, and its bytes per partition."""

    first: int
    last: int
    size: int


class _Tiles:
    """When the tiles of one core live: from the first instruction that uses them to the last."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.open: dict[int, list[Any]] = {}  # id(storage) -> [storage, first use, last use]
        self.lives: dict[MemoryRegion, list[Life]] = {SBUF: [], PSUM: []}  # of tiles that are gone
        # condense the list of lives when it has grown to this
        self.room: dict[MemoryRegion, float] = {SBUF: LIVES_KEPT, PSUM: LIVES_KEPT}
        self.placed: dict[MemoryRegion, set[tuple[int, int]]] = {SBUF: set(), PSUM: set()}

    def use(self, view: View, now: int) -> None:
        storage = view.storage
        if storage.on_chip:
            life = self.open.get(id(storage))
            if life is None:
                self.open[id(storage)] = [storage, now, now]
            else:
                life[2] = now
        if view.indirection is not None and isinstance(view.indirection.index, View):
            self.use(view.indirection.index, now)

    def retire(self, storage: Storage) -> None:
        life = self.open.pop(id(storage), None)
        if life is None:
            return
        if storage.address is not None:
            self.placed[storage.buffer].add((storage.address[1], storage.address[1] + storage.pitch))
            return
        size = storage.taken(self.machine) if storage.buffer is SBUF else storage.pitch
        self.lives[storage.buffer].append(Life(life[1], life[2], size))
        if len(self.lives[storage.buffer]) >= self.room[storage.buffer]:
            self._condense(storage.buffer)

    def _condense(self, buffer: MemoryRegion) -> None:
        """Forget all but the peak between any two moments at which a living tile begins or may end.

        A living tile adds the same all the way between them, so only that peak can become the highest.
        """
        uses = [(first, last + 1) for storage, first, last in self.open.values() if storage.buffer is buffer]
        edges = {moment for use in uses for moment in use}
        levels = _levels(self.lives[buffer], edges)
        stretches: list[list[int]] = []  # from, peak
        for moment, level in levels:
            if moment in edges or not stretches:
                stretches.append([moment, level])
            stretches[-1][1] = max(stretches[-1][1], level)
        ends = [begin for begin, _ in stretches[1:]] + [levels[-1][0]]
        peaks = zip(stretches, ends, strict=True)
        self.lives[buffer] = kept = [Life(begin, end - 1, peak) for (begin, peak), end in peaks if peak]
        self.room[buffer] = max(LIVES_KEPT, 2 * len(kept))

    def peak(self, buffer: MemoryRegion) -> int:
        """Bytes per partition: the most that automatic tiles need at once, beside all explicit addresses."""
        levels = _levels(self.lives[buffer])
        return max((level for _, level in levels), default=0) + union(self.placed[buffer])


def _levels(lives: Iterable[Life], also: Iterable[int] = ()) -> list[tuple[int, int]]:
    """The moments at which the number of live bytes changes (and others), with the number from then on."""
    changes: Counter[int] = Counter(dict.fromkeys(also, 0))
    for first, last, size in lives:
        changes[first] += size
        changes[last + 1] -= size
    moments = sorted(changes)
    return list(zip(moments, accumulate(changes[moment] for moment in moments), strict=True))


def _label(storage: Storage) -> str:
    return storage.name or f"hbm at {storage.site}"


def union(intervals: set[tuple[int, int]]) -> int:
    total = reach = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total
