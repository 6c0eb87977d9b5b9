"""Tensors of the old API: whole ones, indexed ones, and values of expressions.

Indexing never copies. An expression is a PendingValue; `dst[k] = value` lets its instruction write dst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nki import isa
from nki.ir.indexing import DynamicSlice
from nki.ir.layout import Shape, is_int
from nki.ir.tensor import NkiTensor
from nki.language.operands import spread, stretch
from nki.machine.dtypes import DType
from nki.machine.memories import PSUM, SBUF, MemoryRegion
from nki.machine.operators import Operator

from . import state as run
from .failures import failure
from .indices import Box, Index, IndexGrid, full, product
from .keys import RowNumbers, form_of, region_of, repeated_region
from .loops import Loop
from .masks import MaskLike, Where, where
from .regions import IndexedRegion, as_rows, empty_of, fitted, gather, move, reshaped
from .types import DTypeLike, new_dtype, old_dtype

Emit = Callable[[NkiTensor, Box | None], object]


class Tensor:
    """A tensor as kernels see it. `tile()` is the tensor of `nki` behind it; operators.py adds to it."""

    __array_ufunc__ = None  # numpy leaves operators to the tensor
    shape: tuple[int, ...]
    kind: DType  # the dtype of `nki`
    region: MemoryRegion

    def tile(self) -> NkiTensor:
        raise NotImplementedError

    def parts(self, box: Box | None = None) -> list[tuple[Box, NkiTensor]]:
        """Views that together are the positions of a box."""
        view = fitted(self.tile(), self.shape) if self.tile().on_chip else self.tile()
        return [(full(self.shape) if box is None else box, view if box is None else view[box])]

    # ---- properties ------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return old_dtype(self.kind)

    @property
    def buffer(self) -> MemoryRegion:
        return self.region

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.kind.itemsize

    @property
    def on_chip(self) -> bool:
        return self.region in (SBUF, PSUM)

    def assert_shape(self, shape: Sequence[int]) -> Tensor:
        if tuple(shape) != tuple(self.shape):
            raise failure(
                "err_num_partition_mismatch", f"the shape is {tuple(self.shape)}, not {tuple(shape)}"
            )
        return self

    def __getitem__(self, key: Any) -> Tensor:
        return index(self, key)

    def __bool__(self) -> bool:
        if not self.on_chip:
            return True  # presence of an argument
        raise ValueError("err_ambiguous_tensor_truth_value: the values of a tile are not known here")

    def __iter__(self) -> Any:
        raise TypeError("a tensor cannot be iterated over: index it")

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} {self.region.value}>"

    # ---- views -----------------------------------------------------------------------------------

    def reshape(self, *sizes: Any, shape: Sequence[int] | None = None) -> Tensor:
        wanted = shape if shape is not None else sizes[0] if not is_int(sizes[0]) else sizes
        return Whole(reshaped(self.tile(), tuple(int(n) for n in wanted)))

    def view(self, dtype: DTypeLike) -> Tensor:
        return Whole(self.tile().view(new_dtype(dtype)))

    def expand_dims(self, axis: Any) -> Tensor:
        view = self.tile()
        for a in sorted(axis if isinstance(axis, (tuple, list)) else (axis,)):
            view = view.expand_dim(a if a >= 0 else a + view.ndim + 1)
        return Whole(view)

    def broadcast_to(self, *shape: Any) -> Tensor:
        sizes = tuple(shape[0] if len(shape) == 1 and not is_int(shape[0]) else shape)
        return broadcast(self, sizes)

    def as_tile(self) -> Tensor:
        """Return the tensor itself: here a view of a tile is a tile."""
        return self

    def astype(self, dtype: DTypeLike) -> Tensor:
        source, target = self.tile(), new_dtype(dtype)
        return value(self.shape, target, lambda out, box: move(out, source if box is None else source[box]))


class Whole(Tensor):
    """A tensor of HBM, a tile, or tiles side by side: dimensions before the partition dimension."""

    def __init__(self, tensor: NkiTensor | None, blocks: np.ndarray | None = None):
        if blocks is None:
            blocks = np.empty((), object)
            blocks[()] = tensor
        self.blocks = blocks
        first = blocks.flat[0]
        self.shape = Shape((*blocks.shape, *first.shape))
        self.kind, self.region = first.dtype, first.buffer
        self.filled = False  # a matmul may be added to its contents
        self.owner: Whole | None = None  # of which this is a slice
        self.where: Where | None = None  # of a masked result: the part that an assignment writes
        self.rank = len(self.shape)  # dimensions that no number has picked from: a tile's partitions stay

    def tile(self) -> NkiTensor:
        if run.running() is not None:
            run.state()
        if self.blocks.size != 1:
            raise failure(
                "err_failed_to_infer_tile_from_local_tensor",
                f"the tensor of shape {tuple(self.shape)} is {self.blocks.size} tiles",
                "index all dimensions before the partition dimension with numbers",
            )
        return self.blocks.flat[0]


class IndexedTensor(Tensor):
    """Positions of a tensor, picked by index tensors."""

    def __init__(self, owner: Whole | None, region: IndexedRegion):
        self.owner = owner
        self.places = region
        self.shape = region.tile_shape
        self.kind, self.region = region.tensor.dtype, region.tensor.buffer

    def tile(self) -> NkiTensor:
        run.state()
        view = gather(self.places)
        return fitted(view, self.shape) if view.on_chip else view

    def parts(self, box: Box | None = None) -> list[tuple[Box, NkiTensor]]:
        if box is not None and len(box) > len(self.places.shape):
            box = box[: len(self.places.shape)]
        return self.places.pieces(box)


@dataclass(frozen=True)
class LoopReduction:
    """The operator of nl.loop_reduce, and this iteration's values of the loops that it reduces."""

    op: Operator
    iteration: tuple[int, ...]


