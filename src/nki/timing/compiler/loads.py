"""Loads of bytes that SBUF still holds, and loads of columns."""

from __future__ import annotations

from collections import Counter, OrderedDict

from ...ir.storage import Storage
from ...ir.transfer_instruction import TransferInstruction
from ...machine.memories import SBUF
from ..entries import Entry
from .compilation import Compilation


def drop_loads(core: Compilation) -> int:
    """Do a load once while all that is loaded until it is needed again fits in SBUF.

    GEMM kernels that load both operands inside three loops take 288 us for 1024x2048x4096 in bfloat16 (trn2,
    public study of fused MLPs): far less than their loads would, since the operands fit. At 2048x4096x4096
    the right operand (33.5 MB) does not, and the time is that of loading it for every block of rows: no part
    of it stays. This is a cache that drops what was used longest ago.
    """
    items = core.items
    targets = {n: item.done.writes[0].storage for n, item in enumerate(items) if _is_load(core, item)}
    if not targets:
        return 0
    cache = _Cache(core.machine.sbuf_usable_bytes - _peak_of_others(core, set(targets.values())))
    versions: Counter[Storage] = Counter()
    now: dict[Storage, Storage] = {}
    left: list[Entry] = []
    for number, item in enumerate(items):
        if number in targets:
            tile, source = targets[number], item.done.reads[0]
            key = (item.signature, source.storage, source.offset, versions[source.storage])
            holder = cache.holder(key, tile, tile.taken(core.machine))
            if holder is not tile:
                now[tile] = holder
                continue
        versions.update(view.storage for view in item.done.written if not view.on_chip)
        left.append(core.with_storages(item, now) if now else item)
    core.items = left
    return len(items) - len(left)


def transpose_loads(core: Compilation) -> int:
    """Load rows and transpose them on TensorE, where the kernel asks for columns of up to 128 x 128 elements.

    Compiled convolutions of students (NEFF, trn1) load a bias of 128 partitions as one row, and have a
    transpose on TensorE for it. Those that skip the middle end load it element by element.
    """
    left: list[Entry] = []
    count = 0
    for item in core.items:
        load = item.instruction
        parts = (
            load.by_tensor_engine(core.machine)
            if isinstance(load, TransferInstruction) and core.is_free(item) and not item.done.state
            else ()
        )
        left += [core.numbers.replaced(item, part) for part in parts] or [item]
        count += bool(parts)
    if count:
        core.items = left
    return count


def _is_load(core: Compilation, item: Entry) -> bool:
    """True when it copies HBM to all of an SBUF tile that nothing else writes."""
    done = item.done
    if not isinstance(item.instruction, TransferInstruction) or done.state or not core.is_free(item):
        return False
    if len(done.reads) != 1 or len(done.writes) != 1 or done.registers_read:
        return False
    source, target = done.reads[0], done.writes[0]
    return not source.on_chip and target.buffer is SBUF and core.uses.written_once(target)


def _peak_of_others(core: Compilation, loaded: set[Storage]) -> int:
    """Return the most bytes of a partition that tiles which are not loaded take at one time."""
    others = [tile for tile in core.uses.tiles() if tile.buffer is SBUF and tile not in loaded]
    return int(core.uses.live({tile: tile.taken(core.machine) for tile in others}, len(core.items)).max())


class _Cache:
    """Tiles by what was loaded into them; the one used longest ago is dropped first."""

    def __init__(self, capacity: int):
        self.left = capacity
        self.tiles: OrderedDict[tuple, tuple[Storage, int]] = OrderedDict()

    def holder(self, key: tuple, tile: Storage, size: int) -> Storage:
        """Return the tile that holds these bytes: an earlier one, or else the given one."""
        if key in self.tiles:
            self.tiles.move_to_end(key)
            return self.tiles[key][0]
        self.tiles[key] = (tile, size)
        self.left -= size
        while self.left < 0 and self.tiles:
            _, (_, freed) = self.tiles.popitem(last=False)
            self.left += freed
        return tile
