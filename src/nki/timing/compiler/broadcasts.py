"""Broadcasts over the partitions, read where TensorE wrote them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.instruction import Instruction, MatmulInstruction
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.machine import Machine
from ...machine.memories import PSUM, SBUF
from ..entries import Entry
from .compilation import Compilation, TileItems


def read_broadcasts_in_psum(core: Compilation) -> int:
    """Leave out copies of broadcasts whose readers can all read PSUM, as far as it has banks.

    What TensorE spread over the partitions for one nl call is read in PSUM where its readers can. In the
    Mamba tutorial's profiles of 512 columns PSUM stays full while ScalarE copies little or nothing; of 8,192,
    which no bank holds, it copies all.
    """
    if not any(map(_is_broadcast, core.examples.values())):
        return 0
    items = core.items
    uses = core.uses
    banks = _Banks(core.machine, uses, len(items))
    now: dict[Storage, Storage] = {}
    gone: set[int] = set()
    for number in core.copies:
        item = items[number]
        if not (core.is_free(item) and keeps_dtype(item) and _copies_broadcast(items, uses, item)):
            continue
        copy, bank = item.done.writes[0].storage, item.done.reads[0].storage
        readers = uses.readers[copy]
        direct = all(core.is_free(items[r]) and takes_psum(items[r], copy) for r in readers)
        if direct and banks.take(number, readers[-1]):
            now[copy] = bank
            gone.add(number)
    core.items = [core.with_storages(item, now) for n, item in enumerate(items) if n not in gone]
    return len(gone)


def _is_broadcast(instruction: Instruction) -> bool:
    """True for a matmul of one row, as a broadcast over the partitions is."""
    return isinstance(instruction, MatmulInstruction) and instruction.array_rows() == 1


def _copies_broadcast(items: Sequence[Entry], uses: TileItems, item: Entry) -> bool:
    """True when one nl call issued both: TensorE's product in a bank, and this copy of all of it."""
    instruction, done = item.instruction, item.done
    source, out = done.reads[0], done.writes[0]
    if source.buffer is not PSUM or out.buffer is not SBUF or not source.covers_storage():
        return False
    made = uses.writers[source.storage]
    if len(made) != 1 or not uses.written_once(out) or not uses.readers[out.storage]:
        return False
    product = items[made[0]].instruction
    return _is_broadcast(product) and same_call(product, instruction)


def keeps_dtype(item: Entry) -> bool:
    """True for a copy between tiles of one dtype."""
    return item.done.reads[0].dtype == item.done.writes[0].dtype


def same_call(one: Instruction, other: Instruction) -> bool:
    a, b = one.site, other.site
    return a is not None and b is not None and a.key == b.key


def takes_psum(item: Entry, tile: Storage) -> bool:
    """True when VectorE or ScalarE reads the tile once, and nothing else in PSUM."""
    instruction = item.instruction
    views = [v for v in instruction.operands() if isinstance(v, View)]
    return (
        instruction.engine_name() in ("vector", "scalar")
        and sum(v.storage is tile for v in views) == 1
        and all(v.indirection is None for v in views)
        and not any(v.buffer is PSUM for v in item.done.seen)
    )


def live_banks(machine: Machine, uses: TileItems, length: int) -> np.ndarray:
    """Return how many PSUM banks are live at each item."""
    unit = machine.psum_bank_bytes
    sizes = {tile: -(-tile.pitch // unit) for tile in uses.tiles() if tile.buffer is PSUM}
    return uses.live(sizes, length)


def live_sbuf(machine: Machine, uses: TileItems, length: int) -> np.ndarray:
    """Return how many bytes of a partition of SBUF are live at each item."""
    return uses.live({tile: tile.taken(machine) for tile in uses.tiles() if tile.buffer is SBUF}, length)


class _Banks:
    """The PSUM banks that are live at each instruction."""

    def __init__(self, machine: Machine, uses: TileItems, length: int):
        self.most = machine.psum_banks
        self.taken = live_banks(machine, uses, length)

    def take(self, first: int, last: int) -> bool:
        """Take one bank from `first` to `last`; False if none is free."""
        if self.taken[first : last + 1].max() > self.most - 1:
            return False
        self.taken[first + 1 : last + 1] += 1
        return True