class PendingValue(Tensor):
    """The result of an instruction: written to its assignment's target, or into a new tile."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DType,
        emit: Emit,
        where: Where | None = None,
        buffer: MemoryRegion = SBUF,
        product: Callable[[NkiTensor, Any], None] | None = None,
        by_dma: bool = False,
    ):
        self.shape = Shape(shape if len(shape) > 1 else (*shape, 1))
        self.kind, self.region = dtype, buffer
        self.emit, self.where, self.product, self.by_dma = emit, where, product, by_dma
        self.reduction: LoopReduction | None = None
        self.own: NkiTensor | None = None

    def compute(self) -> None:
        """Run the instruction into a new tile."""
        if self.own is not None:
            return
        self.own = empty_of(self.shape, self.kind, self.region)
        if self.where is None or self.where.covers(self.shape):
            self.emit(self.own, None)
            return
        isa.memset(self.own, 0)  # masked elements are undefined, but may be read
        if self.where.box is not None:
            box = self.where.box if self.where.array is None else None
            self.emit(self.own if box is None else self.own[box], box)

    def tile(self) -> NkiTensor:
        run.state()
        self.compute()
        assert self.own is not None
        return self.own


class Updated(Tensor):
    """The result of `t[key] += v`, which Python assigns to t[key] once more."""

    def __init__(self, target: Tensor):
        self.target = target
        self.shape, self.kind, self.region = target.shape, target.kind, target.region

    def tile(self) -> NkiTensor:
        return self.target.tile()


def value(shape: Sequence[int], dtype: DType, emit: Emit, mask: MaskLike = None, **more: Any) -> PendingValue:
    """Return a new value; it is computed later if the user's statement is about to assign it."""
    current = run.state()
    made = PendingValue(shape, dtype, emit, None if mask is None else where(mask, shape), **more)
    if run.about_to_be_assigned():
        current.pending = made
    else:
        made.compute()
    return made


# ---- indexing ------------------------------------------------------------------------------------


def index(tensor: Tensor, key: Any) -> Tensor:
    """`tensor[key]`."""
    if type(tensor) is Whole and type(key) is tuple:
        known = _repeated(tensor, key)
        if known is not None:
            return known
    if isinstance(key, IndexGrid):
        key = tuple(key)
    key = tuple(_entry(k) for k in (key if isinstance(key, tuple) else (key,)))
    if any(k is None for k in key):  # undocumented, and seen: a dimension of size 1
        if len(key) == 2 and tuple(tensor.shape[1:]) == (1,) and key[0] == slice(None):
            return tensor  # a reduction already has two dimensions
        return index(tensor, tuple(k for k in key if k is not None)).expand_dims(
            [position for position, k in enumerate(key) if k is None]
        )
    rank = len(tensor.shape)
    if Ellipsis in [k for k in key if k is Ellipsis]:
        at = next(i for i, k in enumerate(key) if k is Ellipsis)
        key = (*key[:at], *[slice(None)] * (rank - len(key) + 1), *key[at + 1 :])
    if len(key) > rank:
        raise failure("err_tensor_access_out_of_bound", f"{len(key)} indices for {rank} dimensions")
    owner = tensor if isinstance(tensor, Whole) else None
    if owner is not None and owner.blocks.ndim:
        outer, key = key[: owner.blocks.ndim], key[owner.blocks.ndim :]
        key = tuple(k.without_axes(len(k.shape) - len(key)) if isinstance(k, Index) else k for k in key)
        chosen = _blocks(owner.blocks, outer, key)
        if isinstance(chosen, np.ndarray):
            return Whole(None, chosen)
        base = chosen
    else:
        base = owner.blocks.flat[0] if owner is not None else tensor.tile()
    if not any(isinstance(k, (Index, Tensor)) for k in key):
        return _sliced(owner, base, key)
    return IndexedTensor(owner, _region(base, key))


