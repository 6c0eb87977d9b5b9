"""Views: (storage, offset, shape, strides, dtype), and the algebra that makes one from another.

Nothing here reads or moves data (tensor.md). Offsets and strides count elements of the view's dtype.
On chip the offset of partition p, element f is `p * row_pitch + f`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from . import dtypes
from .dtypes import DType
from .errors import error
from .storage import PSUM, SBUF, Storage


class Shape(tuple):
    """A tuple that also equals a list of the same sizes, as the documentation compares them."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if other.__class__ is list else other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


class Indirection:
    """A run-time part of a view's address.

    kind "scalar": one value moves the whole view by `value * scale` bytes.
    kind "vector": row i of dim 0 sits at `index[i] * scale` bytes.
    kind "tensor": columns are gathered by an index tile shared by groups of partitions (trn3).
    `dim` is the dimension of the view that takes part, None if the dynamic index removed it.
    """

    __slots__ = ("kind", "index", "scale", "dim", "base")

    def __init__(self, kind: str, index: Any, scale: int, dim: int | None, base: View | None = None):
        self.kind = kind
        self.index = index
        self.scale = scale
        self.dim = dim
        self.base = base  # kind "tensor": the view whose columns are gathered

    def at(self, dim: int | None) -> Indirection:
        return Indirection(self.kind, self.index, self.scale, dim, self.base)

    def bare(self) -> Indirection:
        base = None if self.base is None else self.base.bare()
        index = self.index.bare() if isinstance(self.index, View) else self.index
        return Indirection(self.kind, index, self.scale, self.dim, base)


class DynamicSlice:
    """`nl.ds(start, size)`; with an int start it is exactly `slice(start, start + size)`."""

    __slots__ = ("start", "size")

    def __init__(self, start: Any, size: int):
        if not is_int(size):
            raise error("argument", f"nl.ds: size must be an int, got {shown(size)}")
        if size < 1:
            raise error("index", f"nl.ds: size must be at least 1, got {size}")
        if not is_int(start) and not is_dynamic_index(start):
            raise error(
                "argument", f"nl.ds: start must be an int, register or one-element tile, got {shown(start)}"
            )
        if is_int(start) and start < 0:
            raise error("index", f"nl.ds: start must not be negative, got {start}")
        self.start = int(start) if is_int(start) else start
        self.size = int(size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DynamicSlice) or not (is_int(self.start) and is_int(other.start)):
            return self is other
        return (self.start, self.size) == (other.start, other.size)

    def __hash__(self) -> int:
        return hash((self.start, self.size)) if is_int(self.start) else id(self)

    def __repr__(self) -> str:
        return f"nl.ds({self.start!r}, {self.size})"


_SIGNATURES: dict[tuple, int] = {}
_next_signature = 0
_SIGNATURE_LIMIT = 1 << 16


def _intern(key: tuple) -> int:
    """A small number for a view signature. Numbers are never reused, so clearing the table is safe."""
    global _next_signature
    found = _SIGNATURES.get(key)
    if found is None:
        if len(_SIGNATURES) >= _SIGNATURE_LIMIT:
            _SIGNATURES.clear()
        _next_signature += 1
        found = _SIGNATURES[key] = _next_signature
    return found


def is_int(value: Any) -> bool:
    """A Python or numpy integer; bools, arrays and registers are none."""
    return value.__class__ is int or (isinstance(value, (int, np.integer)) and not isinstance(value, bool))


def shown(value: Any) -> str:
    """A value somebody passed, for a message: short, and without looking into tensors."""
    return f"a tensor {value.dtype}{list(value.shape)}" if isinstance(value, View) else repr(value)[:60]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_dynamic_index(value: Any) -> bool:
    """A register, or a tensor used as an index."""
    return isinstance(value, View) or getattr(value, "is_register", False)


