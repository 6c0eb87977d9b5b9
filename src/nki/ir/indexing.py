"""Indexing: `t[key]`, `slice` and `select` (spec/tensor.md 4)."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, NoReturn, TypeAlias, TypeGuard, TypeVar, Union

from ..errors import error
from ..machine.memories import PSUM
from .caches import LRUCache
from .layout import Indirection, Int, KnownLayout, Layout, Register, is_int, shown


class DynamicSlice:
    """`nl.ds(start, size)`; with an int start it is exactly `slice(start, start + size)`."""

    __slots__ = ("start", "size")

    def __init__(self, start: Int | Register | Layout, size: Int):
        if not is_int(size):
            raise error("argument", f"nl.ds: size must be an int, got {shown(size)}")
        if size < 0:  # an empty range may be made; using it is an error
            raise error("index", f"nl.ds: size must not be negative, got {size}")
        if not is_int(start) and not is_dynamic_index(start):
            raise error(
                "argument", f"nl.ds: start must be an int, register or one-element tile, got {shown(start)}"
            )
        if is_int(start) and start < 0:
            raise error("index", f"nl.ds: start must not be negative, got {start}")
        self.start: int | Register | Layout = int(start) if is_int(start) else start
        self.size = int(size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DynamicSlice) or not (is_int(self.start) and is_int(other.start)):
            return self is other
        return (self.start, self.size) == (other.start, other.size)

    def __hash__(self) -> int:
        return hash((self.start, self.size)) if is_int(self.start) else id(self)

    def __repr__(self) -> str:
        return f"nl.ds({self.start!r}, {self.size})"


Index: TypeAlias = Union[Int, slice, range, DynamicSlice, Register, Layout, EllipsisType, None]  # noqa: UP007
Key: TypeAlias = Index | tuple[Index, ...] | list[Index]  # what stands in the brackets of `t[key]`


def is_dynamic_index(value: object) -> TypeGuard[Register | Layout]:
    """Whether a value is a register, or a tensor used as an index."""
    return isinstance(value, Layout) or getattr(value, "is_register", False)


def check_index_tile(index: Layout, method: str) -> None:
    if index.buffer is PSUM or not index.on_chip:
        raise error(
            "buffer",
            f"{method}: an index must be in SBUF, this one is in {index.buffer.value}",
            notes=[index.describe()],
            help="copy it to SBUF first",
        )
    if index.dtype not in ("int32", "uint32"):
        raise error(
            "dtype",
            f"{method}: an index must be int32 or uint32, got {index.dtype}",
            notes=[index.describe()],
            help="convert it with nisa.tensor_copy into an int32 tile",
        )


def _as_slice(index: Index) -> Index:
    """Return a range as a slice: `t[nl.affine_range(n)]` selects the elements of the range."""
    return slice(index.start, index.stop, index.step) if index.__class__ is range else index


V = TypeVar("V", bound="Indexed")  # jedi knows it, but not typing.Self

# signature of a view, size of each slice (None: an index) and, on chip, offset -> shape, strides, signature
_SLICES: LRUCache[tuple[int | None, ...], KnownLayout] = LRUCache(1 << 16)
_find_slice = _SLICES.get


class Indexed(Layout):
    """Views that can be indexed; nothing is ever clamped."""

    __slots__ = ()

    def __getitem__(self: V, key: Key) -> V:
        """Handle `t[a:b, i, c:d]`, most of what kernels write, inline; `_index` handles all else.

        The start of a slice in HBM changes the offset alone, so all slices of equal sizes share their layout.
        """
        parts = key if type(key) is tuple else (key,)
        view = self.plain  # its attributes are read faster than a tensor's
        if view is None or len(parts) > len(view.shape):
            return self._index(key)
        offset = view.offset
        wanted: list[int | None] = [view._sig or view.sig]
        for index, size, stride in zip(parts, view.shape, view.strides):  # noqa: B905
            if type(index) is slice:
                start, stop, step = index.start, index.stop, index.step
                if start is None:
                    if stop is None and step is None:
                        wanted.append(size)
                        continue
                    start = 0
                if stop is None:
                    stop = size
                if step is not None and (type(step) is not int or step != 1):
                    return self._index(key)
                if type(start) is not int or type(stop) is not int or start < 0 or stop > size:
                    return self._index(key)
                offset += stride * start
                wanted.append(stop - start)
            elif type(index) is int and 0 <= index < size:
                offset += stride * index
                wanted.append(None)
            elif type(index) is DynamicSlice:
                start, length = index.start, index.size
                if type(start) is not int or length > size - start:
                    return self._index(key)
                offset += stride * start
                wanted.append(length)
            else:
                return self._index(key)
        if view.storage.on_chip:  # there the signature holds the offset
            wanted.append(offset)
        known = tuple(wanted)
        layout = _find_slice(known)
        if layout is None:
            made = self._index(key)
            if 0 not in made.shape:  # an empty one is never looked up: where it starts matters
                _SLICES.put(known, (made.shape, made.strides, made.sig))
            return made
        return self._sliced(view, offset, layout)

    def _index(self: V, where: Key) -> V:
        key: Any = where
        if key.__class__ is not tuple:
            key = tuple(key) if key.__class__ is list else (key,)
        shape, strides, offset, ind = self.shape, self.strides, self.offset, self.indirection
        for index in key:
            if index is None or index is Ellipsis or index.__class__ is range:
                key = self._written_out(key)
                break
        if len(key) > len(shape):
            self._fail("index", f"{len(key)} indices for a tensor with {len(shape)} dimensions")
        new_shape: list[int] = []
        new_strides: list[int] = []
        watched = -1 if ind is None or ind.dim is None else ind.dim  # the indirect dimension
        moved = len(key)  # where it goes
        last_dropped = -1
        for dim, index in enumerate(key):
            size, stride = shape[dim], strides[dim]
            if dim == watched:
                moved = len(new_shape)
            if index.__class__ is slice:
                start, stop, step = index.start, index.stop, index.step
                if start is not None or stop is not None or step is not None:
                    if ind is not None:
                        self._not_indirect_dim(dim, "indexing")
                    start, size, step = self._resolve_slice(dim, start, stop, step)
                    offset += stride * start
                    stride *= step
            elif index.__class__ is int or is_int(index):
                if ind is not None:
                    self._not_indirect_dim(dim, "indexing")
                if not -size <= index < size:
                    self._fail("index", f"index {index} is out of range for dimension {dim} of size {size}")
                offset += stride * (int(index) % size)
                size = 1
                if dim or not self.storage.on_chip:
                    last_dropped = dim
                    continue
            elif index.__class__ is DynamicSlice:
                if isinstance(index.start, int):
                    self._not_indirect_dim(dim, "indexing")
                    offset += stride * self._resolve_slice(dim, index.start, index.start + index.size, 1)[0]
                else:
                    ind = self._scalar_indirection(index.start, dim, len(new_shape), ind)
                    if index.size > size:
                        self._fail(
                            "index", f"nl.ds of {index.size} elements in dimension {dim} of size {size}"
                        )
                size = index.size
            elif is_dynamic_index(index):
                ind = self._scalar_indirection(index, dim, None, ind)
                last_dropped = dim
                continue
            else:
                self._bad_index(index)
            new_shape.append(size)
            new_strides.append(stride)
        if watched >= len(key):
            moved = len(new_shape) + watched - len(key)
        new_shape += shape[len(key) :]
        new_strides += strides[len(key) :]
        if len(new_shape) < (2 if self.storage.on_chip else 1):
            new_shape.append(1)
            new_strides.append(strides[last_dropped])
        if watched >= 0:
            ind = self.indirection.at(moved)  # type: ignore[union-attr]
        return self._make(offset, new_shape, new_strides, self.dtype, ind)

    def _written_out(self, key: tuple[Index, ...]) -> tuple[Index, ...]:
        """Return ranges and the ellipsis as slices; refuse None."""
        key = tuple(_as_slice(index) for index in key)
        if any(index is Ellipsis for index in key):
            key = self._without_ellipsis(key)
        dim = next((i for i, index in enumerate(key) if index is None), None)
        if dim is not None:
            self._fail(
                "argument",
                "None as an index adds no dimension to a tensor",
                help=f"t.expand_dim({dim}) adds one; vector_select takes an index per row",
            )
        return key

    def _without_ellipsis(self, key: tuple[Index, ...]) -> tuple[Index, ...]:
        """Return the key with the ellipsis replaced by full slices."""
        places = [i for i, index in enumerate(key) if index is Ellipsis]
        if len(places) > 1:
            self._fail("index", "an index may hold only one ellipsis (...)")
        missing = (slice(None),) * (len(self.shape) - len(key) + 1)
        return key[: places[0]] + missing + key[places[0] + 1 :]

    def _resolve_slice(
        self, dim: int, start: Int | None, stop: Int | None, step: Int | None
    ) -> tuple[int, int, int]:
        """Return (start, count, step) of a slice, strictly inside the dimension: nothing is clamped."""
        size = self.shape[dim]
        if step is None and start.__class__ is int and stop.__class__ is int and 0 <= start < stop <= size:
            return start, stop - start, 1
        for value in (start, stop, step):
            if value is not None and value.__class__ is not int and not is_int(value):
                if is_dynamic_index(value):
                    self._fail(
                        "register-value",
                        "a slice bound cannot be a run-time value",
                        help="use nl.ds(register, size)",
                    )
                raise error(
                    "argument", f"slice bounds must be ints, got {shown(value)}", notes=[self.describe()]
                )
        step = 1 if step is None else int(step)
        asked = start, stop = 0 if start is None else int(start), size if stop is None else int(stop)
        if start < 0:
            start += size
        if stop < 0:
            stop += size
        if step < 1:
            self._fail(
                "index", f"slice step must be at least 1, got {step}", "reverse the data before the kernel"
            )
        if not (0 <= start <= size and 0 <= stop <= size):
            self._out_of_range(dim, *asked)
        if dim == 0 and self.on_chip and step != 1:
            self._fail(
                "partition-step",
                f"the partition dimension takes step 1 only, got {step}",
                help="no engine or DMA can skip partitions; load the rows you need with a strided HBM view",
            )
        return start, max(0, -(-(stop - start) // step)), step  # an empty one is refused when it is used

    def _out_of_range(self, dim: int, start: int, stop: int) -> NoReturn:
        size = self.shape[dim]
        self._fail(
            "index",
            f"slice {start}:{stop} is out of range for dimension {dim} of size {size}",
            help=f"slices are not clamped; bound it yourself: min({stop}, {size})" if stop > size else None,
        )

    def _bad_index(self, index: object) -> NoReturn:
        raise error(
            "argument",
            f"an index must be an int, slice, nl.ds, register or one-element tile, got {shown(index)}",
            notes=[self.describe()],
            help="t.expand_dim(d) adds a dimension, t.ap(...) takes any pattern, "
            "t.vector_select(0, tile) or nisa.nc_n_gather gather rows",
        )

    def _scalar_indirection(
        self, index: Register | Layout, dim: int, new_dim: int | None, before: Indirection | None
    ) -> Indirection:
        """Return a run-time start in dimension `dim`; in the result it is `new_dim`, None if dropped."""
        if before is not None:
            self._indirect_twice("indexing")
        if dim == 0 and self.on_chip:
            self._fail(
                "partition-dynamic",
                "indexing: the partition dimension cannot be indexed at run time",
                help="index a free dimension, or read the rows from HBM",
            )
        if self.strides[dim] == 0 and self.shape[dim] > 1:
            self._fail("indirect-dim", f"indexing: dimension {dim} is a broadcast (stride 0)")
        self._check_index(index, "indexing")
        return Indirection("scalar", index, self.strides[dim] * self.dtype.itemsize, new_dim)

    def _check_index(self, index: Register | Layout, method: str) -> None:
        """Check a run-time scalar index: a register, or a one-element 32-bit integer tile in SBUF."""
        if not isinstance(index, Layout):
            return
        if index.size != 1:
            raise error(
                "argument",
                f"{method}: a tile used as an index must have one element, got shape {tuple(index.shape)}",
                notes=[index.describe()],
                help="use vector_select or ap(vector_offset=) for one index per row",
            )
        check_index_tile(index, method)

    def slice(self: V, dim: Int, start: Int, end: Int, step: Int = 1) -> V:
        """Return elements start, start+step, ... below end of one dimension."""
        dim = self._dim(dim, "slice")
        self._not_indirect_dim(dim, "slice")
        start, count, step = self._resolve_slice(dim, start, end, step)
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + strides[dim] * start
        shape[dim] = count
        strides[dim] *= step
        return self._same(offset, shape, strides)

    def select(self: V, dim: Int, index: Int | Register | Layout) -> V:
        """Drop a dimension by picking one index: an int, a register or a one-element tile."""
        dim = self._dim(dim, "select")
        if not is_int(index) and not is_dynamic_index(index):
            self._bad_index(index)
        if is_int(index) and dim == 0 and self.on_chip:
            self._fail(
                "partition-dim",
                "select: the partition dimension cannot be dropped",
                help=f"t[{index}:{int(index) + 1}] keeps it with size 1",
            )
        return self[(slice(None),) * dim + (index,)]
