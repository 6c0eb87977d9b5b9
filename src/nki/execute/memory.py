"""The bytes of a storage while a kernel runs, and what is known about them.

A memory starts as poison. It knows which elements were written (for `uninitialised`), and for PSUM
which were written by a matmul (for `accumulate=None`). Both are kept lazily: most tiles are written
whole at once and never need a map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..storage import Storage
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
_FREE_SIZES = 32


def _take(storage: Storage) -> np.ndarray:
    free = _free.get(storage.nbytes) if storage.on_chip else None
    try:
        return free.pop() if free else np.empty(storage.nbytes, np.uint8)
    except IndexError:  # another thread took the last one
        return np.empty(storage.nbytes, np.uint8)


def _give_back(raw: np.ndarray) -> None:
    free = _free.get(raw.nbytes)
    if free is None:
        if len(_free) >= _FREE_SIZES:
            _free.clear()
        free = _free.setdefault(raw.nbytes, [])
    if len(free) < _FREE_PER_SIZE:
        free.append(raw)


class ElementMap:
    """A flag per element of a storage, seen through the storage's views."""

    __slots__ = ("flags", "granule", "rows", "missing")

    def __init__(self, storage: Storage, value: bool = False):
        self.granule = storage.dtype.itemsize  # bytes that share a flag
        self.rows = storage.partitions
        self.flags = np.full(storage.nbytes // self.granule, value)
        self.missing = 0 if value else self.flags.size

    def region(self, view: View, shift: int = 0) -> np.ndarray:
        """The flags of a view. Views of another width get a trailing axis of bytes."""
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
        """Clear the flags of some partitions where bytes are touched; the first stands at `start`."""
        pitch = self.flags.size // self.rows * self.granule
        mask = np.zeros(pitch, np.bool_)
        part = touched[max(0, -start) : max(0, pitch - start)]
        mask[max(0, start) : max(0, start) + part.size] = part
        region = self.flags.reshape(self.rows, -1)[rows]
        columns = mask.reshape(-1, self.granule).any(axis=1)
        self.missing += int(np.count_nonzero(region[:, columns]))
        region[:, columns] = False


class Memory:
    """The bytes of one storage."""

    __slots__ = (
        "storage",
        "raw",
        "arrays",
        "floats",
        "state",
        "map",
        "matmul",
        "borrowed",
        "changed",
        "owner",
    )

    def __init__(self, storage: Storage, raw: np.ndarray | None = None, owner: Any = None):
        self.storage = storage
        self.borrowed = raw is not None  # the bytes are the caller's until the first write
        self.changed = False
        self.raw = _take(storage) if raw is None else raw
        self.state = FRESH if raw is None else FULL
        self.arrays: dict[int, np.ndarray] = {}
        self.floats: dict[int, np.ndarray] = {}
        self.map: ElementMap | None = None
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
        """The array to read a view through. `where` (a mask, or indices): only these elements count."""
        if self.state != FULL:
            self._check_written(view, shift, where)
        return self.array(view, shift)

    def read_float32(self, view: View, shift: int = 0) -> np.ndarray:
        """Like `read`, widened to float32. The widened copy serves until the next write."""
        array = self.read(view, shift)
        if array.dtype == np.float32:
            return array
        if shift or not view.storage.on_chip:
            return dtypes.f32(array, view.dtype)
        wide = self.floats.get(view.sig)
        if wide is None:
            wide = self.floats[view.sig] = dtypes.f32(array, view.dtype)
        return wide

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: Any = None) -> np.ndarray:
        """The array to write a view through. The caller will write all of it.

        Or all of `where`: a mask, or indices without duplicates. The rest stays as it was.
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
        """The values for a person to look at: nothing is reported, poison shows as poison."""
        if self.state == FRESH:
            self.poison()
        return self.array(view)

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

    def is_written(self, view: View, shift: int = 0, where: Any = None) -> bool:
        """True when somebody wrote all of it; what nobody wrote reads as poison from now on."""
        if self.state == FULL:
            return True
        if self.state == FRESH:
            self.poison()
        assert self.map is not None
        region = self.map.region(view, shift)
        return bool((region if where is None else region[where]).all())

    def poison(self) -> None:
        """Fill everything with what fresh memory reads as."""
        whole = self.raw.view(self.storage.dtype.storage)
        whole[...] = dtypes.poison(self.storage.dtype)
        self.map = ElementMap(self.storage)
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
        assert self.map is not None
        self.map.set(view, shift, where, True)
        if self.map.missing == 0:
            self.state, self.map = FULL, None

    def _check_written(self, view: View, shift: int, where: Any) -> None:
        if not self.is_written(view, shift, where):
            warn(*uninitialised(view))

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
        elif self.matmul is not flag:
            self._matmul_map().set(view, shift, where, flag)

    def _matmul_map(self) -> ElementMap:
        if not isinstance(self.matmul, ElementMap):
            self.matmul = ElementMap(self.storage, self.matmul)
        return self.matmul


def warn(*diagnostic: Any, **parts: Any) -> None:
    from ..core import warn

    warn(*diagnostic, **parts)


def uninitialised(view: View) -> tuple[str, str, list[str], str]:
    """Kind, message, notes and help of the diagnostic."""
    what = f"'{view.storage.name}'" if view.storage.name else "a tensor"
    return (
        "uninitialised",
        f"{what} is read, but part of it was never written",
        [f"{view.describe()}; what was not written is poison (NaN)"],
        "write it first (nisa.memset, nisa.dma_copy), or read only the part that was written",
    )


# ---- explicit addresses (tensor.md 8) ------------------------------------------------------------


class PlacedMemory(Memory):
    """A storage with an explicit `address=`: a rectangle of the core's physical memory.

    `state` and `map` say which elements this tensor wrote last: it loses them when another tensor at the
    same place writes. Contents survive; only what nobody ever wrote is poison.
    """

    __slots__ = ("chip", "alone", "around", "seen")

    def __init__(self, storage: Storage, chip: ChipMemory, owner: Any = None):
        super().__init__(storage, chip.raw, owner)
        self.chip = chip
        self.borrowed = False
        self.state = FRESH
        self.alone = False  # no other tensor wrote any of these bytes last
        self.around: list[PlacedMemory] = []
        self.seen = -1
        chip.add(self)

    def _build(self, view: View, shift: int) -> np.ndarray:
        start, strides = self._place(view, shift)
        return np.ndarray(view.shape, view.dtype.storage, self.raw, start, strides)

    def _place(self, view: View, shift: int) -> tuple[int, list[int]]:
        """Where a view lies in the physical memory: first byte and strides in bytes."""
        assert self.storage.address is not None
        width = view.dtype.itemsize
        partition, free = divmod(view.offset, view.row_pitch)
        first, byte = self.storage.address
        pitch = self.chip.pitch
        start = (first + partition) * pitch + byte + free * width + shift
        return start, [pitch, *(s * width for s in view.strides[1:])]

    def read_float32(self, view: View, shift: int = 0) -> np.ndarray:
        # other placed storages may share the bytes, so a widened copy could go stale
        return dtypes.f32(self.read(view, shift), view.dtype)

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: Any = None) -> np.ndarray:
        if not self.alone:
            self._take_over(view, shift)
        return super().write(view, shift, by_matmul, where)

    def released(self) -> None:
        self.chip.remove(self)
        if self.owner is not None:
            self.owner.storage_released(self.storage)

    # ---- sharing bytes with other tensors --------------------------------------------------------

    def neighbours(self) -> list[PlacedMemory]:
        """The live tensors that share bytes with this one."""
        if self.seen != self.chip.version:
            self.seen = self.chip.version
            self.around = [other for other in self.chip.live if other is not self and other._overlaps(self)]
        return self.around

    def _overlaps(self, other: PlacedMemory) -> bool:
        (p0, b0), (p1, b1) = self.storage.address, other.storage.address  # type: ignore[misc]
        a, b = self.storage, other.storage
        return p0 < p1 + b.partitions and p1 < p0 + a.partitions and b0 < b1 + b.pitch and b1 < b0 + a.pitch

    def _take_over(self, view: View, shift: int) -> None:
        """The bytes of a view are now this tensor's and nobody else's."""
        self.alone = True
        if not self.neighbours():
            return
        start, strides = self._place(view, shift)
        partition, byte = divmod(start, self.chip.pitch)
        spans = [(n - 1) * s for n, s in zip(view.shape[1:], strides[1:], strict=True)]
        touched = np.zeros(sum(spans) + view.dtype.itemsize, np.bool_)
        np.ndarray((*view.shape[1:], view.dtype.itemsize), np.bool_, touched, 0, [*strides[1:], 1])[...] = (
            True
        )
        for other in self.neighbours():
            other._lose(partition, partition + view.shape[0], byte, touched)
            self.alone = self.alone and other.state == FRESH

    def _lose(self, first: int, last: int, byte: int, touched: np.ndarray) -> None:
        """Another tensor wrote partitions first:last, and of each the touched bytes, from `byte` on."""
        assert self.storage.address is not None
        partition, start = self.storage.address
        rows = slice(max(0, first - partition), max(0, last - partition))
        self.alone = False
        if self.matmul is not False:
            self._matmul_map().clear_bytes(rows, byte - start, touched)
        if self.state == FULL:
            self.map, self.state = ElementMap(self.storage, True), PARTIAL
        if self.map is not None:
            self.map.clear_bytes(rows, byte - start, touched)
            if self.map.missing == self.map.flags.size:
                self.map, self.state = None, FRESH

    # ---- what was written ------------------------------------------------------------------------

    def poison(self) -> None:
        """Fill what nobody ever wrote; what others left here stays."""
        assert self.storage.address is not None
        (partition, byte), s = self.storage.address, self.storage
        where = np.s_[partition : partition + s.partitions, byte : byte + s.pitch]
        fill = np.full(s.pitch // s.dtype.itemsize, dtypes.poison(s.dtype), s.dtype.storage).view(np.uint8)
        rectangle = self.raw.reshape(-1, self.chip.pitch)[where]
        np.copyto(rectangle, fill, where=~self.chip.written[where])
        self.map = ElementMap(s)
        self.state = PARTIAL

    def _mark_written(self, view: View, shift: int, where: Any = None) -> None:
        super()._mark_written(view, shift, where)
        self._ever_written(view, shift, where)[... if where is None else where] = True

    def _ever_written(self, view: View, shift: int, where: Any) -> np.ndarray:
        """For each byte of a view, whether anybody ever wrote it."""
        start, strides = self._place(view, shift)
        width = view.dtype.itemsize
        shape: tuple[int, ...] = (*view.shape, width)
        strides.append(1)
        if where is None and strides[-2] == width:  # one long run per row is much faster
            shape, strides = (*view.shape[:-1], view.shape[-1] * width), [*strides[:-2], 1]
        return np.ndarray(shape, np.bool_, self.chip.written, start, strides)

    def is_written(self, view: View, shift: int = 0, where: Any = None) -> bool:
        if super().is_written(view, shift, where):
            return True
        return bool(self._ever_written(view, shift, where)[... if where is None else where].all())

    def _check_written(self, view: View, shift: int, where: Any) -> None:
        if not self.is_written(view, shift, where):
            warn(*uninitialised(view))
        elif not super().is_written(view, shift, where):
            warn(
                "stale-read",
                f"{self.storage.name or 'this tile'} is read, but its bytes were last written through "
                "another tensor at the same address",
                notes=[view.describe()],
                help="write it through this tensor first, or share one tensor object",
            )


class ChipMemory:
    """The physical SBUF or PSUM of a core, made when the first tensor is placed in it."""

    def __init__(self, partitions: int, pitch: int):
        self.pitch = pitch
        self.raw = np.empty(partitions * pitch, np.uint8)
        self.written = np.zeros((partitions, pitch), np.bool_)  # bytes that anybody wrote
        self.live: list[PlacedMemory] = []
        self.version = 0  # of `live`

    def add(self, memory: PlacedMemory) -> None:
        self.live.append(memory)
        self.version += 1

    def remove(self, memory: PlacedMemory) -> None:
        self.live.remove(memory)
        self.version += 1
