"""Tiles: one for every value, and no work for zeros that matmuls only add to."""

from __future__ import annotations

from ...ir.boxes import box
from ...ir.effects import overwrites
from ...ir.instruction import MatmulInstruction
from ...ir.semantics import Fill
from ...ir.storage import Storage
from ...machine.memories import PSUM
from .compilation import Compilation


def rename_tiles(core: Compilation) -> int:
    """Give a tile that is overwritten as a whole a place of its own.

    A buffer that a kernel declares outside its loop then makes no iteration wait for the one before: the
    compiler places values, not the kernel's names ("allocates a physical address to each tile", migration
    guide).
    """
    now: dict[Storage, Storage] = {}
    seen: set[Storage] = set()
    found, count = [], 0
    for item in core.items:
        for view in item.done.writes:
            tile = view.storage
            if tile in seen and tile.address is None and overwrites(item.instruction, tile):
                now[tile] = _version(tile)
                count += 1
        seen.update(view.storage for view in item.done.written if view.on_chip)
        found.append(core.with_storages(item, now) if now else item)
    if count:
        core.items = found
    return count


def _version(tile: Storage) -> Storage:
    return Storage(tile.buffer, tile.shape, tile.dtype, tile.name, None, tile.site, tile.number)


def drop_zeros(core: Compilation) -> int:
    """Leave out zeros in PSUM that only matmuls add to: the first matmul overwrites.

    None of ten device traces of attention kernels has a memset, though the kernels ask for one for every
    block of rows (compiler 2.23, trn2).
    """
    gone = {number for number, item in enumerate(core.items) if item.done.writes and _is_start(core, number)}
    if gone:
        core.items = [item for number, item in enumerate(core.items) if number not in gone]
    return len(gone)


def _is_start(core: Compilation, number: int) -> bool:
    """True for zeros of a whole new PSUM tile whose every element a matmul adds to before it is read."""
    item, uses = core.items[number], core.uses
    out = item.done.writes[0]
    tile = out.storage
    if out.buffer is not PSUM or item.instruction.meaning(core.machine) != Fill(0) or not core.is_free(item):
        return False
    if uses.writers[tile][0] != number or tile.address is not None or not out.covers_storage():
        return False
    written, left = set(), tile.nbytes
    for user in uses.readers[tile]:
        instruction = core.items[user].instruction
        if not (isinstance(instruction, MatmulInstruction) and core.items[user].done.adds_to):
            return False
        (target,) = core.items[user].done.adds_to
        if not instruction.starts_sum() or not box(target).exact:
            return False
        if box(target) not in written:
            written.add(box(target))
            left -= box(target).nbytes
        if left == 0:
            return True
    return False
