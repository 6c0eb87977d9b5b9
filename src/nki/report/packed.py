"""The timeline as columns of numbers, small enough to travel inside a page and quick to read there.

Bars are rows, ordered by lane and start. What repeats (names, operands, lines) is stored once, as a `kind`;
times are whole ticks, starts and blockers differences between neighbours, so that deflate finds the loops
of the kernel again.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import Site, SourceLine
from ..ir.iterations import Iteration
from ..ir.storage import Storage
from ..machine.memories import PSUM, SBUF
from ..timing.names import QUEUES, TileNames
from ..timing.timeline import Bar, Timeline
from ..timing.timing_rules import ENGINES
from .background import STATIONARY, background
from .slices import MOST_OPERANDS, Slices

SHOWN_IDLE = ("tensor", "vector", "scalar", "gpsimd")  # lanes shown although nothing runs there
MOST_OWNERS = 8  # of one memory, shown apart; the rest are one
FINEST_TICK_NS = 0.01


class Packed(NamedTuple):
    """`layout` names the columns of `blob`: [name, dtype, length], one after the other."""

    table: dict[str, Any]
    layout: list[list[Any]]
    blob: str


class Names:
    """Distinct values, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers)


class Files:
    """The user's files, numbered; the (file, line) of a site; the owner's name of a tile."""

    def __init__(self) -> None:
        self.paths = Names()
        self.places: dict[tuple, tuple[int, int]] = {}
        self.named: dict[str, dict[int, str]] = {}  # lines that came with a program, by file
        self.tile_name = TileNames()

    def place(self, site: Site | SourceLine | None) -> tuple[int, int]:
        """(number of the file, line); (-1, 0) when unknown."""
        if site is None:
            return -1, 0
        key = site.key
        if key not in self.places:
            self.places[key] = (self.paths(site.filename), site.lineno)
            if isinstance(site, SourceLine):
                self.named.setdefault(site.filename, {})[site.lineno] = site.text
        return self.places[key]

    def owner(self, tile: Storage) -> tuple[str, int, int]:
        """(name, file, line): the tile's name, or the variable it was first assigned to."""
        return self.tile_name(tile) or "tile", *self.place(tile.site)


def pack(timeline: Timeline, files: Files) -> Packed:
    """Bars and tiles of a timeline."""
    bars = [*timeline.bars, *background(timeline)]
    tick = tick_ns(max((bar.end for bar in bars), default=0.0))
    bar_table, columns = bar_columns(bars, len(timeline.cores), tick, files)
    memories, tiles = memory_columns(timeline, tick, files)
    return Packed({"tick_ns": tick, **bar_table, "memories": memories}, *to_blob({**columns, **tiles}))


def tick_ns(span: float) -> float:
    """Return the finest power of ten that counts `span` ns in 32 bits."""
    tick = FINEST_TICK_NS
    while span / tick >= 2**32 - 1:
        tick *= 10
    return tick


# ---- bars ----------------------------------------------------------------------------------------


