"""Index tensors of the old API: `nl.arange`, `nl.mgrid`, arithmetic on them, and comparisons.

An index knows its value at every position of a tile. Most are affine: a base, and a step along each axis.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from nki.errors import error
from nki.ir.layout import is_int

Box = tuple[slice, ...]


def _unit(axis: int, rank: int) -> tuple[int, ...]:
    """Return the position one step along an axis."""
    return tuple(int(a == axis) for a in range(rank))


class Index:
    """base + steps[0] * i0 + steps[1] * i1 + ..., or any array of integers. Never changes."""

    __slots__ = ("shape", "base", "steps", "_values")

    def __init__(
        self, shape: Sequence[int], base: int, steps: Sequence[int] | None, values: np.ndarray | None = None
    ):
        self.shape = tuple(shape)
        self.base = base
        self.steps = None if steps is None else tuple(steps)
        self._values = values

    @classmethod
    def of(cls, values: np.ndarray) -> Index:
        """Return the index with these values, affine if they are."""
        origin = (0,) * values.ndim
        base = int(values[origin])
        steps = [
            int(values[_unit(k, values.ndim)]) - base if n > 1 else 0 for k, n in enumerate(values.shape)
        ]
        affine = cls(values.shape, base, steps)
        return affine if np.array_equal(affine.array, values) else cls(values.shape, base, None, values)

    @property
    def array(self) -> np.ndarray:
        if self.steps is None:
            assert self._values is not None
            return self._values
        total = np.full(self.shape, self.base, np.int64)
        for axis, (size, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            if size > 1 and step:
                along = [1] * len(self.shape)
                along[axis] = size
                total += (step * np.arange(size)).reshape(along)
        return total

    def is_constant(self) -> bool:
        return self.steps is not None and all(
            n == 1 or not s for n, s in zip(self.shape, self.steps, strict=True)
        )

    def range(self) -> tuple[int, int]:
        """Return the smallest and the largest value."""
        if self.steps is None:
            return int(self.array.min()), int(self.array.max())
        spans = [(n - 1) * s for n, s in zip(self.shape, self.steps, strict=True)]
        return self.base + sum(s for s in spans if s < 0), self.base + sum(s for s in spans if s > 0)

    def spread(self, shape: Sequence[int]) -> Index:
        """Seen at every position of a larger shape."""
        if self.shape == tuple(shape):
            return self
        if self.steps is None:
            return Index.of(np.broadcast_to(self.array, shape))
        missing = len(shape) - len(self.shape)
        own = (1,) * missing + self.shape
        steps = (0,) * missing + self.steps
        return Index(shape, self.base, [s if n > 1 else 0 for n, s in zip(own, steps, strict=True)])

    def part(self, box: Box) -> Index:
        """Return the positions of a box, of an index that has been spread."""
        if self.steps is None:
            return Index.of(self.array[box])
        base = self.base + sum(cut.start * s for cut, s in zip(box, self.steps, strict=True))
        return Index([cut.stop - cut.start for cut in box], base, self.steps)

    def without_axes(self, count: int) -> Index:
        """Return the index less its first axes, where these have one position."""
        if count <= 0 or any(n != 1 for n in self.shape[:count]):
            return self
        if self.steps is None:
            return Index.of(self.array[(0,) * count])
        return Index(self.shape[count:], self.base, self.steps[count:])

    # ---- Python manners --------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Index:
        """Place an index on an axis: `[:, None]` and similar keys."""
        key = key if isinstance(key, tuple) else (key,)
        if self.steps is not None and len(self.steps) == 1:
            new = [k is None for k in key]
            if new.count(False) == 1 and type(key[new.index(False)]) is slice and _ALL in key:
                return _placed(self.shape[0], self.base, self.steps[0], *new)
        given = [k for k in key if k is not None]
        if any(k is not Ellipsis and k != slice(None) for k in given):
            raise error("index", "an index tensor takes : and None alone, as in nl.arange(n)[:, None]")
        if Ellipsis not in given:
            key = (*key, *[slice(None)] * (len(self.shape) - len(given)))
        else:
            at = key.index(Ellipsis)
            fill = [slice(None)] * (len(self.shape) - len(given) + 1)
            key = (*key[:at], *fill, *key[at + 1 :])
        if self.steps is None:
            return Index.of(self.array[key])
        axes = iter(zip(self.shape, self.steps, strict=True))
        made = [(1, 0) if k is None else next(axes) for k in key]
        return Index([n for n, _ in made], self.base, [s for _, s in made])

    def __setitem__(self, key: Any, value: Any) -> None:
        raise error("constant-write", "err_cannot_assign_to_index: an index tensor never changes")

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def _meet(self, other: Any, op: Callable[[Any, Any], Any], reverse: bool = False) -> Any:
        if type(other) is int and self.steps is not None:
            if op is operator.add:
                return Index(self.shape, self.base + other, self.steps)
            if op is operator.sub and not reverse:
                return Index(self.shape, self.base - other, self.steps)
            if op is operator.mul:
                return Index(self.shape, self.base * other, [other * step for step in self.steps])
        other = as_index(other)
        if other is None:
            return NotImplemented
        a, b = (other, self) if reverse else (self, other)
        shape = _common(a.shape, b.shape)
        a, b = a.spread(shape), b.spread(shape)
        affine = a.steps is not None and b.steps is not None
        if affine and op in (operator.add, operator.sub):
            steps = [op(s, t) for s, t in zip(a.steps or (), b.steps or (), strict=True)]
            return Index(shape, op(a.base, b.base), steps)
        if affine and op is operator.mul and (a.is_constant() or b.is_constant()):
            factor, other = (a.base, b) if a.is_constant() else (b.base, a)
            return Index(shape, factor * other.base, [factor * s for s in other.steps or ()])
        return Index.of(np.asarray(op(a.array, b.array), np.int64))

    def _compare(self, other: Any, name: str) -> Any:
        difference = self._meet(other, operator.sub)
        return NotImplemented if difference is NotImplemented else IndexMask.compared((difference, name))

    def __add__(self, other: Any) -> Any:
        return self._meet(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._meet(other, operator.add, True)

    def __sub__(self, other: Any) -> Any:
        return self._meet(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._meet(other, operator.sub, True)

    def __mul__(self, other: Any) -> Any:
        return self._meet(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._meet(other, operator.mul, True)

    def __floordiv__(self, other: Any) -> Any:
        return self._meet(other, operator.floordiv)

    def __mod__(self, other: Any) -> Any:
        return self._meet(other, operator.mod)

    def __neg__(self) -> Any:
        return self._meet(-1, operator.mul)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "less")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "less_equal")

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "greater")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "greater_equal")

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "equal")

    def __ne__(self, other: Any) -> Any:
        return self._compare(other, "not_equal")

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __bool__(self) -> bool:
        raise ValueError(
            "err_control_flow_condition_depending_on_arange: an index tensor has no single truth value"
        )

    def __repr__(self) -> str:
        return f"<index of shape {self.shape}>"


_ALL = slice(None)


@lru_cache(maxsize=4096)
def _placed(size: int, base: int, step: int, *new: bool) -> Index:
    """Return an index of one axis with new ones of size 1 around it."""
    return Index([1 if n else size for n in new], base, [0 if n else step for n in new])


_common = lru_cache(maxsize=4096)(np.broadcast_shapes)


def as_index(value: Any) -> Index | None:
    """An index, or a number as one; None for anything else."""
    if isinstance(value, Index):
        return value
    return Index((), int(value), ()) if is_int(value) or isinstance(value, np.bool_) else None


class IndexMask:
    """Where an instruction runs: what comparing index tensors gives. `terms` are comparisons with 0."""

    __slots__ = ("shape", "terms", "_array")

    def __init__(self, array: np.ndarray):
        self.shape: tuple[int, ...] = array.shape
        self.terms: tuple[tuple[Index, str], ...] | None = None
        self._array: np.ndarray | None = array

    @classmethod
    def compared(cls, *terms: tuple[Index, str]) -> IndexMask:
        """Return the mask that holds where all of these comparisons do."""
        made = cls.__new__(cls)
        made.shape = reduce(_common, [index.shape for index, _ in terms])
        made.terms, made._array = terms, None
        return made

    @property
    def array(self) -> np.ndarray:
        if self._array is None:
            each = [_COMPARE[name](index.array, 0) for index, name in self.terms or ()]
            self._array = reduce(operator.and_, each)
        return self._array

    def __and__(self, other: Any) -> IndexMask:
        if isinstance(other, (bool, np.bool_)):
            return self if other else IndexMask(np.zeros(self.shape, np.bool_))
        if self.terms is not None and other.terms is not None:
            return IndexMask.compared(*self.terms, *other.terms)
        return IndexMask(self.array & other.array)

    __rand__ = __and__

    def __or__(self, other: Any) -> IndexMask:
        if isinstance(other, (bool, np.bool_)):
            return IndexMask(np.ones(self.shape, np.bool_)) if other else self
        return IndexMask(self.array | other.array)

    __ror__ = __or__

    def __invert__(self) -> IndexMask:
        return IndexMask(~self.array)

    def __bool__(self) -> bool:
        return True  # public code writes `a and b`, which the old tools took for its second half

    def __repr__(self) -> str:
        return f"<mask of shape {self.shape}>"


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


# ---- nl.arange, nl.mgrid -------------------------------------------------------------------------


def arange(start: int, stop: int | None = None, step: int = 1) -> Index:
    """Return the numbers from start to stop as an index tensor of one axis."""
    if stop is None:
        if type(start) is int and step == 1:
            return _first(start)
        start, stop = 0, start
    return Index((len(range(start, stop, step)),), start, (step,))


@lru_cache(maxsize=4096)
def _first(count: int) -> Index:
    """Return the numbers from 0 to count."""
    return Index((len(range(count)),), 0, (1,))


class IndexGrid(tuple):
    """Dense indices, one per axis: unpacked, or as `.p`, `.x`, `.y`, `.z`, `.w`."""

    p = property(lambda self: self[0])
    x = property(lambda self: self[1])
    y = property(lambda self: self[2])
    z = property(lambda self: self[3])
    w = property(lambda self: self[4])


class _MGrid:
    """`nl.mgrid[a:b, c:d]`."""

    def __getitem__(self, key: Any) -> IndexGrid:
        cuts = key if isinstance(key, tuple) else (key,)
        starts = [cut.start or 0 for cut in cuts]
        shape = [cut.stop - start for cut, start in zip(cuts, starts, strict=True)]
        unit = [[int(a == k) for a in range(len(cuts))] for k in range(len(cuts))]
        return IndexGrid(Index(shape, start, steps) for start, steps in zip(starts, unit, strict=True))


mgrid = _MGrid()


def full(shape: Sequence[int]) -> Box:
    return tuple(slice(0, n) for n in shape)


def product(sizes: Sequence[int]) -> int:
    return reduce(operator.mul, sizes, 1)
