"""The instructions of one core while the compiler's transformations change them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.boxes import box, space_of
from ...ir.caches import cached_property
from ...ir.dependences import AccessHistory, Waits
from ...ir.instruction import Instruction
from ...ir.liveness import live_bytes
from ...ir.rewriting import replace_storages, replace_views
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.machine import Machine
from ..entries import CoreInstructions, Entry, SignatureNumbers


class TileItems:
    """Which items write and read each on-chip storage."""

    def __init__(self, items: Sequence[Entry]):
        self.writers: dict[Storage, list[int]] = defaultdict(list)
        self.readers: dict[Storage, list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            for view in item.done.written:
                if view.storage.on_chip:
                    self.writers[view.storage].append(number)
            for view in item.done.seen:
                if view.storage.on_chip:
                    self.readers[view.storage].append(number)

    def tiles(self) -> set[Storage]:
        """Return the tiles that some item uses."""
        return {tile for users in (self.writers, self.readers) for tile, at in users.items() if at}

    def live(self, sizes: Mapping[Storage, int], length: int) -> np.ndarray:
        """Return how much of these tiles is live at each of so many items, given their sizes."""
        at = [[*self.writers.get(tile, ()), *self.readers.get(tile, ())] for tile in sizes]
        return live_bytes([*map(min, at)], [*map(max, at)], [*sizes.values()], length + 1)

    def written_once(self, view: View) -> bool:
        """True when the view is all of an automatic tile that has no other writer."""
        s = view.storage
        return s.address is None and len(self.writers[s]) == 1 and view.covers_storage()


class Compilation:
    """One core's instructions, in program order. Positions in `pinned` do not change."""

    def __init__(
        self,
        machine: Machine,
        listed: CoreInstructions,
        numbers: SignatureNumbers,
        pinned: Collection[int] = (),
    ):
        self.machine = machine
        self.listed = listed
        self.numbers = numbers
        self.pinned = set(pinned)
        self.is_rewritten = False  # some instructions are gone, or have other operands

    @cached_property
    def _entries(self) -> list[Entry]:
        return self.listed.entries()

    @property
    def items(self) -> Sequence[Entry]:
        """The instructions with their effects; as objects, made when they are asked for."""
        return self._entries

    @items.setter
    def items(self, items: Sequence[Entry]) -> None:
        for name in ("uses", "copies", "examples"):
            self.__dict__.pop(name, None)
        self.__dict__["_entries"] = list(items)
        self.listed = CoreInstructions.of(items)
        self.is_rewritten = True

    def move(self, moved: Mapping[int, Instruction]) -> None:
        """Let instructions, by number, run on other engines."""
        instructions, signatures = [*self.listed.instructions], [*self.listed.signatures]
        for number, instruction in moved.items():
            instructions[number] = instruction
            signatures[number] = self.numbers.of_moved(signatures[number], instruction)
        self.listed = CoreInstructions(instructions, self.listed.at, signatures)
        for name in ("_entries", "uses", "copies", "examples"):
            self.__dict__.pop(name, None)

    @cached_property
    def uses(self) -> TileItems:
        """Who writes and reads each tile; computed anew when the items have changed."""
        return TileItems(self.items)

    @cached_property
    def copies(self) -> list[int]:
        """The numbers of items that another engine may do."""
        instructions, signatures, examples = self.listed.instructions, self.listed.signatures, self.examples
        some = {number for number, i in examples.items() if _may_move(i)}
        found = [n for n, number in enumerate(signatures) if number in some] if some else []
        return [number for number in found if instructions[number].other_engine() is not None]

    @cached_property
    def examples(self) -> dict[int, Instruction]:
        """One instruction of each signature."""
        return dict(zip(self.listed.signatures, self.listed.instructions, strict=True))

    def is_free(self, item: Entry) -> bool:
        """True when neither the kernel nor an earlier transformation fixes the item's place."""
        return item.at not in self.pinned

    def is_free_number(self, number: int) -> bool:
        """Return the same of an item, by its number."""
        return self.listed.at[number] not in self.pinned

    def pin(self, item: Entry) -> None:
        """Leave the item to no later transformation."""
        self.pinned.add(item.at)

    def with_storages(self, item: Entry, now: Mapping[Storage, Storage]) -> Entry:
        """Return the item on other storages of the same shape."""
        done = item.done
        if any(v.storage in now for v in (*done.seen, *done.writes)):
            return self.numbers.replaced(item, replace_storages(item.instruction, now))
        return item

    def with_views(self, item: Entry, change: Callable[[View], View]) -> Entry:
        """Return the item with changed operands."""
        return self.numbers.replaced(item, replace_views(item.instruction, change))


def _may_move(instruction: Instruction) -> bool:
    return instruction.__class__.other_engine is not Instruction.other_engine


def waits(items: Sequence[Entry]) -> Iterator[Waits]:
    """Yield what each item must come after."""
    read = {view.storage for item in items for view in item.done.seen}
    written = {view.storage for item in items for view in item.done.written}
    one_sided = {storage for storage in read ^ written if not storage.on_chip}
    spaces: dict[Any, AccessHistory] = defaultdict(AccessHistory)
    for number, item in enumerate(items):
        needed: Waits = {}
        for view in item.done.seen:
            if view.storage not in one_sided:
                spaces[space_of(view.storage)].read(number, box(view), needed)
        for view in item.done.written:
            if view.storage not in one_sided:
                spaces[space_of(view.storage)].write(number, box(view), needed)
        yield needed
