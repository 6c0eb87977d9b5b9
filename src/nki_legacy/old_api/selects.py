"""Scans, selections by index or predicate, and new tiles of the old `nisa`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki import isa as new
from nki.ir.tensor import NkiTensor
from nki.isa.enums import engine, reduce_cmd
from nki.machine.memories import PSUM
from nki.machine.operators import OPERATORS

from . import state as run
from .assignment import constant_tile
from .creation import full
from .indices import Box, Index, IndexMask
from .masks import MaskLike
from .operands import cast, column_of, cut, in_sbuf, iota_into, operator_of, result_dtype, rows_in, tile_of
from .tensor import Tensor, value
from .types import DTypeLike, new_dtype
from .vector_engine import predicate_of

FP32_MIN = -3.4028235e38
_out = result_dtype


def tensor_scalar_cumulative(
    *,
    src: Tensor,
    dst: Tensor,
    op0: object,
    op1: object,
    imm0: object,
    imm1: object = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    mask: MaskLike = None,
    **_: object,
) -> None:
    run.state()
    tile = tile_of(src, "tensor_scalar_cumulative", "src")
    ops = [operator_of(op, "tensor_scalar_cumulative") for op in (op0, op1)]
    a = column_of(imm0, "tensor_scalar_cumulative", "imm0", tile.shape[0])
    b = None if imm1 is None else column_of(imm1, "tensor_scalar_cumulative", "imm1", tile.shape[0])
    loads = reduce_cmd is new.reduce_cmd.load_reduce
    new.tensor_scalar_cumulative(dst.tile(), tile, ops[0], ops[1], a, b if loads else None, reduce_cmd)


def tensor_tensor_scan(
    data0: object,
    data1: object,
    initial: object,
    op0: object,
    op1: object,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    run.state()
    a, b = tile_of(data0, "tensor_tensor_scan", "data0"), tile_of(data1, "tensor_tensor_scan", "data1")
    b = in_sbuf(b) if a.buffer is PSUM else b
    ops = [operator_of(op, "tensor_tensor_scan") for op in (op0, op1)]
    start = column_of(initial, "tensor_tensor_scan", "initial", a.shape[0])

    def emit(out: NkiTensor, box: Box | None) -> None:
        new.tensor_tensor_scan(
            out,
            cut(a, box, a.shape),
            cut(b, box, a.shape),
            rows_in(start, box),
            ops[0],
            ops[1],
            reverse0,
            reverse1,
        )

    return value(a.shape, _out(dtype, a, b), emit, mask)


def select_reduce(
    *,
    dst: Tensor,
    predicate: object,
    on_true: object,
    on_false: object,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: object = np.max,
    reverse_pred: bool = False,
    mask: MaskLike = None,
    **_: object,
) -> None:
    run.state()
    chosen, tile = (
        predicate_of(tile_of(predicate, "select_reduce", "predicate")),
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


def range_select(
    *,
    on_true_tile: object,
    comp_op0: object,
    comp_op1: object,
    bound0: object,
    bound1: object,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_res: Tensor | None = None,
    reduce_op: object = np.max,
    range_start: Any = 0,
    on_false_value: Any = FP32_MIN,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
) -> Any:
    run.state()
    tile = tile_of(on_true_tile, "range_select", "on_true_tile")
    ops = [operator_of(op, "range_select") for op in (comp_op0, comp_op1)]
    bounds = [column_of(b, "range_select", "bound", tile.shape[0]) for b in (bound0, bound1)]
    res = None if reduce_res is None else reduce_res.tile()
    reduction = operator_of(reduce_op, "range_select")
    made = value(
        tile.shape,
        _out(dtype, tile),
        lambda out, box: new.range_select(
            out,
            tile,
            ops[0],
            ops[1],
            bounds[0],
            bounds[1],
            reduce_cmd,
            res,
            reduction,
            int(range_start),
            on_false_value,
        ),
        mask,
    )
    return made


def iota(expr: Any, dtype: DTypeLike, *, mask: MaskLike = None, **_: object) -> Any:
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
    pred: Any,
    on_true_tile: object,
    on_false_value: Any,
    *,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
) -> Any:
    run.state()
    tile = in_sbuf(tile_of(on_true_tile, "affine_select", "on_true_tile"))
    target = _out(dtype, tile)
    if not isinstance(pred, IndexMask):
        pred = IndexMask(np.full((1,) * tile.ndim, bool(pred)))
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
    shape: Any,
    value: Any,
    dtype: DTypeLike,
    *,
    mask: MaskLike = None,
    engine: Any = engine.unknown,
    **_: object,
) -> Any:
    return full(tuple(int(n) for n in shape), value, dtype)
