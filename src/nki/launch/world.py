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
class Rendezvous:
    """The key of one exchange: the number-th of these ranks on this lane.

    `what` and `line` describe the exchange in the table of a deadlock.
    """

    members: tuple[int, ...]  # rank numbers, ascending
    lane: int  # the core that calls; -1 where the two cores of a rank call together
    number: int
    what: str = field(default="", compare=False)
    line: str = field(default="", compare=False)


class Parts(list[np.ndarray]):
    """What the members of an exchange sent, in index order. Members in one process share the object."""

    def __init__(self, parts: Sequence[np.ndarray] = ()):
        super().__init__(parts)
        self.made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], object]) -> Any:
        """Return `make()`, computed by the first member that asks and shared by all."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


class World:
    """The ranks that a running rank belongs to. This class has a single rank, as a plain call has."""

    backend = "alone"
    scheduler: Any = None  # of all ranks, where one process runs them
    in_process = False  # all members of an exchange are threads of this process
    keeps_random_state = True  # the next call continues the random sequence of this one

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.shown: set[Any] | None = None  # diagnostics that a rank of this process has shown
        self.numbers: Counter[tuple[tuple[int, ...], int]] = Counter()  # exchanges so far

    def meet(self, members: Sequence[int], lane: int, what: str, line: str, data: np.ndarray) -> Parts:
        """Exchange bytes with some ranks on a lane; returns theirs in ascending order of ranks."""
        place = (tuple(sorted(members)), lane)
        self.numbers[place] += 1
        parts = self.exchange(Rendezvous(*place, self.numbers[place], what, line), data)
        return parts if isinstance(parts, Parts) else Parts(parts)

    def exchange(self, key: Rendezvous, data: np.ndarray) -> Sequence[np.ndarray]:
        """Return every member's bytes, in the order of `key.members`, once all members have sent theirs.

        `data` is a flat uint8 array that is not changed afterwards.
        """
        raise error(
            "rank-out-of-world", f"{key.what}: ranks {list(key.members)} take part, and this world has one"
        )

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.size}, {self.backend}>"


class Described(World):
    """A world that exists as a description: kernels are traced and timed for it, none runs."""

    backend = "described"


ALONE = World()
_world: ContextVar[World | None] = ContextVar("nki_world", default=None)
_attached: list[World] = []  # of the whole process, the innermost last: see nki.ranks.attach


def current_world() -> World:
    """Return the world of this thread, else that of this process, else one of a single rank."""
    return _world.get() or (_attached[-1] if _attached else ALONE)


@contextlib.contextmanager
def using(world: World) -> Iterator[World]:
    """Make kernels that this thread calls in the block belong to the world."""
    token = _world.set(world)
    try:
        yield world
    finally:
        _world.reset(token)


@contextlib.contextmanager
def attached(world: World) -> Iterator[World]:
    """Make kernels that any thread calls in the block belong to the world."""
    _attached.append(world)
    try:
        yield world
    finally:
        _attached.remove(world)
