"""What the operations of a core wait for: found from columns of accesses, once all operations are in order.

The accesses of a storage are planned in program order, however early its load is. Where all of them touch the
same bytes, its last writer and the readers since are found by sorting; otherwise histories compare
boxes. An operation that has several reasons to wait for another waits for its data, or else for the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..ir.boxes import space_of, whole_box
from ..ir.dependences import RAW, WAR, WAW
from ..ir.storage import Storage
from .access_columns import AccessColumns, Numbers
from .edges import REASON_NUMBERS, Edges
from .histories import BoxHistory, Overlaps, TensorHistory, WaitRows
from .operation import SPACE
from .sbuf_pool import SbufPool
from .uses import PSUM_TILE, SBUF_TILE, TileUses

EARLY, LATE = -1, (1 << 31) - 1  # before and after the reasons that accesses give
LOW = (1 << 32) - 1
Apart = dict[int, set[int]]  # operation -> those it waits for that share no byte with it


class Found(NamedTuple):
    """Reasons to wait, one element for each; `order` tells which of one operation come first."""

    pair: Numbers  # the number of an operation << 32, and that of the one it waits for
    why: np.ndarray  # index in REASONS
    order: np.ndarray
    is_apart: np.ndarray  # the accesses share no byte

    @staticmethod
    def of(
        user: Numbers,
        producer: Numbers,
        why: np.ndarray | str,
        order: np.ndarray | int,
        is_apart: np.ndarray | bool = False,
    ) -> Found:
        """Return reasons in as few bytes as possible: there are several for each operation."""
        number = REASON_NUMBERS[why] if isinstance(why, str) else why
        columns = ((number, np.int8), (order, np.int32), (is_apart, np.bool_))
        parts = (np.broadcast_to(np.asarray(value, dtype), len(user)) for value, dtype in columns)
        return Found(user.astype(np.int64) << 32 | producer, *parts)


class PlannedWaits:
    """The waits that planning adds one by one, and the spills, which access tiles as well."""

    def __init__(self) -> None:
        self.early: list[tuple[int, int, int]] = []  # (operation, the one it waits for, why)
        self.late: list[tuple[int, int, int]] = []
        self.spills: list[tuple[int, bool, int]] = []  # (operation, whether it is a reload, its tile)

    def add(self, user: int, producer: int, why: str) -> None:
        """Add a wait that comes before those of the accesses."""
        self.early.append((user, producer, REASON_NUMBERS[why]))

    def add_late(self, user: int, producer: int, why: str) -> None:
        """Add a wait that comes after those of the accesses."""
        self.late.append((user, producer, REASON_NUMBERS[why]))

    def found(self) -> Iterator[Found]:
        for rows, order in ((self.early, EARLY), (self.late, LATE)):
            user, producer, why = np.array(rows, np.int64).reshape(-1, 3).T
            yield Found.of(user, producer, why, order)


def joined(found: Iterable[Found]) -> tuple[Edges, Apart]:
    """Return one edge for each pair of operations, sorted; and those that share no byte."""
    pair, why, order, is_apart = (np.concatenate(column) for column in zip(*found, strict=True))
    others = pair >> 32 != pair & LOW  # nothing waits for itself
    if not others.all():
        pair, why, order, is_apart = pair[others], why[others], order[others], is_apart[others]
    by_order = np.lexsort((order, pair))
    pair, why, is_apart = pair[by_order], why[by_order], is_apart[by_order]
    first = np.ones(len(pair), np.bool_)
    first[1:] = pair[1:] != pair[:-1]
    (at,) = np.nonzero(first)
    for_data = np.logical_or.reduceat(why == REASON_NUMBERS[RAW], at) if len(at) else first
    reasons = np.where(for_data, np.int8(REASON_NUMBERS[RAW]), why[at])
    users, producers = (pair[at] >> 32).astype(np.int32), (pair[at] & LOW).astype(np.int32)
    apart = _grouped(users[is_apart[at]], producers[is_apart[at]])
    return Edges(producers, users, reasons), apart


def _grouped(users: Numbers, producers: Numbers) -> Apart:
    """Return the producers of each user; users are sorted."""
    numbers, first = np.unique(users, return_index=True)
    bounds, others = [*first.tolist(), len(users)], producers.tolist()
    return {user: {*others[bounds[i] : bounds[i + 1]]} for i, user in enumerate(numbers.tolist())}


# ---- space ---------------------------------------------------------------------------------------


def space_waits(uses: TileUses, pool: SbufPool, operation_at: Numbers) -> Iterator[Found]:
    """Yield the waits of writers for what was in the space of their tiles before; none after an eviction."""
    tiles, operation = uses.sbuf, operation_at[uses.sbuf.position]
    end = tiles.start[1:].copy()
    end[[*pool.stayed]] = [*pool.stayed.values()]
    writes = np.concatenate([[0], np.cumsum(tiles.is_write)])  # before each use
    (written,) = np.nonzero(tiles.is_write)
    first, counts = writes[tiles.start[:-1]], writes[end] - writes[tiles.start[:-1]]

    def pairs(takers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the numbers of takers, once for each writer, and these writers."""
        each = counts[takers]
        return np.repeat(np.arange(len(takers)), each), operation[written[_ranges(first[takers], each)]]

    takers, givers = np.array(pool.takers, np.int64), np.array(pool.givers, np.int64)
    since = tiles.since_write()[givers]
    which, writers = pairs(takers)
    each = (tiles.start[givers + 1] - since)[which]
    users, producers = np.repeat(writers, each), operation[_ranges(since[which], each)]
    yield Found.of(users, producers, SPACE, LATE)
    rows = [(tile, index) for tile, after in pool.space_waits for index in after]
    takers, after = np.array(rows, np.int64).reshape(-1, 2).T
    which, writers = pairs(takers)
    yield Found.of(writers, after[which], SPACE, LATE)


