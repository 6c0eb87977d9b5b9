"""Transfers of several iterations, done as one."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter

from ...ir.boxes import Box, box
from ...ir.rewriting import replace_views
from ...ir.storage import Storage
from ...ir.transfer_instruction import TransferInstruction
from ...ir.view import View
from ...machine.memories import SBUF
from ..entries import Entry
from .compilation import Compilation
from .placement import Placement

MOST_BYTES = 512 << 10  # of SBUF, for the tile of a merged transfer
MOST_BETWEEN = 64  # accesses of its tensor

Accesses = dict[Storage, list[tuple[int, View]]]  # by tensor, in the order of the kernel


def merge_transfers(core: Compilation) -> int:
    """Move the tiles of one line with one DMA of up to 512 KB, where their places in HBM are evenly spaced.

    In the traces of attention the stores of four or eight blocks of rows are one DMA, and so are two loads,
    or two stores, of 256 KB of scores; tiles of 512 KB travel alone.
    """
    placement = Placement(core)
    runs = [run for run in _runs(core) if placement.join([_tile(core.items[n]) for n in run])]
    if not runs:
        return 0
    stands = {run[0] if _is_load(core.items[run[0]]) else run[-1]: run for run in runs}
    gone = {number for run in runs for number in run} - {*stands}
    core.items = [
        _merged(core, placement, stands[number]) if number in stands else placement.moved(item)
        for number, item in enumerate(core.items)
        if number not in gone
    ]
    return len(gone)


def use_hardware_descriptors(core: Compilation) -> int:
    """Let hardware make the descriptors of transfers of tensors that the kernel keeps in HBM for itself.

    In the traces of unfused attention the scores, which are written and read again, travel by hardware
    descriptors: ScalarE triggers the stores, SyncE the loads. Arguments and results travel by software.
    """
    if not core.machine.has_hwdge:
        return 0
    read = {view.storage for item in core.items for view in item.done.seen if not view.on_chip}
    written = {view.storage for item in core.items for view in item.done.written if not view.on_chip}
    own = {storage for storage in read & written if not storage.parameter}
    found, count = list(core.items), 0
    for number, item in enumerate(core.items):
        touched = {view.storage for view in (*item.done.seen, *item.done.written)}
        if isinstance(item.instruction, TransferInstruction) and core.is_free(item) and touched & own:
            changed = item.instruction.by_hardware()
            if changed is not None:
                found[number], count = core.numbers.replaced(item, changed), count + 1
    if count:
        core.items = found
    return count


def _is_load(item: Entry) -> bool:
    return item.done.writes[0].on_chip


def _tile(item: Entry) -> Storage:
    return (item.done.writes if _is_load(item) else item.done.reads)[0].storage


def _far(item: Entry) -> View:
    """Return the view of HBM."""
    return (item.done.reads if _is_load(item) else item.done.writes)[0]


def _merged(core: Compilation, placement: Placement, run: list[int]) -> Entry:
    """Return the one transfer of a run."""
    first, second = core.items[run[0]], core.items[run[1]]
    step = _far(second).offset - _far(first).offset

    def several(view: View) -> View:
        if view.on_chip:
            return placement.together(_tile(first), view, len(run))
        shape, strides = (view.shape[0], len(run), view.shape[1]), (view.strides[0], step, view.strides[1])
        return View(view.storage, view.offset, shape, strides, view.dtype)

    grouped = first.instruction.grouped()
    assert grouped is not None
    return core.numbers.replaced(first, replace_views(grouped, several))


# ---- which -----------------------------------------------------------------------------------------


def _runs(core: Compilation) -> Iterator[list[int]]:
    """Yield the transfers that one can do."""
    lines: dict[tuple, list[int]] = defaultdict(list)
    reads: Accesses = defaultdict(list)
    writes: Accesses = defaultdict(list)
    for number, item in enumerate(core.items):
        for views, found in ((item.done.seen, reads), (item.done.written, writes)):
            for view in views:
                if not view.on_chip:
                    found[view.storage].append((number, view))
        if _is_plain(core, item, number):
            lines[item.instruction.site.key, item.signature, _far(item).storage].append(number)  # type: ignore[union-attr]
    for numbers in lines.values():
        run: list[int] = []
        for number in numbers:
            if run and not (_fits(core, run, number) and _may_move(core, run, number, reads, writes)):
                if len(run) > 1:
                    yield run
                run = []
            run.append(number)
        if len(run) > 1:
            yield run


def _may_move(core: Compilation, run: list[int], number: int, reads: Accesses, writes: Accesses) -> bool:
    """True when no access in between stops a load from being done with the first, stores with the last."""
    item = core.items[number]
    tensor = _far(item).storage
    if _is_load(item):
        return not _touched(writes[tensor], run[0], number, [box(_far(item))])
    moved = [box(_far(core.items[n])) for n in run]
    return not any(_touched(accesses[tensor], run[-1], number, moved) for accesses in (reads, writes))


def _touched(accesses: list[tuple[int, View]], after: int, before: int, boxes: list[Box]) -> bool:
    """True when an access between two items touches some boxes, or when there are too many to look at."""
    low, high = (bisect_left(accesses, at, key=itemgetter(0)) for at in (after + 1, before))
    if high - low > MOST_BETWEEN:
        return True
    return any(box(view).overlaps(one) for _, view in accesses[low:high] for one in boxes)


def _fits(core: Compilation, run: list[int], number: int) -> bool:
    """True when a transfer continues a run."""
    places = [_far(core.items[n]).offset for n in (run[0], *run[-2:], number)]
    step = places[-1] - places[-2]
    even = step > 0 if len(run) == 1 else step == places[-2] - places[-3]
    taken = _tile(core.items[number]).taken(core.machine) * core.machine.partitions
    return even and (len(run) + 1) * taken <= MOST_BYTES


def _is_plain(core: Compilation, item: Entry, number: int) -> bool:
    """True for a copy of a whole tile between SBUF and rows of HBM."""
    done, instruction = item.done, item.instruction
    if not isinstance(instruction, TransferInstruction) or instruction.grouped() is None:
        return False
    if done.state or done.registers_read or instruction.site is None or not core.is_free(item):
        return False
    views = (done.reads[0], done.writes[0])
    near = [view for view in views if view.on_chip]
    if len(near) != 1 or len(done.reads) > 1 or near[0].buffer is not SBUF or not near[0].covers_storage():
        return False
    tile = near[0].storage
    unchanged = core.uses.written_once(near[0]) if _is_load(item) else core.uses.writers[tile][-1:] < [number]
    return unchanged and views[0].shape == views[1].shape and near[0].ndim == 2
