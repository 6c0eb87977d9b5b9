"""Counts of a run: instructions, DMA traffic, and how much SBUF and PSUM were live at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion
from .columns import Columns, Numbers
from .instruction import Instruction
from .liveness import Peak, TileLifetimes
from .storage import Storage
from .transfer_instruction import TransferInstruction
from .view import View


class Statistics:
    """Filled while a kernel runs; its size grows with the tiles that are live at once, not with the run."""

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
        self._cores: dict[int, TileLifetimes] = {}

    def sink_of(self, core: int) -> Callable[[Instruction], None]:
        """Return the sink of one core; each has an SBUF and a PSUM of its own."""
        tiles = self._cores[core] = TileLifetimes(self.machine)
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
                self._count_hbm(view.storage, nbytes, self.hbm_write_bytes)
        for i in instruction.read_at:
            view = operands[i]
            if isinstance(view, View):
                self._count_hbm(view.storage, view.nbytes, self.hbm_read_bytes)

    def _count_hbm(self, storage: Storage, nbytes: int, bytes_by_name: Counter[str]) -> None:
        if storage.on_chip:
            return
        label = storage.name or _label(storage)
        if id(storage) not in self._hbm:
            self._hbm[id(storage)] = storage
            self._hbm_sizes[label] += storage.nbytes
        bytes_by_name[label] += nbytes

    def retire(self, storage: Storage) -> None:
        """Forget a storage but for its lifetime and its size."""
        self._hbm.pop(id(storage), None)
        for tiles in self._cores.values():
            tiles.close(storage)

    def begin_loop(self, core: int, number: int) -> None:
        """Begin a dynamic loop of a core."""
        self._cores[core].begin_loop(number, self.instructions)

    def end_loop(self, core: int, number: int) -> None:
        """End a dynamic loop of a core."""
        self._cores[core].end_loop(number, self.instructions)

    @staticmethod
    def of(machine: Machine, cores: Iterable[Columns], storages: Sequence[Storage]) -> Statistics:
        """Return the counts of recorded programs, one for each core, given the storages by number."""
        statistics = Statistics(machine)
        for core, columns in enumerate(cores):
            statistics._add(columns, storages, core)
        return statistics

    def _add(self, columns: Columns, storages: Sequence[Storage], core: int) -> None:
        """Add the recorded instructions of a core: those of one signature at once."""
        counts = np.bincount(columns.signature, minlength=len(columns.samples)).tolist()
        for sample, count in zip(columns.samples, counts, strict=True):
            if sample.simulator_only:
                continue
            self.instructions += count
            self.by_instruction[sample.public] += count
            if isinstance(sample, TransferInstruction):
                self.dma_transfers += count
                self.dma_bytes += count * sum(view.nbytes for _, view in _transferred(sample, "write_at"))
        tiles = self._cores[core] = TileLifetimes(self.machine)
        tiles.add(columns, storages)
        for at, bytes_by_name in (("write_at", self.hbm_write_bytes), ("read_at", self.hbm_read_bytes)):
            for number, nbytes in _moved(columns, at):
                self._count_hbm(storages[number], nbytes, bytes_by_name)

    def finish(self) -> None:
        """End the lifetimes of all tiles."""
        for tiles in self._cores.values():
            tiles.close_all()

    # ---- results ---------------------------------------------------------------------------------

    def peaks(self, buffer: MemoryRegion) -> list[Peak]:
        """Return the most bytes per partition that are live at once, on each core."""
        return [tiles.peak(buffer) for tiles in self._cores.values()]

    def peak_bytes(self, buffer: MemoryRegion) -> int:
        """Return the most bytes live at once on a core, over all partitions: each tile takes its column of
        each, but for tiles of few partitions, which lie side by side in SBUF. In PSUM it takes whole banks.
        """
        return max((peak.nbytes for peak in self.peaks(buffer)), default=0) * self.machine.partitions

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


def _transferred(sample: Instruction, at: str) -> list[tuple[int, View]]:
    """Return the operands that a transfer writes or reads, each with its place among the views."""
    if not isinstance(sample, TransferInstruction) or sample.simulator_only:
        return []
    operands = sample.operands()
    counts = [_view_count(value) for value in operands]
    return [(sum(counts[:i]), operands[i]) for i in getattr(sample, at) if counts[i]]


def _view_count(operand: object) -> int:
    """Return how many views of `Instruction.views` an operand is: its index tile is one more."""
    if not isinstance(operand, View):
        return 0
    indirect = operand.indirection is not None and isinstance(operand.indirection.index, View)
    return 2 if indirect else 1


def _moved(columns: Columns, at: str) -> Iterator[tuple[int, int]]:
    """Yield the tensors in HBM that transfers write or read, by first use, and how many bytes of each."""
    found = [
        [(place, view.nbytes) for place, view in _transferred(sample, at) if not view.on_chip]
        for sample in columns.samples
    ]
    first_view = np.cumsum(columns.views) - columns.views
    rows: list[Numbers] = []
    for k in range(max(map(len, found), default=0)):
        some = [one[k] if len(one) > k else (-1, 0) for one in found]
        place, nbytes = np.array(some, np.int64).T[:, columns.signature]
        (instructions,) = np.nonzero(place >= 0)
        views = (first_view + place)[instructions]
        rows.append(np.stack([views, columns.storage[views], nbytes[instructions]]))
    if rows:
        joined = np.concatenate(rows, axis=1)
        _, storage, nbytes = joined[:, np.argsort(joined[0], kind="stable")]
        numbers, first, which = np.unique(storage, return_index=True, return_inverse=True)
        sums = np.zeros(len(numbers), np.int64)
        np.add.at(sums, which, nbytes)
        for i in np.argsort(first).tolist():
            yield int(numbers[i]), int(sums[i])


def _label(storage: Storage) -> str:
    return storage.name or f"hbm at {storage.site}"
