"""A Study: a timeline, its replay, and what several findings ask of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import Site
from ..operations import Operation
from ..timeline import ENGINES, Timeline
from ..what_if import Change, Replay

NAMES = {
    "tensor": "TensorE",
    "vector": "VectorE",
    "scalar": "ScalarE",
    "gpsimd": "GpSimdE",
    "sync": "SyncE",
    "dma": "DMA",
}
BUSY = 0.9  # of the time: nothing left to fill


@dataclass(frozen=True)
class Finding:
    """One thing to change, in plain words."""

    kind: str  # a stable name
    title: str
    detail: str
    lines: tuple[str, ...]  # `kernels.py:72`
    gain_us: float  # of the kernel's time


class Study:
    """What the findings about one timeline share."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.machine = timeline.machine
        self.total_us = timeline.total_us
        self.replay = Replay(timeline)

    @cached_property
    def active(self) -> dict[str, float]:
        """Share of the time, of the core where an engine is active longest."""
        cores = range(len(self.timeline.cores))
        used = {op.kind for op in self.timeline.operations}
        engines = [engine for engine in (*ENGINES, "dma") if engine in used]
        return {e: max(self.timeline.active_percent(e, c) for c in cores) / 100 for e in engines}

    @cached_property
    def busiest(self) -> str | None:
        """The compute engine that is active longest."""
        engines = [engine for engine in self.active if engine != "dma"]
        return max(engines, key=self.active.__getitem__, default=None)

    @cached_property
    def spilled(self) -> bool:
        return self.timeline.spill_bytes > 0

    def gain_us(self, change: Change, beyond: Change | None = None) -> float:
        """What a change gains; `beyond`, where that other change is made anyway."""
        before = self.timeline.work_ns if beyond is None else self.replay.run(beyond)
        return max(0.0, before - self.replay.run(change if beyond is None else beyond | change)) / 1e3

    def numbered(self, kind: str) -> Iterable[tuple[int, Operation]]:
        """The operations of an engine, or of "dma", each with its number."""
        return ((n, op) for n, op in enumerate(self.timeline.operations) if op.kind == kind)


# ---- words ---------------------------------------------------------------------------------------


def site_of(op: Operation) -> Site | None:
    """The user's line of an operation; of a spill, where the tile was allocated."""
    return op.tile.site if op.site is None and op.tile is not None else op.site


def lines(weights: Iterable[tuple[Site | None, float]]) -> tuple[str, ...]:
    """Source lines of weighted sites, the heaviest first."""
    of_site: Counter[tuple[int, int]] = Counter()
    sites: dict[tuple[int, int], Site] = {}
    for site, weight in weights:
        if site is not None:
            key = (id(site.code), site.lasti)  # cheaper than hashing the code
            of_site[key] += weight  # type: ignore[assignment]
            sites[key] = site
    of_line: Counter[tuple[str, int]] = Counter()
    for key, site in sites.items():
        of_line[site.filename, site.lineno] += of_site[key]
    shown = {(s.filename, s.lineno): str(s) for s in sites.values()}
    order = sorted(of_line, key=lambda line: (-of_line[line], line))
    return tuple(shown[line] for line in order)


def lines_of(operations: Iterable[Operation]) -> tuple[str, ...]:
    return lines((site_of(op), 1) for op in operations)


def duration(us: float) -> str:
    """`0.6 us`, `39.64 ms`"""
    return f"{us / 1e3:,.2f} ms" if us >= 1000 else f"{us:,.1f} us"


def amount(nbytes: float) -> str:
    """`512 B`, `2 KiB`, `1.5 GiB`"""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.2f} GiB"


def count(number: int, noun: str, nouns: str = "") -> str:
    """`1 load`, `2,048 loads`"""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def joined(parts: list[str]) -> str:
    """`a, b and c`"""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def share(part: float) -> str:
    return f"{100 * part:.1f} %"


def name_of(storage: Any) -> str:
    return storage.name or (str(storage.site) if storage.site else "an HBM tensor")
