"""Instructions of ScalarE, VectorE and GpSimd of the old `nisa`, element by element and over free axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki import isa as new
from nki.ir.tensor import NkiTensor
from nki.isa.enums import engine, reduce_cmd
from nki.language.elementwise import unary_into
from nki.language.operands import is_number
from nki.machine import dtypes
from nki.machine.memories import PSUM
from nki.machine.operators import OPERATORS

from . import state as run
from .indices import where as mask_of
from .operands import (
    cast,
    column_of,
    cut,
    in_sbuf,
    operator_of,
    operator_or_none,
    result_dtype,
    stretched,
    tile_of,
)
from .operators import FUNCTIONS
from .reductions import boxed, reduce_tile
from .regions import empty_of, fitted
from .tensor import value
from .types import new_dtype


def _out(dtype: Any, *tiles: Any) -> Any:
    return result_dtype(dtype, *tiles)


def _engine(wanted: Any) -> Any:
    return wanted if wanted in (engine.vector, engine.scalar, engine.gpsimd) else engine.unknown


# ---- ScalarE -------------------------------------------------------------------------------------


def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = reduce_cmd.idle,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """op(data * scale + bias)."""
    run.state()
    tile = tile_of(data, "activation", "data")
    function = operator_of(op, "activation")
    rows = tile.shape[0]
    add = None if bias is None else column_of(bias, "activation", "bias", rows)
    if add is not None and is_number(add):
        add = _filled(rows, float(add))
    factor = column_of(scale, "activation", "scale", rows)
    folded = operator_or_none(reduce_op, "activation", "reduce_op")
    result = None if reduce_res is None else reduce_res.tile()

    def emit(out: NkiTensor, box: Any) -> None:
        part = cut(tile, box, tile.shape)
        column = None if box is None else (box[0],)
        _activate(
            out,
            function,
            part,
            rows_of(add, column),
            rows_of(factor, column),
            folded,
            rows_of(result, column),
            reduce_cmd,
        )

    return value(tile.shape, _out(dtype, tile), emit, mask)


def _activate(
    out: NkiTensor, op: Any, data: NkiTensor, bias: Any, scale: Any, fold: Any, res: Any, cmd: Any
) -> None:
    if op.activation is not None:
        new.activation(out, op, data, bias, scale, fold, res, cmd)
        return
    prepared = empty_of(data.shape, dtypes.float32)  # no table of ScalarE: in two steps
    new.activation(prepared, OPERATORS["copy"], data, bias, scale)
    unary_into(out, op, prepared)
    if res is not None:
        new.tensor_reduce(res, fold or OPERATORS["add"], out, tuple(range(1, out.ndim)))


def rows_of(operand: Any, column: Any) -> Any:
    return operand if column is None or not isinstance(operand, NkiTensor) else operand[column]


def _filled(rows: int, number: float) -> NkiTensor:
    out = empty_of((rows, 1), dtypes.float32)
    new.memset(out, number)
    return out


def activation_reduce(
    op: Any,
    data: Any,
    *,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    made = activation(
        op,
        data,
        bias=bias,
        scale=scale,
        reduce_op=reduce_op,
        reduce_res=reduce_res,
        reduce_cmd=reduce_cmd.reset_reduce,
        mask=mask,
        dtype=dtype,
    )
    run.state()
    return made


# ---- VectorE -------------------------------------------------------------------------------------


def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **_: Any,
) -> Any:
    run.state()
    tile = tile_of(data, "tensor_reduce", "data")
    return reduce_tile(operator_of(op, "tensor_reduce"), tile, axis, dtype, mask, keepdims, negate)


def tensor_partition_reduce(op: Any, data: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    run.state()
    tile = in_sbuf(tile_of(data, "tensor_partition_reduce", "data"))
    masked = mask_of(mask, tile.shape)
    part = tile if masked.box is None or masked.covers(tile.shape) else tile[masked.box]
    function = operator_of(op, "tensor_partition_reduce")
    shape = (1, *part.shape[1:])
    return value(shape, _out(dtype, tile), lambda out, box: new.tensor_partition_reduce(out, function, part))


def tensor_tensor(
    data1: Any,
    data2: Any,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **_: Any,
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
        shape = np.broadcast_shapes(shape, tuple(b.shape))
        a, b = stretched(a, shape), stretched(b, shape)
    if a.buffer is PSUM and b.buffer is PSUM:
        b = in_sbuf(b)
    target = _out(dtype, a, b)

    def emit(out: NkiTensor, box: Any) -> None:
        new.tensor_tensor(out, cut(a, box, shape), cut(b, box, shape), function, engine=_engine(engine))

    return value(shape, target, emit, mask)


def tensor_scalar(
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **_: Any,
) -> Any:
    run.state()
    tile = tile_of(data, "tensor_scalar", "data")
    first, second = operator_of(op0, "tensor_scalar", "op0"), operator_or_none(op1, "tensor_scalar", "op1")
    rows = tile.shape[0]
    a = column_of(operand0, "tensor_scalar", "operand0", rows)
    b = None if operand1 is None else column_of(operand1, "tensor_scalar", "operand1", rows)

    def emit(out: NkiTensor, box: Any) -> None:
        column = None if box is None else (box[0],)
        new.tensor_scalar(
            out,
            cut(tile, box, tile.shape),
            first,
            rows_of(a, column),
            reverse0,
            second,
            rows_of(b, column),
            reverse1,
            engine=_engine(engine),
        )

    return value(tile.shape, _out(dtype, tile), emit, mask)


def tensor_scalar_reduce(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Any:
    run.state()
    tile = tile_of(data, "tensor_scalar_reduce", "data")
    first = operator_of(op0, "tensor_scalar_reduce", "op0")
    fold = operator_of(reduce_op, "tensor_scalar_reduce", "reduce_op")
    a, res = column_of(operand0, "tensor_scalar_reduce", "operand0", tile.shape[0]), reduce_res.tile()
    return value(
        tile.shape,
        _out(dtype, tile),
        lambda out, box: new.tensor_scalar_reduce(
            out, cut(tile, box, tile.shape), first, a, fold, res, reverse0
        ),
        mask,
    )


def scalar_tensor_tensor(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
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

    def emit(out: NkiTensor, box: Any) -> None:
        column = None if box is None else (box[0],)
        new.scalar_tensor_tensor(
            out,
            cut(tile, box, tile.shape),
            first,
            rows_of(a, column),
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
    src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any
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
    *, src: Any, dst: Any, predicate: Any, reverse_pred: bool = False, mask: Any = None, **_: Any
) -> None:
    run.state()
    source = src if is_number(src) else tile_of(src, "tensor_copy_predicated", "src")
    chosen = predicate_of(tile_of(predicate, "tensor_copy_predicated", "predicate"))
    target = dst.tile()
    if isinstance(source, NkiTensor) and source.dtype != target.dtype:
        source = cast(source, target.dtype)
    new.tensor_copy_predicated(target, source, chosen, reverse_pred)


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    run.state()
    tile = tile_of(data, "reciprocal", "data")
    return value(
        tile.shape, _out(dtype, tile), lambda out, box: new.reciprocal(out, cut(tile, box, tile.shape)), mask
    )


def dropout(data: Any, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    run.state()
    tile = tile_of(data, "dropout", "data")
    rate = column_of(prob, "dropout", "prob", tile.shape[0])
    target = _out(dtype, tile)

    def emit(out: NkiTensor, box: Any) -> None:
        part = cut(tile, box, tile.shape)
        if out.dtype == part.dtype:
            new.dropout(out, part, rate)
        else:
            made = empty_of(part.shape, part.dtype)
            new.dropout(made, part, rate)
            new.tensor_copy(out, made)

    return value(tile.shape, target, emit, mask)


def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    run.state()
    tile = tile_of(data, "bn_stats", "data")
    masked = mask_of(mask, tile.shape)
    part = tile if masked.box is None or masked.covers(tile.shape) else tile[masked.box]
    if part.shape[0] != tile.shape[0]:
        return boxed(
            (tile.shape[0], 6),
            dtypes.float32,
            lambda out, box: new.bn_stats(out, part),
            (masked.box[0], slice(0, 6)),  # type: ignore[index]
        )
    return value((tile.shape[0], 6), new_dtype(dtype or np.float32), lambda out, box: new.bn_stats(out, part))


def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    run.state()
    tile = tile_of(data, "bn_aggr", "data")
    masked = mask_of(mask, tile.shape)
    part = tile if masked.box is None or masked.covers(tile.shape) else tile[masked.box]
    if part.shape[0] != tile.shape[0]:
        return boxed(
            (tile.shape[0], 2),
            tile.dtype,
            lambda out, box: new.bn_aggr(out, part),
            (masked.box[0], slice(0, 2)),  # type: ignore[index]
        )
    return value((tile.shape[0], 2), _out(dtype, tile), lambda out, box: new.bn_aggr(out, part))


FUNCTIONS["isa.dropout"] = dropout
