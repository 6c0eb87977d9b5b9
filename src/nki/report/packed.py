"""The timeline as columns of numbers, small enough to travel inside a page and quick to read there.

Bars are rows, ordered by lane and start. What repeats (names, operands, lines) is said once, as a `kind`;
times are whole ticks, starts and blockers differences between neighbours, so that deflate finds the loops
of the kernel again.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any, NamedTuple

import numpy as np

from ..errors import Site
from ..hardware.memories import PSUM, SBUF
from ..tensors.storage import Storage
from ..timing.simulation import MODES
from ..timing.timeline import ENGINES, Bar, Timeline

SHOWN_IDLE = ("tensor", "vector", "scalar", "gpsimd")  # lanes shown although nothing runs there
MOST_OWNERS = 8  # of one memory, told apart; the rest are one
FINEST_TICK_NS = 0.01


class Packed(NamedTuple):
    """`layout` names the columns of `blob`: [name, dtype, length], one after the other."""

    table: dict[str, Any]
    layout: list[list[Any]]
    blob: str


class Names:
    """Distinct values, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def __iter__(self) -> Any:
        return iter(self.numbers)


class Files:
    """The user's files, numbered; the (file, line) of a site; the owner's name of a tile."""

    def __init__(self) -> None:
        self.paths = Names()
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        self.variables: dict[tuple[int, int], str] = {}

    def place(self, site: Site | None) -> tuple[int, int]:
        """(number of the file, line); (-1, 0) when unknown."""
        if site is None:
            return -1, 0
        key = site.key
        if key not in self.places:
            self.places[key] = (self.paths(site.filename), site.lineno)
        return self.places[key]

    def owner(self, tile: Storage) -> tuple[str, int, int]:
        """(name, file, line): the tile's name, or the variable it was first assigned to."""
        place = self.place(tile.site)
        if tile.name or tile.site is None:
            return tile.name or "tile", *place
        if place not in self.variables:
            assigned = re.match(r"(\w+)\s*=[^=]", tile.site.text)
            self.variables[place] = assigned.group(1) if assigned else "tile"
        return self.variables[place], *place


def pack(timeline: Timeline, files: Files) -> Packed:
    """Bars and tiles of a timeline."""
    bars = [*timeline.bars, *table_loads(timeline)]
    tick = tick_ns(max((bar.end for bar in bars), default=0.0))
    bar_table, columns = bar_columns(bars, len(timeline.cores), tick, files)
    memories, tiles = memory_columns(timeline, tick, files)
    return Packed({"tick_ns": tick, **bar_table, "memories": memories}, *to_blob({**columns, **tiles}))


def table_loads(timeline: Timeline) -> list[Bar]:
    """The loads of activation tables as bars of ScalarE; the instruction behind each waits for it."""
    found = []
    for number, core in enumerate(timeline.cores):
        for start, end, index in core.table_loads:
            op = core.operations[index]
            name = "activation table load"
            found.append(
                Bar(number, -1, "scalar", "scalar", name, "", start, end, -1, "", 0.0, op.site, 0, 0, "")
            )
    return found


def tick_ns(span: float) -> float:
    """The finest power of ten that counts `span` ns in 32 bits."""
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
    kinds, labels, why = Names(), Names(), Names()
    rows = np.array(
        [
            (
                number_of[bar.core, bar.queue],
                bar.start,
                bar.end,
                bar.wait,
                kinds((bar.name, bar.operands, bar.nbytes, bar.flops, *files.place(bar.site))),
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
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    lane, start, end, wait, kind, label, reason, *decided = rows.T
    columns = {
        "start": differences(np.rint(start / tick).astype(np.int64)),
        "length": np.rint((end - start) / tick).astype(np.uint32),
        "wait": np.rint(wait / tick).astype(np.uint32),
        "blocker": blockers(*(column.astype(np.int64) for column in decided)),
        "kind": narrowest(kind, len(kinds.numbers)),
        "label": narrowest(label, len(labels.numbers)),
        "why": reason.astype(np.uint8),
    }
    counts = np.bincount(lane.astype(np.int64), minlength=len(places))
    table = {
        "lanes": [
            {"core": core, "name": name, "rows": int(count)}
            for (core, name), count in zip(places, counts, strict=True)
        ],
        "kinds": [[*kind, flow(kind[0], kind[1])] for kind in kinds],
        "labels": list(labels),
        "why_names": list(why),
    }
    return table, columns


def lane_places(bars: list[Bar], cores: int) -> list[tuple[int, str]]:
    """(core, engine or queue) of every lane, from top to bottom."""
    used = {(bar.core, bar.queue) for bar in bars} | {(c, name) for c in range(cores) for name in SHOWN_IDLE}
    order = (*ENGINES, *MODES)
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
    """The owners to tell apart, largest first, and the number of each stay's owner among them."""
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
