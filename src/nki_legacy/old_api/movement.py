"""Between HBM and tiles, and the functions that are neither element by element nor reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes

from nki import isa
from nki import language as new
from nki.ir.tensor import NkiTensor
from nki.language.operands import is_number

from . import state as run
from . import tensor_engine, vector_engine
from .assignment import fill, write
from .failures import failure
from .indices import Box
from .masks import MaskLike, rows_of
from .masks import where as mask_of
from .operands import common_shape, in_sbuf, operand_of, operator_of, result_dtype, stretched, tile_of
from .regions import copy_pieces, empty_of, fitted, move
from .tensor import LoopReduction, PendingValue, Tensor, Whole, broadcast, value
from .types import DTypeLike, new_dtype


def load(src: Tensor, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object) -> Any:
    """A tile with the contents of an HBM tensor, where the mask is true."""
    run.state()
    shape = src.shape if len(src.shape) > 1 else (*src.shape, 1)
    if shape[0] > 128:
        raise failure(
            "err_num_partition_exceed_arch_limit",
            f"Size of partition dimension {shape[0]} exceeds architecture limitation of 128",
        )
    target = src.kind if dtype is None else new_dtype(dtype)
    masked = None if mask is None else mask_of(mask, shape)
    if masked is not None and masked.array is not None:
        return _load_positions(src, shape, target, masked)
    parts = src.parts(None if masked is None or masked.box is None else masked.box[: len(src.shape)])
    own = None if masked is None else masked.box

    def emit(out: NkiTensor, box: Box | None) -> None:
        if len(parts) == 1:
            move(out, parts[0][1])
        else:
            copy_pieces(out, parts, own)

    return value(shape, target, emit, mask, by_dma=True)


def _load_positions(src: Tensor, shape: Sequence[int], target: Any, masked: Any) -> Any:
    out = empty_of(shape, target)
    isa.memset(out, 0)
    for box, _ in rows_of(masked.array):
        for place, view in src.parts(box[: len(src.shape)]):
            cuts = tuple(place) + tuple(box[len(place) :])
            move(out[cuts], view)
    made = Whole(out)
    made.where = masked
    return made


def store(dst: Tensor, value: Any = None, mask: MaskLike = None, **_: object) -> None:
    """Write a tile, or a number, to an HBM tensor, where the mask is true."""
    if isinstance(value, Tensor):
        run.state()
        masked = None if mask is None else mask_of(mask, dst.shape)
        write(dst, value, masked)
    else:
        run.state()
        fill(dst, value, mask_of(mask, dst.shape))


def load_transpose2d(src: Tensor, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object) -> Any:
    run.state()
    masked = mask_of(mask, src.shape)
    if masked.covers(src.shape):
        tile = new.load_transpose2d(
            fitted(src.tile(), src.shape), dtype=None if dtype is None else new_dtype(dtype)
        )
        return Whole(tile)
    out = empty_of((src.shape[1], src.shape[0]), src.kind if dtype is None else new_dtype(dtype))
    isa.memset(out, 0)
    for place, view in src.parts(masked.box) if masked.box is not None else ():
        isa.dma_copy(out[(place[1], place[0])], view.permute((1, 0)))
    return Whole(out)


def atomic_rmw(dst: Tensor, value: Any, op: object, mask: MaskLike = None, **_: object) -> None:
    """dst = dst + value, row by row where dst has row numbers."""
    run.state()
    tile = in_sbuf(tile_of(value, "atomic_rmw", "value"))
    masked = mask_of(mask, dst.shape)
    if masked.box is None:
        return
    for place, view in dst.parts(masked.box):
        part = tile[tuple(place)]
        isa.dma_compute(view, [part, view], reduce_op=operator_of(op, "atomic_rmw"))


# ---- the rest ------------------------------------------------------------------------------------


def where(
    condition: Any, x: Any, y: Any, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object
) -> Any:
    run.state()
    chosen = tile_of(condition, "where", "condition")
    a, b = operand_of(x, "where", "x"), operand_of(y, "where", "y")
    tiles = [t for t in (chosen, a, b) if isinstance(t, NkiTensor)]
    shape = common_shape(tiles, "where")
    target = result_dtype(dtype, *(x if is_number(t) else t for t in (a, b)))
    condition, x, y = (t if is_number(t) else stretched(t, shape) for t in (chosen, a, b))
    return Whole(new.where(condition, x, y, dtype=target))


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: MaskLike = None, **_: object) -> Any:
    """x @ y, or x.T @ y, in PSUM."""
    if not transpose_x:
        run.state()
        x = Whole(in_sbuf(new.transpose(tile_of(x, "matmul", "x"))))
    return tensor_engine.nc_matmul(x, y, mask=mask)


def transpose(x: Any, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object) -> Any:
    return tensor_engine.nc_transpose(x, mask=mask, dtype=dtype)


def gather_flattened(
    data: object, indices: Any, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object
) -> Any:
    run.state()
    rows = tile_of(indices, "gather_flattened", "indices")
    tile = tile_of(data, "gather_flattened", "data")
    return Whole(new.gather_flattened(tile, rows, dtype=None if dtype is None else new_dtype(dtype)))


def dropout(x: Any, rate: Any, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object) -> Any:
    return vector_engine.dropout(x, rate, dtype=dtype, mask=mask)


def loop_reduce(
    x: Any,
    op: object,
    loop_indices: Sequence[int] = (),
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    """In `dst[k] = nl.loop_reduce(...)`: dst[k] = op(dst[k], x); the loops' first sets an undefined dst."""
    run.state()
    tile = tile_of(x, "loop_reduce", "x")
    made = PendingValue(
        tile.shape, tile.dtype if dtype is None else new_dtype(dtype), lambda out, box: move(out, tile)
    )
    made.reduction = LoopReduction(operator_of(op, "loop_reduce"), tuple(int(i) for i in loop_indices))
    made.compute()
    return made


def all_reduce(x: Any, op: object, program_axes: object, *_: object, **__: object) -> Any:
    raise failure(
        "err_no_successor",
        "nl.all_reduce has no successor",
        "combine the programs' results in HBM, on the host",
    )


def expand_dims(data: Tensor, axis: Any, **_: object) -> Any:
    return data.expand_dims(axis)


def broadcast_to(src: Tensor, *, shape: Any, **_: object) -> Any:
    run.state()
    return Whole(in_sbuf(broadcast(src, tuple(int(n) for n in shape)).tile()))


def device_print(prefix: str, x: Any = None, mask: MaskLike = None, **_: object) -> None:
    if isinstance(x, Tensor):
        run.state()
        new.device_print(prefix, x.tile())
    else:
        print(prefix, x)


def static_cast(x: Any, dtype: DTypeLike) -> Any:
    return x.astype(dtype)


def finfo(dtype: DTypeLike) -> Any:
    return ml_dtypes.finfo(new_dtype(dtype).storage)
