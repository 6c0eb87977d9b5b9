"""Figures and source lines as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...errors import Site
from ...ir.storage import Storage
from ..operation import Operation

NAMES = {
    "tensor": "TensorE",
    "vector": "VectorE",
    "scalar": "ScalarE",
    "gpsimd": "GpSimdE",
    "sync": "SyncE",
    "dma": "DMA",
}


def duration(us: float) -> str:
    """Return `0.6 us` or `39.64 ms`."""
    return f"{us / 1e3:,.2f} ms" if us >= 1000 else f"{us:,.1f} us"


def amount(nbytes: float) -> str:
    """Return `512 B`, `2 KiB` or `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.2f} GiB"


def count(number: int, noun: str) -> str:
    """Return `1 load` or `2,048 loads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def joined(parts: list[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def tensor_name(storage: Storage) -> str:
    return storage.name or (str(storage.site) if storage.site else "an HBM tensor")


def site_of(op: Operation) -> Site | None:
    """Return the user's line of an operation; of a spill, where the tile was allocated."""
    return op.tile.site if op.site is None and op.tile is not None else op.site


def place_of(op: Operation) -> tuple:
    """Return a key of the source line of an operation; cheaper to hash than a Site."""
    return op.site.key if op.site is not None else (0, 0)


def lines(weights: Iterable[tuple[Site | None, float]]) -> tuple[str, ...]:
    """Return the source lines of weighted sites, the heaviest first."""
    sites: dict[tuple, Site] = {}
    of_site: dict[tuple, float] = {}
    for site, weight in weights:
        if site is not None:
            key = site.key
            sites[key] = site
            of_site[key] = of_site.get(key, 0.0) + weight
    of_line: Counter[tuple[str, int]] = Counter()
    shown = {}
    for key, site in sites.items():
        line = (site.filename, site.lineno)
        of_line[line] += of_site[key]  # type: ignore[assignment]
        shown[line] = str(site)
    return tuple(shown[line] for line in sorted(of_line, key=lambda line: (-of_line[line], line)))


def lines_of(operations: Iterable[Operation]) -> tuple[str, ...]:
    """Return the source lines of operations, those with most operations first."""
    return lines((site_of(op), 1) for op in operations)
