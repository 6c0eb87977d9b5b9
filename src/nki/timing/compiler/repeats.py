"""Work that is done twice in the kernel, and once on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...ir.effects import Effects
from ...ir.instruction import Instruction
from ...ir.storage import Storage
from ...ir.transfer_instruction import TransferInstruction
from ...machine.memories import SBUF
from ..entries import Entry
from .compilation import Compilation, TileItems


def _may_repeat(items: Sequence[Entry]) -> bool:
    """True when two instructions of one signature read the same tiles; otherwise nothing is repeated."""
    seen: set[tuple] = set()
    for instruction, _, done, signature in items:
        if (
            not isinstance(instruction, TransferInstruction)
            and not instruction.accumulates
            and len(done.writes) == 1
        ):
            asked = (signature, instruction.runs_on, *[view.storage for view in done.reads])
            if asked in seen:
                return True
            seen.add(asked)
    return False


def drop_repeats(core: Compilation) -> int:
    """Leave out instructions that compute again what an unchanged tile holds.

    The zoomed profile of the fused Mamba tutorial (v2, 8K) shows four VectorE instructions a state, of the
    five that its loop asks for: delta * u does not depend on the state.
    """
    items, uses = core.items, core.uses
    if not _may_repeat(items):
        return 0
    now: dict[Storage, Storage] = {}  # a tile that is computed no more -> the one that holds the same
    versions: Counter[Storage] = Counter()
    known: dict[tuple, Storage] = {}
    left: list[Entry] = []
    for item in items:
        instruction, done = item.instruction, item.done
        if _is_pure(instruction, done, uses) and core.is_free(item):
            seen = tuple((now.get(v.storage, v.storage), versions[v.storage]) for v in done.reads)
            holder = known.setdefault((item.signature, instruction.runs_on, seen), done.writes[0].storage)
            if holder is not done.writes[0].storage:
                now[done.writes[0].storage] = holder
                continue
        for view in done.written:
            versions[view.storage] += 1
        if now and any(view.storage in now for view in done.seen):
            item = core.with_storages(item, now)
        left.append(item)
    core.items = left
    return len(items) - len(left)


def _is_pure(instruction: Instruction, done: Effects, uses: TileItems) -> bool:
    """True when it writes one whole SBUF tile from on-chip tiles, and touches nothing else."""
    if isinstance(instruction, TransferInstruction) or instruction.accumulates or len(done.writes) != 1:
        return False
    out = done.writes[0]
    return (
        out.buffer is SBUF
        and uses.written_once(out)
        and bool(uses.readers[out.storage])
        and instruction.writes_all()
        and not (done.state or done.registers_read or done.registers_written)
        and all(v.on_chip and v.storage.address is None and v.indirection is None for v in done.reads)
    )
