"""Counts of a run: instructions, DMA traffic, and how much SBUF and PSUM were live at once."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

from .machine import Machine
from .program import Instruction
from .storage import PSUM, SBUF, Storage
from .view import View


class Statistics:
    """Filled while a kernel runs; memory per instruction is constant."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.instructions = 0
        self.by_instruction: Counter[str] = Counter()
        self.dma_transfers = 0
        self.dma_bytes = 0
        self.hbm_read_bytes: Counter[str] = Counter()  # by tensor name
        self.hbm_write_bytes: Counter[str] = Counter()
        self._lives: dict[Any, tuple[array, array, array]] = {
            SBUF: (array("q"), array("q"), array("q")),
            PSUM: (array("q"), array("q"), array("q")),
        }
        self._open: dict[int, list[Any]] = {}  # id(storage) -> [storage, first use, last use]
        self._placed: dict[Any, set[tuple[int, int]]] = {SBUF: set(), PSUM: set()}

    def sink(self, instruction: Instruction) -> None:
        self.instructions += 1
        now = self.instructions
        self.by_instruction[instruction.public] += 1
        seen = self._open
        for view in instruction.operands():
            if isinstance(view, View) and view.storage.on_chip:
                life = seen.get(id(view.storage))
                if life is None:
                    seen[id(view.storage)] = [view.storage, now, now]
                else:
                    life[2] = now
        if not instruction.on_chip:
            self._count_dma(instruction)

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

    @staticmethod
    def _count_hbm(view: View, bytes_by_name: Counter[str]) -> None:
        if not view.storage.on_chip:
            bytes_by_name[view.storage.name or f"hbm {view.storage.number}"] += view.nbytes

    def retire(self, storage: Storage) -> None:
        """The storage is gone: keep only when it lived and how much it took."""
        life = self._open.pop(id(storage), None)
        if life is None:
            return
        if storage.address is not None:
            self._placed[storage.buffer].add((storage.address[1], storage.address[1] + storage.pitch))
            return
        first, last, size = self._lives[storage.buffer]
        first.append(life[1])
        last.append(life[2])
        size.append(storage.pitch)

    def finish(self) -> None:
        for storage, _, _ in list(self._open.values()):
            self.retire(storage)

    # ---- results ---------------------------------------------------------------------------------

    def peak_bytes(self, buffer: Any) -> int:
        """Most bytes live at once, over all partitions: liveness of placed-by-us tiles plus addresses."""
        first, last, size = self._lives[buffer]
        changes: Counter[int] = Counter()
        for begin, end, nbytes in zip(first, last, size, strict=True):
            changes[begin] += nbytes
            changes[end + 1] -= nbytes
        peak = live = 0
        for moment in sorted(changes):
            live += changes[moment]
            peak = max(peak, live)
        return (peak + _union(self._placed[buffer])) * self.machine.partitions

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


def _union(intervals: set[tuple[int, int]]) -> int:
    total = reach = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total
