"""Dependences between the items of a region, from `effects` alone.

A region is the items of a core, or the body of a loop. A loop is one item there, which does all that its
body does. Two items keep their order when

    one writes what the other reads or writes: bytes of a storage (RAW, WAR, WAW) or a register
    both touch one `State`
    one of them touches a state of FENCES: everything stays on its side
    an edge of `depends_on` or `with_schedule` orders them, if it goes the way the program goes
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nki.ir.boxes import Box, box, space_of
from nki.ir.dependences import AccessHistory, Waits
from nki.ir.effects import FENCES, effects
from nki.ir.instruction import State
from nki.ir.items import Edge, Item, Loop, loops_in, walk
from nki.ir.view import View

REGISTER, STATE, FENCE, DECLARED = "register", "state", "fence", "declared"


class Footprint(NamedTuple):
    """All that an item touches."""

    reads: tuple[tuple[Any, Box], ...]  # spaces and boxes
    writes: tuple[tuple[Any, Box], ...]
    registers_read: frozenset[Any]
    registers_written: frozenset[Any]
    state: frozenset[State]


def footprint(item: Item) -> Footprint:
    """Return what an instruction touches; of a loop, the union of its body's, its bounds and its index."""
    bounds: list[Any] = []
    index: list[Any] = []
    inside: Iterable[Any] = (item,)
    if isinstance(item, Loop):
        inside = walk(item.body)
        loops = list(loops_in([item]))
        bounds = [b for loop in loops for b in (loop.lower, loop.upper) if not isinstance(b, int)]
        index = [loop.index for loop in loops]
    done = [effects(instruction) for instruction in inside]
    state = {state for each in done for state in each.state}
    if isinstance(item, Loop):
        state.discard(State.loop)  # the heads fence their bodies, not what is around the loop
    return Footprint(
        tuple({_place(view): None for each in done for view in each.seen}),
        tuple({_place(view): None for each in done for view in each.written}),
        frozenset(r for each in done for r in each.registers_read) | frozenset(bounds),
        frozenset(r for each in done for r in each.registers_written) | frozenset(index),
        frozenset(state),
    )


def _place(view: View) -> tuple[Any, Box]:
    """Return the space and the box of a view, in whole elements: initialisation is tracked by element."""
    found, element = box(view), view.storage.dtype.itemsize
    _, byte = view.storage.address or (0, 0)
    start = byte + (found.start - byte) // element * element
    stop = byte - (byte - found.stop) // element * element
    return space_of(view.storage), found._replace(start=start, stop=stop)


def dependences(items: Sequence[Item], first: int = 0, edges: Iterable[Edge] = ()) -> list[Waits]:
    """Return for each item of a region the earlier items it must come after, and why.

    What follows from other dependences may be left out. `first` is the position of the region's first
    instruction in the walk of its core; `edges` are those of that core.
    """
    found: list[Waits] = []
    history = _History()
    for later, item in enumerate(items):
        touched = footprint(item)
        found.append(history.conflicts(touched))
        history.add(later, touched, found[-1])
    where = item_of(items, first)
    for edge in edges:
        later, earlier = where.get(edge.later, -1), where.get(edge.earlier, -1)
        if 0 <= earlier < later:
            found[later].setdefault(earlier, DECLARED)
    return found


def item_of(items: Sequence[Item], first: int = 0) -> dict[int, int]:
    """Return the number of the item in which each position of the walk stands."""
    found: dict[int, int] = {}
    for number, item in enumerate(items):
        for _ in walk([item]):
            found[first + len(found)] = number
    return found


class _History:
    """What the items so far have touched, as far as a later one can still conflict with it."""

    def __init__(self) -> None:
        self.spaces: dict[Any, AccessHistory] = defaultdict(AccessHistory)
        self.readers: dict[Any, list[int]] = {}  # of each register since it was written
        self.writer: dict[Any, int] = {}
        self.state: dict[State, int] = {}  # the item that touched it last
        self.fence: int | None = None
        self.since_fence: list[int] = []

    def conflicts(self, touched: Footprint) -> Waits:
        """Return the conflicts over states, registers and fences."""
        found: Waits = {}
        for state in touched.state:
            if state in self.state:
                found[self.state[state]] = STATE
        for register in touched.registers_read | touched.registers_written:
            if register in self.writer:
                found[self.writer[register]] = REGISTER
        for register in touched.registers_written:
            found.update(dict.fromkeys(self.readers.get(register, ()), REGISTER))
        if self.fence is not None:
            found.setdefault(self.fence, FENCE)
        if touched.state & frozenset(FENCES):
            for earlier in self.since_fence:
                found.setdefault(earlier, FENCE)
        return found

    def add(self, number: int, touched: Footprint, waits: Waits) -> None:
        """Record an item; `waits` gets its conflicts over bytes."""
        for space, place in touched.reads:
            self.spaces[space].read(number, place, waits)
        for space, place in touched.writes:
            self.spaces[space].write(number, place, waits)
        self.state.update(dict.fromkeys(touched.state, number))
        for register in touched.registers_read:
            self.readers.setdefault(register, []).append(number)
        for register in touched.registers_written:
            self.writer[register] = number
            self.readers[register] = [number] if register in touched.registers_read else []
        self.since_fence.append(number)
        if touched.state & frozenset(FENCES):
            self.fence, self.since_fence = number, []
