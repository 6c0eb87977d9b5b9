"""The bytes of a storage while a kernel runs, and what is known about them.

A memory starts as poison. It knows which elements were written (for `uninitialised`), and for PSUM
which were written by a matmul (for `accumulate=None`). Both are kept lazily: most tiles are written
whole at once and never need a map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..errors import error
from ..storage import PSUM, Storage
from ..view import View

FRESH, PARTIAL, FULL = 0, 1, 2
_COVERS: dict[int, bool] = {}


def covers(view: View) -> bool:
    """`view.covers_storage()`, remembered per signature."""
    if not view.storage.on_chip:
        return view.covers_storage()
    found = _COVERS.get(view.sig)
    if found is None:
        if len(_COVERS) > 1 << 16:
            _COVERS.clear()
        found = _COVERS[view.sig] = view.covers_storage()
    return found


# Freed tiles, by size: a loop that allocates a tile per iteration keeps using the same warm pages.
_free: dict[int, list[np.ndarray]] = {}
_FREE_PER_SIZE = 16


def _take(storage: Storage) -> np.ndarray:
    free = _free.get(storage.nbytes) if storage.on_chip else None
    try:
        return free.pop() if free else np.empty(storage.nbytes, np.uint8)
    except IndexError:  # another thread took the last one
        return np.empty(storage.nbytes, np.uint8)


def _give_back(raw: np.ndarray) -> None:
    free = _free.setdefault(raw.nbytes, [])
    if len(free) < _FREE_PER_SIZE:
        free.append(raw)


class ElementMap:
    """A flag per element of a storage, seen through the storage's views."""

    __slots__ = ("flags", "granule")

    def __init__(self, storage: Storage):
        self.granule = storage.dtype.itemsize
        self.flags = np.zeros(storage.nbytes // self.granule, np.bool_)

    def region(self, view: View, shift: int = 0) -> np.ndarray:
        """The flags of a view, writable. Views of another width get a trailing axis of bytes."""
        width = view.dtype.itemsize
        if width == self.granule:
            return np.ndarray(view.shape, np.bool_, self.flags, view.offset + shift // width, view.strides)
        if self.granule != 1:
            self.flags = np.repeat(self.flags, self.granule)
            self.granule = 1
        strides = (*(s * width for s in view.strides), 1)
        return np.ndarray((*view.shape, width), np.bool_, self.flags, view.offset * width + shift, strides)


class Memory:
    """The bytes of one storage."""

    __slots__ = ("storage", "raw", "arrays", "floats", "state", "map", "missing", "matmul", "borrowed", "changed", "owner")

    def __init__(self, storage: Storage, raw: np.ndarray | None = None, owner: Any = None):
        self.storage = storage
        self.borrowed = raw is not None  # the bytes are the caller's until the first write
        self.changed = False
        self.raw = _take(storage) if raw is None else raw
        self.state = FRESH if raw is None else FULL
        self.arrays: dict[int, np.ndarray] = {}
        self.floats: dict[int, np.ndarray] = {}
        self.map: ElementMap | None = None
        self.missing = 0
        self.matmul: ElementMap | bool = False
        self.owner = owner  # told when the bytes are given up

    # ---- arrays ----------------------------------------------------------------------------------

    def array(self, view: View, shift: int = 0) -> np.ndarray:
        """The numpy array of a view, `shift` bytes further on (run-time offsets)."""
        if shift or not view.storage.on_chip:
            return self._build(view, shift)
        array = self.arrays.get(view._sig or view.sig)
        if array is None:
            array = self.arrays[view.sig] = self._build(view, 0)
        return array

    def _build(self, view: View, shift: int) -> np.ndarray:
        width = view.dtype.itemsize
        strides = [s * width for s in view.strides]
        return np.ndarray(view.shape, view.dtype.storage, self.raw, view.offset * width + shift, strides)

    def read(self, view: View, shift: int = 0, where: Any = None) -> np.ndarray:
        """The array to read a view through. `where` (a mask, or rows): only these elements count."""
        if self.state != FULL:
            self._check_written(view, shift, where)
        return self.array(view, shift)

    def read_float32(self, view: View, shift: int = 0) -> np.ndarray:
        """Like `read`, widened to float32. The widened copy serves until the next write."""
        array = self.read(view, shift)
        if array.dtype == np.float32:
            return array
        if shift:
            return dtypes.f32(array, view.dtype)
        wide = self.floats.get(view.sig)
        if wide is None:
            wide = self.floats[view.sig] = dtypes.f32(array, view.dtype)
        return wide

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: Any = None) -> np.ndarray:
        """The array to write a view through. The caller will write all of it.

        Or all of `where`: a mask, or rows of the view without duplicates. The rest stays as it was.
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

    def _own(self) -> None:
        """Leave the caller's bytes alone from the first write on."""
        self.raw = self.raw.copy()
        self.borrowed = False
        self.arrays.clear()

    def released(self) -> None:
        """No tensor refers to the bytes any more."""
        if self.owner is not None:
            self.owner.storage_released(self.storage)
        if self.storage.on_chip and not self.borrowed:
            self.arrays.clear()
            _give_back(self.raw)

    # ---- what was written ------------------------------------------------------------------------

    def poison(self) -> None:
        """Fill everything with what fresh memory reads as, and forget that anything was written."""
        whole = self.raw.view(self.storage.dtype.storage)
        whole[...] = dtypes.poison(self.storage.dtype)
        self.map = ElementMap(self.storage)
        self.missing = self.map.flags.size
        self.state = PARTIAL

    def renew(self) -> None:
        """Be fresh memory again: poison until the next write."""
        self.state, self.map, self.matmul = FRESH, None, False
        self.floats.clear()

    def _mark_written(self, view: View, shift: int, where: Any = None) -> None:
        if where is None and not shift and covers(view):
            self.state, self.map = FULL, None
            return
        if self.state == FRESH:
            self.poison()
        region = self._region(view, shift)
        before = region if where is None else region[where]
        self.missing -= before.size - int(np.count_nonzero(before))
        region[... if where is None else where] = True
        if self.missing <= 0:
            self.state, self.map = FULL, None

    def _check_written(self, view: View, shift: int, where: Any = None) -> None:
        if not self.is_written(view, shift, where):
            report_uninitialised(view)

    def is_written(self, view: View, shift: int = 0, where: Any = None) -> bool:
        """True when somebody wrote all of it; what nobody wrote reads as poison from now on."""
        if self.state == FULL:
            return True
        if self.state == FRESH:
            self.poison()
        region = self._region(view, shift)
        return bool((region if where is None else region[where]).all())

    def _region(self, view: View, shift: int) -> np.ndarray:
        """The written flags of a view; `missing` follows when they become flags of bytes."""
        assert self.map is not None
        granule = self.map.granule
        region = self.map.region(view, shift)
        if self.map.granule != granule:
            self.missing *= granule
        return region

    # ---- PSUM accumulation (isa_tensor.md) -------------------------------------------------------

    def matmul_written(self, view: View) -> Any:
        """True or False where all elements agree, else a mask: which elements a matmul wrote."""
        if self.matmul is False or self.matmul is True:
            return self.matmul
        region = self.matmul.region(view)
        count = int(np.count_nonzero(region))
        if count == 0 or count == region.size:
            return count != 0
        return region[..., 0].copy() if region.ndim > len(view.shape) else region.copy()

    def set_matmul(self, view: View, flag: bool, where: Any = None, shift: int = 0) -> None:
        if where is None and not shift and covers(view):
            self.matmul = flag
            return
        if self.matmul is flag:
            return
        if not isinstance(self.matmul, ElementMap):
            everywhere = self.matmul
            self.matmul = ElementMap(self.storage)
            self.matmul.flags[...] = everywhere
        self.matmul.region(view, shift)[... if where is None else where] = flag


class PlacedMemory(Memory):
    """A storage with an explicit `address=`: a rectangle of the core's physical memory."""

    __slots__ = ("chip",)

    def __init__(self, storage: Storage, chip: ChipMemory, owner: Any = None):
        super().__init__(storage, chip.raw, owner)
        self.chip = chip
        self.borrowed = False
        chip.live.append(self)

    def _build(self, view: View, shift: int) -> np.ndarray:
        assert self.storage.address is not None
        width = view.dtype.itemsize
        partition, free = divmod(view.offset, view.row_pitch)
        first, byte = self.storage.address
        pitch = self.chip.pitch
        start = (first + partition) * pitch + byte + free * width + shift
        strides = [pitch, *(s * width for s in view.strides[1:])]
        return np.ndarray(view.shape, view.dtype.storage, self.raw, start, strides)

    def read(self, view: View, shift: int = 0, where: Any = None) -> np.ndarray:
        owners = self.chip.owners_of(self.storage, view, shift)
        if not (owners == self.storage.number).all():
            self._foreign_read(view, owners)
        return self.array(view, shift)

    def read_float32(self, view: View, shift: int = 0) -> np.ndarray:
        # other placed storages may share the bytes, so a widened copy could go stale
        return dtypes.f32(self.read(view, shift), view.dtype)

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: Any = None) -> np.ndarray:
        self.chip.owners_of(self.storage, view, shift)[...] = self.storage.number
        if self.storage.buffer is PSUM:
            for other in self.chip.live:
                if other is not self and other.matmul is not False and other._overlaps(self):
                    other._forget_matmuls(self, view, shift)
        if self.matmul is not False and not by_matmul:
            self.set_matmul(view, False, where, shift)
        return self.array(view, shift)

    def _overlaps(self, other: PlacedMemory) -> bool:
        (p0, b0), (p1, b1) = self.storage.address, other.storage.address  # type: ignore[misc]
        a, b = self.storage, other.storage
        return (
            p0 < p1 + b.partitions and p1 < p0 + a.partitions and b0 < b1 + b.pitch and b1 < b0 + a.pitch
        )

    def _forget_matmuls(self, writer: PlacedMemory, view: View, shift: int) -> None:
        """Another storage writes some of these bytes: what matmuls wrote there is gone."""
        assert self.storage.address is not None
        first, byte = self.storage.address
        touched = writer.bytes_of(view, shift)[byte : byte + self.storage.pitch]
        if not isinstance(self.matmul, ElementMap):
            self.matmul = ElementMap(self.storage)
            self.matmul.flags[...] = True
        top = view.start_partition - first
        rows = slice(max(top, 0), max(top + view.shape[0], 0))
        flags = self.matmul.flags.reshape(self.storage.partitions, -1)[rows]
        flags[:, touched.reshape(-1, self.matmul.granule).any(axis=1)] = False

    def bytes_of(self, view: View, shift: int) -> np.ndarray:
        """A flag per byte of a physical partition: which ones a view touches."""
        assert self.storage.address is not None
        width = view.dtype.itemsize
        flags = np.zeros(self.chip.pitch, np.bool_)
        start = self.storage.address[1] + view.free_offset * width + shift
        strides = [*(s * width for s in view.strides[1:]), 1]
        np.ndarray((*view.shape[1:], width), np.bool_, flags, start, strides)[...] = True
        return flags

    def is_written(self, view: View, shift: int = 0, where: Any = None) -> bool:
        return bool(self.chip.owners_of(self.storage, view, shift).all())

    def _foreign_read(self, view: View, owners: np.ndarray) -> None:
        from ..core import warn

        if not owners.all():
            report_uninitialised(view)
        else:
            warn(
                "stale-read",
                f"{self.storage.name or 'this tile'} is read, but its bytes were last written through "
                "another tensor at the same address",
                notes=[view.describe()],
                help="write it through this tensor first, or share one tensor object",
            )

    def released(self) -> None:
        self.chip.live.remove(self)
        if self.owner is not None:
            self.owner.storage_released(self.storage)


