"""Counts of a run: instructions, DMA traffic, and how much SBUF and PSUM were live at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion
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
                self._count_hbm(view, nbytes, self.hbm_write_bytes)
        for i in instruction.read_at:
            view = operands[i]
            if isinstance(view, View):
                self._count_hbm(view, view.nbytes, self.hbm_read_bytes)

    def _count_hbm(self, view: View, nbytes: int, bytes_by_name: Counter[str]) -> None:
        storage = view.storage
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
    def of(machine: Machine, programs: Iterable[Iterable[Instruction]]) -> Statistics:
        """Return the counts of recorded programs, one for each core."""
        statistics = Statistics(machine)
        for core, program in enumerate(programs):
            statistics._add([i for i in program if not i.simulator_only], core)
        return statistics

    def _add(self, instructions: Sequence[Instruction], core: int) -> None:
        """Add the recorded instructions of a core."""
        self.instructions += len(instructions)
        self.by_instruction.update(map(attrgetter("public"), instructions))
        tiles = self._cores[core] = TileLifetimes(self.machine)
        tiles.add(instructions)
        kinds = {i.__class__ for i in instructions}
        moving = {kind for kind in kinds if issubclass(kind, TransferInstruction)}
        transfers = [i for i in instructions if i.__class__ in moving]
        self.dma_transfers += len(transfers)
        for view, count in _distinct((i, i.write_at) for i in transfers):
            self.dma_bytes += count * view.nbytes
            self._count_hbm(view, count * view.nbytes, self.hbm_write_bytes)
        for view, count in _distinct((i, i.read_at) for i in transfers):
            self._count_hbm(view, count * view.nbytes, self.hbm_read_bytes)

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


def _distinct(at: Iterable[tuple[Instruction, Sequence[int]]]) -> Iterator[tuple[View, int]]:
    """Yield tensors among these operands: one of equal ones in HBM, or of equal tiles, and how many."""
    views = [v for i, numbers in at for v in map(i.operands().__getitem__, numbers) if isinstance(v, View)]
    keys = [(None if v.storage.on_chip else v.storage, v._sig or v.sig) for v in views]
    some = dict(zip(keys, views, strict=True))
    return ((some[key], count) for key, count in Counter(keys).items())


def _label(storage: Storage) -> str:
    return storage.name or f"hbm at {storage.site}"
