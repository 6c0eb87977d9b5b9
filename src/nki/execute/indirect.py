"""Run-time addresses: what an indirect view means when its instruction runs (tensor.md 7, isa_dma.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import error
from ..program import Instruction
from ..view import View

if TYPE_CHECKING:
    from .memory import Memory


def index_values(index: Any) -> np.ndarray:
    """The values of an index operand, as Python-sized integers in stream order."""
    if isinstance(index, View):
        assert index.storage.memory is not None
        return index.storage.memory.read(index).astype(np.int64)
    return np.asarray([index.as_index()], np.int64)


def skips_out_of_bounds(instruction: Instruction) -> bool:
    mode = getattr(instruction, "oob_mode", None)
    return mode is not None and mode.name == "skip"


def _reach(view: View, first_dim: int) -> int:
    """Bytes from the start of the view's (row's) first element to the end of its last."""
    spans = zip(view.shape[first_dim:], view.strides[first_dim:], strict=True)
    return (sum((n - 1) * s for n, s in spans) + 1) * view.dtype.itemsize


def scalar_shift(view: View, instruction: Instruction) -> int | None:
    """Bytes by which a scalar index moves a view; None when it is out of bounds and may be skipped."""
    ind = view.indirection
    assert ind is not None
    value = int(index_values(ind.index).reshape(-1)[0])
    shift = value * ind.scale
    width = view.dtype.itemsize
    if view.on_chip:
        start = view.free_offset * width + shift
        inside = value >= 0 and start + _reach(view, 1) <= view.storage.pitch
    else:
        start = view.offset * width + shift
        inside = value >= 0 and start + _reach(view, 0) <= view.storage.nbytes
    if inside:
        return shift
    if skips_out_of_bounds(instruction):
        return None
    raise error(
        "index",
        f"{instruction.public}: run-time index {value} reaches outside the tensor",
        notes=[view.describe_layout(), *_index_note(ind.index)],
        help="bound the index, or pass oob_mode=nisa.oob_mode.skip where the instruction takes it",
        site=instruction.site,
    )


def _index_note(index: Any) -> list[str]:
    return [f"index: {index.describe()}"] if isinstance(index, View) else []


class Rows:
    """The rows of an HBM tensor that a vector of indices names; reads and writes leave out skipped ones."""

    def __init__(self, view: View, memory: Memory, instruction: Instruction):
        ind = view.indirection
        assert ind is not None
        self.view = view
        self.memory = memory
        ids = index_values(ind.index)
        if ids.ndim > 1 and ids.shape[1] > 1:  # dma_transpose: down the partitions first
            ids = ids.reshape(ids.shape[0], -1).T
        self.ids = ids.reshape(-1)[: view.shape[0]]
        width = view.dtype.itemsize
        starts = view.offset * width + self.ids * ind.scale
        self.valid = (self.ids >= 0) & (starts >= 0) & (starts + _reach(view, 1) <= view.storage.nbytes)
        if not self.valid.all() and not skips_out_of_bounds(instruction):
            row = int(np.argmin(self.valid))
            raise error(
                "index",
                f"{instruction.public}: index {int(self.ids[row])} in row {row} reaches outside the tensor",
                notes=[view.describe_layout(), *_index_note(ind.index)],
                help="bound the indices, or pass oob_mode=nisa.oob_mode.skip to leave such rows out",
                site=instruction.site,
            )
        self.starts = starts
        self.shape = tuple(view.shape)

    def _row_view(self, row: int) -> tuple[View, int]:
        view = self.view
        single = View(view.storage, view.offset, view.shape[1:] or (1,), view.strides[1:] or (1,), view.dtype)
        return single, int(self.starts[row]) - view.offset * view.dtype.itemsize

    def load(self) -> np.ndarray:
        """All rows; skipped ones hold zeros and must be left out by the caller (`valid`)."""
        out = np.zeros(self.shape, self.view.dtype.storage)
        for row in np.flatnonzero(self.valid):
            out[row] = self.memory.read(*self._row_view(row)).reshape(self.shape[1:])
        return out

    def store(self, values: np.ndarray) -> None:
        """Write the valid rows in order; of equal indices the last wins."""
        for row in np.flatnonzero(self.valid):
            target = self.memory.write(*self._row_view(row))
            target[...] = values[row].reshape(target.shape)


def _columns(view: View, instruction: Instruction) -> np.ndarray:
    """Free offsets (P, num_elem) that a tensor indirection addresses (tensor.md 7.5)."""
    ind = view.indirection
    assert ind is not None and ind.base is not None
    group = 32 if instruction.runs_on is not None and instruction.runs_on.name == "tensor" else 16
    index = index_values(ind.index)
    index = index.reshape(index.shape[0], -1)
    count, partitions = view.shape[1], view.shape[0]
    if count > group * index.shape[1]:
        raise error(
            "shape",
            f"{instruction.public}: {count} elements asked of an index tile that holds "
            f"{group * index.shape[1]} per group of {group} partitions",
            notes=[ind.index.describe()],
            help="pass num_elem to .indirect()",
            site=instruction.site,
        )
    i = np.arange(count)
    rows = (np.arange(partitions) // group * group)[:, None] + i % group
    rows = np.minimum(rows, index.shape[0] - 1)
    columns = index[rows, i // group]
    size = ind.base.free_elements
    if ((columns < 0) | (columns >= size)).any():
        bad = int(columns[(columns < 0) | (columns >= size)][0])
        raise error(
            "index",
            f"{instruction.public}: indirect offset {bad} is outside the {size} elements of a partition",
            notes=[ind.base.describe(), f"index: {ind.index.describe()}"],
            site=instruction.site,
        )
    return columns


def gather_columns(view: View, memory: Memory, instruction: Instruction) -> np.ndarray:
    base = view.indirection.base  # type: ignore[union-attr]
    flat = memory.read(base).reshape(base.shape[0], -1)
    return np.take_along_axis(flat, _columns(view, instruction), axis=1)


def scatter_columns(view: View, memory: Memory, instruction: Instruction, values: np.ndarray) -> None:
    base = view.indirection.base  # type: ignore[union-attr]
    target = memory.write(base)
    flat = target.reshape(base.shape[0], -1).copy()
    columns = _columns(view, instruction)
    for i in range(columns.shape[1]):  # in order, so that of equal offsets the highest i wins
        np.put_along_axis(flat, columns[:, i : i + 1], values[:, i : i + 1], axis=1)
    target[...] = flat.reshape(target.shape)
