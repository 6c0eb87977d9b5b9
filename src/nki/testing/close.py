"""assert_close: is a result as accurate as its dtype and the length of its sums allow?

Kernels compute in float32 and round once to the dtype of the result. So the error of an element has two
parts: rounding to that dtype, and float32 sums over n terms, whose errors add up like the square root of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..ir.tree import flatten
from ..kernel.specs import Array, is_array
from ..machine.dtypes import DTypeLike

FLOAT32 = 2.0**-24  # unit roundoff
# of the other dtypes: half the step between neighbours, relative to them
ROUNDOFF = {
    "float64": FLOAT32,  # kernels compute in float32
    "float32": FLOAT32,
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3": 2.0**-4,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
ROUNDINGS = 1.25  # of the result: once, and a little for a value that lay between two of its neighbours
STEPS = 12  # float32 roundings of a value beside those of its sum: functions, scales, a few products


class Tolerance(NamedTuple):
    """|got - expected| <= relative * |expected| + absolute * largest |expected|."""

    relative: float
    absolute: float


def tolerance(dtype: DTypeLike, terms: int = 1, through: DTypeLike | None = None) -> Tolerance:
    """Return the error that a float32 computation over sums of `terms`, rounded to `dtype`, may have.

    `through` names a narrower dtype of the kernel's intermediate values.
    """
    own = ROUNDOFF[_name(dtype)]
    sums = STEPS * FLOAT32 * sqrt(max(1, terms))
    on_the_way = 0.0 if through is None else 2 * ROUNDOFF[_name(through)]
    return Tolerance(ROUNDINGS * own + sums + on_the_way, sums + on_the_way / 4)


def sum_length(result: tuple[int, ...], inputs: Sequence[tuple[int, ...]]) -> int:
    """Return how many terms the sums of a result have, as far as shapes show.

    Two matrices with a common side whose product has the shape of the result: that side. Else what the
    largest input has beside the dimensions of the result.
    """
    for i, a in enumerate(inputs):
        for b in inputs[i + 1 :]:
            if len(a) >= 2 and len(b) >= 2 and len(result) >= 2:
                for rows, common in ((a[-2], a[-1]), (a[-1], a[-2])):
                    for other, columns in ((b[-2], b[-1]), (b[-1], b[-2])):
                        if common == other and (rows, columns) == tuple(result[-2:]):
                            return common
    longest = 1
    for shape in inputs:
        left = list(shape)
        for size in result:
            if size in left:
                left.remove(size)
        longest = max(longest, prod(left))
    return longest


def assert_close(
    kernel_result: object,
    reference: object,
    inputs: Sequence[object] = (),
    *,
    terms: int | None = None,
    through: DTypeLike | None = None,
) -> None:
    """Fail unless a kernel's result agrees with a reference as well as its dtype and its sums allow.

    `reference` is what the result should be, or a function of the inputs, which is then called with them as
    float64 arrays. The length of the sums is `terms`, or follows from the shapes (`sum_length`).
    Several results are compared one by one. Integers must be equal.
    """
    given = [np.asarray(as_numpy(value)) for value in arrays_of(list(inputs))]
    if callable(reference):
        reference = reference(*(as_float64(value) for value in inputs))
    results = [as_numpy(value) for value in arrays_of(kernel_result)]
    wanted = [as_numpy(value) for value in arrays_of(reference)]
    assert len(results) == len(wanted), f"{len(results)} results, the reference has {len(wanted)}"
    for number, (got, expected) in enumerate(zip(results, wanted, strict=True)):
        length = terms or sum_length(got.shape, [value.shape for value in given])
        label = f"result {number}: " if len(results) > 1 else ""
        _compare(got, np.asarray(expected), length, through, label)


def _compare(
    got: np.ndarray, expected: np.ndarray, terms: int, through: DTypeLike | None, label: str
) -> None:
    assert got.shape == expected.shape, f"{label}shape {got.shape}, the reference has {expected.shape}"
    if got.dtype.kind in "iub":
        wrong = got != expected
        assert not wrong.any(), f"{label}{_where(got, expected, wrong)}; integers must be equal"
        return
    wrong, allowed, largest = wrong_elements(got, expected, terms, through)
    assert not wrong.any(), (
        f"{label}{_where(got, expected, wrong)}\n"
        f"  allowed: {allowed.relative:.3g} x |reference| + {allowed.absolute:.3g} x {largest:.6g} "
        f"for {got.dtype} and sums of {terms} terms"
    )


def wrong_elements(
    got: np.ndarray, expected: np.ndarray, terms: int, through: DTypeLike | None
) -> tuple[np.ndarray, Tolerance, float]:
    """Return which elements are off by more than allowed, what is allowed, and the largest expected value."""
    if got.dtype.kind in "iub":
        return got != expected, Tolerance(0.0, 0.0), 0.0
    exact, values = expected.astype(np.float64), got.astype(np.float64)
    allowed = tolerance(got.dtype, terms, through)
    finite = np.isfinite(exact)
    largest = float(np.abs(exact[finite]).max()) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        limit = allowed.relative * np.abs(exact) + allowed.absolute * largest
        limit = np.maximum(limit, _smallest(got.dtype))
        off = np.abs(values - exact)
        wrong = np.where(finite, ~(off <= limit), ~((values == exact) | (np.isnan(values) & np.isnan(exact))))
    overflow = finite & np.isinf(values) & (np.abs(exact) > _largest(got.dtype))
    return wrong & ~overflow, allowed, largest


def _where(got: np.ndarray, expected: np.ndarray, wrong: np.ndarray) -> str:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements are wrong, the first at {list(place)}: "
        f"{got[place]!s} instead of {expected[place]!s}"
    )


def _smallest(dtype: DTypeLike) -> float:
    """Return the step between the smallest numbers of a dtype: smaller differences are not visible."""
    return {"float16": 2.0**-24, "float8_e4m3": 2.0**-9, "float8_e4m3fn": 2.0**-9}.get(
        _name(dtype), 2.0**-16 if _name(dtype) == "float8_e5m2" else 2.0**-126
    )


def _largest(dtype: DTypeLike) -> float:
    sizes = {"float16": 65504.0, "float8_e4m3": 240.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
    return sizes.get(_name(dtype), 3.38e38)


def _name(dtype: DTypeLike) -> str:
    name = getattr(dtype, "name", None) or str(dtype)
    return name.removeprefix("torch.")


# ---- arrays of any framework ---------------------------------------------------------------------


def arrays_of(tree: object) -> list[Array]:
    return [leaf for leaf in flatten(tree, is_array) if is_array(leaf)]


def as_numpy(value: Any) -> np.ndarray:
    """Return an array of NumPy, PyTorch or JAX as a NumPy array, in a dtype that NumPy knows."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if _name(value.dtype) in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            import ml_dtypes

            return np.asarray(value.float().numpy()).astype(getattr(ml_dtypes, _name(value.dtype)))
    return np.asarray(value)


def as_float64(value: object) -> object:
    if not is_array(value):
        return value
    array = as_numpy(value)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)
