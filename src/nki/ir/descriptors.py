"""How a DMA is cut into descriptors: one per piece that is contiguous on both sides (spec/machine.md 9.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir.view import View


class Descriptors(NamedTuple):
    """`partitions` (or HBM rows) from `first` on move `per_partition` pieces of `nbytes` each.

    The pieces of `joined` neighbouring partitions follow one another in HBM: one run of memory.
    """

    first: int
    partitions: int
    nbytes: int
    per_partition: int
    joined: int = 1


def kind(view: View) -> str | None:
    """ "scalar" or "vector" for a view with a run-time address."""
    return None if view.indirection is None else view.indirection.kind


def elem_bytes(dst: View, src: View) -> int:
    """Bytes an element counts for: a cast is charged the wider side (spec/machine.md 9.5)."""
    return max(dst.dtype.itemsize, src.dtype.itemsize)


def contiguous_run(view: View) -> int:
    """Elements that lie side by side before the address jumps; partitions and index rows are jumps."""
    first = 1 if view.on_chip or kind(view) == "vector" else 0
    run = 1
    for count, stride in zip(reversed(view.shape[first:]), reversed(view.strides[first:]), strict=True):
        if count > 1:
            if stride != run:
                break
            run *= count
    return run


def _owner(dst: View, src: View) -> View:
    """The side whose rows are dealt to the DMA engines: the one in SBUF, else dst."""
    return src if src.on_chip and not dst.on_chip else dst


def pieces(dst: View, src: View) -> list[Descriptors]:
    """A stream breaks wherever either side does; between HBM tensors also at each row of dst."""
    owner = _owner(dst, src)
    other = src if owner is dst else dst
    rows = owner.shape[0] if owner.ndim > 1 else 1
    row = owner.size // rows
    first = owner.start_partition if owner.on_chip else 0
    a, b = min(contiguous_run(owner), row), contiguous_run(other)
    width = elem_bytes(dst, src)
    if a % b == 0 or b % a == 0:
        piece = min(a, b)
        return [Descriptors(first, rows, piece * width, row // piece, max(1, b // row))]
    return [
        Descriptors(first + begin, many, size * width, count)
        for size, begin, many, count in _uneven(owner.size, row, a, b)
    ]


def _uneven(size: int, row: int, a: int, b: int) -> list[tuple[int, int, int, int]]:
    """(piece size, first row, rows, pieces per row) when breaks every `a` and every `b` interleave."""
    starts = np.union1d(np.arange(0, size, a), np.arange(0, size, b))
    sizes = np.diff(starts, append=size)
    found = []
    for piece in np.unique(sizes):
        counts = np.bincount(starts[sizes == piece] // row, minlength=size // row)
        begins = np.flatnonzero(np.diff(counts, prepend=-1))
        ends = np.append(begins[1:], len(counts))
        spans = zip(begins, ends, strict=True)
        found += [(int(piece), int(i), int(j - i), int(counts[i])) for i, j in spans if counts[i]]
    return found
