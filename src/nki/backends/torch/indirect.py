"""Moves by run-time indices on a device: instructions that read the indices as they read any operand.

A DMA whose address depends on a tile selects rows of a table: all of HBM that indices in bounds reach. So it
becomes an instruction of three operands at known addresses (`with_indices`). An index out of bounds, and two
equal ones in a scatter, leave a mask: the host then runs the program and reports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ...ir.instruction import In, InOut, Instruction, Out
from ...ir.operand_access import OperandAccess
from ...ir.program import Item, Loop
from ...ir.semantics import Move
from ...ir.storage import Storage
from ...ir.tensor import whole
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType, f32
from ...machine.memories import SBUF
from ..lowered import Lowered
from ..reference.indirect import has_disjoint_rows, skips_out_of_bounds, table_of
from .lanes import Lanes

PAIRS = 1 << 20  # of indices that are compared each with each: one kernel, where a sort takes several
INT64, BOOL = np.dtype(np.int64), np.dtype(np.bool_)


def with_indices(lowered: Lowered) -> Lowered:
    """Return a program whose moves by run-time indices are instructions that read them."""
    if all(kind is not None and kind.access.fixed for counts in lowered.counts for kind in counts):
        return lowered
    replaced = [[_indexed(lowered, item) for item in items] for items in lowered.items]
    cores = tuple([tuple([*chain.from_iterable(items)]) for items in replaced])
    found = [item for items in cores for item in items if isinstance(item, IndexedMove)]
    tiles = dict.fromkeys(i.dst.storage for i in found if isinstance(i, IndexedRead))
    known = set(lowered.storages)
    return lowered.with_items(cores, [tile for tile in tiles if tile not in known]) if found else lowered


def _indexed(lowered: Lowered, item: Item) -> Sequence[Item]:
    """Return instructions at known addresses that do the same; the item itself where there are none."""
    if isinstance(item, Loop) or item.access.fixed:
        return (item,)
    meaning = lowered.signature(item).meaning
    if meaning.__class__ is not Move:
        return (item,)
    order: Any = meaning.order  # type: ignore[union-attr]
    dst, src, *_ = item.operands()
    sides = [view for view in (dst, src) if view.indirection is not None]
    if len(sides) != 1 or sides[0].on_chip or not isinstance(sides[0].indirection.index, View):
        return (item,)
    ((view,), index) = sides, sides[0].indirection.index
    table = table_of(view)
    if table.shape[0] == 0 or (view is dst and (order is not None or not has_disjoint_rows(table))):
        return (item,)
    count = view.shape[0] if view.indirection.kind == "vector" else 1
    rows = SelectedRows(count, view.indirection.scale == 0)
    skips = skips_out_of_bounds(item)
    if view is dst:
        return (_like(item, IndexedWrite(table, src, index, rows, skips)),)
    if skips:
        return (_like(item, IndexedUpdate(dst, table, index, rows, tuple(src.shape), order)),)
    if order is None:
        return (_like(item, IndexedRead(dst, table, index, rows, tuple(src.shape))),)
    tile = whole(Storage(SBUF, tuple(src.shape), src.dtype, site=item.site), None).bare()
    moved: Any = copy(item)
    moved.src = tile
    return _like(item, IndexedRead(tile, table, index, rows, tuple(src.shape))), _like(item, moved)


def _like(item: Instruction, found: Instruction) -> Instruction:
    """Return an instruction that stands for another one, or for a part of it."""
    found.handle, found.site, found.runs_on = item.handle, item.site, item.runs_on
    found.access = OperandAccess.of(found)
    return found


class SelectedRows(NamedTuple):
    """How many rows of a table are selected, and whether every index selects the one row that it has."""

    number: int
    is_broadcast: bool


class IndexedMove(Instruction):
    """A move of the rows that indices select in a table."""


class IndexedRead(IndexedMove):
    """dst = table[index]."""

    dst: Out
    table: In
    index: In
    rows: Any  # SelectedRows
    shape: tuple[int, ...]

    def compute(self, dst: Lanes, table: Lanes, index: Lanes) -> None:
        ids, valid = _row_numbers(table, index, self.rows)
        _doubt(table, ~valid)
        found = _rows(table, ids).reshape(self.shape)
        convert(dst, found.reshape(dst.shape), self.table.dtype, self.dst.dtype)


class IndexedUpdate(IndexedMove):
    """dst = table[index], its dimensions permuted, except rows whose index is out of bounds."""

    dst: InOut
    table: In
    index: In
    rows: Any
    shape: tuple[int, ...]  # before it is permuted
    order: Any

    def compute(self, dst: Lanes, table: Lanes, index: Lanes) -> None:
        ids, valid = _row_numbers(table, index, self.rows)
        rows, new = _rows(table, ids), dst.copy()
        found = _permuted(rows, self.shape, self.order)
        convert(new, found.reshape(dst.shape), self.table.dtype, self.dst.dtype)
        mask = table.like(_beside(valid, rows.tensor.dim()).expand(rows.tensor.shape), BOOL)
        picked = _permuted(mask, self.shape, self.order).reshape(dst.shape)
        dst.tensor.copy_(table.device.torch.where(picked.tensor, new.tensor, dst.tensor))


class IndexedWrite(IndexedMove):
    """table[index] = src, except rows whose index is out of bounds, with `skips`."""

    table: InOut
    src: In
    index: In
    rows: Any
    skips: bool

    def compute(self, table: Lanes, src: Lanes, index: Lanes) -> None:
        """Write the rows of all members in turn: they have one table (`LevelScheduler`)."""
        torch = table.device.torch
        ids, valid = _row_numbers(table, index, self.rows)
        shape = (*ids.shape, *table.shape[1:])
        new = table.like(torch.empty(shape, dtype=table.tensor.dtype, device=ids.device), table.dtype)
        convert(new, src.reshape(new.shape), self.src.dtype, self.table.dtype)
        _doubt(table, _repeated(torch, ids, valid))
        if not self.skips:
            _doubt(table, ~valid)
        _write_rows(table, ids.reshape(-1), valid.reshape(-1), new.tensor.reshape(-1, *table.shape[1:]))


# ---- rows ----------------------------------------------------------------------------------------


def _row_numbers(table: Lanes, index: Lanes, rows: SelectedRows) -> tuple[Any, Any]:
    """Return the row of each index, one in bounds even where the index is not, and which are in bounds.

    Indices go down the partitions of the first column, then of the next.
    """
    ids = index.as_type(INT64).reshape(*index.front, len(index), -1)
    ids = ids.transpose(-1, -2).reshape(*index.front, -1)[..., : rows.number]
    if rows.is_broadcast:
        ids = ids.clamp(max=0)
    count = len(table)
    return ids.clamp(0, count - 1), (ids >= 0) & (ids < count)


def _places(table: Lanes, ids: Any) -> tuple[Any, ...]:
    """Return the key of rows [*lead, n] in the tensor of a table [*lead, rows, ...]."""
    numbers = [np.arange(n).reshape((-1,) + (1,) * (table.lead - d)) for d, n in enumerate(table.front)]
    return (*[table.device.constant(number) for number in numbers], ids)


def _rows(table: Lanes, ids: Any) -> Lanes:
    return table.like(table.tensor[_places(table, ids)], table.dtype)


def _permuted(rows: Lanes, shape: tuple[int, ...], order: Any) -> Lanes:
    found = rows.reshape(shape)
    return found if order is None else found.transpose(tuple(order))


def _write_rows(table: Lanes, ids: Any, valid: Any, values: Any) -> None:
    """Write values to rows, the later ones last; those that are not valid write what their row has then."""
    torch, chosen = table.device.torch, _last_writers(table, ids, valid)
    places = _places(table, ids.reshape(*table.front, -1))
    old = table.tensor[places].reshape(values.shape)
    new = torch.where(_beside(chosen >= 0, values.dim()), values[chosen.clamp(0)], old)
    table.tensor[places] = new.reshape(*table.front, *new.shape)  # the operand itself: Inductor copies none


def _last_writers(table: Lanes, ids: Any, valid: Any) -> Any:
    """Return the last valid position that has the row of each one; -1: there is none."""
    torch = table.device.torch
    positions = torch.arange(len(ids), device=ids.device)
    if len(ids) ** 2 <= PAIRS:
        return torch.where((ids[:, None] == ids) & valid, positions, -1).amax(1)
    last = torch.full((len(table),), -1, device=ids.device)  # of each row
    last.scatter_reduce_(0, ids, torch.where(valid, positions, -1), "amax")
    return last[ids]


def _repeated(torch: Any, ids: Any, valid: Any) -> Any:
    """Return where an index in bounds is equal to another one."""
    if ids.numel() * ids.shape[-1] <= PAIRS:
        same = (ids[..., :, None] == ids[..., None, :]) & valid[..., None, :]
        return valid & (same.sum(-1) > 1)
    apart = -1 - torch.arange(ids.shape[-1], device=ids.device)
    ordered = torch.where(valid, ids, apart).sort(-1).values
    return ordered[..., 1:] == ordered[..., :-1]


def _beside(mask: Any, rank: int) -> Any:
    """Return a mask of rows with dimensions for the elements of a row."""
    return mask.reshape(*mask.shape, *(1,) * (rank - mask.dim()))


def _doubt(table: Lanes, mask: Any) -> None:
    table.device.doubts.append(mask.any())


def convert(target: Lanes, values: Lanes, source: DType, wanted: DType) -> None:
    """Write values of a dtype to an array of another."""
    if wanted is source:
        target.tensor.copy_(values.tensor)
    else:
        dtypes.store(target, f32(values, source), wanted)  # type: ignore[arg-type]
