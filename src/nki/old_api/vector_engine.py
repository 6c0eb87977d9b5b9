"""Instructions of ScalarE, VectorE and GpSimd of the old `nisa`, element by element and over free axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import isa as new
from ..hardware import dtypes
from ..hardware.memories import PSUM
from ..hardware.operators import OPERATORS
from ..isa.enums import engine, reduce_cmd
from ..language.elementwise import unary_into
from ..language.operands import is_number
from ..tensors.tensor import NkiTensor
from . import state as run
from .assignment import constant_tile
from .creation import full
from .indices import Index, Mask
from .indices import where as mask_of
from .operands import (
    cast,
    column_of,
    cut,
    in_sbuf,
    iota_into,
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

FP32_MIN = -3.4028235e38


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
    if is_number(add):
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
            _rows(add, column),
            _rows(factor, column),
            folded,
            _rows(result, column),
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


def _rows(operand: Any, column: Any) -> Any:
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
            _rows(a, column),
            reverse0,
            second,
            _rows(b, column),
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
            _rows(a, column),
            second,
            cut(other, box, tile.shape),
            reverse0,
            reverse1,
        )

    return value(tile.shape, _out(dtype, tile, other), emit, mask)


def tensor_scalar_cumulative(
    *,
    src: Any,
    dst: Any,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = reduce_cmd.reset_reduce,
    mask: Any = None,
    **_: Any,
) -> None:
    run.state()
    tile = tile_of(src, "tensor_scalar_cumulative", "src")
    ops = [operator_of(op, "tensor_scalar_cumulative") for op in (op0, op1)]
    a = column_of(imm0, "tensor_scalar_cumulative", "imm0", tile.shape[0])
    b = None if imm1 is None else column_of(imm1, "tensor_scalar_cumulative", "imm1", tile.shape[0])
    loads = reduce_cmd is new.reduce_cmd.load_reduce
    new.tensor_scalar_cumulative(dst.tile(), tile, *ops, a, b if loads else None, reduce_cmd)


def tensor_tensor_scan(
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Any:
    run.state()
    a, b = tile_of(data0, "tensor_tensor_scan", "data0"), tile_of(data1, "tensor_tensor_scan", "data1")
    b = in_sbuf(b) if a.buffer is PSUM else b
    ops = [operator_of(op, "tensor_tensor_scan") for op in (op0, op1)]
    start = column_of(initial, "tensor_tensor_scan", "initial", a.shape[0])

    def emit(out: NkiTensor, box: Any) -> None:
        column = None if box is None else (box[0],)
        new.tensor_tensor_scan(
            out, cut(a, box, a.shape), cut(b, box, a.shape), _rows(start, column), *ops, reverse0, reverse1
        )

    return value(a.shape, _out(dtype, a, b), emit, mask)


def select_reduce(
    *,
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_op: Any = np.max,
    reverse_pred: bool = False,
    mask: Any = None,
    **_: Any,
) -> None:
    run.state()
    chosen, tile = (
        _predicate(tile_of(predicate, "select_reduce", "predicate")),
        tile_of(on_true, "select_reduce", "on_true"),
    )
    other = column_of(on_false, "select_reduce", "on_false", tile.shape[0])
    res = None if reduce_res is None else reduce_res.tile()
    new.select_reduce(
        dst.tile(),
        chosen,
        tile,
        other,
        res,
        reduce_cmd,
        operator_of(reduce_op, "select_reduce"),
        reverse_pred,
    )


def _predicate(tile: NkiTensor) -> NkiTensor:
    """Predicates are unsigned."""
    return tile.view(dtypes.uint8) if tile.dtype.is_bool or tile.dtype == dtypes.int8 else tile


def range_select(
    *,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_res: Any = None,
    reduce_op: Any = np.max,
    range_start: Any = 0,
    on_false_value: Any = FP32_MIN,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    run.state()
    tile = tile_of(on_true_tile, "range_select", "on_true_tile")
    ops = [operator_of(op, "range_select") for op in (comp_op0, comp_op1)]
    bounds = [column_of(b, "range_select", "bound", tile.shape[0]) for b in (bound0, bound1)]
    res = None if reduce_res is None else reduce_res.tile()
    fold = operator_of(reduce_op, "range_select")
    made = value(
        tile.shape,
        _out(dtype, tile),
        lambda out, box: new.range_select(
            out, tile, *ops, *bounds, reduce_cmd, res, fold, int(range_start), on_false_value
        ),
        mask,
    )
    return made


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
    chosen = _predicate(tile_of(predicate, "tensor_copy_predicated", "predicate"))
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


def iota(expr: Any, dtype: Any, *, mask: Any = None, **_: Any) -> Any:
    run.state()
    index = expr if isinstance(expr, Index) else Index((1, 1), int(expr), (0, 0))
    shape = index.shape if len(index.shape) > 1 else (*index.shape, 1)
    return value(
        shape,
        new_dtype(dtype),
        lambda out, box: iota_into(out, index if box is None else index.part(box)),
        mask,
    )


def affine_select(
    pred: Any, on_true_tile: Any, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_: Any
) -> Any:
    run.state()
    tile = tile_of(on_true_tile, "affine_select", "on_true_tile")
    target = _out(dtype, tile)
    if not isinstance(pred, Mask):
        pred = Mask(np.full((1,) * tile.ndim, bool(pred)))
    shape = tuple(tile.shape)

    def emit(out: NkiTensor, _: Any) -> None:
        terms = pred.terms or ()
        if not terms or any(index.steps is None for index, _ in terms):
            new.memset(out, int(on_false_value) if out.dtype.is_integer else float(on_false_value))
            chosen = constant_tile(np.broadcast_to(pred.array, shape).astype(np.uint8))
            new.tensor_copy_predicated(
                out, tile if tile.dtype == out.dtype else cast(tile, out.dtype), chosen
            )
            return
        source = tile
        for index, name in terms:
            index = index.spread(shape)
            pattern = [[s, n] for s, n in zip(index.steps[1:], shape[1:], strict=True)]
            new.affine_select(
                out, pattern, index.steps[0], source, on_false_value, OPERATORS[name], index.base
            )
            source = out

    return value(shape, target, emit, mask if mask is None else mask)


def memset(
    shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = engine.unknown, **_: Any
) -> Any:
    return full(tuple(int(n) for n in shape), value, dtype)


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
