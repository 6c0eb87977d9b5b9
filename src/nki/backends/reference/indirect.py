"""Run-time addresses: resolve indirect views when an instruction runs (spec/tensor.md 7, spec/isa_dma.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import error
from ...ir.instruction import Instruction
from ...ir.view import View
from .memories import memory_of
from .memory import FULL


def index_values(index: Any) -> np.ndarray:
    """Return the values of an index operand as 64-bit integers in stream order."""
    if isinstance(index, View):
        return np.asarray(memory_of(index).read(index)).astype(np.int64)
    return np.asarray([index.as_index()], np.int64)


def skips_out_of_bounds(instruction: Instruction) -> bool:
    mode = getattr(instruction, "oob_mode", None)
    return mode is not None and mode.name == "skip"


def _reach(view: View, first_dim: int) -> int:
    """Return the bytes from the start of the view's (row's) first element to the end of its last."""
    spans = zip(view.shape[first_dim:], view.strides[first_dim:], strict=True)
    return (sum((n - 1) * s for n, s in spans) + 1) * view.dtype.itemsize


def _index_note(index: object) -> list[str]:
    return [f"index: {index.describe()}"] if isinstance(index, View) else []


# ---- one index shifts the whole view -------------------------------------------------------------


def scalar_shift(view: View, instruction: Instruction) -> int | None:
    """Return by how many bytes a scalar index shifts a view; None: it is out of bounds and skipped."""
    ind = view.indirection
    assert ind is not None
    value = int(index_values(ind.index).reshape(-1)[0])
    shift = value * ind.scale
    width = view.dtype.itemsize
    if view.on_chip:
        room = view.storage.pitch - view.free_offset * width - _reach(view, 1)
    else:
        room = view.storage.nbytes - view.offset * width - _reach(view, 0)
    if value >= 0 and shift <= room:
        return shift
    if skips_out_of_bounds(instruction):
        return None
    limit = f"0 to {room // ind.scale} fit" if ind.scale and room >= 0 else "none fits"
    raise error(
        "index",
        f"{instruction.public}: run-time index {value} reaches outside the tensor, {limit}",
        notes=[view.describe_layout(), *_index_note(ind.index)],
        help="bound the index, or pass oob_mode=nisa.oob_mode.skip where the instruction takes it",
        site=instruction.site,
    )


# ---- a vector of indices selects rows ------------------------------------------------------------


class IndexedRows:
    """The rows of an HBM tensor that a vector of indices selects; `valid`: which are in bounds."""

    def __init__(self, view: View, instruction: Instruction):
        ind = view.indirection
        assert ind is not None
        self.view = view
        self.shape = tuple(view.shape)
        self.table = table_of(view)
        ids = _down_the_partitions(index_values(ind.index))[: view.shape[0]]
        self.ids = ids if ind.scale else np.minimum(ids, 0)  # every index selects a broadcast row
        self.valid = (self.ids >= 0) & (self.ids < self.table.shape[0])
        self.complete = bool(self.valid.all())
        if not self.complete and not skips_out_of_bounds(instruction):
            raise self._out_of_bounds(instruction)

    def _out_of_bounds(self, instruction: Instruction) -> Exception:
        row, count = int(np.argmin(self.valid)), self.table.shape[0]
        limit = f"0 to {count - 1} fit" if count else "none fits"
        ind, value = self.view.indirection, int(self.ids[row])
        assert ind is not None
        return error(
            "index",
            f"{instruction.public}: index {value} of row {row} reaches outside the tensor, {limit}",
            notes=[self.view.describe_layout(), *_index_note(ind.index)],
            help="bound the indices, or pass oob_mode=nisa.oob_mode.skip to leave such rows out",
            site=instruction.site,
        )

    def load(self) -> np.ndarray:
        """Return all rows; skipped ones are zeros, and the caller leaves them out (`valid`)."""
        ids = self.ids if self.complete else self.ids[self.valid]
        if not ids.size:
            return np.zeros(self.shape, self.view.dtype.storage)
        found = self._memory.read(self.table, where=ids)[ids]
        if self.complete:
            return found
        rows = np.zeros_like(found, shape=self.shape)
        rows[self.valid] = found
        return rows

    def store(self, values: np.ndarray) -> None:
        """Write the valid rows in order; of equal indices the last one wins."""
        values = values.reshape(self.shape)
        ids = self.ids
        if not self.complete:
            ids, values = ids[self.valid], values[self.valid]
        if not ids.size:
            return
        target = self._open(ids)
        if np.may_share_memory(target, values):
            values = values.copy()
        target[ids] = values

    def _open(self, ids: np.ndarray) -> np.ndarray:
        """Return the table to write to these rows, which may repeat or overlap."""
        memory, table = self._memory, self.table
        if memory.state == FULL:
            return memory.write(table)
        rows = np.unique(ids)
        if table.shape[0] * table.strides[0] and has_disjoint_rows(table):
            memory.write(table, where=rows)  # whole rows, none of them twice
            return memory.array(table)
        offsets = rows * table.strides[0]
        for count, stride in zip(table.shape[1:], table.strides[1:], strict=True):
            offsets = np.add.outer(offsets, np.arange(count) * stride)
        offsets = np.unique(offsets)
        flat = View(table.storage, table.offset, (int(offsets[-1]) + 1,), (1,), table.dtype)
        memory.write(flat, where=offsets)
        return memory.array(table)

    def has_duplicates(self) -> bool:
        ids = self.ids[self.valid]
        return len(np.unique(ids)) != len(ids)

    @property
    def _memory(self) -> Any:
        return memory_of(self.view)


def table_of(view: View) -> View:
    """Return a view of all HBM that indices in bounds address: row i belongs to index i.

    A vector of indices selects rows of the view, a scalar one a place for the whole view.
    """
    ind, width = view.indirection, view.dtype.itemsize
    assert ind is not None
    first = 1 if ind.kind == "vector" else 0
    room = view.storage.nbytes - view.offset * width - _reach(view, first)
    count = max(0, room // ind.scale + 1) if ind.scale else 1
    shape, strides = (count, *view.shape[first:]), (ind.scale // width, *view.strides[first:])
    return View(view.storage, view.offset, shape, strides, view.dtype)


def has_disjoint_rows(table: View) -> bool:
    """Return whether different indices select different bytes, and no row has a byte twice."""
    reach = 1
    for stride, count in sorted(zip(table.strides[1:], table.shape[1:], strict=True)):
        if count > 1:
            if stride < reach:
                return False
            reach = stride * (count - 1) + reach
    return table.strides[0] >= reach


def _down_the_partitions(ids: np.ndarray) -> np.ndarray:
    """Return an index tile as one list: the partitions of its first column, then of the next."""
    return ids.reshape(-1) if ids.ndim == 1 else ids.reshape(ids.shape[0], -1).T.reshape(-1)


# ---- an index tile selects columns (trn3) --------------------------------------------------------


def _columns(view: View, instruction: Instruction) -> np.ndarray:
    """Return the free offsets (P, num_elem) that a tensor indirection addresses (spec/tensor.md 7.5)."""
    ind = view.indirection
    assert ind is not None and ind.base is not None
    group = 32 if instruction.runs_on is not None and instruction.runs_on.name == "tensor" else 16
    index = index_values(ind.index)
    index = index.reshape(index.shape[0], -1)
    partitions, count = view.shape
    if count > group * index.shape[1]:
        raise error(
            "shape",
            f"{instruction.public}: {count} elements requested from an index tile that holds "
            f"{group * index.shape[1]} per group of {group} partitions",
            notes=[f"index: {ind.index.describe()}"],
            help="pass num_elem to .indirect()",
            site=instruction.site,
        )
    i = np.arange(count)
    rows = (np.arange(partitions) // group * group)[:, None] + i % group
    if rows[-1].max() >= index.shape[0]:
        raise error(
            "shape",
            f"{instruction.public}: {count} elements need an index tile of {rows[-1].max() + 1} partitions, "
            f"it has {index.shape[0]}",
            notes=[f"index: {ind.index.describe()}"],
            help=f"each group of {group} partitions reads its indices from {group} partitions",
            site=instruction.site,
        )
    columns = index[rows, i // group]
    _check_columns(columns, ind.base, ind.index, instruction)
    return columns


def _check_columns(columns: np.ndarray, base: View, index: View, instruction: Instruction) -> None:
    outside = (columns < 0) | (columns >= base.free_elements)
    if outside.any():
        raise error(
            "index",
            f"{instruction.public}: indirect offset {int(columns[outside][0])} is outside the "
            f"{base.free_elements} elements of a partition",
            notes=[base.describe(), f"index: {index.describe()}"],
            site=instruction.site,
        )


def _base(view: View) -> Any:
    assert view.indirection is not None
    return view.indirection.base


def _elements(view: View, instruction: Instruction) -> tuple[np.ndarray, ...]:
    """Return one index array per dimension of the base view, in stream order of the indirect one."""
    columns = _columns(view, instruction)
    base = _base(view)
    partition = np.repeat(np.arange(columns.shape[0]), columns.shape[1])
    return (partition, *np.unravel_index(columns.reshape(-1), tuple(base.shape[1:])))


def gather_columns(view: View, instruction: Instruction) -> np.ndarray:
    """Return the elements that an indirect input selects, as a new array of the view's shape."""
    base = _base(view)
    selected = _elements(view, instruction)
    return memory_of(base).read(base, where=selected)[selected].reshape(view.shape)


