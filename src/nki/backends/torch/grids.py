"""Grids: equal operands of many instructions as one strided or gathered part of memory.

An `OperandGrid` has the location of one operand of each instruction of a step: elements of one memory (the
arena, a storage), with the same shape and strides for all, and an offset for each. Offsets that are regular
in one to four dimensions are strides of a view; others are an index, and their elements are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ...ir.layout import row_major
from ...ir.storage import Storage
from ...machine.dtypes import DType
from ..fused.emission import locate
from ..fused.values import Elements

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice


DIMENSIONS = 4  # in which the members of a step may be regular


class OperandLayout(NamedTuple):
    """What the operands of one step have in common: memory (None: the arena), shape, strides and dtype."""

    memory: Storage | str | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: DType


class OperandGrid:
    """An operand of every member of a step."""

    __slots__ = ("layout", "offsets", "count", "steps", "_factors", "_index")

    def __init__(self, layout: OperandLayout, offsets: Sequence[int] | np.ndarray):
        self.layout = layout
        self.offsets = np.asarray(offsets, np.int64)
        self.count = len(self.offsets)
        self.steps: dict[tuple[int, ...], tuple[int, ...] | None] = {}
        self._factors: tuple[int, ...] | None = ()  # not known yet
        self._index: dict[Any, Any] = {}

    def part(self, start: int, stop: int) -> OperandGrid:
        """Return the grid of some members."""
        return OperandGrid(self.layout, self.offsets[start:stop])

    @property
    def nbytes(self) -> int:
        return self.count * prod(self.layout.shape) * int(self.layout.dtype.itemsize)

    def regular(self, lead: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the strides of the members as an array of this shape; None: they are not regular."""
        if lead not in self.steps:
            self.steps[lead] = _strides(self.offsets.reshape(lead))
        return self.steps[lead]

    def tensor_layout(self, lead: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape and strides of the tensor of all members: of a view, or of new memory."""
        shape, front = (*lead, *self.layout.shape), self.regular(lead)
        return shape, row_major(shape) if front is None else (*front, *self.layout.strides)

    def factors(self) -> tuple[int, ...] | None:
        """Return a shape of a few dimensions in which the members are regular, or None."""
        if self._factors == ():
            self._factors = _factors(self.offsets, DIMENSIONS)
        return self._factors

    def index(self, torch: ModuleType, device: TorchDevice) -> Any:
        """Return the offsets as a tensor on a device."""
        found = self._index.get(device)
        if found is None:
            found = self._index[device] = torch.from_numpy(self.offsets).to(device)
        return found

    def read(self, torch: ModuleType, memory: Tensor, lead: tuple[int, ...]) -> Any:
        """Return a tensor [*lead, *shape] of all members: a view where that is possible."""
        shape, strides = self.tensor_layout(lead)
        start = memory.storage_offset() + int(self.offsets[0])
        if self.regular(lead) is not None:
            return memory.as_strided(shape, strides, start)
        factors = self.factors()
        if factors is not None:  # a copy of a view takes less time than a gather
            return memory.as_strided(*self.tensor_layout(factors), start).reshape(shape).contiguous()
        return self._windows(memory)[self.index(torch, memory.device)].reshape(shape)

    def write(self, torch: ModuleType, memory: Tensor, values: Tensor) -> None:
        """Write a tensor [*lead, *shape] to the members."""
        shape = self.layout.shape
        self._windows(memory)[self.index(torch, memory.device)] = values.reshape(self.count, *shape)

    def _windows(self, memory: Tensor) -> Any:
        """Return a view of the memory with one row for every offset at which a member could begin."""
        shape = (int(self.offsets.max()) + 1, *self.layout.shape)
        return memory.as_strided(shape, (1, *self.layout.strides), memory.storage_offset())


def layout_of(elements: Elements) -> OperandLayout:
    where = locate(elements)
    width = elements.dtype.itemsize
    return OperandLayout(
        where.storage, where.shape, tuple([s // width for s in where.strides]), elements.dtype
    )


def offset_of(elements: Elements) -> int:
    return locate(elements).offset // elements.dtype.itemsize


def _strides(offsets: np.ndarray) -> tuple[int, ...] | None:
    steps = []
    wanted: np.ndarray = np.full((), offsets.flat[0])
    for dim, n in enumerate(offsets.shape):
        first = offsets[tuple(slice(0, 2) if d == dim else 0 for d in range(offsets.ndim))]
        step = int(first[1] - first[0]) if n > 1 else 0
        if step < 0:
            return None  # torch has no negative strides
        steps.append(step)
        wanted = wanted[..., None] + step * np.arange(n)
    return tuple(steps) if np.array_equal(wanted, offsets) else None


def _factors(offsets: np.ndarray, most: int) -> tuple[int, ...] | None:
    count = len(offsets)
    if count <= 2:
        return (count,) if count < 2 or offsets[1] >= offsets[0] else None
    steps = np.diff(offsets)
    breaks = np.flatnonzero(steps != steps[0])
    if not len(breaks):
        return (count,) if steps[0] >= 0 else None
    run = int(breaks[0]) + 1
    if most == 1 or count % run or steps[0] < 0:
        return None
    rows = offsets.reshape(-1, run)
    if not np.array_equal(rows - rows[:, :1], np.broadcast_to(rows[0] - rows[0, 0], rows.shape)):
        return None
    outer = _factors(rows[:, 0], most - 1)
    return None if outer is None else (*outer, run)


def common_lead(grids: Sequence[OperandGrid], count: int) -> tuple[int, ...]:
    """Return the shape for the members of a step in which most operands are regular, the largest first."""
    best: tuple[int, ...] = (count,)
    most = _regular_bytes(grids, best)
    if most == sum(grid.nbytes for grid in grids):
        return best
    for grid in grids:
        lead = grid.factors()
        if lead is not None and lead != best:
            fitting = _regular_bytes(grids, lead)
            if fitting > most:
                best, most = lead, fitting
    return best


def _regular_bytes(grids: Sequence[OperandGrid], lead: tuple[int, ...]) -> int:
    return sum(grid.nbytes for grid in grids if grid.regular(lead) is not None)


class Part(NamedTuple):
    """Members from `start` on whose operands are regular in the shape `lead`, at these distances."""

    start: int
    lead: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]  # of each dimension, for each operand

    @property
    def stop(self) -> int:
        return self.start + prod(self.lead)


PartShape = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]  # lead and steps of a Part


def regular_parts(grids: Sequence[OperandGrid], dims: int = DIMENSIONS) -> list[Part]:
    """Split members into parts in which all these grids are regular, in up to so many dimensions."""
    offsets = np.stack([grid.offsets for grid in grids], 1)
    starts, shapes = np.arange(len(offsets)), [cast(PartShape, ((), ()))] * len(offsets)
    for _ in range(dims):
        joined, shapes = _joined(shapes, offsets[starts])
        starts = starts[joined]
    found = zip(starts.tolist(), shapes, strict=True)
    return [Part(start, lead or (1,), steps) for start, (lead, steps) in found]


def _joined(shapes: list[PartShape], offsets: np.ndarray) -> tuple[list[int], list[PartShape]]:
    """Join neighbouring parts of one shape that follow each other at equal distances.

    `offsets` are those at which they begin. Returns the first one of each joined part, and its shape.
    """
    known: dict[PartShape, int] = {}
    kinds = np.array([known.setdefault(shape, len(known)) for shape in shapes])
    distances = np.diff(offsets, axis=0)
    fit = (kinds[1:] == kinds[:-1]) & (distances >= 0).all(1)
    changes = np.flatnonzero((distances[1:] != distances[:-1]).any(1) | ~fit[1:]) + 1
    ends = np.append(changes, len(distances))
    last = ends[np.searchsorted(ends, np.arange(len(distances)), "right")].tolist()
    firsts: list[int] = []
    found: list[PartShape] = []
    i = 0
    while i < len(shapes):
        firsts.append(i)
        (lead, steps), end = shapes[i], last[i] if i < len(fit) and fit[i] else i
        if end > i:
            lead, steps = (end - i + 1, *lead), (tuple(distances[i].tolist()), *steps)
        found.append((lead, steps))
        i = end + 1
    return firsts, found


GATHERED = 3 << 20  # bytes that are gathered in the time of one launch more in a graph


def worthwhile_parts(grids: Sequence[OperandGrid], launches: int) -> list[Part]:
    """Return the parts to split a step into, each of so many launches; one: gathering costs less."""
    parts = regular_parts(grids)
    gathered = sum(grid.nbytes for grid in grids)
    if len(parts) == 1 or len(parts) * launches * GATHERED <= gathered:
        return parts
    count = grids[0].count
    return [Part(0, common_lead(grids, count), ())]


def copy_strided(torch: ModuleType, into: Tensor, values: Tensor) -> None:
    """Copy a strided tensor; narrow elements four at a time, where they lie so."""
    if into.dtype == values.dtype and into.element_size() == 2:
        for dim in reversed(range(into.dim())):
            if into.stride(dim) == values.stride(dim) == 1 and into.shape[dim] % 4 == 0:
                wide_into = _in_fours(torch, into.movedim(dim, -1))
                wide_values = _in_fours(torch, values.movedim(dim, -1))
                if wide_into is not None and wide_values is not None:
                    into, values = wide_into, wide_values
                break
    into.copy_(values)


def _in_fours(torch: ModuleType, tensor: Tensor) -> Any:
    """Return a tensor of 2-byte elements as one of 8-byte elements; None: its addresses forbid it."""
    steps = (tensor.data_ptr() // 2, tensor.storage_offset(), *tensor.stride()[:-1])
    return None if any(step % 4 for step in steps) else tensor.view(torch.int64)


class GridCopy:
    """A copy of the members of one grid to those of another."""

    __slots__ = ("target", "source", "lead")

    def __init__(self, target: OperandGrid, source: OperandGrid, lead: tuple[int, ...]):
        self.target, self.source, self.lead = target, source, lead

    @property
    def is_strided(self) -> bool:
        """Whether the target is a strided view."""
        return self.target.regular(self.lead) is not None


def grid_copies(target: OperandGrid, source: OperandGrid) -> list[GridCopy]:
    """Return the copies of all members: strided ones, unless they are many small ones."""
    parts = worthwhile_parts([target, source], 1)
    if len(parts) == 1:
        return [GridCopy(target, source, parts[0].lead)]
    return [GridCopy(target.part(p.start, p.stop), source.part(p.start, p.stop), p.lead) for p in parts]
