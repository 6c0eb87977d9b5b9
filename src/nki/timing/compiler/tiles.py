"""Tiles: one for every value, and no work for zeros that matmuls only add to."""

from __future__ import annotations

from ...ir.boxes import box
from ...ir.effects import overwrites
from ...ir.instruction import MatmulInstruction
from ...ir.semantics import Fill
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.memories import PSUM
from .broadcasts import same_call
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
    """Leave out zeros in PSUM that only matmuls add to, since the first overwrites, and fills left unread.

    None of ten device traces of attention kernels has a memset, though the kernels ask for one for every
    block of rows (compiler 2.23, trn2). A student's compiled convolution (NEFF) has none for the zeros in
    SBUF that its loads overwrite.
    """
    gone = {
        number
        for number, item in enumerate(core.items)
        if item.done.writes and (_is_unread(core, number) or _is_start(core, number))
    }
    if gone:
        core.items = [item for number, item in enumerate(core.items) if number not in gone]
    return len(gone)


def _is_unread(core: Compilation, number: int) -> bool:
    """True for a fill of a whole tile that nothing reads."""
    item, uses = core.items[number], core.uses
    out = item.done.writes[0]
    if not isinstance(item.instruction.meaning(core.machine), Fill) or not core.is_free(item):
        return False
    return out.on_chip and uses.written_once(out) and not uses.readers[out.storage]


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


def drop_casts(core: Compilation) -> int:
    """Let readers of a transpose read what TensorE wrote, where one call also casts that within PSUM.

    On trn1 TensorE writes a transpose as float32. The cast back is part of the copy that takes it out of
    PSUM: a student's convolution with an nl.matmul in float16 takes 1,060 us on trn1, while two copies for
    each transpose would take 1,800 alone.
    """
    now: dict[Storage, Storage] = {}
    gone: set[int] = set()
    within = {number for number, i in core.examples.items() if all(v.buffer is PSUM for v in i.views())}
    for number in core.copies if within else ():
        item = core.items[number]
        if item.signature in within and core.is_free(item) and _is_cast(core, number):
            now[item.done.writes[0].storage] = item.done.reads[0].storage
            gone.add(number)
    if gone:

        def change(view: View) -> View:
            bank = now.get(view.storage)
            return view if bank is None else View(bank, view.offset, view.shape, view.strides, bank.dtype)

        core.items = [
            core.with_views(item, change) if any(v.storage in now for v in item.done.seen) else item
            for number, item in enumerate(core.items)
            if number not in gone
        ]
    return len(gone)


def _is_cast(core: Compilation, number: int) -> bool:
    """True for a copy from PSUM to PSUM of a whole tile, by the call that wrote it, which VectorE reads."""
    done = core.items[number].done
    source, out = done.reads[0], done.writes[0]
    if source.buffer is not PSUM or out.buffer is not PSUM or not source.covers_storage():
        return False
    uses = core.uses
    if len(uses.writers[source.storage]) != 1 or not uses.written_once(out):
        return False
    made = core.items[uses.writers[source.storage][0]].instruction
    plain = all(
        view.dtype == out.dtype and view.indirection is None
        for reader in uses.readers[out.storage]
        for view in core.items[reader].instruction.views()
        if view.storage is out.storage
    )
    return plain and same_call(made, core.items[number].instruction)
