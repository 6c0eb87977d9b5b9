"""The bytes of a storage while a kernel runs, and what is known about them.

A memory starts as poison. It knows which elements were written (for `uninitialised`), and for PSUM
which were written by a matmul (for `accumulate=None`). Both maps are made on demand: most tiles are written
whole at once and never need one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.caches import LRUCache
from ...ir.context import warn
from ...ir.storage import Storage
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType

FRESH, PARTIAL, FULL = 0, 1, 2
_COVERS: LRUCache[int, bool] = LRUCache(1 << 16)


def covers(view: View) -> bool:
    """Return `view.covers_storage()`, cached per signature."""
    if not view.storage.on_chip:
        return view.covers_storage()
    found = _COVERS.get(view.sig)
    if found is None:
        found = view.covers_storage()
        _COVERS.put(view.sig, found)
    return found


# Freed tiles, by size, with the arrays of the views that were used: a loop that allocates a tile per
# iteration keeps using the same warm pages. An array depends on nothing but the signature of its view.
_free: dict[int, list[tuple[np.ndarray, dict[int, np.ndarray]]]] = {}
_FREE_PER_SIZE = 16
_FREE_SIZES = 32
_FREE_VIEWS = 64
_SLAB = 4 << 20  # bytes from which numpy asks for huge pages: strided tiles then miss the TLB less
_LINE = 64  # bytes of a cache line: numpy adds aligned tiles twice as fast as others


def _take(storage: Storage) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    nbytes = storage.nbytes
    free = _free.get(nbytes) if storage.on_chip else None
    try:
        return free.pop() if free else (_fresh(nbytes, storage.on_chip), {})
    except IndexError:  # another thread took the last one
        return _fresh(nbytes, storage.on_chip), {}


def _fresh(nbytes: int, on_chip: bool) -> np.ndarray:
    """Return new bytes. Large tiles are cut from a slab; the rest of it is free for the next ones."""
    step = -(-nbytes // _LINE) * _LINE
    pieces = _SLAB // step if on_chip and nbytes >= 1 << 16 else 1
    slab = aligned(max(pieces, 1) * step)
    for i in range(1, pieces):
        _give_back(slab[i * step : i * step + nbytes], {})
    return slab[:nbytes]


def aligned(nbytes: int) -> np.ndarray:
    """Return new bytes, aligned to a cache line."""
    raw = np.empty(nbytes + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + nbytes]


def _give_back(raw: np.ndarray, arrays: dict[int, np.ndarray]) -> None:
    free = _free.get(raw.nbytes)
    if free is None:
        if len(_free) >= _FREE_SIZES:
            _free.clear()
        free = _free.setdefault(raw.nbytes, [])
    if len(arrays) > _FREE_VIEWS:
        arrays.clear()
    if len(free) < _FREE_PER_SIZE:
        free.append((raw, arrays))


class ElementMap:
    """A flag per element of a storage, seen through the storage's views."""

    __slots__ = ("flags", "granule", "rows", "missing")

    def __init__(self, storage: Storage, value: bool = False):
        self.granule = storage.dtype.itemsize  # bytes that share a flag
        self.rows = storage.partitions
        self.flags = np.full(storage.nbytes // self.granule, value)
        self.missing = 0 if value else self.flags.size

    def region(self, view: View, shift: int = 0) -> np.ndarray:
        """Return the flags of a view. Views of another width get a trailing axis of bytes."""
        width = view.dtype.itemsize
        if width == self.granule:
            return np.ndarray(view.shape, np.bool_, self.flags, view.offset + shift // width, view.strides)
        if self.granule != 1:
            self.flags = np.repeat(self.flags, self.granule)
            self.missing *= self.granule
            self.granule = 1
        strides = (*(s * width for s in view.strides), 1)
        return np.ndarray((*view.shape, width), np.bool_, self.flags, view.offset * width + shift, strides)

    def set(self, view: View, shift: int, where: Any, flag: bool) -> None:
        """Set the flags of a view, or of `where` in it: a mask, or indices without duplicates."""
        region = self.region(view, shift)
        before = region if where is None else region[where]
        ones = int(np.count_nonzero(before))
        self.missing += ones - before.size if flag else ones
        region[... if where is None else where] = flag

    def clear_bytes(self, rows: slice, start: int, touched: np.ndarray) -> None:
        """Clear the flags of some partitions where bytes are touched; the first is at `start`."""
        pitch = self.flags.size // self.rows * self.granule
        part = touched[max(0, -start) : max(0, pitch - start)]
        first, last = max(0, start), max(0, start) + part.size
        columns: Any = slice(first // self.granule, -(-last // self.granule))
        if not part.all():
            mask = np.zeros(pitch, np.bool_)
            mask[first:last] = part
            columns = mask.reshape(-1, self.granule).any(axis=1)
        region = self.flags.reshape(self.rows, -1)[rows]
        self.missing += int(np.count_nonzero(region[:, columns]))
        region[:, columns] = False


class Memory:
    """The bytes of one storage."""

    __slots__ = ("storage", "raw", "arrays", "floats", "state", "map", "matmul", "borrowed", "changed")

    def __init__(self, storage: Storage, raw: np.ndarray | None = None):
        self.storage = storage
        self.borrowed = raw is not None  # the bytes belong to the caller; the first write copies them
        self.changed = False
        self.arrays: dict[int, np.ndarray]
        self.raw, self.arrays = _take(storage) if raw is None else (raw, {})
        self.state = FRESH if raw is None else FULL
        self.floats: dict[int, np.ndarray] = {}
        self.map: ElementMap | None = None
        self.matmul: ElementMap | bool = False

    # ---- arrays ----------------------------------------------------------------------------------

    def array(self, view: View, shift: int = 0) -> np.ndarray:
        """Return the numpy array of a view, shifted by a run-time offset of `shift` bytes."""
        if shift or not view.storage.on_chip:
            return self._build(view, shift)
        array = self.arrays.get(view._sig or view.sig)
        if array is None:
            array = self.arrays[view.sig] = self._build(view, 0)
        return array

    def _build(self, view: View, shift: int) -> np.ndarray:
        width = view.dtype.itemsize
        strides = [s * width for s in view.strides]
        return self.part(view.shape, view.dtype, view.offset * width + shift, strides)

    def part(self, shape: Sequence[int], dtype: DType, start: int, strides: Sequence[int]) -> np.ndarray:
        """Return an array on the bytes, from a byte on; strides are in bytes."""
        return np.ndarray(shape, dtype.storage, self.raw, start, strides)

    def read(self, view: View, shift: int = 0, where: object = None) -> np.ndarray:
        """Return the array to read a view through. `where` (a mask, or indices): only these are read."""
        if self.state != FULL:
            self._check_written(view, shift, where)
        return self.array(view, shift)

    def read_float32(self, view: View, shift: int = 0) -> np.ndarray:
        """Return what `read` does, widened to float32. The widened copy is cached until the next write."""
        array = self.read(view, shift)
        if array.dtype == np.float32:
            return array
        if shift or not view.storage.on_chip:
            return dtypes.f32(array, view.dtype)
        wide = self.floats.get(view.sig)
        if wide is None:
            wide = self.floats[view.sig] = dtypes.f32(array, view.dtype)
        return wide

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: object = None) -> np.ndarray:
        """Return the array to write a view through. The caller writes all of it.

        Or all of `where`: a mask, or indices without duplicates. The other elements keep their values.
        """
        if self.state != FULL:
            self._mark_written(view, shift, where)
        if self.floats:
            self.floats.clear()
        if self.borrowed:
            self._own()
        if self.matmul is not False and not by_matmul:
            self.set_matmul(view, False, where, shift)
        self.changed = True
        return self.array(view, shift)

    def peek(self, view: View) -> np.ndarray:
        """Return the values for display: nothing is reported, poison shows as poison."""
        if self.state == FRESH:
            self.poison()
        return self.array(view)

    def _own(self) -> None:
        """Copy the caller's bytes before the first write."""
        self.raw = self.raw.copy()
        self.borrowed = False
        self.arrays.clear()

    def released(self) -> None:
        """Free the bytes: no tensor refers to them any more."""
        if self.storage.on_chip and not self.borrowed:
            _give_back(self.raw, self.arrays)

    # ---- what was written ------------------------------------------------------------------------

    def is_written(self, view: View, shift: int = 0, where: Any = None) -> bool:
        """Return whether all of a view was written; the rest reads as poison from now on."""
        if self.state == FULL:
            return True
        if self.state == FRESH:
            self.poison()
        assert self.map is not None
        region = self.map.region(view, shift)
        return bool((region if where is None else region[where]).all())

    def unwritten(self, view: View) -> np.ndarray | None:
        """Return which elements of a view were never written, for display; None: all were."""
        if self.is_written(view):
            return None
        assert self.map is not None
        region = self.map.region(view)
        return np.logical_not(region if region.ndim == len(view.shape) else region.all(-1))

    def poison(self) -> None:
        """Fill everything with poison."""
        dtype = self.storage.dtype
        whole = self.part((self.raw.nbytes // dtype.itemsize,), dtype, 0, (dtype.itemsize,))
        whole[...] = dtypes.poison(dtype)
        self.map = ElementMap(self.storage)
        self.state = PARTIAL

    def clear_unwritten(self) -> None:
        """Fill what was never written with zeros; it counts as written."""
        if self.state == FRESH:
            self.raw[...] = 0
        elif self.map is not None:
            self.raw.reshape(-1, self.map.granule)[~self.map.flags] = 0
        self.state, self.map = FULL, None

    def renew(self) -> None:
        """Become fresh memory again: poison until the next write."""
        self.state, self.map, self.matmul = FRESH, None, False
        self.floats.clear()

    def _mark_written(self, view: View, shift: int, where: object = None) -> None:
        if where is None and not shift and covers(view):
            self.state, self.map = FULL, None
            return
        if self.state == FRESH:
            self.poison()
        assert self.map is not None
        self.map.set(view, shift, where, True)
        if self.map.missing == 0:
            self.state, self.map = FULL, None

    def _check_written(self, view: View, shift: int, where: object) -> None:
        if not self.is_written(view, shift, where):
            warn(*uninitialised(view))

    # ---- PSUM accumulation (spec/isa_tensor.md) -------------------------------------------------------

    def matmul_written(self, view: View) -> Any:
        """Return which elements of a view a matmul wrote: True or False where all agree, else a mask."""
        if self.matmul is False or self.matmul is True:
            return self.matmul
        region = self.matmul.region(view)
        count = int(np.count_nonzero(region))
        if count == 0 or count == region.size:
            return count != 0
        return region[..., 0].copy() if region.ndim > len(view.shape) else region.copy()

    def set_matmul(self, view: View, flag: bool, where: object = None, shift: int = 0) -> None:
        if self.matmul is flag:
            return
        if where is None and not shift and covers(view):
            self.matmul = flag
        else:
            self._matmul_map().set(view, shift, where, flag)

    def _matmul_map(self) -> ElementMap:
        if not isinstance(self.matmul, ElementMap):
            self.matmul = ElementMap(self.storage, self.matmul)
        return self.matmul


def uninitialised(view: View, unwritten: str = "poison (NaN)") -> tuple[str, str, list[str], str]:
    """Return kind, message, notes and help of the diagnostic."""
    what = f"'{view.storage.name}'" if view.storage.name else "a tensor"
    return (
        "uninitialised",
        f"{what} is read, but part of it was never written",
        [f"{view.describe()}; what was not written is {unwritten}"],
        "write it first (nisa.memset, nisa.dma_copy), or read only the part that was written",
    )