class ChipMemory:
    """The physical SBUF or PSUM of a core, made when the first tensor is placed in it."""

    def __init__(self, partitions: int, pitch: int):
        self.pitch = pitch
        self.raw = np.empty(partitions * pitch, np.uint8)
        self.raw.view(np.float32)[...] = np.nan
        # who wrote last, per 32-partition quadrant and byte; 0 is nobody
        self.owners = np.zeros((partitions // 32, pitch), np.int32)
        self.live: list[PlacedMemory] = []

    def owners_of(self, storage: Storage, view: View, shift: int) -> np.ndarray:
        assert storage.address is not None
        width = view.dtype.itemsize
        partition, free = divmod(view.offset, view.row_pitch)
        first, byte = storage.address
        partition += first
        start = byte + free * width + shift
        reach = sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True)) + 1
        last = partition + view.shape[0] - 1
        return self.owners[partition // 32 : last // 32 + 1, start : start + reach * width]


class WideMemory(Memory):
    """NKI_PRECISE_FP=0: a storage of a narrow float dtype that keeps float32 values.

    Views of the storage's own dtype see the float32 values. A view of another dtype sees the real
    bits, rounded when it is read and widened again after it was written.
    """

    __slots__ = ("pending",)

    def __init__(self, storage: Storage, raw: np.ndarray | None = None, owner: Any = None):
        values = None
        if raw is not None:
            values = dtypes.f32(raw.view(storage.dtype.storage), storage.dtype).copy().view(np.uint8)
        super().__init__(storage, np.empty(0, np.uint8) if values is None else values, owner)
        if values is None:
            self.raw = np.empty(storage.nbytes // storage.dtype.itemsize * 4, np.uint8)
            self.state = FRESH
        self.borrowed = False
        self.pending: np.ndarray | None = None

    def array(self, view: View, shift: int = 0) -> np.ndarray:
        self._settle()
        if view.dtype == self.storage.dtype:
            width = view.dtype.itemsize
            strides = [s * 4 for s in view.strides]
            start = (view.offset + shift // width) * 4
            return np.ndarray(view.shape, np.float32, self.raw, start, strides)
        self.pending = dtypes.cast(self.raw.view(np.float32), self.storage.dtype).view(np.uint8)
        width = view.dtype.itemsize
        strides = [s * width for s in view.strides]
        return np.ndarray(view.shape, view.dtype.storage, self.pending, view.offset * width + shift, strides)

    def _settle(self) -> None:
        """Take over what was written through a view of another dtype."""
        if self.pending is not None:
            bits = self.pending.view(self.storage.dtype.storage)
            now = dtypes.cast(self.raw.view(np.float32), self.storage.dtype)
            changed = dtypes.bits(bits) != dtypes.bits(now)
            self.raw.view(np.float32)[changed] = dtypes.f32(bits, self.storage.dtype)[changed]
            self.pending = None

    def read_float32(self, view: View, shift: int = 0) -> np.ndarray:
        return dtypes.f32(self.read(view, shift), view.dtype)

    def renew(self) -> None:
        super().renew()
        self.pending = None

    def poison(self) -> None:
        self.raw.view(np.float32)[...] = np.nan
        self.map = ElementMap(self.storage)
        self.missing = self.map.flags.size
        self.state = PARTIAL


def report_uninitialised(view: View) -> None:
    from ..core import warn

    what = f"'{view.storage.name}'" if view.storage.name else "a tensor"
    warn(
        "uninitialised",
        f"{what} is read, but part of it was never written",
        notes=[f"{view.describe()}; it holds poison (NaN)"],
        help="write it first (nisa.memset, nisa.dma_copy), or read only the part that was written",
    )


def out_of_range(view: View, message: str) -> Exception:
    return error("index", message, notes=[view.describe_layout()])
