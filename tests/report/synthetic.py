"""A run made up of random bars, as large as one likes: what the page must bear."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki.ir.iterations import IterationTable
from nki.ir.storage import Storage
from nki.machine.machine import Machine
from nki.machine.memories import PSUM, SBUF
from nki.timing.timeline import Bar, Occupancy, Stay, Timeline, steps

SHARES = {"tensor": 0.35, "vector": 0.2, "scalar": 0.15, "gpsimd": 0.05, "software": 0.25}


class SyntheticTimeline(Timeline):
    """`count` bars with random lengths and waits on the lines of `sites`; half as many tiles."""

    def __init__(self, machine: Machine, count: int, sites: list[Any], tile: Storage):
        self.machine = machine
        self.plans = []
        self.operations = []
        self.iterations = IterationTable()
        self.cores = [SyntheticCore()]  # type: ignore[list-item]
        self.random = np.random.default_rng(4)
        self.sites = sites
        self.tile = tile
        self.bars = self._bars(count)
        self.work_ns = max(bar.end for bar in self.bars)

    def _bars(self, count: int) -> list[Bar]:
        rows = []
        for queue, share in SHARES.items():
            size = int(count * share)
            length = self.random.gamma(2.0, 60.0 / share, size)
            gap = self.random.exponential(20.0, size) * (self.random.random(size) < 0.3)
            start = np.cumsum(length + gap) - length
            rows += [(queue, s, s + d, g) for s, d, g in zip(start, length, gap, strict=True)]
        rows.sort(key=lambda row: row[1])
        return [self._bar(index, *row) for index, row in enumerate(rows)]

    def _bar(self, index: int, queue: str, start: float, end: float, wait: float) -> Bar:
        dma = queue == "software"
        width = 32 * (1 + index % 16)
        operands = f"dst float32[128, {width}] sbuf, src float32[128, {width}] " + (
            "private_hbm" if dma else "sbuf"
        )
        before = index - int(self.random.integers(1, 40))
        why = ("data", "engine", "space", "rewrite")[index % 4] if before >= 0 else ""
        return Bar(
            core=0,
            operation=index,
            engine="dma" if dma else queue,
            queue=queue,
            name="dma_copy" if dma else f"{queue}_{index % 3}",
            label="",
            start=float(start),
            end=float(end),
            waited_for=max(-1, before),
            why=why,
            wait=float(wait),
            site=self.sites[index % len(self.sites)],
            nbytes=512 * width if dma else 0,
            flops=0,
            operands=operands,
        )

    def occupancy(self, buffer: Any, core: int = 0) -> Occupancy:
        if buffer is PSUM:
            return Occupancy(np.zeros(0), np.zeros(0), [])
        assert buffer is SBUF
        count = len(self.bars) // 2
        start = np.sort(self.random.random(count)) * self.work_ns * 0.98
        length = self.random.exponential(self.work_ns / count * 20, count)
        stays = [
            Stay(s, min(s + d, self.work_ns), 262144, self.tile) for s, d in zip(start, length, strict=True)
        ]
        return Occupancy(*steps(stays), stays)


class SyntheticCore:
    """What a report asks of a core whose bars are made up."""

    table_loads: tuple = ()
    operations: tuple = ()