def _ranges(first: Numbers, counts: Numbers) -> Numbers:
    """Return first[0], first[0] + 1, ..., as many as counts[0], then the same of the next ones."""
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) + np.repeat(first - (ends - counts), counts)


# ---- accesses ------------------------------------------------------------------------------------


class AccessWaits:
    """The waits for accesses of the same bytes."""

    def __init__(self, found: AccessColumns, uses: TileUses, operation_at: Numbers, as_written: bool):
        self.found, self.uses, self.as_written = found, uses, as_written
        self.operation = operation_at[found.position]  # of each access

    def all(self, is_made_once: np.ndarray, waits: PlannedWaits, evicted: Iterable[int]) -> Iterator[Found]:
        """Yield all waits, but for those that the pool adds: of evicted tiles that are made once."""
        uses, storage = self.uses, self.found.storage
        size = len(uses.is_one_sided)
        made_once, gone = np.zeros((2, size), np.bool_)
        made_once[uses.sbuf.storage[is_made_once]] = True
        gone[uses.sbuf.storage[[*evicted]]] = True
        ordered = ~uses.is_one_sided[storage] & ~made_once[storage]
        equal = ordered & self._has_one_box(size)[storage] & ~gone[storage]
        yield from self._of_equal(equal)
        for one in self._of_equal((made_once & ~gone)[storage]):  # a use that the pool adds last
            yield one._replace(order=np.broadcast_to(np.int32(LATE), len(one.pair)))
        others = np.nonzero(ordered & ~equal)[0].tolist()
        if others or waits.spills:
            yield self._of_boxes(others, waits)

    def _has_one_box(self, size: int) -> np.ndarray:
        """Return which storages are automatic tiles whose accesses all touch the same bytes."""
        storage, box = self.found.storage, self.found.box
        some, found = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        is_tile = (self.uses.where == SBUF_TILE) | (self.uses.where == PSUM_TILE)
        some[storage], found[storage] = box, is_tile
        found[storage[box != some[storage]]] = False
        return found

    def _of_equal(self, chosen: np.ndarray) -> Iterator[Found]:
        """Yield the waits of accesses of storages of which all accesses touch the same bytes."""
        (numbers,) = np.nonzero(chosen)
        numbers = numbers[np.argsort(self.found.storage[numbers], kind="stable")]
        storage, is_write = self.found.storage[numbers], self.found.is_write[numbers]
        operation, at = self.operation[numbers], np.arange(len(numbers))
        begin = np.searchsorted(storage, storage)  # the first access of the same storage
        write, read = (_last_before(kind, at) for kind in (is_write, ~is_write))
        for why, users in ((RAW, ~is_write), (WAW, is_write)):
            (some,) = np.nonzero(users & (write >= begin))
            order = 2 * numbers[some] + (why == WAW)
            yield Found.of(operation[some], operation[write[some]], why, order)
        # the readers since the last write; where slices are not told apart, also after another write
        waits = is_write & (read >= begin)
        if not self.as_written:
            waits &= read > write
        (some,) = np.nonzero(waits)
        last = read[some]
        first = np.maximum(write[last] + 1, begin[some])
        counts = last - first + 1
        users = np.repeat(some, counts)
        yield Found.of(operation[users], operation[_ranges(first, counts)], WAR, 2 * numbers[users])

    def _of_boxes(self, chosen: list[int], waits: PlannedWaits) -> Found:
        """Return the waits of accesses that overlap in part, or share memory with other storages."""
        accesses, storages = self._in_order(chosen, waits), self.uses.storages
        boxes = self.found.boxes
        spaces: dict[Any, BoxHistory | TensorHistory] = {}
        rows, overlaps = WaitRows(), Overlaps(boxes)
        for _, number, storage, is_write, box in accesses:
            key = space_of(storages[storage])
            history = spaces.get(key)
            if history is None:
                is_tensor = self._is_tensor(storages[storage])
                history = spaces[key] = TensorHistory(overlaps) if is_tensor else BoxHistory(boxes)
            (history.write if is_write else history.read)(number, box, rows)
            rows.end()
        count, numbers = len(self.found.storage), np.array([row[1] for row in accesses], np.int64)
        operation = np.append(self.operation, [index for index, _, _ in waits.spills]).astype(np.int64)
        ends = np.array([0, *rows.ends], np.int64)
        counts = ends[1:] - ends[:-1]
        return Found.of(
            np.repeat(operation[numbers], counts),
            operation[np.array(rows.producers, np.int64)],
            np.array(rows.reasons, np.int8),
            np.repeat(np.where(numbers < count, 2 * numbers, 0), counts),
            np.array(rows.apart, np.bool_),
        )

    def _is_tensor(self, storage: Storage) -> bool:
        """True for tensors on chip, whose slices nki 0.6.0 does not tell apart (kiln's notes).

        Ring buffers that are slices of one tensor wait for each other.
        """
        return self.as_written and storage.on_chip and storage.address is None

    def _in_order(self, chosen: list[int], waits: PlannedWaits) -> list[tuple[int, int, int, bool, int]]:
        """Return accesses as (operation, number, storage, is write, box), as they are planned; spills too."""
        found, count = self.found, len(self.found.storage)
        columns = (self.operation[chosen].tolist(), chosen, found.storage[chosen].tolist())
        rows = [*zip(*columns, found.is_write[chosen].tolist(), map(found.box_of, chosen), strict=True)]
        for number, (index, is_reload, tile) in enumerate(waits.spills, count):
            storage = int(self.uses.sbuf.storage[tile])
            box = found.box_number(whole_box(self.uses.storages[storage]))
            rows.append((index, number, storage, is_reload, box))
        return sorted(rows)


def _last_before(chosen: np.ndarray, at: Numbers) -> Numbers:
    """Return the last chosen index before each, or -1."""
    found = np.full(len(at) + 1, -1)
    found[1:] = np.maximum.accumulate(np.where(chosen, at, -1))
    return found[:-1]
