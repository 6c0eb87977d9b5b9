"""An edit of a program for a what-if: every value is loaded and computed once."""

from __future__ import annotations

from collections import Counter

from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..ir.view import View
from ..machine.memories import PSUM
from .compiler.compilation import Compilation
from .entries import Entry


class Hoisting:
    """Leaves out what loads, or computes, again what a tile holds; the tile is used from then on."""

    def __init__(self, loads_only: bool = False):
        self.loads_only = loads_only
        self.first: list[Entry] = []  # those that make the values that are made again
        self.again: list[Entry] = []  # those left out

    def __call__(self, core: Compilation) -> None:
        items = core.items
        gone = _repeats(core, self.loads_only)
        now: dict[Storage, Storage] = {}
        left: list[Entry] = []
        for number, item in enumerate(items):
            if number in gone:
                now[item.done.writes[0].storage] = items[gone[number]].done.writes[0].storage
            else:
                left.append(core.with_storages(item, now) if now else item)
        self.first += [items[number] for number in {*gone.values()}]
        self.again += [items[number] for number in gone]
        core.items = left


def _repeats(core: Compilation, loads_only: bool) -> dict[int, int]:
    """Return the items that write a tile with the values of an earlier one, and that one."""
    versions: Counter[Storage] = Counter()
    values: dict[Storage, int] = {}  # of a tile that is written once: the first item that made its values

    def value(view: View) -> tuple:
        return values.get(view.storage, (view.storage, versions[view.storage])), view.offset

    known: dict[tuple, int] = {}
    found: dict[int, int] = {}
    for number, item in enumerate(core.items):
        if _makes_a_value(core, item, loads_only):
            key = (item.signature, item.instruction.runs_on, *map(value, item.done.reads))
            first = values[item.done.writes[0].storage] = known.setdefault(key, number)
            if first != number and item.done.reads:  # constants are cheap
                found[number] = first
        versions.update(view.storage for view in item.done.written)
    for number in sorted(found, reverse=True):  # no bank holds a value until it is needed again
        tile = core.items[number].done.writes[0].storage
        if tile.buffer is PSUM and not all(reader in found for reader in core.uses.readers[tile]):
            del found[number]
    return found


def _makes_a_value(core: Compilation, item: Entry, loads_only: bool) -> bool:
    """True when it only writes one whole tile, from HBM or from tiles."""
    done, instruction = item.done, item.instruction
    if len(done.writes) != 1 or done.adds_to:
        return False
    out = done.writes[0]
    if isinstance(instruction, TransferInstruction):
        wanted = len(done.reads) == 1 and not done.reads[0].on_chip
    else:
        wanted = instruction.writes_all() and not loads_only
    return (
        wanted
        and out.on_chip
        and out.indirection is None
        and core.uses.written_once(out)
        and core.is_free(item)
        and not (done.state or done.registers_read or done.registers_written)
        and all(view.indirection is None and view.storage.address is None for view in done.reads)
    )
