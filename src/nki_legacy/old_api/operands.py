"""Operands of old calls as `nki` takes them: tiles, numbers, operators, and parts of tiles under a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki import isa
from nki.errors import error
from nki.ir.tensor import NkiTensor
from nki.language.operands import is_number, spread, stretch
from nki.machine import dtypes
from nki.machine.dtypes import DType
from nki.machine.memories import PSUM
from nki.machine.operators import OPERATORS, Operator
from nki.machine.operators import resolve as resolve_new

from .assignment import constant_tile
from .indices import Box, Index
from .masks import Where
from .regions import empty_of, fitted
from .tensor import Tensor
from .types import DTypeLike, dtype_of_number, new_dtype, promote

_NUMPY = {
    "divide": "divide",
    "true_divide": "divide",
    "amax": "maximum",
    "amin": "minimum",
    "absolute": "abs",
    "fabs": "abs",
    "copy": "copy",
    "negative": "negative",
    "mod": "mod",
    "remainder": "mod",
    "fmod": "fmod",
    "cos": "cos",
    "tan": "tan",
    "arctan": "arctan",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
}


def operator_of(op: object, function: str, argument: str = "op") -> Operator:
    """Return the operator that a user passed: an old nl function, or numpy's of the same meaning."""
    if isinstance(op, Operator):
        return op
    name = (
        _NUMPY.get(getattr(op, "__name__", ""))
        if type(op).__module__.startswith("numpy") or callable(op)
        else None
    )
    own = getattr(op, "operator", None)
    if isinstance(own, Operator):
        return own
    return OPERATORS[name] if name else resolve_new(op, function, argument)


def operator_or_none(op: object, function: str, argument: str) -> Operator | None:
    return None if op is None else operator_of(op, function, argument)


def tile_of(value: Any, function: str, name: str) -> NkiTensor:
    """A tile on chip; what is in HBM is loaded, index tensors become tiles."""
    if isinstance(value, Index):
        return index_tile(value)
    if not isinstance(value, Tensor):
        raise error("argument", f"{function}: {name} must be a tile, got {type(value).__name__}")
    tile = value.tile()
    if tile.on_chip:
        return tile
    out = empty_of(tile.shape, tile.dtype)
    isa.dma_copy(out, tile)
    return out


def in_sbuf(tile: NkiTensor) -> NkiTensor:
    """Return the tile, or a copy of it in SBUF."""
    if tile.buffer is not PSUM:
        return tile
    out = empty_of(tile.shape, tile.dtype)
    isa.tensor_copy(out, tile)
    return out


def cast(tile: NkiTensor, dtype: DType) -> NkiTensor:
    """A copy of a tile in another dtype."""
    out = empty_of(tile.shape, dtype)
    isa.tensor_copy(out, tile)
    return out


def operand_of(value: Any, function: str, name: str) -> Any:
    """A tile, or a number."""
    if is_number(value):
        return value.item() if isinstance(value, np.generic) else value
    return tile_of(value, function, name)


def column_of(value: Any, function: str, name: str, rows: int) -> Any:
    """A number, or one value per partition; a single value serves all."""
    value = operand_of(value, function, name)
    if is_number(value):
        return value
    value = fitted(value, (value.shape[0], 1)) if value.free_elements == 1 else value
    return spread(value, rows) if value.shape[0] == 1 and rows != 1 else value


def index_tile(index: Index) -> NkiTensor:
    """Return the values of an index tensor, as int32."""
    shape = index.shape if len(index.shape) > 1 else (*index.shape, 1)
    out = empty_of(shape, dtypes.int32)
    iota_into(out, index)
    return out


def iota_into(out: NkiTensor, index: Index) -> None:
    shape = index.shape if len(index.shape) > 1 else (*(index.shape or (1,)), 1)
    if index.steps is None:
        isa.tensor_copy(out, constant_tile(index.array.reshape(shape).astype(np.int32)))
        return
    steps = index.steps if len(index.steps) > 1 else (*(index.steps or (0,)), 0)
    pattern = [[s, n] for s, n in zip(steps[1:], shape[1:], strict=True)]
    isa.iota(out, pattern, index.base, steps[0])


def cut(operand: Any, box: Box | None, shape: Sequence[int]) -> Any:
    """Return the part of an operand for a box of the result; unit dimensions are repeated."""
    if box is None or is_number(operand) or operand is None:
        return operand
    cuts = tuple(
        slice(None) if operand.shape[d] == 1 and shape[d] != 1 else box[d] for d in range(operand.ndim)
    )
    return operand[cuts]


def rows_in(operand: Any, box: Box | None) -> Any:
    """Return the part of a value per partition for a box of the result."""
    return operand if box is None or not isinstance(operand, NkiTensor) else operand[(box[0],)]


def common_shape(tiles: Sequence[NkiTensor], function: str) -> tuple[int, ...]:
    """Return the shape that tiles broadcast to."""
    rank = max(tile.ndim for tile in tiles)
    shapes = [(t.shape[0], *[1] * (rank - t.ndim), *t.shape[1:]) for t in tiles]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(str(tuple(t.shape)) for t in tiles)
        raise error(
            "shape",
            f"err_num_partition_mismatch: {function}: {shown} do not fit together",
            notes=[t.describe() for t in tiles],
        ) from None


def ranked(operand: Any, shape: Sequence[int]) -> Any:
    """A tile with as many dimensions as the result and as many partitions."""
    if is_number(operand):
        return operand
    if operand.ndim < len(shape):
        operand = fitted(operand, (operand.shape[0], *[1] * (len(shape) - operand.ndim), *operand.shape[1:]))
    return spread(operand, shape[0]) if operand.shape[0] != shape[0] else operand


def stretched(operand: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Return the tile repeated to the shape of the result."""
    return stretch(ranked(operand, shape), tuple(shape))


def result_dtype(dtype: DTypeLike | None, *values: Any) -> DType:
    """`dtype=` if given, else what the operands promote to, bare numbers included."""
    if dtype is not None:
        return new_dtype(dtype)
    kinds = [dtype_of_number(v) if is_number(v) else v.dtype for v in values]
    found = kinds[0]
    for kind in kinds[1:]:
        found = promote(found, kind)
    return found


def without(tile: NkiTensor, masked: Where, neutral: float) -> NkiTensor:
    """A copy of a tile with a neutral number where the mask is false."""
    out = empty_of(tile.shape, tile.dtype)
    isa.memset(out, int(neutral) if tile.dtype.is_integer else neutral)
    if masked.array is None:
        if masked.box is not None:
            isa.tensor_copy(out[masked.box], tile[masked.box])
    else:
        isa.tensor_copy_predicated(out, tile, constant_tile(masked.array.astype(np.uint8)))
    return out
