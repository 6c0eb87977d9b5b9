"""Element by element: each function is one instruction, and serves as `op=` of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki import isa
from nki.ir.tensor import NkiTensor
from nki.language.elementwise import BINARY, UNARY
from nki.language.elementwise import binary_into as carry_out
from nki.language.elementwise import unary_into as carry_out_unary
from nki.language.operands import is_number
from nki.machine import dtypes
from nki.machine.memories import PSUM
from nki.machine.operators import OPERATORS, Operator

from . import state as run
from .assignment import owner_of, write
from .masks import MaskLike
from .operands import cast, common_shape, cut, in_sbuf, operand_of, ranked, result_dtype, tile_of
from .regions import fitted
from .tensor import IndexedTensor, PendingValue, Tensor, Updated, Whole, value
from .types import DTypeLike, new_dtype


def _binary(op: Operator, x: Any, y: Any, dtype: DTypeLike | None, mask: MaskLike) -> Any:
    if is_number(x) and is_number(y):
        return op.formula(x, y)  # type: ignore[misc]
    run.state()
    a, b = operand_of(x, op.name, "x"), operand_of(y, op.name, "y")
    tiles = [t for t in (a, b) if isinstance(t, NkiTensor)]
    shape = common_shape(tiles, op.name)
    if op.kind in ("comparison", "logical") and dtype is None:
        target = dtypes.bool_
    else:
        target = result_dtype(dtype, x if is_number(x) else a, y if is_number(y) else b)
    a, b = _bits(op, a, b) if op.is_bitwise else (a, b)
    a, b = ranked(a, shape), ranked(b, shape)
    if op.name in ("divide", "mod", "fmod", "power"):
        a, b = (t if is_number(t) else in_sbuf(t) for t in (a, b))
    return value(
        shape, target, lambda out, box: carry_out(out, op, cut(a, box, shape), cut(b, box, shape)), mask
    )


def _bits(op: Operator, a: Any, b: Any) -> tuple[Any, Any]:
    """Operators on bits take equal widths."""
    kinds = [t.dtype for t in (a, b) if isinstance(t, NkiTensor)]
    if len(kinds) == 2 and kinds[0].itemsize != kinds[1].itemsize:
        wide = max(kinds, key=lambda kind: kind.itemsize)
        a, b = (t if t.dtype is wide else cast(t, wide) for t in (a, b))
    return a, b


def binary_into(target: Tensor, op: Operator, x: Any, y: Any) -> None:
    """target = x <op> y, in place."""
    masked = getattr(y, "where", None)
    out = target.tile()
    a, b = operand_of(x, op.name, "x"), operand_of(y, op.name, "y")
    box = None if masked is None or masked.covers(out.shape) else masked.box
    if masked is not None and masked.box is None:
        return
    shape = tuple(out.shape)
    b = b if is_number(b) else ranked(fitted(b, shape) if b.free_elements == out.free_elements else b, shape)
    carry_out(cut(out, box, shape), op, cut(a, box, shape), cut(b, box, shape))
    if (
        not isinstance(target, Whole)
        and isinstance(target, IndexedTensor)
        and len(target.places.pieces()) > 1
    ):
        write(target, Whole(out))


def accumulate(target: Tensor, source: Any, name: str) -> Tensor:
    """Do `target += source`, or another operator, in place."""
    current = run.running()
    waits = current is not None and isinstance(source, PendingValue) and current.pending is source
    into_psum = target.region is PSUM and target.kind == dtypes.float32
    if waits and source.product is not None and name == "add" and into_psum:
        assert current is not None
        current.pending = None
        owner = owner_of(target)
        source.product(target.parts()[0][1], True if owner is None or owner.filled else None)
    else:
        run.state()
        binary_into(target, OPERATORS[name], target, source)
    named = isinstance(target, Whole) and target.owner is None
    return target if named or isinstance(target, PendingValue) else Updated(target)


def _unary(op: Operator, x: Any, dtype: DTypeLike | None, mask: MaskLike) -> Any:
    run.state()
    tile = tile_of(x, op.name, "x")
    if op.name == "rsqrt":
        emit: Any = lambda out, box: isa.activation(out, op, cut(tile, box, tile.shape))  # noqa: E731
    else:
        emit = lambda out, box: carry_out_unary(out, op, cut(tile, box, tile.shape))  # noqa: E731
    default = dtypes.bool_ if op.name == "logical_not" else tile.dtype
    target = default if dtype is None else new_dtype(dtype)
    return value(tile.shape, target, emit, mask)


def _make_binary(op: Operator) -> Callable:
    def function(x: Any, y: Any, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object) -> Any:
        return _binary(op, x, y, dtype, mask)

    return named(function, op, op.name)


def _make_unary(op: Operator) -> Callable:
    def function(x: Any, dtype: DTypeLike | None = None, mask: MaskLike = None, **_: object) -> Any:
        return _unary(op, x, dtype, mask)

    return named(function, op, op.name)


def named(function: Any, op: Operator, name: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.operator = op
    return function


ELEMENTWISE: dict[str, Callable] = {
    **{name: _make_binary(OPERATORS[name]) for name in BINARY},
    **{name: _make_unary(OPERATORS[name]) for name in UNARY},
}
