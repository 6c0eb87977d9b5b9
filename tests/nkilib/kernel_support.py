"""Running library kernels in tests and comparing them with their references."""

from __future__ import annotations

import doctest
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nki.check import lint
from support import target

each_lnc = pytest.mark.parametrize("lnc", [1, 2])  # def test_...(lnc): run(kernel, x, lnc=lnc)


def random(shape: Any, dtype: Any = "float32", seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed numbers, rounded to the dtype."""
    values = scale * np.random.default_rng(seed).standard_normal(shape)
    return values.astype(np.float32).astype(np.dtype(dtype))


def run(kernel: Any, *args: Any, lnc: int = 1, on: str = "trn2", **kw: Any) -> Any:
    """Call a kernel on one core, or on a grid of two."""
    with target(on):
        return (kernel if lnc == 1 else kernel[lnc])(*args, **kw)


def both_cores(kernel: Any, *args: Any, on: str = "trn2", **kw: Any) -> list[Any]:
    """The results of kernel(...) and kernel[2](...), each on fresh copies of the arrays."""

    def fresh(value: Any) -> Any:
        return value.copy() if isinstance(value, np.ndarray) else value

    return [
        run(kernel, *map(fresh, args), lnc=lnc, on=on, **{name: fresh(value) for name, value in kw.items()})
        for lnc in (1, 2)
    ]


def invalid(text: str) -> Any:
    """Context: a kernel refuses its arguments with this piece of text, as the library words it."""
    return pytest.raises(AssertionError, match=f"NCC_INKI016.*Kernel validation exception: .*{text}")


FP8 = (ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def close(actual: Any, reference: Any, dtype: Any = None, terms: int = 1) -> None:
    """Assert the tolerance of an output dtype (spec/library/conventions.md 3); `terms`: length of sums.

    `dtype` is that of the output unless given. The reference is rounded to it before the comparison.
    """
    actual = np.asarray(actual)
    dtype = actual.dtype if dtype is None else np.dtype(dtype)
    assert actual.dtype == dtype, f"{actual.dtype} instead of {dtype}"
    assert actual.shape == np.shape(reference), f"{actual.shape} instead of {np.shape(reference)}"
    if dtype.kind in "iub":
        np.testing.assert_array_equal(actual, reference)
        return
    expected = np.asarray(reference).astype(dtype).astype(np.float64)
    got = actual.astype(np.float64)
    relative, absolute = _tolerances(dtype, terms)
    finite = np.abs(expected[np.isfinite(expected)])
    largest = finite.max() if finite.size else 0.0
    np.testing.assert_allclose(got, expected, rtol=relative, atol=absolute * largest)
    if dtype in FP8:
        assert cosine(got, expected) >= 0.999


def _tolerances(dtype: np.dtype, terms: int) -> tuple[float, float]:
    """Relative, and absolute as a part of the largest reference."""
    if dtype == ml_dtypes.bfloat16:
        return 1e-2, 1e-3
    if dtype == np.float16:
        return 5e-3, 5e-4
    if dtype in FP8:
        return 5e-2, 5e-3
    if terms > 1:
        return 1e-6 * terms**0.5, 1e-6 * terms**0.5
    return 1e-5, 1e-6


def cosine(a: Any, b: Any) -> float:
    """How parallel two arrays are, 1 for equal ones."""
    a, b = (np.asarray(x, np.float64).ravel() for x in (a, b))
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms else 1.0


CHECKED: dict[int, Any] = {}  # kernels share helpers, which are looked at once


def compiles_and_example_runs(kernel: Any) -> None:
    """The NKI compiler would accept the kernel, and the example in its docstring is right."""
    assert lint(kernel, checked=CHECKED) == []
    names = vars(sys.modules[kernel.func.__module__])
    example = doctest.DocTestParser().get_doctest(kernel.__doc__, names, kernel.__name__, None, 0)
    assert example.examples and doctest.DocTestRunner().run(example).failed == 0


def fp8_steps(actual: Any, reference: Any) -> int:
    """How many representable FP8 numbers the two are apart, at most."""
    assert actual.dtype == reference.dtype and actual.dtype in FP8
    assert not np.isnan(actual.astype(np.float32)).any()

    def place(values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint8).astype(np.int32)
        return np.where(bits < 128, bits, 128 - bits)

    return int(np.abs(place(actual) - place(reference)).max())