def scatter_columns(view: View, instruction: Instruction, values: np.ndarray) -> None:
    """Write elements to those that an indirect dst selects; of equal offsets the last one wins."""
    base = _base(view)
    selected = _elements(view, instruction)
    touched = np.zeros(base.shape, np.bool_)
    touched[selected] = True
    memory_of(base).write(base, where=touched)[selected] = values.reshape(-1)


def accumulate_columns(view: View, instruction: Any) -> tuple[np.ndarray, Any, Any]:
    """Return what the dst of a matmul holds, which of it matmuls wrote (None: none), and the store."""
    base = _base(view)
    memory, selected = memory_of(base), _elements(view, instruction)
    initialised = memory.is_written(base, where=selected)
    written = memory.matmul_written(base)
    if not isinstance(written, bool):
        written = written[selected].reshape(view.shape)
        written = bool(written.all()) if written.all() or not written.any() else written
    if instruction.accumulate and written is not True and not initialised:
        written = None
    values = memory.array(base)[selected].reshape(view.shape)

    def store() -> None:
        touched = np.zeros(base.shape, np.bool_)
        touched[selected] = True
        memory.write(base, by_matmul=True, where=touched)[selected] = values.reshape(-1)
        memory.set_matmul(base, not instruction.is_transpose, where=touched)

    return values, written, store
