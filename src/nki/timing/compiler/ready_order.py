"""The order in which a list scheduler takes the instructions of a core: as they become ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from ...ir.instruction import Instruction
from ...machine.memories import PSUM
from ..entries import Entry
from .compilation import Compilation, waits
from .engines import held_ns, moving_ns

WEIGHTS = 128  # columns: a matmul loads its weights first
COLUMNS_PER_NS = 1.4


class ReadyOrder:
    """Iterates over the items of a core as they become ready; `run` each before taking the next.

    Engines work through what is ready in that order; of those that are ready at once, products that several
    instructions read in PSUM come last, as in the traces of fused attention. A matmul counts
    as one pass with its weights loaded before it, at 1.4 GHz: so the traces of attention come out, in which
    ScalarE alone copies transposes and shares with VectorE the copies of products, bfloat16 or float32.
    """

    def __init__(self, core: Compilation):
        self.core = core
        self.free: dict[str, float] = defaultdict(float)  # when each engine is, in ns
        self.users: list[list[int]] = [[] for _ in core.items]
        self.missing = [0] * len(core.items)
        self.ready = [0.0] * len(core.items)
        for number, needed in enumerate(waits(core.items)):
            self.missing[number] = len(needed)
            for other in needed:
                self.users[other].append(number)
        self.keeps = [_keeps_bank(core, item) for item in core.items]
        ready = (number for number, count in enumerate(self.missing) if not count)
        self.queue = [(0.0, self.keeps[number], number) for number in ready]
        heapify(self.queue)
        self.known: dict[tuple[int, str], tuple[float, float]] = {}  # by signature and engine

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Yield number and time, in ns, of each item when it is ready."""
        while self.queue:
            ready, _, number = heappop(self.queue)
            yield number, ready

    def begin(self, item: Entry, ready: float) -> float:
        """Return when its engine can begin an item."""
        return max(ready, self.free[item.instruction.engine_name()])

    def run(self, number: int, item: Entry, ready: float) -> None:
        """Run an item on its engine; what it makes ready is queued."""
        name = item.instruction.engine_name()
        key = (item.signature, name)
        if key not in self.known:
            self.known[key] = self._times(item.instruction, name)
        held, latency = self.known[key]
        self.free[name] = free = self.begin(item, ready) + held
        for user in self.users[number]:
            self.ready[user] = max(self.ready[user], free + latency)
            self.missing[user] -= 1
            if not self.missing[user]:
                heappush(self.queue, (self.ready[user], self.keeps[user], user))

    def _times(self, instruction: Instruction, name: str) -> tuple[float, float]:
        """Return ns that an instruction holds its engine, and until its result can be used."""
        m = self.core.machine
        if name == "dma":
            return moving_ns(m, instruction), m.dma_dispatch_load_ns + m.dma_notify_load_ns
        if name == "tensor":
            return (WEIGHTS + instruction.operands()[0].free_elements) / COLUMNS_PER_NS, 0.0
        return held_ns(m, instruction), instruction.cost(m).fix_ns


def _keeps_bank(core: Compilation, item: Entry) -> bool:
    """True when more than one instruction reads the PSUM tile that an item writes."""
    return any(v.buffer is PSUM and len(core.uses.readers[v.storage]) > 1 for v in item.done.writes)