class View:
    """A strided view of a storage. Instructions hold plain Views; users hold `NkiTensor`s."""

    __slots__ = ("storage", "offset", "shape", "strides", "dtype", "indirection", "_sig")

    storage: Storage
    offset: int
    shape: Shape
    strides: tuple[int, ...]
    dtype: DType
    indirection: Indirection | None

    def __init__(self, storage, offset, shape, strides, dtype, indirection=None):
        self.storage = storage
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.indirection = indirection
        self._sig = None

    # ---- what a view knows of itself -------------------------------------------------------------

    @property
    def buffer(self):
        return self.storage.buffer

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def on_chip(self) -> bool:
        return self.storage.on_chip

    @property
    def partitions(self) -> int:
        return self.shape[0]

    @property
    def free_elements(self) -> int:
        """F: elements per partition of an on-chip view."""
        return prod(self.shape[1:])

    @property
    def row_pitch(self) -> int:
        """R: elements of this dtype that one partition of the storage holds."""
        return self.storage.pitch // self.dtype.itemsize

    @property
    def start_partition(self) -> int:
        """First partition, counted in the storage, plus the storage's own when the user placed it."""
        placed = self.storage.address[0] if self.storage.address else 0
        return placed + self.offset // self.row_pitch

    @property
    def free_offset(self) -> int:
        return self.offset % self.row_pitch

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def sig(self) -> int:
        """All that a check may look at, as one number: buffer, placement, layout, dtype."""
        sig = self._sig
        if sig is None:
            s = self.storage
            ind = self.indirection
            self._sig = sig = _intern(
                (
                    s.buffer,
                    s.partitions,
                    s.pitch,
                    s.address,
                    s.constant,
                    self.offset if s.on_chip else 0,
                    tuple(self.shape),
                    self.strides,
                    self.dtype,
                    ind
                    and (
                        ind.kind,
                        ind.dim,
                        ind.scale,
                        ind.base and ind.base.sig,
                        ind.index.sig if isinstance(ind.index, View) else None,
                    ),
                )
            )
        return sig

    def covers_storage(self) -> bool:
        """True when writing this view writes every byte of its storage."""
        return (
            self.indirection is None
            and self.size * self.dtype.itemsize == self.storage.nbytes
            and self._is_dense(skip_partition=False)
        )

    def repeats(self) -> bool:
        """True when several elements of the view are one element of the storage (stride 0)."""
        return any(stride == 0 and count > 1 for count, stride in zip(self.shape, self.strides, strict=True))

    def is_contiguous(self) -> bool:
        """Row-major dense; on chip only the free dimensions are tested."""
        return self._is_dense(skip_partition=self.on_chip)

    def _is_dense(self, skip_partition: bool) -> bool:
        step = 1
        for d in range(len(self.shape) - 1, 0 if skip_partition else -1, -1):
            if self.shape[d] != 1:
                if self.strides[d] != step:
                    return False
                step *= self.shape[d]
        return True

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], ...] in shape order; fresh lists the caller may edit."""
        return [[step, count] for step, count in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        return self.indirection is not None

    def describe(self) -> str:
        """`float32[128, 16] in sbuf 'acc', allocated at file:line` for the notes of an error."""
        return f"{self.dtype}{list(self.shape)} {self.storage.where}"

    def describe_layout(self) -> str:
        layout = f"strides {tuple(self.strides)} offset {self.offset}"
        return f"{self.dtype}{list(self.shape)} {layout} {self.storage.where}"

    # ---- making another view ---------------------------------------------------------------------

    def bare(self) -> View:
        """The same view without a claim on the bytes."""
        if self.__class__ is View and self.indirection is None:
            return self
        ind = self.indirection
        view = View(
            self.storage,
            self.offset,
            self.shape,
            self.strides,
            self.dtype,
            None if ind is None else ind.bare(),
        )
        view._sig = self._sig
        return view

    def _make(self, offset, shape, strides, dtype, indirection):
        return View(self.storage, offset, Shape(shape), tuple(strides), dtype, indirection)

    def _same(self, offset=None, shape=None, strides=None, indirect_dim=-1):
        """A view that differs in the given parts; `indirect_dim` is where the indirect dim went."""
        ind = self.indirection
        if ind is not None and indirect_dim != -1 and indirect_dim != ind.dim:
            ind = ind.at(indirect_dim)
        return self._make(
            self.offset if offset is None else offset,
            self.shape if shape is None else shape,
            self.strides if strides is None else strides,
            self.dtype,
            ind,
        )

    def _fail(self, kind: str, message: str, help: str | None = None) -> NoReturn:
        raise error(kind, message, notes=[self.describe_layout()], help=help)

    def _dim(self, dim: Any, method: str, extra: int = 0) -> int:
        """A dimension number, negatives counted from the end."""
        if not is_int(dim):
            raise error(
                "argument", f"{method}: dim must be an int, got {shown(dim)}", notes=[self.describe()]
            )
        n = len(self.shape) + extra
        if not -n <= dim < n:
            self._fail("index", f"{method}: dimension {dim} of a tensor with {len(self.shape)} dimensions")
        return int(dim) % n

    def _guards_dim0(self) -> bool:
        """Dim 0 is special on chip (partitions) and after vector_select (index rows)."""
        return self.on_chip or (self.indirection is not None and self.indirection.kind == "vector")

    def _not_indirect_dim(self, dim: int, method: str) -> None:
        ind = self.indirection
        if ind is not None and (ind.dim == dim or ind.kind == "tensor"):
            self._fail(
                "indirect-dim",
                f"{method}: dimension {dim} is addressed by a run-time index and cannot be changed",
                help="slice or index it before the dynamic index is applied",
            )

    def _not_gathered(self, method: str) -> None:
        """A view made by `.indirect` takes its shape from the index tile."""
        if self.indirection is not None and self.indirection.kind == "tensor":
            self._not_indirect_dim(1, method)

    def _check_rank(self, rank: int, method: str) -> None:
        if self.on_chip and not 2 <= rank <= 5:
            self._fail("rank", f"{method}: an on-chip tensor has 2 to 5 dimensions, this would have {rank}")
        if rank < 1:
            self._fail("rank", f"{method}: a tensor has at least one dimension")

    def _not_indirect_yet(self, method: str) -> None:
        if self.indirection is not None:
            self._indirect_twice(method)

    def _indirect_twice(self, method: str) -> NoReturn:
        self._fail(
            "indirect-twice",
            f"{method}: a view takes only one run-time index, this would be its second",
            help="copy the first selection to a tile, or compute one combined index",
        )

    # ---- tensor.md 4: indexing -------------------------------------------------------------------

    def __getitem__(self, key):
        if key.__class__ is not tuple:
            key = tuple(key) if key.__class__ is list else (key,)
        shape, strides, offset, ind = self.shape, self.strides, self.offset, self.indirection
        for index in key:
            if index is Ellipsis:
                key = self._without_ellipsis(key)
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
                if index.start.__class__ is int:
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

    def _without_ellipsis(self, key: tuple) -> tuple:
        """The ellipsis written out as full slices."""
        places = [i for i, index in enumerate(key) if index is Ellipsis]
        if len(places) > 1:
            self._fail("index", "an index may hold only one ellipsis (...)")
        missing = (slice(None),) * (len(self.shape) - len(key) + 1)
        return key[: places[0]] + missing + key[places[0] + 1 :]

    def _resolve_slice(self, dim: int, start, stop, step) -> tuple[int, int, int]:
        """(start, count, step) of a slice, strictly inside the dimension: nothing is clamped."""
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
            self._fail("index", f"slice step must be at least 1, got {step}")
        if not 0 <= start < stop <= size:
            self._bad_slice(dim, *asked)
        if dim == 0 and self.on_chip and step != 1:
            self._fail(
                "partition-step",
                f"the partition dimension takes step 1 only, got {step}",
                help="no engine or DMA can skip partitions; load the rows you need with a strided HBM view",
            )
        return start, -(-(stop - start) // step), step

    def _bad_slice(self, dim: int, start: int, stop: int) -> NoReturn:
        size = self.shape[dim]
        if -size <= start <= size and -size <= stop <= size:
            self._fail(
                "index",
                f"slice {start}:{stop} of dimension {dim} (size {size}) is empty",
                help="a slice holds at least one element; leave the instruction out when there is none",
            )
        self._fail(
            "index",
            f"slice {start}:{stop} is out of range for dimension {dim} of size {size}",
            help=f"slices are not clamped; bound it yourself: min({stop}, {size})" if stop > size else None,
        )

    def _bad_index(self, index: Any) -> NoReturn:
        raise error(
            "argument",
            f"an index must be an int, slice, nl.ds, register or one-element tile, got {shown(index)}",
            notes=[self.describe()],
            help="t.expand_dim(d) adds a dimension, t.ap(...) takes any pattern, "
            "t.vector_select(0, tile) or nisa.nc_n_gather gather rows",
        )

    def _scalar_indirection(
        self, index: Any, dim: int, kept: int | None, before: Indirection | None
    ) -> Indirection:
        """A run-time start in dimension `dim`, which stays as dimension `kept` of the result or goes."""
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
        return Indirection("scalar", index, self.strides[dim] * self.dtype.itemsize, kept)

    def _check_index(self, index: Any, method: str) -> None:
        """A run-time scalar index: a register, or a one-element 32-bit integer tile in SBUF."""
        if not isinstance(index, View):
            return
        if index.size != 1:
            raise error(
                "argument",
                f"{method}: a tile used as an index must have one element, got shape {tuple(index.shape)}",
                notes=[index.describe()],
                help="use vector_select or ap(vector_offset=) for one index per row",
            )
        _check_index_tile(index, method)

    # ---- tensor.md 5: view methods ---------------------------------------------------------------

    def slice(self, dim, start, end, step=1):
        """Elements start, start+step, ... below end of one dimension."""
        dim = self._dim(dim, "slice")
        self._not_indirect_dim(dim, "slice")
        start, count, step = self._resolve_slice(dim, start, end, step)
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + strides[dim] * start
        shape[dim] = count
        strides[dim] *= step
        return self._same(offset, shape, strides)

    def select(self, dim, index):
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

    def vector_select(self, dim, vector_offset):
        """Rows of an HBM tensor picked by a tile of indices, one per partition."""
        if self._dim(dim, "vector_select") != 0:
            self._fail(
                "indirect-dim", "vector_select: only dimension 0 can be selected by a vector of indices"
            )
        self._not_indirect_yet("vector_select")
        if self.strides[0] == 0 or any(s > self.strides[0] for s in self.strides[1:]):
            self._fail(
                "layout",
                "vector_select: dimension 0 must have the largest stride",
                help="apply vector_select before permute or broadcast",
            )
        if not isinstance(vector_offset, View):
            raise error(
                "argument", f"vector_select: expected an SBUF tile of indices, got {shown(vector_offset)}"
            )
        _check_index_rows(vector_offset, vector_offset.shape[0], "vector_select")
        pattern = [[self.strides[0], vector_offset.size], *self.get_pattern()[1:]]
        return self.ap(pattern, vector_offset=vector_offset)

    def permute(self, dims):
        """Reorder the dimensions; the partition dimension stays first."""
        dims = [self._dim(d, "permute") for d in _sequence(dims, "permute: dims")]
        if sorted(dims) != list(range(self.ndim)):
            self._fail(
                "pattern", f"permute: {tuple(dims)} is not a permutation of the {self.ndim} dimensions"
            )
        if self._guards_dim0() and dims[0] != 0:
            self._fail(
                "partition-dim",
                "permute: dimension 0 must stay first",
                help="nisa.nc_transpose or nisa.dma_transpose moves data between partitions",
            )
        ind = self.indirection
        moved = dims.index(ind.dim) if ind is not None and ind.dim is not None else -1
        return self._same(
            shape=[self.shape[d] for d in dims], strides=[self.strides[d] for d in dims], indirect_dim=moved
        )

    def broadcast(self, dim, size):
        """Repeat a size-1 dimension without copying: its stride becomes 0."""
        dim = self._dim(dim, "broadcast")
        self._guard_partition_dim(dim, "broadcast", "nl.broadcast_to copies one partition to many")
        self._not_indirect_dim(dim, "broadcast")
        if self.shape[dim] != 1:
            self._fail("shape", f"broadcast: dimension {dim} has size {self.shape[dim]}, only size 1 repeats")
        if not is_int(size) or size < 1:
            self._fail("shape", f"broadcast: size must be a positive int, got {shown(size)}")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = int(size), 0
        return self._same(shape=shape, strides=strides)

    def _guard_partition_dim(self, dim: int, method: str, help: str) -> None:
        if dim == 0 and self._guards_dim0():
            self._fail("partition-dim", f"{method}: not possible on dimension 0", help=help)

    def expand_dim(self, dim):
        """Insert a size-1 dimension before `dim`."""
        dim = self._dim(dim, "expand_dim", extra=1)
        self._guard_partition_dim(dim, "expand_dim", "the partition dimension stays first")
        self._not_gathered("expand_dim")
        self._check_rank(self.ndim + 1, "expand_dim")
        stride = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(dim, 1)
        strides.insert(dim, stride)
        return self._same(shape=shape, strides=strides, indirect_dim=self._shifted(dim, +1))

    def _shifted(self, dim: int, by: int) -> int | None:
        """Where the indirect dim goes when `by` dimensions appear (or vanish) at `dim`."""
        ind = self.indirection
        if ind is None or ind.dim is None:
            return -1
        return ind.dim + by if ind.dim >= dim else ind.dim

    def squeeze_dim(self, dim):
        """Remove a size-1 dimension."""
        dim = self._dim(dim, "squeeze_dim")
        self._guard_partition_dim(dim, "squeeze_dim", "a tile keeps its partition dimension")
        self._not_indirect_dim(dim, "squeeze_dim")
        if self.shape[dim] != 1:
            self._fail("shape", f"squeeze_dim: dimension {dim} has size {self.shape[dim]}, not 1")
        self._check_rank(self.ndim - 1, "squeeze_dim")
        shape, strides = list(self.shape), list(self.strides)
        del shape[dim], strides[dim]
        return self._same(shape=shape, strides=strides, indirect_dim=self._shifted(dim, -1))

    def reshape_dim(self, dim, shape):
        """Split one dimension into several; one size may be -1."""
        view = self._split(dim, shape)
        view._check_rank(view.ndim, "reshape_dim")
        return view

    def _split(self, dim, shape):
        dim = self._dim(dim, "reshape_dim")
        sizes = self._with_inferred(shape, self.shape[dim], "reshape_dim")
        if len(sizes) != 1:
            self._guard_partition_dim(dim, "reshape_dim", "partitions cannot be split; slice them instead")
            self._not_indirect_dim(dim, "reshape_dim")
        stride = self.strides[dim]
        new_shape = [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]]
        new_strides = [*self.strides[:dim], *(stride * s for s in row_major(sizes)), *self.strides[dim + 1 :]]
        return self._same(
            shape=new_shape, strides=new_strides, indirect_dim=self._shifted(dim + 1, len(sizes) - 1)
        )

    def _with_inferred(self, shape, total: int, method: str) -> list[int]:
        """The sizes of `shape` with one -1 worked out, checked to hold `total` elements."""
        sizes = [shape] if is_int(shape) else _sequence(shape, f"{method}: shape")
        for size in sizes:
            if not is_int(size):
                raise error(
                    "argument", f"{method}: sizes must be ints, got {shown(size)}", notes=[self.describe()]
                )
        sizes = [int(size) for size in sizes]
        if sizes.count(-1) == 1:
            known = -prod(sizes)
            if known <= 0 or total % known:
                self._fail(
                    "shape", f"{method}: -1 cannot be worked out of {tuple(sizes)} for {total} elements"
                )
            sizes[sizes.index(-1)] = total // known
        if any(s < 1 for s in sizes) or prod(sizes) != total:
            self._fail(
                "shape", f"{method}: {tuple(sizes)} holds {prod(sizes)} elements, the tensor has {total}"
            )
        return sizes

    def flatten_dims(self, start_dim, end_dim):
        """Merge neighbouring dimensions start_dim..end_dim (inclusive) into one."""
        first, last = self._dim(start_dim, "flatten_dims"), self._dim(end_dim, "flatten_dims")
        if first > last:
            self._fail("index", f"flatten_dims: start_dim {first} lies behind end_dim {last}")
        if first == last:
            return self._same()
        self._guard_partition_dim(first, "flatten_dims", "partitions and free elements cannot merge")
        for d in range(first, last + 1):
            self._not_indirect_dim(d, "flatten_dims")
        real = [d for d in range(first, last + 1) if self.shape[d] != 1]
        for outer, inner in zip(real, real[1:], strict=False):
            if self.strides[outer] != self.strides[inner] * self.shape[inner]:
                self._fail(
                    "layout",
                    f"flatten_dims: dimensions {outer} and {inner} are not adjacent in memory",
                    help="copy to a dense tensor first",
                )
        stride = self.strides[real[-1]] if real else self.strides[last]
        shape = [*self.shape[:first], prod(self.shape[first : last + 1]), *self.shape[last + 1 :]]
        strides = [*self.strides[:first], stride, *self.strides[last + 1 :]]
        return self._same(shape=shape, strides=strides, indirect_dim=self._shifted(last + 1, first - last))

    def reshape(self, shape):
        """The same elements in another shape, where the layout allows it without a copy."""
        sizes = self._with_inferred(shape, self.size, "reshape")
        self._not_gathered("reshape")
        if self._guards_dim0() and sizes[0] != self.shape[0]:
            self._fail(
                "partition-dim",
                f"reshape: dimension 0 must stay {self.shape[0]}, got {sizes[0]}",
                help="reshape the HBM tensor before loading it",
            )
        self._check_rank(len(sizes), "reshape")
        ind = self.indirection
        fixed = {0} if self._guards_dim0() else set()
        if ind is not None and ind.dim is not None:
            fixed.add(ind.dim)
        strides: list[int] = []
        place, old, new = -1, 0, 0
        for dim in sorted(fixed):  # what lies between two fixed dimensions is regrouped by itself
            place = self._place_of(dim, sizes)
            strides += self._regroup(self.shape[old:dim], self.strides[old:dim], sizes[new:place])
            strides.append(self.strides[dim])
            old, new = dim + 1, place + 1
        strides += self._regroup(self.shape[old:], self.strides[old:], sizes[new:])
        moved = place if ind is not None and ind.dim is not None else -1
        return self._same(shape=sizes, strides=strides, indirect_dim=moved)

    def _place_of(self, dim: int, sizes: list[int]) -> int:
        """Where dimension `dim`, which must stay as it is, stands among the new sizes."""
        before = prod(self.shape[:dim])
        for place, size in enumerate(sizes):
            if size == self.shape[dim] and prod(sizes[:place]) == before:
                return place
        self._not_indirect_dim(dim, "reshape")
        raise AssertionError("the partition dimension is compared before")

    def _regroup(self, shape, strides, sizes) -> list[int]:
        """Strides of `sizes` over the blocks of memory that (shape, strides) describe (tensor.md 5.10)."""
        blocks: list[tuple[int, int]] = []  # (elements, innermost stride), outermost first
        for count, stride in zip(shape, strides, strict=True):
            if count == 1:
                continue
            if blocks and blocks[-1][1] == stride * count:
                blocks[-1] = (blocks[-1][0] * count, stride)
            else:
                blocks.append((count, stride))
        new_strides: list[int] = []
        left, step = blocks.pop() if blocks else (1, 1)
        for count in reversed(sizes):
            if left == 1 and blocks:
                left, step = blocks.pop()
            if left % count:
                self._fail(
                    "layout",
                    f"reshape: {tuple(sizes)} would need a copy of this layout",
                    help="copy to a dense tensor first (nisa.tensor_copy on chip, nisa.dma_copy in HBM)",
                )
            new_strides.append(step)
            step *= count
            left //= count
        return new_strides[::-1]

    def rearrange(self, src_pattern, dst_pattern, fixed_sizes=None):
        """Split, permute and merge by named axes: ("b", ("h", "w")) -> ("b", "w", "h"), {"h": 4}."""
        fixed = dict(fixed_sizes or {})
        src, dst = self._axis_groups(src_pattern), self._axis_groups(dst_pattern)
        names = [axis for group in src for axis in group]
        if len(src) != self.ndim:
            self._fail("pattern", f"rearrange: {len(src)} source entries for {self.ndim} dimensions")
        if len(set(names)) != len(names) or sorted(names) != sorted(axis for group in dst for axis in group):
            self._fail("pattern", "rearrange: both patterns must hold the same names, each once")
        unknown = [axis for axis in fixed if axis not in names]
        if unknown:
            self._fail("pattern", f"rearrange: fixed_sizes names {unknown[0]!r}, which no pattern has")
        view = self
        position = 0
        for group, total in zip(src, self.shape, strict=True):
            sizes = [fixed.get(axis, -1) for axis in group]
            if sizes.count(-1) > 1:
                self._fail("pattern", f"rearrange: give the sizes of all but one axis of {group}")
            if len(group) > 1:
                view = view._split(position, sizes)
            elif sizes[0] not in (-1, total):
                self._fail("shape", f"rearrange: axis {group[0]!r} has size {total}, not {sizes[0]}")
            position += len(group)
        view = view.permute([names.index(axis) for group in dst for axis in group])
        for position, group in enumerate(dst):
            if len(group) > 1:
                view = view.flatten_dims(position, position + len(group) - 1)
        view._check_rank(view.ndim, "rearrange")
        return view

    def _axis_groups(self, pattern) -> list[tuple[str, ...]]:
        """A pattern of rearrange as one tuple of names per dimension."""
        if not isinstance(pattern, (tuple, list)):
            self._fail(
                "pattern",
                f"rearrange: a pattern is a tuple of names or of tuples of names, got {shown(pattern)}",
            )
        groups = [tuple(entry) if isinstance(entry, (tuple, list)) else (entry,) for entry in pattern]
        for axis in (axis for group in groups for axis in group or [()]):
            if not isinstance(axis, str):
                self._fail("pattern", f"rearrange: an axis is a name, got {shown(axis)}")
        return groups

    def view(self, dtype):
        """The same bytes read as another dtype; the last dimension grows or shrinks."""
        target = dtypes.resolve(dtype)
        if self.indirection is not None:
            self._fail(
                "indirect-view",
                "view: not possible after a run-time index",
                help="reinterpret the tensor first, then select",
            )
        old, new = self.dtype.itemsize, target.itemsize
        if old == new:
            return self._make(self.offset, self.shape, self.strides, target, None)
        *outer, last = self.strides
        if last != 1 and self.shape[-1] != 1:
            self._fail("layout", f"view: the last dimension must be dense, its stride is {last}")
        if old > new:
            ratio = old // new
            shape, strides = (*self.shape[:-1], self.shape[-1] * ratio), (*(s * ratio for s in outer), 1)
            return self._make(self.offset * ratio, shape, strides, target, None)
        ratio = new // old
        # the stride of a size-1 dimension addresses nothing; on chip the rows themselves must divide
        counted = [s for s, n in zip(outer, self.shape, strict=False) if n != 1]
        counted += [self.row_pitch] if self.on_chip else []
        odd = [x for x in (self.shape[-1], self.offset, *counted) if x % ratio]
        if odd:
            self._fail(
                "alignment",
                f"view: {odd[0]} elements of {self.dtype} do not divide into {target} ({ratio}:1)",
            )
        shape, strides = (*self.shape[:-1], self.shape[-1] // ratio), (*(s // ratio for s in outer), 1)
        return self._make(self.offset // ratio, shape, strides, target, None)

    reinterpret_cast = view

    # ---- tensor.md 6: access patterns ------------------------------------------------------------

    def ap(self, pattern, offset=None, scalar_offset=None, vector_offset=None, indirect_dim=0, dtype=None):
        """Replace shape and strides by [[step, count], ...]; optionally index at run time."""
        steps, counts = self._pattern(pattern)
        if scalar_offset is not None and vector_offset is not None:
            self._fail("indirect-twice", "ap: give scalar_offset or vector_offset, not both")
        extra = 0 if offset is None else offset
        if not is_int(extra) or extra < 0:
            self._fail("pattern", f"ap: offset must be an int >= 0, got {shown(offset)}")
        target = self.dtype if dtype is None else dtypes.resolve(dtype)
        byte_offset = self.offset * self.dtype.itemsize
        if byte_offset % target.itemsize or self.storage.pitch % target.itemsize and self.on_chip:
            self._fail("alignment", f"ap: the tensor does not start or repeat at a multiple of {target}")
        start = byte_offset // target.itemsize + int(extra)
        ind = None
        if scalar_offset is not None or vector_offset is not None:
            self._not_indirect_yet("ap")
            dim = self._dim(indirect_dim, "ap")
            stride_bytes = self.strides[dim] * self.dtype.itemsize
            if stride_bytes % target.itemsize:
                self._fail(
                    "alignment", f"ap: dimension {dim} steps {stride_bytes} bytes, not whole {target}s"
                )
            if is_int(scalar_offset):
                start += int(scalar_offset) * stride_bytes // target.itemsize
            else:
                ind = self._ap_indirection(scalar_offset, vector_offset, dim, stride_bytes, counts)
        elif self.indirection is not None:
            from .core import warn

            warn("ap-drops-indirection", "ap: the run-time index of this view is dropped by a new pattern")
        view = self._make(start, counts, steps, target, ind)
        view._check_reach()
        return view

    def _pattern(self, pattern) -> tuple[list[int], list[int]]:
        if not isinstance(pattern, (list, tuple)) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pattern
        ):
            self._fail("pattern", f"ap: the pattern is a list of [step, count] pairs, got {shown(pattern)}")
        if not pattern or (self.on_chip and not 2 <= len(pattern) <= 5):
            least = "2 to 5 on chip" if self.on_chip else "at least 1"
            self._fail("pattern", f"ap: the pattern holds {len(pattern)} pairs, it must hold {least}")
        for step, count in pattern:
            if not is_int(step) or not is_int(count) or step < 0 or count < 1:
                self._fail("pattern", f"ap: [{step!r}, {count!r}]: a step is >= 0 and a count >= 1")
        return [int(step) for step, _ in pattern], [int(count) for _, count in pattern]

    def _ap_indirection(self, scalar, vector, dim, stride_bytes, counts) -> Indirection:
        if vector is not None:
            if self.on_chip:
                self._fail(
                    "buffer", "ap: vector_offset needs an HBM tensor", help="gather on chip with nc_n_gather"
                )
            if dim != 0:
                self._fail("indirect-dim", f"ap: vector_offset indexes dimension 0, got indirect_dim={dim}")
            if not isinstance(vector, View):
                raise error("argument", f"ap: vector_offset must be a tile of indices, got {shown(vector)}")
            _check_index_rows(vector, counts[0], "ap")
            return Indirection("vector", vector, stride_bytes, 0)
        if not is_dynamic_index(scalar):
            raise error(
                "argument", f"ap: scalar_offset must be an int, register or tile, got {shown(scalar)}"
            )
        if self.on_chip and dim == 0 and self.shape[0] != 1:
            self._fail("partition-dynamic", "ap: on chip indirect_dim must be a free dimension, not 0")
        self._check_index(scalar, "ap")
        return Indirection("scalar", scalar, stride_bytes, None)

    def _check_reach(self) -> None:
        """An access pattern stays inside its storage and, on chip, inside its partitions."""
        if self.offset < 0:
            self._fail("index", f"ap: begins {-self.offset} elements before the tensor")
        spans = [(count - 1) * step for step, count in zip(self.strides, self.shape, strict=True)]
        if not self.on_chip:
            vector = self.indirection is not None and self.indirection.kind == "vector"
            last = self.offset + sum(spans[1:] if vector else spans)
            limit = self.storage.nbytes // self.dtype.itemsize
            if last >= limit:
                self._fail("index", f"ap: reaches element {last}, the tensor has {limit}")
            return
        pitch = self.row_pitch
        if self.shape[0] > 1 and self.strides[0] != pitch:
            self._fail(
                "index",
                f"ap: the first step must be {pitch}, the elements of a partition, got {self.strides[0]}",
                help="one operand addresses consecutive partitions; none can be skipped",
            )
        first, free = divmod(self.offset, pitch)
        if first + self.shape[0] > self.storage.partitions:
            self._fail(
                "index",
                f"ap: reaches partition {first + self.shape[0] - 1} of {self.storage.partitions}",
            )
        free += sum(spans[1:])
        if free >= pitch:
            self._fail("index", f"ap: reaches element {free} of a partition that holds {pitch}")

    # ---- tensor.md 7.5: indirection by a tile (trn3) ---------------------------------------------

    def indirect(self, index, num_elem=None):
        """Columns gathered (or scattered) by an index tile shared by groups of partitions (trn3)."""
        from .core import current_machine

        machine = current_machine()
        if machine.generation < 4:
            raise error("generation", f"indirect: needs trn3, this kernel targets {machine.name}")
        self._not_indirect_yet("indirect")
        if not self.on_chip:
            self._fail("buffer", "indirect: the tensor must be on chip", help="HBM rows: vector_select")
        if not isinstance(index, View) or index.buffer is not SBUF:
            raise error("buffer", f"indirect: index must be an SBUF tile, got {shown(index)}")
        if index.dtype not in ("int16", "uint16", "int32", "uint32"):
            raise error(
                "dtype",
                f"indirect: index has dtype {index.dtype}, offsets are 16- or 32-bit integers",
                notes=[index.describe()],
            )
        count = index.size if num_elem is None else num_elem
        if not is_int(count) or count < 1:
            raise error("shape", f"indirect: num_elem must be a positive int, got {shown(num_elem)}")
        ind = Indirection("tensor", index, self.dtype.itemsize, 1, base=self)
        return self._make(self.offset, (self.shape[0], int(count)), (self.strides[0], 1), self.dtype, ind)


def _sequence(value: Any, what: str) -> list[Any]:
    if not isinstance(value, (tuple, list)):
        raise error("argument", f"{what} must be a tuple or list, got {shown(value)}")
    return list(value)


def _check_index_rows(index: View, rows: int, method: str) -> None:
    """Row indices: one for each of `rows` rows; dma_transpose reads the first of a larger tile."""
    _check_index_tile(index, method)
    if index.size < rows if method == "ap" else index.size != rows:
        raise error(
            "shape",
            f"{method}: {index.size} indices for {rows} rows",
            notes=[index.describe()],
            help="pass an SBUF tile of shape (rows, 1)",
        )


def _check_index_tile(index: View, method: str) -> None:
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
