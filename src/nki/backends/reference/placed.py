"""Tensors with an explicit `address=`: rectangles of a core's physical memory (spec/tensor.md 8)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.boxes import whole_box
from ...ir.context import warn
from ...ir.layout import Shape, row_major
from ...ir.storage import Storage
from ...ir.view import View
from ...machine import dtypes
from .memory import FRESH, FULL, PARTIAL, ElementMap, Memory, uninitialised

BAND = 2048  # bytes of every partition: tensors are looked up by the bands they lie in


class PlacedMemory(Memory):
    """A storage with an explicit `address=`: a rectangle of the core's physical memory.

    `state` and `map` tell which elements this tensor wrote last: it loses them when another tensor at the
    same address writes. Contents survive; only what was never written is poison.
    """

    __slots__ = ("chip", "box", "alone", "bands", "holds")

    def __init__(self, storage: Storage, chip: ChipMemory):
        super().__init__(storage, chip.raw)
        self.chip = chip
        self.box = whole_box(storage)
        self.borrowed = False
        self.state = FRESH
        self.alone = False  # no other tensor wrote any of these bytes last
        self.bands = chip.bands(storage)
        self.holds = False  # it wrote some of its bytes last, and is in its bands

    def _build(self, view: View, shift: int) -> np.ndarray:
        start, strides = self._place(view, shift)
        return self.part(view.shape, view.dtype, start, strides)

    def _place(self, view: View, shift: int) -> tuple[int, list[int]]:
        """Return where a view lies in the physical memory: first byte and strides in bytes."""
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

    def write(self, view: View, shift: int = 0, by_matmul: bool = False, where: object = None) -> np.ndarray:
        if not self.alone:
            self._take_over(view, shift)
        return super().write(view, shift, by_matmul, where)

    def released(self) -> None:
        self._drop()

    # ---- sharing bytes with other tensors --------------------------------------------------------

    def rivals(self) -> list[PlacedMemory]:
        """Return the other tensors that hold bytes at this address."""
        found = {other: None for band in self.bands for other in band if other is not self}
        return [other for other in found if other._overlaps(self)]

    def _hold(self) -> None:
        if not self.holds:
            self.holds = True
            for band in self.bands:
                band[self] = None

    def _drop(self) -> None:
        if self.holds:
            self.holds = False
            for band in self.bands:
                del band[self]

    def _overlaps(self, other: PlacedMemory) -> bool:
        return self.box.overlaps(other.box)

    def _take_over(self, view: View, shift: int) -> None:
        """Make this tensor the only one that holds the bytes of a view."""
        self.alone = True
        self._hold()
        rivals = self.rivals()
        if not rivals:
            return
        start, strides = self._place(view, shift)
        partition, byte = divmod(start, self.chip.pitch)
        shape, steps = (*view.shape[1:], view.dtype.itemsize), [*strides[1:], 1]
        reach = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1
        touched = np.zeros(reach, np.bool_)  # of the bytes of a partition, from `byte` on
        np.ndarray(shape, np.bool_, touched, 0, steps)[...] = True
        for other in rivals:
            other._lose(partition, partition + view.shape[0], byte, touched)
            self.alone = self.alone and not other.holds

    def _lose(self, first: int, last: int, byte: int, touched: np.ndarray) -> None:
        """Lose the touched bytes, from `byte` on, of partitions first:last: another tensor wrote them."""
        assert self.storage.address is not None
        partition, start = self.storage.address
        rows = slice(max(0, first - partition), max(0, last - partition))
        self.alone = False
        if self._is_inside(rows, byte - start, touched):
            self.map, self.state, self.matmul = None, FRESH, False
        if self.matmul is not False:
            self._matmul_map().clear_bytes(rows, byte - start, touched)
        if self.state == FULL:
            self.map, self.state = ElementMap(self.storage, True), PARTIAL
        if self.map is not None:
            self.map.clear_bytes(rows, byte - start, touched)
            if self.map.missing == self.map.flags.size:
                self.map, self.state = None, FRESH
        if self.state == FRESH:
            self._drop()

    def _is_inside(self, rows: slice, start: int, touched: np.ndarray) -> bool:
        """Return whether the touched bytes of these partitions are all that this tensor has."""
        s = self.storage
        whole = (
            rows.start == 0 and rows.stop >= s.partitions and start <= 0 and start + touched.size >= s.pitch
        )
        return whole and bool(touched[-start : s.pitch - start].all())

    # ---- what was written ------------------------------------------------------------------------

    def clear_unwritten(self) -> None:
        """Fill fresh memory with zeros if no other tensor holds its bytes."""
        if self.state == FRESH and not self.rivals():
            storage = self.storage
            whole = View(storage, 0, Shape(storage.shape), row_major(storage.shape), storage.dtype)
            self.write(whole)[...] = 0

    def poison(self) -> None:
        self._fill()
        self.map = ElementMap(self.storage)
        self.state = PARTIAL

    def peek(self, view: View) -> np.ndarray:
        self._fill()
        return super().peek(view)

    def _fill(self) -> None:
        """Poison what was never written. What other tensors wrote stays, except poison of their dtype."""
        assert self.storage.address is not None
        (partition, byte), s = self.storage.address, self.storage
        where = np.s_[partition : partition + s.partitions, byte : byte + s.pitch]
        fill = np.full(s.pitch // s.dtype.itemsize, dtypes.poison(s.dtype), s.dtype.storage).view(np.uint8)
        pitch = self.chip.pitch
        rectangle = self.part((s.partitions, s.pitch), dtypes.uint8, partition * pitch + byte, (pitch, 1))
        np.copyto(rectangle, fill, where=~self.chip.written[where])

    def _mark_written(self, view: View, shift: int, where: Any = None) -> None:
        super()._mark_written(view, shift, where)
        self._ever_written(view, shift, where)[... if where is None else where] = True

    def _ever_written(self, view: View, shift: int, where: object) -> np.ndarray:
        """Return for each byte of a view whether it was ever written."""
        start, strides = self._place(view, shift)
        width = view.dtype.itemsize
        shape: tuple[int, ...] = (*view.shape, width)
        strides.append(1)
        if where is None and strides[-2] == width:  # one long run per row is faster
            shape, strides = (*view.shape[:-1], view.shape[-1] * width), [*strides[:-2], 1]
        return np.ndarray(shape, np.bool_, self.chip.written, start, strides)

    def is_written(self, view: View, shift: int = 0, where: Any = None) -> bool:
        if super().is_written(view, shift, where):
            return True
        return bool(self._ever_written(view, shift, where)[... if where is None else where].all())

    def unwritten(self, view: View) -> np.ndarray | None:
        return None if self.is_written(view) else np.logical_not(self._ever_written(view, 0, ()).all(-1))

    def _check_written(self, view: View, shift: int, where: object) -> None:
        if not self.is_written(view, shift, where):
            self._fill()
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
        self.written = np.zeros((partitions, pitch), np.bool_)  # bytes that were ever written
        self.holders: list[dict[PlacedMemory, None]] = [{} for _ in range(-(-pitch // BAND))]

    def bands(self, storage: Storage) -> list[dict[PlacedMemory, None]]:
        """Return the holders of bytes in the columns of a storage, band by band."""
        assert storage.address is not None
        byte = storage.address[1]
        return self.holders[byte // BAND : (byte + storage.pitch - 1) // BAND + 1]
