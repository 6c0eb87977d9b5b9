"""NKI_PRECISE_FP=0: narrow floats keep float32 values (spec/language.md 6.5).

Every view of a narrow float dtype is float32, every other view is the real bits. A storage of a narrow dtype
holds its values beside the bytes: a view of another dtype reads them rounded, and what is written through
one is converted back into the values. The whole storage is converted each time: this mode is for studying
rounding, not for speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.layout import row_major
from ...ir.storage import Storage
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType
from .memory import ElementMap, Memory
from .placed import PlacedMemory

NARROW = ("float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")


class _Unrounded(Memory):
    """A storage of any dtype; `values` is authoritative for views of a narrow storage dtype."""

    values: np.ndarray | None  # float32, one per element of the storage
    synced: np.ndarray  # the bits when values and bytes last agreed
    ahead: bool  # values were written since
    face: tuple[DType, np.ndarray, np.ndarray] | None  # another narrow dtype as float32; now and before

    def __init__(self, storage: Storage, source: Any = None):
        super().__init__(storage, source)
        self.values, self.synced, self.ahead, self.face = None, np.empty(0), False, None

    def array(self, view: View, shift: int = 0) -> np.ndarray:
        self.merge_face()
        if view.dtype == self.storage.dtype and view.dtype in NARROW:
            return _part(self._load(), view, shift)
        self._round()
        if view.dtype not in NARROW:
            return super().array(view, shift)
        values = dtypes.f32(self._whole(view.dtype), view.dtype)
        self.face = (view.dtype, values, values.copy())
        return _part(values, view, shift)

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: object = None) -> np.ndarray:
        if self.storage.dtype in NARROW:
            if view.dtype == self.storage.dtype:
                self._load()
                self.ahead = True
            else:
                self._round_part(view, shift)
        return super().write(view, shift, by_matmul, where)

    def poison(self) -> None:
        super().poison()
        self.values, self.ahead, self.face = None, False, None

    def renew(self) -> None:
        super().renew()
        self.values, self.ahead, self.face = None, False, None

    def merge_face(self) -> None:
        """Store what was written through a view of another narrow float dtype."""
        if self.face is not None:
            dtype, values, before = self.face
            self.face = None
            changed = dtypes.bits(values) != dtypes.bits(before)
            if changed.any():
                whole = self._whole(dtype)
                whole[changed] = dtypes.cast(values[changed], dtype)

    def flush(self) -> None:
        """Write the values to the bytes, rounded."""
        self.merge_face()
        self._round()

    def _load(self) -> np.ndarray:
        """Return the values, updated with what was written to the bytes since."""
        bits = dtypes.bits(self._whole(self.storage.dtype))
        if self.values is None:
            self.values = dtypes.f32(self._whole(self.storage.dtype), self.storage.dtype).copy()
        else:
            changed = bits != self.synced
            if changed.any():
                fresh = dtypes.f32(self._whole(self.storage.dtype)[changed], self.storage.dtype)
                self.values[changed] = fresh
        self.synced = bits.copy()
        return self.values

    def _round(self) -> None:
        if self.ahead and self.values is not None:
            self.ahead = False
            whole = self._whole(self.storage.dtype)
            dtypes.store(whole, self.values, self.storage.dtype)
            self.synced = dtypes.bits(whole).copy()

    def _round_part(self, view: View, shift: int) -> None:
        """Round the elements of a view of another dtype that is about to be written."""
        self.flush()
        if self.values is not None:
            flags = ElementMap(self.storage)
            flags.set(view, shift, None, True)
            touched = flags.flags.reshape(*self.values.shape, -1).any(axis=-1)
            self.values[touched] = dtypes.f32(self._whole(self.storage.dtype)[touched], self.storage.dtype)

    def _whole(self, dtype: DType) -> np.ndarray:
        """Return every element of the storage, as real bits."""
        shape = (self.storage.partitions, self.storage.pitch // dtype.itemsize)
        return self._build(View(self.storage, 0, shape, row_major(shape), dtype), 0)


class UnroundedMemory(_Unrounded):
    """Without an explicit address."""


class UnroundedPlacedMemory(_Unrounded, PlacedMemory):
    """With an explicit address. Other tensors may share the bytes: they read them rounded."""

    def array(self, view: View, shift: int = 0) -> np.ndarray:
        for other in self.rivals():
            if isinstance(other, _Unrounded):
                other.flush()
        return super().array(view, shift)

    def _lose(self, first: int, last: int, byte: int, touched: np.ndarray) -> None:
        self.flush()
        super()._lose(first, last, byte, touched)

    def released(self) -> None:
        self.flush()
        super().released()


def _part(values: np.ndarray, view: View, shift: int) -> np.ndarray:
    """Return a view of the float32 values of a whole storage."""
    start = (view.offset + shift // view.dtype.itemsize) * 4
    return np.ndarray(view.shape, np.float32, values, start, [s * 4 for s in view.strides])
