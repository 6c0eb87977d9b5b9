"""Joined units: larger ones, which may share what they read.

The heads of attention that share keys and values are connected by these alone. So a head falls into parts,
and heads of different keys do not read the same tiles. Here parts of one number are joined to one unit, and
what some of the units read is computed in each of them. This suits a backend that computes all units at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ..ir.columns import Numbers
from .units import Candidate

MAX_REPEATED = 0.25  # of the work of a unit may be done in others, too


class JoinedCandidate(Candidate):
    """Units of all parts that occur equally often, each with what it reads and not all others read."""

    def _equal(self) -> Iterator[Numbers]:
        kinds = self._parts()
        if not kinds:
            return
        count = max(map(len, kinds), key=lambda n: sum([len(k[0]) * n for k in kinds if len(k) == n]))
        parts = [kind for kind in kinds if len(kind) == count]
        rows = [np.sort(np.concatenate(some)) for some in zip(*parts, strict=True)]
        if count > 1 and not self._write_common(np.concatenate(rows)):
            joined = self._with_inputs(rows)
            if joined is not None:
                yield joined

    def _write_common(self, items: Numbers) -> bool:
        """Return whether items write tiles that are of no unit."""
        a = self.accesses
        inside = np.isin(a.item, items)
        return bool((inside & a.writes & a.on_chip[a.storage] & ~self.own[a.storage]).any())

    def _with_inputs(self, rows: Sequence[Numbers]) -> Numbers | None:
        """Put the items first that compute what a row reads, unless all rows read it; None: they differ."""
        a = self.accesses
        inputs = self._inputs(rows)
        shared = set.intersection(*inputs)
        own = [np.array(sorted(items - shared), np.int64) for items in inputs]
        full = [np.concatenate(both) for both in zip(own, rows, strict=True)]
        if len({a.signature[row].tobytes() for row in full}) > 1:
            return None
        first, found = np.array(own), np.array(full)
        if any(a.kinds[item].states or a.kinds[item].hbm_writes for item in np.unique(first).tolist()):
            return None
        if self._work(own[0]) > MAX_REPEATED * self._work(rows[0]) or not self._before(first, np.array(rows)):
            return None
        return found if self._take_tiles(found) else None

    def _before(self, first: Numbers, then: Numbers) -> bool:
        """Return whether some items have written their tiles before others use these."""
        a = self.accesses
        written, used = a.table(first), a.table(then)
        begin = np.full(len(a.on_chip), len(a.kinds))
        np.minimum.at(begin, a.storage[used], a.item[used])
        return not (a.writes[written] & (a.item[written] > begin[a.storage[written]])).any()

    def _inputs(self, rows: Sequence[Numbers]) -> list[set[int]]:
        """Return the items outside of all units that compute what the items of each row read."""
        a = self.accesses
        beside = a.on_chip[a.storage] & ~self.own[a.storage]
        outside = np.ones(len(a.kinds), np.bool_)
        outside[np.concatenate(rows)] = False
        writers: dict[int, list[int]] = defaultdict(list)  # of each tile
        tiles: dict[int, list[int]] = defaultdict(list)  # of each item
        for view in np.flatnonzero(beside & outside[a.item]).tolist():
            item, tile = int(a.item[view]), int(a.storage[view])
            tiles[item].append(tile)
            if a.writes[view]:
                writers[tile].append(item)
        found = []
        for row in rows:
            views = a.table(row[None])[0]
            left, items = set(a.storage[views[beside[views]]].tolist()), set[int]()
            known = set(left)
            while left:
                new = set(writers[left.pop()]) - items
                items |= new
                read = {tile for item in new for tile in tiles[item]} - known
                known |= read
                left |= read
            found.append(items)
        return found

    def _work(self, items: Numbers) -> int:
        kinds = self.accesses.kinds
        return sum([kinds[item].flops + kinds[item].elements for item in items.tolist()])

    def _take_tiles(self, rows: Numbers) -> bool:
        """Let units own the tiles that differ between rows; False: what is in no unit uses them."""
        a = self.accesses
        storages = a.storage[a.table(rows)]
        differ = np.zeros(len(self.own), np.bool_)
        differ[np.unique(storages[:, (storages != storages[0]).any(0)])] = True
        differ &= a.on_chip
        outside = np.ones(len(a.kinds), np.bool_)
        outside[rows] = False
        if (differ[a.storage] & outside[a.item]).any():
            return False
        self.own = self.own | differ
        return True
