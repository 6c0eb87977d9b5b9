"""What a view is: (storage, offset, shape, strides, dtype), and what follows from them.

Offsets and strides count elements of the view's dtype. On chip the offset of partition p, element f is
`p * row_pitch + f`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from ..errors import error
from ..machine.dtypes import DType
from ..machine.memories import MemoryRegion
from .caches import LRUCache
from .storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Self, TypeIs


Int: TypeAlias = int | np.integer
KnownLayout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, signature


class Register(Protocol):
    """A scalar register of a sequencer; `nki.isa.VirtualRegister` is one."""

    is_register: bool


class Shape(tuple[int, ...]):
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

    def __init__(self, kind: str, index: Register | Layout, scale: int, dim: int | None, base: Any = None):
        self.kind = kind
        self.index: Any = index  # a View; of kind "scalar" it may be a register
        self.scale = scale
        self.dim = dim
        self.base = base  # kind "tensor": the view whose columns are gathered

    def at(self, dim: int | None) -> Indirection:
        return Indirection(self.kind, self.index, self.scale, dim, self.base)

    def bare(self) -> Indirection:
        """Return the same indirection without a lease on its tensors."""
        base = None if self.base is None else self.base.bare()
        index = self.index.bare() if hasattr(self.index, "bare") else self.index
        return Indirection(self.kind, index, self.scale, self.dim, base)


def is_int(value: object) -> TypeIs[Int]:
    """Whether a value is a Python or numpy integer; bools, arrays and registers are not."""
    return value.__class__ is int or (isinstance(value, (int, np.integer)) and not isinstance(value, bool))


def shown(value: object) -> str:
    """Return a short text of an argument for a message, without reading the values of tensors."""
    return f"a tensor {value.dtype}{list(value.shape)}" if isinstance(value, Layout) else repr(value)[:60]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor of this shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without its dimensions of size 1."""
    return tuple([size for size in shape if size != 1])


def coalesced(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return dimensions as the fewest (count, stride) pairs, outermost first."""
    dims: list[tuple[int, int]] = []
    for count, stride in zip(shape, strides, strict=True):
        if count == 1:
            continue
        if dims and dims[-1][1] == stride * count:
            dims[-1] = (dims[-1][0] * count, stride)
        else:
            dims.append((count, stride))
    return dims


def regrouped(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """Return strides that give the same elements the shape `wanted`; None: that would need a copy."""
    blocks = coalesced(shape, strides)
    found: list[int] = []
    left, step = blocks.pop() if blocks else (1, 1)
    for count in reversed(wanted):
        if left == 1 and blocks:
            left, step = blocks.pop()
        if left % count:
            return None
        found.append(step)
        step *= count
        left //= count
    return found[::-1]


def as_list(value: object, what: str) -> list[object]:
    if not isinstance(value, (tuple, list)):
        raise error("argument", f"{what} must be a tuple or list, got {shown(value)}")
    return list(value)


_SIGNATURES: LRUCache[tuple, int] = LRUCache(1 << 16)
_numbers = itertools.count(1)  # never reused, so that evicting a signature is safe


def _intern(key: tuple) -> int:
    """Return a small number for a view signature."""
    found = _SIGNATURES.get(key)
    if found is None:
        found = next(_numbers)
        _SIGNATURES.put(key, found)
    return found


class Layout:
    """A strided view of a storage, without the methods that make another one."""

    __slots__ = ("storage", "offset", "shape", "strides", "dtype", "indirection", "_sig")

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    indirection: Indirection | None

    def __init__(
        self,
        storage: Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: DType,
        indirection: Indirection | None = None,
    ):
        self.storage = storage
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.indirection = indirection
        self._sig: int | None = None

    # ---- properties ------------------------------------------------------------------------------

    @property
    def buffer(self) -> MemoryRegion:
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
        return prod(self.shape) * self.dtype.itemsize

    @property
    def sig(self) -> int:
        """One number for all that a check may depend on: buffer, placement, layout, dtype."""
        sig = self._sig
        if sig is None:
            s = self.storage
            ind = self.indirection
            sig = _intern(
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
                        None if ind.base is None else ind.base.sig,
                        ind.index.sig if isinstance(ind.index, Layout) else None,
                    ),
                )
            )
            _set_sig(self, sig)  # an NkiTensor guards its slots
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

    # ---- for the methods that make another view --------------------------------------------------

    if TYPE_CHECKING:

        def _make(
            self,
            offset: int,
            shape: Iterable[int],
            strides: Iterable[int],
            dtype: DType,
            indirection: Indirection | None,
        ) -> Self: ...

        def _sliced(self, view: Layout, offset: int, layout: KnownLayout) -> Self:
            """Return a part of `view`, which is this one without a lease, with a known layout."""

    @property
    def plain(self) -> Layout | None:
        """The same view without a lease; None if a run-time index moves it."""
        return self if self.indirection is None else None

    def _same(
        self,
        offset: int | None = None,
        shape: Iterable[int] | None = None,
        strides: Iterable[int] | None = None,
        indirect_dim: int | None = -1,
    ) -> Self:
        """Return a view that differs in the given parts; `indirect_dim` is where the indirect dim went."""
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

    def _dim(self, dim: object, method: str, extra: int = 0) -> int:
        """Return the dimension number; negative numbers count from the end."""
        if not is_int(dim):
            raise error(
                "argument", f"{method}: dim must be an int, got {shown(dim)}", notes=[self.describe()]
            )
        n = len(self.shape) + extra
        if not -n <= dim < n:
            self._fail("index", f"{method}: dimension {dim} of a tensor with {len(self.shape)} dimensions")
        return int(dim) % n

    def _guards_dim0(self) -> bool:
        """Whether dim 0 is special: on chip (partitions) and after vector_select (index rows)."""
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

    def _guard_partition_dim(self, dim: int, method: str, help: str) -> None:
        if dim == 0 and self._guards_dim0():
            self._fail("partition-dim", f"{method}: not possible on dimension 0", help=help)

    def _shifted(self, dim: int, by: int) -> int | None:
        """Return where the indirect dim goes when `by` dimensions appear (or vanish) at `dim`."""
        ind = self.indirection
        if ind is None or ind.dim is None:
            return -1
        return ind.dim + by if ind.dim >= dim else ind.dim


_set_sig = vars(Layout)["_sig"].__set__
