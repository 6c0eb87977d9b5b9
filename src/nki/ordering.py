"""The edges of `Kernel.with_schedule`: which named instruction waits for which (language.md 2.4)."""

from __future__ import annotations

from typing import Any

from .errors import error, nearest
from .program import Instruction

Edge = tuple[str, tuple[str, ...]]


def checked_edges(edges: Any) -> tuple[Edge, ...]:
    """The edges as (later, earlier names), or the error of a wrong one."""
    if not isinstance(edges, (tuple, list)):
        raise error("schedule", f"with_schedule: takes a list of (later, earlier) pairs, got {edges!r}")
    checked: list[Edge] = []
    for edge in edges:
        pair: Any = edge if isinstance(edge, (tuple, list)) and len(edge) == 2 else (None, ())
        later, earlier = pair
        earlier = tuple(earlier) if isinstance(earlier, (tuple, list)) else (earlier,)
        if not earlier or not all(isinstance(name, str) for name in (later, *earlier)):
            raise error(
                "schedule",
                f"with_schedule: an edge is (later, earlier), got {edge!r}",
                help='("plus1", "recip") makes plus1 wait for recip; earlier may be a list of names',
            )
        checked.append((later, earlier))
    _refuse_cycles(checked)
    return tuple(checked)


def _refuse_cycles(edges: list[Edge]) -> None:
    waits: dict[str, set[str]] = {}
    for later, earlier in edges:
        waits.setdefault(later, set()).update(earlier)
    for name in waits:
        reached, ahead = set(), [name]
        while ahead:
            for before in waits.get(ahead.pop(), ()):
                if before == name:
                    raise error("schedule", f"with_schedule: {name!r} would wait for itself")
                if before not in reached:
                    reached.add(before)
                    ahead.append(before)


class Names:
    """A sink: the names of instructions and tensors that a schedule may mention."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, instruction: Instruction) -> None:
        self.seen.add(instruction.name or "")
        self.seen.update(view.name for view in instruction.views())

    def check(self, schedule: tuple) -> None:
        for later, earlier in schedule:
            for name in (later, *earlier):
                if name not in self.seen:
                    close = nearest(name, self.seen)
                    raise error(
                        "schedule",
                        f"with_schedule: no instruction or tensor is named {name!r}",
                        notes=[f"in the edge {(later, *earlier)}"],
                        help=f"did you mean {close!r}?" if close else "give the instruction name=",
                    )
