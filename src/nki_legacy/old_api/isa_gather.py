"""The rest of the old `nisa`: gathers, the eight largest, shuffles and transfers."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki import isa as new
from nki.ir.tensor import NkiTensor
from nki.isa.enums import dge_mode, oob_mode
from nki.machine import dtypes

from . import state as run
from .indices import Box
from .masks import MaskLike
from .masks import where as mask_of
from .operands import cut, in_sbuf, operator_of, tile_of
from .regions import IndexedRegion, fitted, move
from .tensor import IndexedTensor, Tensor, value
from .types import DTypeLike, new_dtype


def local_gather(
    src_buffer: object,
    index: Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: Any = None,
    *,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    run.state()
    tile, rows = tile_of(src_buffer, "local_gather", "src_buffer"), tile_of(index, "local_gather", "index")
    count = int(num_valid_indices) if num_valid_indices is not None else 16 * rows.free_elements
    each = int(num_elem_per_idx)
    shape = (tile.shape[0], count // 16, 16, each) if count % 16 == 0 else (tile.shape[0], count, each)
    return value(
        shape,
        tile.dtype,
        lambda out, box: new.local_gather(out, tile, rows, each, count),
        mask,
    )


def max8(*, src: Tensor, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object) -> Any:
    run.state()
    tile = tile_of(src, "max8", "src")
    masked = mask_of(mask, tile.shape)
    part = tile if masked.box is None else tile[masked.box]
    shape = (tile.shape[0], 8)
    rows = slice(0, tile.shape[0]) if masked.box is None else masked.box[0]
    target = tile.dtype if dtype is None else new_dtype(dtype)
    return value(
        shape, target, lambda out, box: new.max8(out if rows == slice(0, shape[0]) else out[rows], part)
    )


def nc_find_index8(
    *, data: object, vals: object, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object
) -> Any:
    run.state()
    tile, wanted = tile_of(data, "nc_find_index8", "data"), tile_of(vals, "nc_find_index8", "vals")
    target = dtypes.uint32 if dtype is None else new_dtype(dtype)
    return value((tile.shape[0], 8), target, lambda out, box: new.nc_find_index8(out, tile, wanted))


def nc_match_replace8(
    *,
    data: object,
    vals: object,
    imm: Any,
    dst_idx: Tensor | None = None,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
) -> Any:
    run.state()
    tile, wanted = tile_of(data, "nc_match_replace8", "data"), tile_of(vals, "nc_match_replace8", "vals")
    found = None if dst_idx is None else dst_idx.tile()
    imm = imm.item() if isinstance(imm, np.generic) else imm
    target = tile.dtype if dtype is None else new_dtype(dtype)

    def emit(out: NkiTensor, box: Box | None) -> None:
        rows = None if box is None else box[0]
        new.nc_match_replace8(
            out,
            cut(tile, box, tile.shape),
            wanted if rows is None else wanted[rows],
            imm,
            found if found is None or rows is None else found[rows],
        )

    return value(tile.shape, target, emit, mask)


def nc_stream_shuffle(
    src: Tensor,
    dst: Tensor,
    shuffle_mask: Any,
    *,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    **_: object,
) -> None:
    run.state()
    new.nc_stream_shuffle(dst.tile(), tile_of(src, "nc_stream_shuffle", "src"), list(shuffle_mask))


def sequence_bounds(*, segment_ids: object, dtype: DTypeLike | None = None, **_: object) -> Any:
    run.state()
    tile = tile_of(segment_ids, "sequence_bounds", "segment_ids")
    target = tile.dtype if dtype is None else new_dtype(dtype)
    return value((tile.shape[0], 2, tile.shape[1]), target, lambda out, box: new.sequence_bounds(out, tile))


def dma_copy(
    dst: Tensor,
    src: Tensor,
    *,
    mask: MaskLike = None,
    dst_rmw_op: object = None,
    oob_mode: Any = oob_mode.error,
    dge_mode: Any = dge_mode.unknown,
    **_: object,
) -> None:
    """dst = src; dst += src with dst_rmw_op=np.add."""
    run.state()
    skips = oob_mode is new.oob_mode.skip
    for side in (dst, src):
        if isinstance(side, IndexedTensor):
            side.places.skips = skips
    shape = dst.shape
    masked = mask_of(mask, shape)
    if masked.box is None:
        return
    box = None if masked.covers(shape) else masked.box
    targets, sources = dst.parts(box), src.parts(box if box is None or len(src.shape) == len(shape) else None)
    if len(targets) > 1 or len(sources) > 1:
        tile = src.tile()
        for place, view in targets:
            move(view, tile[tuple(place)])
        return
    to, of = targets[0][1], sources[0][1]
    to = to if to.indirection is not None else fitted(to, of.shape) if _fits(to, of) else to
    indirect = to.indirection is not None or of.indirection is not None
    if dst_rmw_op is not None:
        new.dma_compute(
            to, [in_sbuf(of) if of.on_chip else of, to], reduce_op=operator_of(dst_rmw_op, "dma_copy")
        )
    elif indirect:
        new.dma_copy(to, of, oob_mode=oob_mode)
    else:
        move(to, of)


def _fits(a: NkiTensor, b: NkiTensor) -> bool:
    return [n for n in a.shape if n != 1] == [n for n in b.shape if n != 1] and not (a.on_chip and b.on_chip)


def dma_transpose(
    src: Tensor,
    *,
    axes: Any = None,
    dge_mode: Any = dge_mode.unknown,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
) -> Any:
    """A tile with the first and last dimensions of src exchanged."""
    run.state()
    view = src.tile()
    order = tuple(axes) if axes is not None else {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[view.ndim]
    shape = [view.shape[a] for a in order]

    def emit(out: NkiTensor, box: Box | None) -> None:
        if view.indirection is None and (not view.on_chip and out.dtype == view.dtype) and shape[0] <= 128:
            new.dma_copy(out, view.permute(order))
        else:
            new.dma_transpose(out, view, order)

    return value(shape, view.dtype, emit, by_dma=True)


def tensor_copy_dynamic_src(
    src: Tensor, *, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object
) -> Any:
    """A copy of a tile whose index holds a tile of one number."""
    run.state()
    view = _moved(src)
    target = view.dtype if dtype is None else new_dtype(dtype)
    return value(view.shape, target, lambda out, box: new.tensor_copy(out, view), mask)


def tensor_copy_dynamic_dst(*, dst: Tensor, src: Tensor, mask: MaskLike = None, **_: object) -> None:
    run.state()
    new.tensor_copy(_moved(dst), tile_of(src, "tensor_copy_dynamic_dst", "src"))


def _moved(part: Any) -> NkiTensor:
    """On chip, one number at run time moves the whole view."""
    if not isinstance(part, IndexedTensor) or part.places.rows is None:
        return part.tile()
    places: IndexedRegion = part.places
    dim, ids = places.rows  # type: ignore[misc]
    still = IndexedRegion(places.tensor, places.indices, places.shape).pieces()[0][1]
    tensor = places.tensor
    offset = still.offset - tensor.offset
    shown = tensor.ap(tensor.get_pattern()) if tensor.indirection is not None else tensor
    return shown.ap(still.get_pattern(), offset, scalar_offset=ids[0:1, 0:1], indirect_dim=dim)
