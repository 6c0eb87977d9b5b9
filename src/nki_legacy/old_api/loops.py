"""Loops that AWS's compiler keeps. It traces a body once, so a tile has the address of the first iteration.

Kernels count addresses in Python (`base += size`), in the body of a loop, too. Here Python runs every
iteration, so a later one takes the addresses of the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import state as run


class Loop:
    """`nl.affine_range` and `nl.sequential_range`: numbers for a loop, or for a key."""

    def __init__(self, values: range):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, position: int) -> int:
        return self.values[position]

    def __iter__(self) -> Iterator[int]:
        current = run.running()
        if current is None:
            yield from self.values
            return
        outer = current.body
        body = outer.enter()
        try:
            for value in self.values:
                body.begin()
                current.body = body
                yield value
        finally:
            current.body = outer

    def __repr__(self) -> str:
        return repr(self.values)
