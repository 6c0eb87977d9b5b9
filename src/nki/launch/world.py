"""The world of a running rank: its number, their number, and how they exchange bytes (spec/collectives.md 6).

Collectives are written against `World.exchange` alone: a new transport implements that one method.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import error


@dataclass(frozen=True)
class Meeting:
    """What members agree on before they exchange: the number-th meeting of these ranks on this lane.

    `what` and `line` say, in a table of who waits for what, what this rank is doing and where.
    """

    members: tuple[int, ...]  # rank numbers, ascending
    lane: int  # the core that calls; -1 where the two cores of a rank call together
    number: int
    what: str = field(default="", compare=False)
    line: str = field(default="", compare=False)


class Parts(list[np.ndarray]):
    """What the members of a meeting sent, in index order. Members in one process share the object."""

    def __init__(self, parts: Sequence[np.ndarray] = ()):
        super().__init__(parts)
        self.made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What is made of the parts: by the first of those who share them, for all."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


class World:
    """What a running rank belongs to. This one has a single rank, as a plain call of a kernel has."""

    backend = "alone"
    baton: Any = None  # that hands the turn from rank to rank, where one process runs them all
    keeps_random_state = True  # the next call goes on with the random numbers of this one

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.said: set[Any] | None = None  # what some rank of this process has said already
        self.numbers: Counter[tuple[tuple[int, ...], int]] = Counter()  # meetings so far

    def meet(self, members: Sequence[int], lane: int, what: str, line: str, data: np.ndarray) -> Parts:
        """The n-th meeting of some ranks on a lane; their bytes in ascending order of ranks."""
        place = (tuple(sorted(members)), lane)
        self.numbers[place] += 1
        parts = self.exchange(Meeting(*place, self.numbers[place], what, line), data)
        return parts if isinstance(parts, Parts) else Parts(parts)

    def exchange(self, key: Meeting, data: np.ndarray) -> Sequence[np.ndarray]:
        """Every member's bytes, in the order of `key.members`, when all of them have come with theirs.

        `data` is a flat uint8 array that nobody changes any more.
        """
        raise error(
            "rank-out-of-world", f"{key.what}: ranks {list(key.members)} take part, and this world has one"
        )

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.size}, {self.backend}>"


class Described(World):
    """A world that is only talked about: kernels are traced and priced for it, none runs."""

    backend = "described"


ALONE = World()
_world: ContextVar[World | None] = ContextVar("nki_world", default=None)
_attached: list[World] = []  # of the whole process, the innermost last: see nki.ranks.attach


def current_world() -> World:
    """The world of this thread, else that of this process, else one of a single rank."""
    return _world.get() or (_attached[-1] if _attached else ALONE)


@contextlib.contextmanager
def using(world: World) -> Iterator[World]:
    """Kernels that are called in this block, on this thread, belong to the world."""
    token = _world.set(world)
    try:
        yield world
    finally:
        _world.reset(token)


@contextlib.contextmanager
def attached(world: World) -> Iterator[World]:
    """Kernels that are called in this block, on any thread, belong to the world."""
    _attached.append(world)
    try:
        yield world
    finally:
        _attached.remove(world)
