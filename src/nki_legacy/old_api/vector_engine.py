"""Instructions of VectorE and GpSimd of the old `nisa`, element by element and over free axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki import isa as new
from nki.ir.tensor import NkiTensor
from nki.isa.enums import engine
from nki.language.operands import is_number
from nki.machine import dtypes
from nki.machine.dtypes import DType
from nki.machine.memories import PSUM

from . import state as run
from .indices import Box
from .masks import MaskLike
from .masks import where as mask_of
from .operands import (
    cast,
    column_of,
    common_shape,
    cut,
    in_sbuf,
    operator_of,
    operator_or_none,
    result_dtype,
    rows_in,
    stretched,
    tile_of,
)
from .reductions import boxed, reduce_tile
from .regions import empty_of, fitted
from .tensor import Tensor, value
from .types import DTypeLike, new_dtype

_out = result_dtype


def _engine(wanted: Any) -> Any:
    return wanted if wanted in (engine.vector, engine.scalar, engine.gpsimd) else engine.unknown


def tensor_reduce(
    op: object,
    data: object,
    axis: Any,
    *,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    negate: bool = False,
    keepdims: bool = False,
    **_: object,
) -> Any:
    run.state()
    tile = tile_of(data, "tensor_reduce", "data")
    return reduce_tile(operator_of(op, "tensor_reduce"), tile, axis, dtype, mask, keepdims, negate)


def tensor_partition_reduce(
    op: object, data: object, *, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object
) -> Any:
    run.state()
    tile = in_sbuf(tile_of(data, "tensor_partition_reduce", "data"))
    masked = mask_of(mask, tile.shape)
    part = tile if masked.box is None or masked.covers(tile.shape) else tile[masked.box]
    function = operator_of(op, "tensor_partition_reduce")
    shape = (1, *part.shape[1:])
    return value(shape, _out(dtype, tile), lambda out, box: new.tensor_partition_reduce(out, function, part))


def tensor_tensor(
    data1: object,
    data2: object,
    op: object,
    *,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    engine: Any = engine.unknown,
    **_: object,
) -> Any:
    run.state()
    a, b = tile_of(data1, "tensor_tensor", "data1"), tile_of(data2, "tensor_tensor", "data2")
    function = operator_of(op, "tensor_tensor")
    shape = tuple(a.shape)
    if a.free_elements == b.free_elements:
        b = (
            fitted(b, shape)
            if len([n for n in b.shape if n != 1]) == len([n for n in shape if n != 1])
            else b
        )
    else:
        shape = common_shape((a, b), "tensor_tensor")
        a, b = stretched(a, shape), stretched(b, shape)
    if a.buffer is PSUM and b.buffer is PSUM:
        b = in_sbuf(b)
    target = _out(dtype, a, b)

    def emit(out: NkiTensor, box: Box | None) -> None:
        new.tensor_tensor(out, cut(a, box, shape), cut(b, box, shape), function, engine=_engine(engine))

    return value(shape, target, emit, mask)


def tensor_scalar(
    data: object,
    op0: object,
    operand0: object,
    reverse0: bool = False,
    op1: object = None,
    operand1: object = None,
    reverse1: bool = False,
    *,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    engine: Any = engine.unknown,
    **_: object,
) -> Any:
    run.state()
    tile = tile_of(data, "tensor_scalar", "data")
    first, second = operator_of(op0, "tensor_scalar", "op0"), operator_or_none(op1, "tensor_scalar", "op1")
    rows = tile.shape[0]
    a = column_of(operand0, "tensor_scalar", "operand0", rows)
    b = None if operand1 is None else column_of(operand1, "tensor_scalar", "operand1", rows)

    def emit(out: NkiTensor, box: Box | None) -> None:
        new.tensor_scalar(
            out,
            cut(tile, box, tile.shape),
            first,
            rows_in(a, box),
            reverse0,
            second,
            rows_in(b, box),
            reverse1,
            engine=_engine(engine),
        )

    return value(tile.shape, _out(dtype, tile), emit, mask)


def tensor_scalar_reduce(
    *,
    data: object,
    op0: object,
    operand0: object,
    reduce_op: object,
    reduce_res: Tensor,
    reverse0: bool = False,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    run.state()
    tile = tile_of(data, "tensor_scalar_reduce", "data")
    first = operator_of(op0, "tensor_scalar_reduce", "op0")
    reduction = operator_of(reduce_op, "tensor_scalar_reduce", "reduce_op")
    a, res = column_of(operand0, "tensor_scalar_reduce", "operand0", tile.shape[0]), reduce_res.tile()
    return value(
        tile.shape,
        _out(dtype, tile),
        lambda out, box: new.tensor_scalar_reduce(
            out, cut(tile, box, tile.shape), first, a, reduction, res, reverse0
        ),
        mask,
    )


def scalar_tensor_tensor(
    *,
    data: object,
    op0: object,
    operand0: object,
    op1: object,
    operand1: object,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    run.state()
    tile, other = (
        tile_of(data, "scalar_tensor_tensor", "data"),
        tile_of(operand1, "scalar_tensor_tensor", "operand1"),
    )
    first, second = (operator_of(op, "scalar_tensor_tensor") for op in (op0, op1))
    a = column_of(operand0, "scalar_tensor_tensor", "operand0", tile.shape[0])
    other = in_sbuf(other) if tile.buffer is PSUM else other
    other = stretched(other, tile.shape) if other.free_elements != tile.free_elements else other

    def emit(out: NkiTensor, box: Box | None) -> None:
        new.scalar_tensor_tensor(
            out,
            cut(tile, box, tile.shape),
            first,
            rows_in(a, box),
            second,
            cut(other, box, tile.shape),
            reverse0,
            reverse1,
        )

    return value(tile.shape, _out(dtype, tile, other), emit, mask)


def predicate_of(tile: NkiTensor) -> NkiTensor:
    """Predicates are unsigned."""
    return tile.view(dtypes.uint8) if tile.dtype.is_bool or tile.dtype == dtypes.int8 else tile


def tensor_copy(
    src: Tensor,
    *,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    engine: Any = engine.unknown,
    **_: object,
) -> Any:
    run.state()
    tile = tile_of(src, "tensor_copy", "src")
    return value(
        tile.shape,
        _out(dtype, tile),
        lambda out, box: new.tensor_copy(out, cut(tile, box, tile.shape), engine=_engine(engine)),
        mask,
    )


def tensor_copy_predicated(
    *,
    src: Tensor,
    dst: Tensor,
    predicate: object,
    reverse_pred: bool = False,
    mask: MaskLike = None,
    **_: object,
) -> None:
    run.state()
    source = src if is_number(src) else tile_of(src, "tensor_copy_predicated", "src")
    chosen = predicate_of(tile_of(predicate, "tensor_copy_predicated", "predicate"))
    target = dst.tile()
    if isinstance(source, NkiTensor) and source.dtype != target.dtype:
        source = cast(source, target.dtype)
    new.tensor_copy_predicated(target, source, chosen, reverse_pred)


def reciprocal(data: object, *, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object) -> Any:
    run.state()
    tile = tile_of(data, "reciprocal", "data")
    return value(
        tile.shape, _out(dtype, tile), lambda out, box: new.reciprocal(out, cut(tile, box, tile.shape)), mask
    )


def dropout(
    data: object, prob: object, *, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object
) -> Any:
    run.state()
    tile = tile_of(data, "dropout", "data")
    rate = column_of(prob, "dropout", "prob", tile.shape[0])
    target = _out(dtype, tile)

    def emit(out: NkiTensor, box: Box | None) -> None:
        part = cut(tile, box, tile.shape)
        if out.dtype == part.dtype:
            new.dropout(out, part, rate)
        else:
            made = empty_of(part.shape, part.dtype)
            new.dropout(made, part, rate)
            new.tensor_copy(out, made)

    return value(tile.shape, target, emit, mask)


def bn_stats(data: object, *, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object) -> Any:
    run.state()
    tile = tile_of(data, "bn_stats", "data")
    return _statistics(new.bn_stats, tile, 6, dtypes.float32, new_dtype(dtype or np.float32), mask)


def bn_aggr(data: object, *, mask: MaskLike = None, dtype: DTypeLike | None = None, **_: object) -> Any:
    run.state()
    tile = tile_of(data, "bn_aggr", "data")
    return _statistics(new.bn_aggr, tile, 2, tile.dtype, _out(dtype, tile), mask)


def _statistics(
    instruction: Callable[..., object],
    tile: NkiTensor,
    count: int,
    masked_dtype: DType,
    dtype: DType,
    mask: MaskLike,
) -> Any:
    """Return `count` statistics of each partition; of masked partitions none."""
    masked = mask_of(mask, tile.shape)
    part = tile if masked.box is None or masked.covers(tile.shape) else tile[masked.box]
    shape = (tile.shape[0], count)
    if masked.box is not None and part.shape[0] != tile.shape[0]:
        cuts = (masked.box[0], slice(0, count))
        return boxed(shape, masked_dtype, lambda out, box: instruction(out, part), cuts)
    return value(shape, dtype, lambda out, box: instruction(out, part))