def bar_columns(
    bars: list[Bar], cores: int, tick: float, files: Files
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the bars refer to (lanes, kinds, labels, reasons), and their columns."""
    places = lane_places(bars, cores)
    number_of = {place: number for number, place in enumerate(places)}
    kinds, labels, why, slices = Names(), Names(), Names(), Slices()
    rows = np.array(
        [
            (
                number_of[bar.core, bar.queue],
                bar.start,
                bar.end,
                bar.wait,
                kinds(
                    (
                        bar.name,
                        bar.operands,
                        bar.nbytes,
                        bar.flops,
                        *files.place(bar.site),
                        tuple(map(slices, bar.views[:MOST_OPERANDS])),
                        bar.engine,  # who does it decides the colour
                    )
                ),
                labels(bar.label),
                why(bar.why),
                bar.core,
                bar.operation,
                bar.waited_for,
            )
            for bar in bars
        ],
        np.float64,
    ).reshape(-1, 10)
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    rows = rows[order]
    loops, iterations = iteration_columns([bars[i].iteration for i in order])
    lane, start, end, wait, kind, label, reason, *decided = rows.T
    columns = {
        "start": differences(np.rint(start / tick).astype(np.int64)),
        "length": np.rint((end - start) / tick).astype(np.uint32),
        "wait": np.rint(wait / tick).astype(np.uint32),
        "blocker": blockers(*(column.astype(np.int64) for column in decided)),
        "kind": narrowest(kind, len(kinds.numbers)),
        "label": narrowest(label, len(labels.numbers)),
        "why": reason.astype(np.uint8),
        **iterations,
        **beginnings([bars[i] for i in order]),
    }
    counts = np.bincount(lane.astype(np.int64), minlength=len(places))
    table = {
        "lanes": [
            {"core": core, "name": name, "rows": int(count)}
            for (core, name), count in zip(places, counts, strict=True)
        ],
        "kinds": [[*kind[:-1], flow(kind[0], kind[1])] for kind in kinds],
        **loops,
        "labels": list(labels),
        "why_names": list(why),
    }
    return table, columns


def iteration_columns(iterations: list[Iteration]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the loops around each bar, and a column for every depth: where the loop of that depth stood.

    Values are numbers from 0 on; others are negative, and count through `words`.
    """
    loops, words = Names(), Names()
    depth = max(map(len, iterations), default=0)
    chosen = [loops(tuple(name for name, _ in iteration)) for iteration in iterations]
    values = np.zeros((len(iterations), depth), np.int32)
    for row, iteration in enumerate(iterations):
        for level, (_, value) in enumerate(iteration):
            plain = isinstance(value, int) and 0 <= value < 2**31
            values[row, level] = value if plain else -1 - words(str(value))
    columns = {f"iteration{level}": differences(values[:, level].astype(np.int64)) for level in range(depth)}
    table = {"loops": [list(names) for names in loops], "loop_words": list(words)}
    return table, {"loop": narrowest(np.array(chosen), len(loops.numbers)), **columns}


def beginnings(bars: list[Bar]) -> dict[str, np.ndarray]:
    """Where in its tensor each of the first operands of a bar begins, in elements."""
    found = np.zeros((MOST_OPERANDS, len(bars)), np.int64)
    for row, bar in enumerate(bars):
        for number, view in enumerate(bar.views[:MOST_OPERANDS]):
            found[number, row] = view.offset
    return {f"begin{number}": differences(found[number]) for number in range(MOST_OPERANDS)}


def lane_places(bars: list[Bar], cores: int) -> list[tuple[int, str]]:
    """(core, engine or queue) of every lane, from top to bottom."""
    used = {(bar.core, bar.queue) for bar in bars} | {(c, name) for c in range(cores) for name in SHOWN_IDLE}
    order = ("tensor", STATIONARY, *ENGINES[1:], *QUEUES)
    return sorted(used, key=lambda place: (place[0], order.index(place[1])))


def blockers(core: np.ndarray, index: np.ndarray, waited_for: np.ndarray) -> np.ndarray:
    """How many rows before each bar stands the one that decided its start; 0 for none."""
    width = int(index.max(initial=0)) + 2  # index -1 (table loads) gets a place of its own
    row_of = np.zeros(width * (int(core.max(initial=0)) + 1), np.int64)
    here = np.arange(len(core))
    row_of[core * width + index + 1] = here
    return np.where(waited_for >= 0, here - row_of[core * width + waited_for + 1], 0).astype(np.int32)


def flow(name: str, operands: str) -> str:
    """Which way a transfer goes: load, store or move; "" for what is no transfer."""
    if name in ("spill", "reload"):
        return name
    places = re.findall(r"\] (\w+)", operands)
    on_chip = [place in ("sbuf", "psum") for place in places]
    if not places or all(on_chip):
        return ""
    return "move" if not any(on_chip) else "load" if on_chip[0] else "store"


# ---- memories ------------------------------------------------------------------------------------


def memory_columns(
    timeline: Timeline, tick: float, files: Files
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """SBUF and PSUM of every core: at each moment an owner's bytes per partition grow or shrink."""
    m = timeline.machine
    memories, parts = [], []
    for core in range(len(timeline.cores)):
        for buffer, usable in ((SBUF, m.sbuf_usable_bytes), (PSUM, m.psum_bytes)):
            found = Names()
            stays = np.array(
                [
                    (stay.start, stay.end, stay.nbytes // m.partitions, found(files.owner(stay.tile)))
                    for stay in timeline.occupancy(buffer, core).owners
                ],
                np.float64,
            ).reshape(-1, 4)
            owners, stays[:, 3] = largest_owners(list(found), stays)
            parts.append(changes(stays))
            memories.append(
                {
                    "core": core,
                    "name": buffer.value,
                    "usable": usable,
                    "rows": 2 * len(stays),
                    "owners": owners,
                }
            )
    time, nbytes, owner = np.concatenate(parts).T
    return memories, {
        "moment": differences(np.rint(time / tick).astype(np.int64)),
        "change": nbytes.astype(np.int32),
        "owner": owner.astype(np.uint8),
    }


def largest_owners(owners: list[tuple], stays: np.ndarray) -> tuple[list[list[Any]], np.ndarray]:
    """Return the owners to show apart, largest first, and the number of each stay's owner among them."""
    start, end, nbytes, owner = stays.T
    held = np.bincount(owner.astype(np.int64), nbytes * (end - start), len(owners))
    order = np.argsort(-held, kind="stable")
    rank = np.empty(len(owners), np.int64)
    rank[order] = np.arange(len(owners))
    shown = [list(owners[i]) for i in order]
    if len(owners) > MOST_OWNERS:
        shown[MOST_OWNERS - 1 :] = [[f"{len(owners) - MOST_OWNERS + 1} others", -1, 0]]
    return shown, np.minimum(rank, MOST_OWNERS - 1)[owner.astype(np.int64)]


def changes(stays: np.ndarray) -> np.ndarray:
    """(moment, change in bytes, owner) of every coming and going, in order; going first."""
    start, end, nbytes, owner = stays.T
    both = np.concatenate([np.stack([start, nbytes, owner], 1), np.stack([end, -nbytes, owner], 1)])
    return both[np.lexsort((both[:, 1], both[:, 0]))]


# ---- numbers -------------------------------------------------------------------------------------


def differences(values: np.ndarray) -> np.ndarray:
    """Each value less the one before, modulo 2**32."""
    return np.diff(values, prepend=0).astype(np.uint32)


def narrowest(values: np.ndarray, count: int) -> np.ndarray:
    """Numbers below `count` in as few bytes as hold them."""
    return np.asarray(values).astype(
        np.uint8 if count <= 2**8 else np.uint16 if count <= 2**16 else np.uint32
    )


def to_blob(columns: dict[str, np.ndarray]) -> tuple[list[list[Any]], str]:
    """(layout, columns): deflate, then base64."""
    layout = [[name, str(column.dtype), len(column)] for name, column in columns.items()]
    raw = b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns.values())
    return layout, base64.b64encode(zlib.compress(raw, 6)).decode("ascii")
