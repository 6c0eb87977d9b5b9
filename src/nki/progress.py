"""Progress of long work: the name of a stage, which knows how much of it is done."""

from __future__ import annotations

from collections.abc import Sequence, Sized


class Progress(str):
    """What is being done, as `stage` callbacks get it; another thread may ask how much of it is done.

    The work fills lists whose final lengths are known, so their lengths tell and nothing need count.
    """

    def __init__(self, what: str = "") -> None:
        self.lists: list[Sized] = []
        self.total = 0

    def expect(self, elements: int, lists: Sequence[Sized]) -> None:
        """Add lists that will have so many elements together."""
        self.lists += lists
        self.total += elements

    def part(self) -> float:
        """Return how much is done, from 0 to 1."""
        return min(1.0, sum(map(len, self.lists)) / self.total) if self.total else 0.0
