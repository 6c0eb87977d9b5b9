"""Reductions over free axes, and what is built from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nki import isa
from nki.ir.tensor import NkiTensor
from nki.machine.operators import OPERATORS, Operator

from . import state as run
from .elementwise import ELEMENTWISE, named
from .failures import failure
from .masks import MaskLike, Where
from .masks import where as mask_of
from .operands import tile_of, without
from .regions import empty_of, fitted
from .tensor import Whole, value
from .types import DTypeLike, float32, new_dtype

add, subtract, multiply, divide = (ELEMENTWISE[n] for n in ("add", "subtract", "multiply", "divide"))
exp, square, rsqrt = (ELEMENTWISE[n] for n in ("exp", "square", "rsqrt"))


def _axes(axis: Any, rank: int) -> list[int]:
    return sorted({int(a) % rank for a in (axis if isinstance(axis, (tuple, list)) else (axis,))})


def reduce_tile(
    op: Operator,
    tile: NkiTensor,
    axis: Any,
    dtype: DTypeLike | None,
    mask: MaskLike,
    keepdims: bool,
    negate: bool = False,
) -> Any:
    """Reduce over any free axes; masked elements take no part."""
    axes = _axes(axis, tile.ndim)
    masked = mask_of(mask, tile.shape)
    if masked.array is not None:
        tile, mask = without(tile, masked, _NEUTRAL[op.name]), None
        masked = mask_of(None, tile.shape)
    box = masked.box
    part = tile if box is None or masked.covers(tile.shape) else tile[box]
    outer = [d for d in range(tile.ndim) if d not in axes]
    moved = part if outer == list(range(len(outer))) else part.permute([*outer, *axes])
    inner = [tile.shape[d] for d in outer] + [1] * (len(outer) < 2)
    shown = [1 if d in axes else n for d, n in enumerate(tile.shape)] if keepdims else inner
    if not outer or outer[0] != 0:
        raise failure("err_unsupported_memory", "the partition dimension cannot be reduced over here")

    def emit(out: NkiTensor, _: Any) -> None:
        target = fitted(out, [moved.shape[k] for k in range(len(outer))] + [1] * (len(outer) < 2))
        isa.tensor_reduce(target, op, moved, tuple(range(len(outer), tile.ndim)), negate=negate)

    target = tile.dtype if dtype is None else new_dtype(dtype)
    if box is None or masked.covers(tile.shape):
        return value(shown, target, emit, None if box is not None else False)
    cuts = tuple(slice(0, 1) if d in axes else box[d] for d in range(tile.ndim))
    cuts = cuts if keepdims else tuple(box[d] for d in outer) + (slice(0, 1),) * (len(outer) < 2)
    return boxed(shown, target, emit, cuts)


def boxed(shape: Sequence[int], dtype: DTypeLike, emit: Any, cuts: Any) -> Any:
    """Return a tile of which only a box is computed; an assignment writes only that box."""
    out = empty_of(shape, dtype)
    isa.memset(out, 0)
    emit(out[cuts], cuts)
    made = Whole(out)
    made.where = Where(cuts)
    return made


_NEUTRAL = {
    "add": 0.0,
    "multiply": 1.0,
    "maximum": -3.4028235e38,
    "minimum": 3.4028235e38,
    "logical_and": 1.0,
    "bitwise_or": 0.0,
    "bitwise_and": -1.0,
}


def _make_reduction(name: str, op: Operator) -> Callable:
    def function(
        x: Any,
        axis: Any = -1,
        dtype: DTypeLike | None = None,
        mask: MaskLike = None,
        keepdims: bool = False,
        **_: object,
    ) -> Any:
        run.state()
        return reduce_tile(op, tile_of(x, name, "x"), axis, dtype, mask, keepdims)

    return named(function, op, name)


max = _make_reduction("max", OPERATORS["maximum"])
min = _make_reduction("min", OPERATORS["minimum"])
sum = _make_reduction("sum", OPERATORS["add"])
prod = _make_reduction("prod", OPERATORS["multiply"])
all = _make_reduction("all", OPERATORS["logical_and"])


def mean(
    x: Any,
    axis: Any,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    keepdims: bool = False,
    **_: object,
) -> Any:
    total = sum(x, axis, dtype=float32, mask=mask, keepdims=keepdims)
    tile = tile_of(x, "mean", "x")
    masked = mask_of(mask, tile.shape)
    count = 1
    for a in _axes(axis, tile.ndim):
        count *= tile.shape[a] if masked.box is None else masked.box[a].stop - masked.box[a].start
    return multiply(total, 1.0 / count, dtype=dtype or x.dtype)


def var(
    x: Any,
    axis: Any,
    dtype: DTypeLike | None = None,
    mask: MaskLike = None,
    keepdims: bool = False,
    **_: object,
) -> Any:
    middle = mean(x, axis, dtype=float32, mask=mask, keepdims=True)
    apart = subtract(x, middle, dtype=float32)
    squares = multiply(apart, apart)
    return mean(squares, axis, dtype=dtype or x.dtype, mask=mask, keepdims=keepdims)


def softmax(
    x: Any,
    axis: Any = -1,
    dtype: DTypeLike | None = None,
    compute_dtype: object = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    largest = max(x, axis, dtype=float32, mask=mask, keepdims=True)
    powers = exp(subtract(x, largest, dtype=float32))
    total = sum(powers, axis, dtype=float32, mask=mask, keepdims=True)
    return divide(powers, total, dtype=dtype or x.dtype)


def rms_norm(
    x: Any,
    w: Any,
    axis: Any,
    n: Any,
    epsilon: float = 1e-6,
    dtype: DTypeLike | None = None,
    compute_dtype: object = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    squares = square(x, dtype=float32)
    total = sum(squares, axis, dtype=float32, mask=mask, keepdims=True)
    scale = rsqrt(add(multiply(total, 1.0 / n), epsilon))
    scaled = multiply(x, scale, dtype=float32)
    return multiply(scaled, w, dtype=dtype or x.dtype)
