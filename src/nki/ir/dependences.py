"""Dependences: which item of a region must come before which, from `effects` alone.

A region is the items of a core, or the body of a loop. A loop is one item there, which does all that its
body does. Two items keep their order when

    one writes what the other reads or writes: bytes of a storage (RAW, WAR, WAW) or a register
    both touch one `State`
    one of them touches a state of FENCES: everything stays on its side
    an edge of `depends_on` or `with_schedule` says so, if it goes the way the program goes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from .boxes import Box, box
from .effects import FENCES, effects
from .instruction import State
from .program import Edge, Item, Loop, walk


class Reason(Enum):
    """Why an item waits for an earlier one."""

    raw = "it reads what the earlier one wrote"
    war = "it overwrites what the earlier one read"
    waw = "it overwrites what the earlier one wrote"
    register = "a register"
    state = "both touch a state"
    fence = "one of them is a fence"
    declared = "the kernel says so"


class Footprint(NamedTuple):
    """All that an item touches."""

    reads: tuple[Box, ...]
    writes: tuple[Box, ...]
    registers_read: frozenset[Any]
    registers_written: frozenset[Any]
    state: frozenset[State]


def footprint(item: Item) -> Footprint:
    """What an instruction touches; of a loop, the union of its body's, its bounds and its index."""
    bounds: list[Any] = []
    index: list[Any] = []
    inside: Iterable[Any] = (item,)
    if isinstance(item, Loop):
        inside = walk(item.body)
        loops = [item, *(i for i in _inner(item.body))]
        bounds = [b for loop in loops for b in (loop.lower, loop.upper) if not isinstance(b, int)]
        index = [loop.index for loop in loops]
    done = [effects(instruction) for instruction in inside]
    state = {state for each in done for state in each.state}
    if isinstance(item, Loop):
        state.discard(State.loop)  # the heads fence their bodies, not what stands around the loop
    return Footprint(
        tuple({box(view): None for each in done for view in each.seen}),
        tuple({box(view): None for each in done for view in each.written}),
        frozenset(r for each in done for r in each.registers_read) | frozenset(bounds),
        frozenset(r for each in done for r in each.registers_written) | frozenset(index),
        frozenset(state),
    )


def _inner(items: Sequence[Item]) -> Iterable[Loop]:
    for item in items:
        if isinstance(item, Loop):
            yield item
            yield from _inner(item.body)


Found = dict[int, Reason]  # earlier item: why


def dependences(items: Sequence[Item], first: int = 0, edges: Iterable[Edge] = ()) -> list[Found]:
    """For each item of a region, the earlier items it must come after, and why.

    What follows from other dependences may be left out. `first` is the position of the region's first
    instruction in the walk of its core; `edges` are those of that core.
    """
    found: list[Found] = [{} for _ in items]
    history = _History()
    for later, item in enumerate(items):
        touched = footprint(item)
        found[later] = history.conflicts(later, touched)
        history.add(later, touched)
    where = item_of(items, first)
    for edge in edges:
        later, earlier = where.get(edge.later, -1), where.get(edge.earlier, -1)
        if 0 <= earlier < later:
            found[later].setdefault(earlier, Reason.declared)
    return found


def item_of(items: Sequence[Item], first: int = 0) -> dict[int, int]:
    """In which item each position of the walk stands."""
    found: dict[int, int] = {}
    for number, item in enumerate(items):
        for _ in walk([item]):
            found[first + len(found)] = number
    return found


class _History:
    """What the items so far have touched, as far as a later one can still conflict with it."""

    def __init__(self) -> None:
        self.touched: dict[Any, list[tuple[int, Box, bool]]] = {}  # of each space: who, where, written?
        self.readers: dict[Any, list[int]] = {}  # of each register since it was written
        self.writer: dict[Any, int] = {}
        self.state: dict[State, int] = {}  # who touched it last
        self.fence: int | None = None
        self.since_fence: list[int] = []

    def conflicts(self, later: int, touched: Footprint) -> Found:
        found: Found = {}
        for state in touched.state:
            if state in self.state:
                found[self.state[state]] = Reason.state
        for register in touched.registers_read | touched.registers_written:
            if register in self.writer:
                found[self.writer[register]] = Reason.register
        for register in touched.registers_written:
            found.update(dict.fromkeys(self.readers.get(register, ()), Reason.register))
        for place in touched.writes:
            for earlier, other, written in self.touched.get(place.space, ()):
                if other.overlaps(place):
                    found[earlier] = Reason.waw if written else Reason.war
        for place in touched.reads:
            for earlier, other, written in self.touched.get(place.space, ()):
                if written and other.overlaps(place):
                    found[earlier] = Reason.raw
        if self.fence is not None:
            found.setdefault(self.fence, Reason.fence)
        if touched.state & frozenset(FENCES):
            for earlier in self.since_fence:
                found.setdefault(earlier, Reason.fence)
        return found

    def add(self, number: int, touched: Footprint) -> None:
        self.state.update(dict.fromkeys(touched.state, number))
        for register in touched.registers_read:
            self.readers.setdefault(register, []).append(number)
        for register in touched.registers_written:
            self.writer[register] = number
            self.readers[register] = [number] if register in touched.registers_read else []
        for place in touched.writes:
            # whoever conflicts with what is covered also conflicts with this write, which comes after it
            known = self.touched.get(place.space, [])
            self.touched[place.space] = [entry for entry in known if not place.covers(entry[1])]
        for boxes, written in ((touched.reads, False), (touched.writes, True)):
            for place in boxes:
                self.touched.setdefault(place.space, []).append((number, place, written))
        self.since_fence.append(number)
        if touched.state & frozenset(FENCES):
            self.fence, self.since_fence = number, []