def _blocks(blocks: np.ndarray, outer: tuple, key: tuple) -> Any:
    """Return the tile, or the tiles, that the dimensions before the partition dimension pick."""
    numbers = tuple(k.base if isinstance(k, Index) and k.is_constant() else k for k in outer)
    chosen = blocks[numbers] if not any(isinstance(k, (Index, Tensor)) for k in numbers) else blocks
    if isinstance(chosen, np.ndarray) and any(isinstance(k, (Index, Tensor)) for k in (*numbers, *key)):
        raise failure(
            "err_failed_to_infer_tile_from_local_tensor",
            "dimensions before the partition dimension take numbers",
        )
    if not isinstance(chosen, np.ndarray) or not key:
        return chosen
    cut = np.empty(chosen.shape, object)
    for place, tile in np.ndenumerate(chosen):
        cut[place] = tile[key]
    return cut


def _repeated(tensor: Whole, key: tuple) -> IndexedTensor | None:
    """Return `tensor[key]` if a key of the same form was used before; None if not."""
    blocks = tensor.blocks
    outer = blocks.ndim
    form, starts = form_of(key)
    if form is None or any(form[:outer]):  # numbers pick the tile
        return None
    if outer and any([type(k) is Index and len(k.shape) > len(key) - outer for k in key]):
        return None  # axes are dropped
    base: Any = blocks[tuple(starts[:outer])]
    region = repeated_region(base, key[outer:], form[outer:], starts[outer:])
    return None if region is None else IndexedTensor(tensor, region)


def _entry(k: Any) -> Any:
    """Return one entry of a key as a number, slice, index tensor or tile."""
    if isinstance(k, DynamicSlice):
        if not isinstance(k.start, int):
            raise failure("err_unsupported_mixing_basic_advanced_tensor_indexing", "nl.ds takes a number")
        return slice(k.start, k.start + k.size)
    if isinstance(k, Index) and k.is_constant() and product(k.shape) == 1 and not k.shape:
        return k.base
    if isinstance(k, Loop):
        k = k.values
    if isinstance(k, range):
        return slice(k.start, k.stop, k.step)
    if isinstance(k, np.integer):
        return int(k)
    if isinstance(k, slice):
        return slice(*(_bound(b) for b in (k.start, k.stop, k.step)))
    return k


def _bound(bound: Any) -> Any:
    return bound.base if isinstance(bound, Index) and bound.is_constant() else bound


def _sliced(owner: Whole | None, base: NkiTensor, key: tuple) -> Tensor:
    """Numbers and slices; one that reaches too far may still be masked."""
    sizes = base.shape
    inside = all(
        -n <= k < n
        if is_int(k)
        else (k.start or 0) >= 0 and (n if k.stop is None else k.stop) <= n and (k.step or 1) > 0
        for k, n in zip(key, sizes, strict=False)
    )
    rank = sum(not is_int(k) for k in key) + len(sizes) - len(key)
    if inside and (base.on_chip or rank):
        stepped = base.on_chip and key and isinstance(key[0], slice) and (key[0].step or 1) != 1
        if not stepped:
            made = Whole(base[key])
            made.owner = owner
            before = owner.rank if owner is not None and not owner.blocks.ndim else len(sizes)
            made.rank = before - sum(is_int(k) for k in key)
            return made
    return IndexedTensor(owner, _region(base, tuple(key)))


def _region(base: NkiTensor, key: tuple) -> IndexedRegion:
    """Return what a key of index tensors, numbers, slices and one tile of row numbers picks."""
    for dim, k in enumerate(key):
        if isinstance(k, Tensor):
            element = isinstance(k, Whole) and k.rank <= 0
            return region_of(base, key, RowNumbers(dim, tuple(k.shape), as_rows(k.tile()), element))
    return region_of(base, key)


# ---- repeating -----------------------------------------------------------------------------------


def broadcast(source: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor with its unit dimensions repeated; partitions are copied."""
    tile = source.tile()
    if tuple(tile.shape) == shape:
        return source
    if not tile.on_chip:
        return Whole(_stretch_hbm(tile, shape))
    row = list(tile.shape[1:] if tile.ndim <= len(shape) else [n for n in tile.shape[1:] if n != 1])
    tile = fitted(tile, (tile.shape[0], *[1] * (len(shape) - 1 - len(row)), *row))
    return Whole(stretch(spread(tile, shape[0]), shape))


def _stretch_hbm(tensor: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    for dim, size in enumerate(shape):
        if tensor.shape[dim] != size:
            tensor = tensor.broadcast(dim, size)
    return tensor
