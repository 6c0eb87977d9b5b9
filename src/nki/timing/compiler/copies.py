"""Copies out of PSUM: left out where readers can read PSUM, merged, and spread over two engines."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from ...ir.boxes import box
from ...ir.rewriting import moved_columns, replace_engine
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.engines import engine
from ...machine.memories import PSUM, SBUF
from ..entries import Entry
from .broadcasts import keeps_dtype, takes_psum
from .compilation import Compilation
from .placement import Placement
from .ready_order import ReadyOrder

MOST_COLUMNS = 512  # of a merged copy


class _Copy(NamedTuple):
    """A copy of a whole PSUM tile, which nothing reads afterwards, to columns of an SBUF tile."""

    number: int
    source: Storage
    target: View
    columns: int

    @property
    def first(self) -> int:
        """The first column of the target, which begins at the first partition of its tile."""
        return self.target.offset


def _copies(core: Compilation) -> dict[Storage, list[_Copy]]:
    """Return the copies into each SBUF tile, in program order."""
    found: dict[Storage, list[_Copy]] = defaultdict(list)
    for number, item in enumerate(core.items):
        if item.instruction.other_engine() is not None and core.is_free(item):
            source, target = item.done.reads[0], item.done.writes[0]
            plain = _is_plain(source, PSUM) and _is_plain(target, SBUF) and source.covers_storage()
            last = core.uses.readers[source.storage][-1] == number
            if plain and last and target.offset < target.row_pitch:
                columns = source.size // source.shape[0]
                found[target.storage].append(_Copy(number, source.storage, target, columns))
    return found


def _is_plain(view: View, buffer: object) -> bool:
    """True for dense columns of a tile of that memory which has no address of its own."""
    tile = view.storage
    return view.buffer is buffer and tile.address is None and view.dtype == tile.dtype and box(view).exact


# ---- read in PSUM --------------------------------------------------------------------------------


def read_in_psum(core: Compilation) -> int:
    """Leave out a copy whose readers can read PSUM, one tile at a time in the kernel's order.

    In the traces of fused attention on trn2, one of the score tiles of each block of rows is never copied:
    the maximum and the exponential read it in PSUM. The others are copied, so that four blocks of rows can
    be under way in eight banks.
    """
    taken: dict[tuple[int, Storage], _Copy] = {}  # (reader, its tile) -> the copy it reads no more
    gone: set[int] = set()
    free_from = 0
    chosen = [found for tile, copies in _copies(core).items() for found in _readable(core, tile, copies)]
    for copy, readers in sorted(chosen):
        if copy.number >= free_from:
            free_from = readers[-1]
            gone.add(copy.number)
            taken.update({(reader, copy.target.storage): copy for reader in readers})
    if not gone:
        return 0
    readers_of = {reader for reader, _ in taken}
    core.items = [
        _reading(core, item, number, taken) if number in readers_of else item
        for number, item in enumerate(core.items)
        if number not in gone
    ]
    return len(gone)


def _reading(core: Compilation, item: Entry, number: int, taken: dict[tuple[int, Storage], _Copy]) -> Entry:
    """Return a reader that reads PSUM instead of the copy."""

    def change(view: View) -> View:
        copy = taken.get((number, view.storage))
        return view if copy is None else moved_columns(view, copy.source, 0, copy.first)

    return core.with_views(item, change)


def _readable(core: Compilation, tile: Storage, copies: list[_Copy]) -> Iterator[tuple[_Copy, list[int]]]:
    """Yield the copies into a tile whose every reader can read PSUM, with the readers."""
    starts = sorted({copy.first: copy for copy in copies}.items())
    firsts = [first for first, _ in starts]
    readers: dict[_Copy, list[int]] = {copy: [] for _, copy in starts}
    made = {copy.number for copy in copies}
    unfit: set[_Copy] = set()
    for number in sorted({*core.uses.writers[tile], *core.uses.readers[tile]}):
        item = core.items[number]
        for view in (*item.done.seen, *item.done.writes):
            if view.storage is tile and number not in made:
                touched = _touched(view, starts, firsts)
                fits = len(touched) == 1 and number > touched[0].number and number not in readers[touched[0]]
                if fits and core.is_free(item) and view in item.done.reads and takes_psum(item, tile):
                    readers[touched[0]].append(number)
                else:
                    unfit.update(touched)
    for copy, found in readers.items():
        if found and copy not in unfit and keeps_dtype(core.items[copy.number]):
            yield copy, found


def _touched(view: View, starts: list[tuple[int, _Copy]], firsts: list[int]) -> list[_Copy]:
    """Return the copies whose columns a view overlaps."""
    found = box(view)
    begin, end = (byte // view.storage.dtype.itemsize for byte in (found.start, found.stop - 1))
    low = max(0, bisect_right(firsts, begin) - 1)
    near = (copy for _, copy in starts[low : bisect_right(firsts, end)])
    return [copy for copy in near if copy.first + copy.columns > begin]


# ---- merged --------------------------------------------------------------------------------------


def merge_copies(core: Compilation) -> int:
    """Copy tiles of one bank with one instruction, where their destinations are adjacent.

    In the traces four transposes of 128 columns in float32 fill a bank, and one copy of 512 columns moves
    them. Eight of 16-bit floats fill one too; these are copied one by one, so that 512 columns are the most.
    """
    runs = [run for tile, copies in _copies(core).items() for run in _runs(core, tile, copies)]
    if not runs:
        return 0
    placement = Placement(core)
    runs = [run for run in runs if placement.join([copy.source for copy in run])]
    last = {run[-1].number: run for run in runs}
    gone = {copy.number for run in runs for copy in run[:-1]}
    core.items = [
        _joined(core, item, last[number], placement) if number in last else placement.moved(item)
        for number, item in enumerate(core.items)
        if number not in gone
    ]
    return len(gone)


def _runs(core: Compilation, tile: Storage, copies: list[_Copy]) -> Iterator[list[_Copy]]:
    """Yield the copies that one instruction can do."""
    readers = core.uses.readers[tile]
    run: list[_Copy] = []
    for copy in copies:
        if run and not (
            _continues(run, copy, core.machine.psum_bank_bytes) and not _between(readers, run[0], copy)
        ):
            yield from _worth(run)
            run = []
        run.append(copy)
    yield from _worth(run)


def _continues(run: list[_Copy], copy: _Copy, bank: int) -> bool:
    one, other = run[-1], copy
    same = (one.columns, one.source.partitions, one.source.dtype) == (
        other.columns, other.source.partitions, other.source.dtype
    )  # fmt: skip
    fits = (len(run) + 1) * copy.source.pitch <= bank
    return same and fits and other.first == one.first + one.columns


def _between(readers: list[int], one: _Copy, other: _Copy) -> bool:
    """True when the tile is read between two copies into it."""
    return bisect_right(readers, one.number) != bisect_right(readers, other.number)


def _worth(run: list[_Copy]) -> Iterator[list[_Copy]]:
    if len(run) > 1 and len(run) * run[0].columns <= MOST_COLUMNS:
        yield run


def _joined(core: Compilation, item: Entry, run: list[_Copy], placement: Placement) -> Entry:
    """Return the one copy of a run."""
    joined, target = placement.places[run[0].source][0], run[0].target
    source = View(joined, 0, joined.shape, (joined.shape[1], 1), joined.dtype)
    whole = View(target.storage, target.offset, joined.shape, (target.row_pitch, 1), target.dtype)
    return core.with_views(item, lambda view: source if view.buffer is PSUM else whole)


# ---- spread --------------------------------------------------------------------------------------


def spread_copies(core: Compilation) -> int:
    """Give each copy out of PSUM to the engine that can begin it first: ScalarE, unless VectorE is earlier.

    The traces of attention alternate between both while copies are all there is, use ScalarE alone where it
    keeps up with TensorE, and VectorE where exponentials keep ScalarE busy.
    """
    free = [_is_free_copy(core, item) for item in core.items]
    if not any(free):
        return 0
    estimate = ReadyOrder(core)
    found, moved = list(core.items), 0
    for number, ready in estimate:
        item = found[number]
        if free[number]:
            there = core.numbers.moved(item, replace_engine(item.instruction, engine.scalar))
            if estimate.begin(there, ready) <= estimate.begin(item, ready):
                found[number], moved = there, moved + 1
            core.pin(item)
        estimate.run(number, found[number], ready)
    core.items = found
    return moved


def _is_free_copy(core: Compilation, item: Entry) -> bool:
    """True for a copy out of PSUM that may go to ScalarE."""
    return (
        item.instruction.other_engine() is engine.scalar
        and core.is_free(item)
        and item.done.reads[0].buffer is PSUM
    )
