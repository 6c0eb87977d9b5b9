"""`t[key] = value` and `t[key] += value`: by the instruction of the value itself, where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki import isa
from nki.ir.tensor import NkiTensor
from nki.language.shared_constants import shared_constant
from nki.machine.memories import PSUM

from . import state as run
from .failures import failure
from .indices import Box, Index, IndexMask, full, product
from .masks import MaskLike, Where, rows_of, where
from .regions import empty_of, fitted, move
from .tensor import PendingValue, Tensor, Updated, Whole, broadcast


def assign(target: Tensor, source: Any, mask: MaskLike = None) -> None:
    """`target = source`: a tile, a value, or a number to fill it with."""
    current = run.running()
    if current is not None and current.pending is source and isinstance(source, PendingValue):
        current.pending = None
        _receive(target, source)
        return
    run.state()
    if isinstance(source, (Index, IndexMask)):
        raise failure("err_unsupported_memory", "an index tensor is no tile; nisa.iota makes one")
    if not isinstance(source, Tensor):
        fill(target, source, where(mask, target.shape))
        return
    if isinstance(source, PendingValue) and source.reduction is not None:
        _reduce_into(target, source)
        return
    masked = where(mask, target.shape) if mask is not None else getattr(source, "where", None)
    write(target, source, masked)


def _receive(target: Tensor, source: PendingValue) -> None:
    """Let the instruction of a value write into a tensor, where that is possible."""
    same = _squeezed(target.shape) == _squeezed(source.shape)
    buffers = target.region is PSUM if source.region is PSUM else target.on_chip
    masked = source.where
    whole = masked is None or masked.array is None
    views = target.parts() if same and buffers and whole and not isinstance(target, Updated) else []
    direct = len(views) == 1 and views[0][1].shape[0] == source.shape[0]
    direct = direct and not (source.by_dma and target.region is PSUM)
    if not direct or source.reduction is not None or target.kind != source.kind and source.region is PSUM:
        assign(target, source)
        return
    _mark(target, source.product is None and masked is None)
    out = fitted(views[0][1], source.shape)
    if masked is None or masked.covers(source.shape):
        source.emit(out, None)
    elif masked.box is not None:
        source.emit(out[masked.box], masked.box)


def write(target: Tensor, source: Tensor, masked: Where | None = None) -> None:
    """Copy a tile into a tensor, where the mask is true."""
    tile = source.tile()
    if masked is not None and masked.box is None:
        return
    if _squeezed(target.shape) != _squeezed(source.shape):
        tile = _broadcast_to_target(target, source)
        masked = None if masked is None or masked.covers(source.shape) else masked
    _mark(target, masked is None)
    shape = target.shape
    if masked is None or masked.covers(shape) or masked.covers(source.shape):
        _copy_parts(target, tile, None)
    elif masked.array is None:
        box = masked.box if len(masked.box or ()) == len(shape) else _box_for(masked, source.shape, shape)
        _copy_parts(target, tile, box)
    else:
        _copy_where(target, tile, masked.array.reshape(shape))


def _copy_parts(target: Tensor, tile: NkiTensor, box: Box | None) -> None:
    """Copy a tile to the views of a target. HBM takes the shape of the tile: its partitions are fixed."""
    pieces = target.parts(box)
    if len(pieces) == 1 and box is None and pieces[0][1].indirection is None:
        move(fitted(pieces[0][1], tile.shape), tile)
        return
    tile = fitted(tile, target.shape)
    for place, view in pieces:
        part = tile if len(pieces) == 1 and box is None else tile[tuple(place)]
        move(view if view.indirection is not None else fitted(view, part.shape), part)


def _copy_where(target: Tensor, tile: NkiTensor, positions: np.ndarray) -> None:
    """A write at any positions: by a predicate on chip, run by run in HBM."""
    if not target.on_chip:
        for box, _ in rows_of(positions):
            _copy_parts(target, tile, box)
        return
    view = target.tile()
    predicate = constant_tile(positions.astype(np.uint8))
    isa.tensor_copy_predicated(view, fitted(tile, view.shape), fitted(predicate, view.shape))


def constant_tile(array: np.ndarray) -> NkiTensor:
    """Numbers known before the run, in SBUF."""
    source = shared_constant(np.ascontiguousarray(array))
    out = empty_of(array.shape, source.dtype)
    isa.dma_copy(out, source)
    return out


def _box_for(masked: Where, shape: Sequence[int], wanted: Sequence[int]) -> Box:
    """A box of one shape as one of a shape that differs in unit dimensions."""
    cuts = iter([cut for cut, n in zip(masked.box or (), shape, strict=True) if n != 1])
    return tuple(slice(0, 1) if n == 1 else next(cuts) for n in wanted)


def _broadcast_to_target(target: Tensor, source: Tensor) -> NkiTensor:
    if product(source.shape) > product(target.shape):
        raise failure(
            "err_store_dst_shape_smaller_than_other_shape",
            f"the value has shape {tuple(source.shape)}, its target {tuple(target.shape)}",
        )
    return broadcast(source, tuple(target.shape)).tile()


def fill(target: Tensor, number: Any, masked: Where) -> None:
    """Every element of a tensor, or those of a mask, becomes a number."""
    if masked.box is None:
        return
    number = number.item() if isinstance(number, np.generic) else number
    number = int(number) if target.kind.is_integer or target.kind.is_bool else float(number)
    covers = masked.covers(target.shape)
    _mark(target, covers)
    if target.on_chip and masked.array is None:
        for _, view in target.parts(None if covers else masked.box):
            isa.memset(view, number)
        return
    shape = target.shape or (1,)  # one element has no dimensions
    tile = empty_of((min(shape[0], 128), *shape[1:]), target.kind)
    isa.memset(tile, number)
    if masked.array is not None:
        _copy_where(target, tile, masked.array)
        return
    box = full(shape) if covers else masked.box
    for start in range(box[0].start, box[0].stop, 128):
        cut = slice(start, min(start + 128, box[0].stop))
        for place, view in target.parts((cut, *box[1:])):
            sizes = tuple(slice(0, c.stop - c.start) for c in place)
            move(view, fitted(tile[sizes], view.shape))


def _mark(target: Tensor, whole: bool) -> None:
    """Note that a whole tile was written: from now on a matmul adds to it."""
    owner = owner_of(target)
    if owner is not None and whole:
        owner.filled = True


def owner_of(target: Tensor) -> Whole | None:
    """Return the allocation that a tensor is part of."""
    owner = target if isinstance(target, Whole) else getattr(target, "owner", None)
    while owner is not None and owner.owner is not None:
        owner = owner.owner
    return owner


def _reduce_into(target: Tensor, source: PendingValue) -> None:
    """Do nl.loop_reduce: target = op(target, source); an undefined target is set when the loops start."""
    assert source.reduction is not None
    view, owner = target.tile(), owner_of(target)
    place = (view.storage, view.offset, tuple(view.shape))
    first = run.state().loop_starts.setdefault(place, source.reduction.iteration)
    starts = source.reduction.iteration == first and not (owner is None or owner.filled)
    tile = fitted(source.tile(), view.shape)
    if starts:
        isa.tensor_copy(view, tile)
    else:
        isa.tensor_tensor(view, view, tile, source.reduction.op)


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]
