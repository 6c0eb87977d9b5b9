"""Renaming: where a tile on chip is overwritten as a whole, a new version of it begins: a new Storage.

Afterwards only true dependences (and those through memory that has an address, or is not on chip) are left.
In program order one version ends before the next begins, so the program needs no more memory; a schedule
that lets them overlap does.

A storage belongs to the region in which it was allocated: a core, or the body of a loop. Its versions begin
at instructions of that very region; an inner loop uses one version throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

from nki.ir.effects import overwrites
from nki.ir.effects import storages as storages_of
from nki.ir.instruction import Instruction
from nki.ir.items import Item, Loop, walk
from nki.ir.program import Program
from nki.ir.rewriting import replace_storages
from nki.ir.storage import Storage

from .rebuilding import rebuilt, with_body

Versions = dict[Storage, Storage]  # which storage holds a tile now


def renamed(program: Program) -> Program:
    """Return the program with a storage for every version of a tile."""
    stands_for: dict[Instruction, Instruction] = {}
    cores = [_Renaming(stands_for).region(items, 0, {}) for items in program.cores]
    return rebuilt(program, cores, stands_for)


class _Renaming:
    """Renames the tiles of one core."""

    def __init__(self, stands_for: dict[Instruction, Instruction]):
        self.stands_for = stands_for
        self.seen: set[Storage] = set()  # tiles that have a first version

    def region(self, items: Sequence[Item], loop: int, now: Versions) -> tuple[Item, ...]:
        """Return the items of a region; `now` has the versions of tiles that belong to regions around it."""
        found: list[Item] = []
        now = dict(now)
        for item in items:
            if isinstance(item, Loop):
                body = self.region(item.body, item.number, now)
                found.append(with_body(item, body))
                self.seen.update(storages_of(walk(item.body)))
            else:
                for storage in storages_of([item]):
                    if _may_change(storage, loop) and storage in self.seen and overwrites(item, storage):
                        now[storage] = _version(storage)
                    self.seen.add(storage)
                found.append(self._moved(item, now))
        return tuple(found)

    def _moved(self, instruction: Instruction, now: Versions) -> Instruction:
        if not any(storage in now for storage in storages_of([instruction])):
            return instruction
        copy = replace_storages(instruction, now)
        self.stands_for[copy] = instruction
        return copy


def _may_change(storage: Storage, loop: int) -> bool:
    """True for a tile on chip, without an address, that belongs to this region."""
    return storage.on_chip and storage.address is None and storage.loop == loop


def _version(storage: Storage) -> Storage:
    s = storage
    return Storage(s.buffer, s.shape, s.dtype, s.name, None, s.site, s.number, loop=s.loop, call=s.call)
