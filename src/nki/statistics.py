"""Counts of a run: instructions, DMA traffic, and how much SBUF and PSUM were live at once."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

from .machine import Machine
from .program import Instruction
from .storage import PSUM, SBUF, MemoryRegion, Storage
from .view import View


class Statistics:
    """Filled while a kernel runs; what is kept grows with the tiles of the kernel, not its instructions."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.instructions = 0
        self.by_instruction: Counter[str] = Counter()
        self.dma_transfers = 0
        self.dma_bytes = 0  # as written
        self.hbm_read_bytes: Counter[str] = Counter()  # by tensor name
        self.hbm_write_bytes: Counter[str] = Counter()
        self._hbm: dict[int, Storage] = {}  # the HBM tensors seen, by id
        self._cores: dict[int, _Tiles] = {}

    def sink_of(self, core: int) -> Callable[[Instruction], None]:
        """The sink of one core; each has an SBUF and a PSUM of its own."""
        tiles = self._cores[core] = _Tiles()

        def sink(instruction: Instruction) -> None:
            self.instructions += 1
            self.by_instruction[instruction.public] += 1
            for view in instruction.operands():
                if isinstance(view, View):
                    tiles.use(view, self.instructions)
            if not instruction.on_chip:
                self._count_dma(instruction)

        return sink

    def _count_dma(self, instruction: Instruction) -> None:
        operands = instruction.operands()
        self.dma_transfers += 1
        for i in instruction.write_at:
            if isinstance(operands[i], View):
                self.dma_bytes += operands[i].nbytes
                self._count_hbm(operands[i], self.hbm_write_bytes)
        for i in instruction.read_at:
            if isinstance(operands[i], View):
                self._count_hbm(operands[i], self.hbm_read_bytes)

    def _count_hbm(self, view: View, bytes_by_name: Counter[str]) -> None:
        storage = view.storage
        if not storage.on_chip:
            self._hbm[id(storage)] = storage
            bytes_by_name[_label(storage)] += view.nbytes

    def retire(self, storage: Storage) -> None:
        """The storage is gone: keep only when it lived and how much it took."""
        for tiles in self._cores.values():
            tiles.retire(storage)

    def finish(self) -> None:
        for tiles in self._cores.values():
            for storage, _, _ in list(tiles.open.values()):
                tiles.retire(storage)

    # ---- results ---------------------------------------------------------------------------------

    def peak_bytes(self, buffer: MemoryRegion) -> int:
        """Most bytes live at once on a core, over all partitions: each tile takes its column of each."""
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
        sizes: Counter[str] = Counter()
        for storage in self._hbm.values():
            sizes[_label(storage)] += storage.nbytes
        return {name: read / sizes[name] for name, read in self.hbm_read_bytes.items()}


class _Tiles:
    """When the tiles of one core live: from the first instruction that uses them to the last."""

    def __init__(self) -> None:
        self.open: dict[int, list[Any]] = {}  # id(storage) -> [storage, first use, last use]
        self.lives: dict[MemoryRegion, tuple[array, array, array]] = {
            buffer: (array("q"), array("q"), array("q")) for buffer in (SBUF, PSUM)
        }
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
        for column, value in zip(self.lives[storage.buffer], (life[1], life[2], storage.pitch), strict=True):
            column.append(value)

    def peak(self, buffer: MemoryRegion) -> int:
        """Bytes per partition: the most that automatic tiles need at once, beside all explicit addresses."""
        changes: Counter[int] = Counter()
        for first, last, size in zip(*self.lives[buffer], strict=True):
            changes[first] += size
            changes[last + 1] -= size
        peak = live = 0
        for moment in sorted(changes):
            live += changes[moment]
            peak = max(peak, live)
        return peak + _union(self.placed[buffer])


def _label(storage: Storage) -> str:
    return storage.name or f"hbm at {storage.site}"


def _union(intervals: set[tuple[int, int]]) -> int:
    total = reach = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total
