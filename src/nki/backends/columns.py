"""Columns: what the instructions of a core are, and where their operands lie, as arrays of numbers.

The objects of a program lie far apart in memory: they are visited once, and everything else reads these.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, cast

import numpy as np

from ..ir.caches import per_program
from .lowered import Lowered, Signature

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Columns:
    """The instructions of a core, bodies of loops once, and their views, one after the other."""

    def __init__(self, lowered: Lowered, core: int):
        items, kinds = lowered.items[core], lowered.kinds[core]
        if None in lowered.counts[core]:
            items = (*lowered.walk(core),)
            kinds = lowered.signatures(items)
        instructions = zip(cast("list[Signature]", kinds), items, strict=True)  # there is no loop
        places = [*chain.from_iterable([kind.places(item) for kind, item in instructions])]
        self.kinds = cast("list[Signature]", [*dict.fromkeys(kinds)])
        self.signature = _numbers(kinds, {kind: number for number, kind in enumerate(self.kinds)})
        self.storage = _numbers(places[::2], lowered.storage_numbers)  # of each view
        self.offset = np.fromiter(places[1::2], np.int64, len(places) // 2)


def _numbers(things: list[Any], known: dict[Any, int]) -> Numbers:
    return np.fromiter(map(known.__getitem__, things), np.int64, len(things))


@per_program
def columns_of(lowered: Lowered, core: int) -> Columns:
    """Return the columns of a core; raise KeyError for a storage that the program does not list."""
    return Columns(lowered, core)
