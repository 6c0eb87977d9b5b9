"""Instructions of ScalarE of the old `nisa`."""

from __future__ import annotations

from typing import Any

from nki import isa as new
from nki.ir.tensor import NkiTensor
from nki.isa.enums import reduce_cmd
from nki.language.elementwise import unary_into
from nki.language.operands import is_number
from nki.machine import dtypes
from nki.machine.dtypes import DTypeLike
from nki.machine.operators import OPERATORS, Operator

from . import state as run
from .indices import Box
from .masks import MaskLike
from .operands import column_of, cut, operator_of, operator_or_none, result_dtype, rows_in, tile_of
from .regions import empty_of
from .tensor import Tensor, value


def activation(
    op: object,
    data: object,
    *,
    bias: object = None,
    scale: Any = 1.0,
    reduce_op: object = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
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
    reduction = operator_or_none(reduce_op, "activation", "reduce_op")
    result = None if reduce_res is None else reduce_res.tile()

    def emit(out: NkiTensor, box: Box | None) -> None:
        part = cut(tile, box, tile.shape)
        _activate(
            out,
            function,
            part,
            rows_in(add, box),
            rows_in(factor, box),
            reduction,
            rows_in(result, box),
            reduce_cmd,
        )

    return value(tile.shape, result_dtype(dtype, tile), emit, mask)


def _activate(
    out: NkiTensor,
    op: Operator,
    data: NkiTensor,
    bias: NkiTensor | None,
    scale: NkiTensor | float,
    reduction: Operator | None,
    res: NkiTensor | None,
    cmd: reduce_cmd,
) -> None:
    if op.activation is not None:
        new.activation(out, op, data, bias, scale, reduction, res, cmd)
        return
    prepared = empty_of(data.shape, dtypes.float32)  # no table of ScalarE: in two steps
    new.activation(prepared, OPERATORS["copy"], data, bias, scale)
    unary_into(out, op, prepared)
    if res is not None:
        new.tensor_reduce(res, reduction or OPERATORS["add"], out, tuple(range(1, out.ndim)))


def _filled(rows: int, number: float) -> NkiTensor:
    out = empty_of((rows, 1), dtypes.float32)
    new.memset(out, number)
    return out


def activation_reduce(
    op: object,
    data: object,
    *,
    reduce_op: object,
    reduce_res: Tensor,
    bias: object = None,
    scale: Any = 1.0,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
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
