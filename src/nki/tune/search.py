"""The order in which configurations are tried: all of them, or those that a search chooses.

A search of a large space spends a quarter of its budget on random configurations, then walks from the best
ones to neighbours: the same configuration with one value, or two, a step further along its list. Neighbours
of what was good are tried first; when all around are known, it jumps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from .space import Config, Space

EXHAUSTIVE = 500  # configurations up to which all are tried
Results = Callable[[Sequence[Config]], Sequence[float | None]]


def exhaustive(space: Space) -> Iterator[Config]:
    return iter(space)


def search(space: Space, budget: int, batch: int, times: Results, seed: int = 0) -> None:
    """Try at most `budget` configurations, `batch` at a time; `times` returns their times."""
    _Walk(space, budget, batch, times, random.Random(seed)).run()


class _Walk:
    def __init__(self, space: Space, budget: int, batch: int, times: Results, chance: random.Random):
        self.space, self.left, self.batch, self.results, self.chance = (
            space,
            budget,
            max(1, batch),
            times,
            chance,
        )
        self.names = list(space.vary)
        self.sizes = [len(values) for values in space.vary.values()]
        self.times: dict[tuple[int, ...], float] = {}  # of places that could be used
        self.tried: set[tuple[int, ...]] = set()

    def run(self) -> None:
        self._try(self._random(max(2, self.left // 4)))
        while self.left > 0:
            wanted = self._neighbours(min(self.batch, self.left)) or self._random(min(self.batch, self.left))
            if not wanted:
                return
            self._try(wanted)

    def _try(self, places: list[tuple[int, ...]]) -> None:
        for start in range(0, len(places), self.batch):
            part = places[start : start + self.batch][: self.left]
            if not part:
                return
            self.left -= len(part)
            self.tried.update(part)
            for place, us in zip(part, self.results([self._config(p) for p in part]), strict=True):
                if us is not None:
                    self.times[place] = us

    def _config(self, place: tuple[int, ...]) -> Config:
        return {name: self.space.vary[name][i] for name, i in zip(self.names, place, strict=True)}

    def _is_new(self, place: tuple[int, ...]) -> bool:
        return place not in self.tried and self.space.allows(self._config(place))

    def _random(self, count: int) -> list[tuple[int, ...]]:
        found: dict[tuple[int, ...], None] = {}
        for _ in range(50 * count):
            place = tuple(self.chance.randrange(size) for size in self.sizes)
            if place not in found and self._is_new(place):
                found[place] = None
                if len(found) == count:
                    break
        return list(found)

    def _neighbours(self, count: int) -> list[tuple[int, ...]]:
        """New places beside the best ones, nearest first."""
        found: dict[tuple[int, ...], None] = {}
        for place in sorted(self.times, key=lambda p: (self.times[p], p))[:8]:
            for other in self._beside(place):
                if other not in found and self._is_new(other):
                    found[other] = None
            if len(found) >= count:
                break
        return list(found)[:count]

    def _beside(self, place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        steps = []
        for d, size in enumerate(self.sizes):
            for step in (-1, 1):
                if 0 <= place[d] + step < size:
                    steps.append((d, step))
        self.chance.shuffle(steps)
        moved = [self._moved(place, [step]) for step in steps]
        yield from moved
        pairs = [(a, b) for a in steps for b in steps if a[0] < b[0]]
        self.chance.shuffle(pairs)
        for a, b in pairs:
            yield self._moved(place, [a, b])

    @staticmethod
    def _moved(place: tuple[int, ...], steps: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        there = list(place)
        for d, step in steps:
            there[d] += step
        return tuple(there)
