"""assert_close is neither vacuous nor flaky: honest roundings pass, small mistakes do not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.testing import assert_close, check_kernel, sum_length, tolerance
from support import target

DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
LENGTHS = st.integers(1, 2000)


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def operands(rows, terms, columns, dtype, seed):
    random = np.random.default_rng(seed)
    make = lambda *shape: random.standard_normal(shape).astype(np.float32).astype(numpy_dtype(dtype))  # noqa: E731
    return make(rows, terms), make(terms, columns)


def matmul_float32(a, b, order):
    """A product whose float32 sums go in the order given, one term after the other."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in order:
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


# ---- not flaky -----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), LENGTHS, st.integers(1, 6), st.sampled_from(DTYPES[:3]), st.integers(0, 10**6))
def test_a_product_rounded_honestly_passes_in_any_order_of_its_sums(rows, terms, columns, dtype, seed):
    a, b = operands(rows, terms, columns, dtype, seed)
    largest = np.abs(a.astype(np.float64) @ b.astype(np.float64)).max()
    assume(largest > 0.1 * np.sqrt(terms))  # the tolerance is relative to sums that do not all cancel
    order = np.random.default_rng(seed + 1).permutation(terms)
    result = matmul_float32(a, b, order).astype(numpy_dtype(dtype))
    assert_close(result, lambda x, y: x @ y, [a, b], terms=terms)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 600), st.sampled_from(DTYPES), st.integers(0, 10**6))
def test_functions_rounded_honestly_pass(rows, columns, dtype, seed):
    (x, _) = operands(rows, columns, 1, dtype, seed)
    wide = x.astype(np.float32)
    result = (wide * np.float32(0.3) * np.tanh(wide) + np.float32(1)).astype(numpy_dtype(dtype))
    assert_close(result, lambda v: v * np.float64(np.float32(0.3)) * np.tanh(v) + 1, [x])


# ---- not vacuous ---------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(2, 500),
    st.integers(1, 6),
    st.sampled_from(DTYPES[:3]),
    st.integers(0, 10**6),
)
def test_a_product_that_forgets_its_last_term_is_found(rows, terms, columns, dtype, seed):
    a, b = operands(rows, terms, columns, dtype, seed)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    lost = np.abs(np.outer(a[:, -1].astype(np.float64), b[-1].astype(np.float64)))
    assume(lost.max() > 0.05 * np.abs(exact).max())
    result = matmul_float32(a, b, range(terms - 1)).astype(numpy_dtype(dtype))
    with pytest.raises(AssertionError, match="elements are wrong"):
        assert_close(result, exact, [a, b], terms=terms)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from(DTYPES), st.integers(0, 10**6))
def test_one_element_that_is_off_by_four_tolerances_is_found(rows, columns, dtype, seed):
    exact = np.random.default_rng(seed).uniform(1, 2, (rows, columns))
    allowed = tolerance(dtype)
    off = exact.copy()
    off[rows // 2, columns // 2] += 4 * (allowed.relative * 2 + allowed.absolute * 2)
    result = off.astype(np.float32).astype(numpy_dtype(dtype))
    with pytest.raises(AssertionError, match=rf"1 of {rows * columns} elements are wrong"):
        assert_close(result, exact)


def test_a_computation_narrower_than_the_dtype_is_found():
    a, b = operands(8, 256, 8, "float32", 0)
    narrow = (a.astype(ml_dtypes.bfloat16).astype(np.float32)) @ b
    with pytest.raises(AssertionError):
        assert_close(narrow, lambda x, y: x @ y, [a, b])
    assert_close(narrow, lambda x, y: x @ y, [a, b], through="bfloat16")


def test_tolerances_stay_small():
    assert tolerance("float32").relative < 1e-6
    assert tolerance("float32", 1024).relative < 3e-5
    assert tolerance("bfloat16", 1024).relative < 6e-3
    assert tolerance("bfloat16").relative > 2.0**-8


# ---- what it compares ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "inputs", "terms"),
    [
        ((4, 6), [(4, 6)], 1),
        ((4, 6), [(4, 6), (4, 6)], 1),
        ((4, 6), [(4, 9), (9, 6)], 9),
        ((4, 6), [(9, 4), (9, 6)], 9),
        ((8, 8), [(8, 8), (8, 8)], 8),
        ((4,), [(4, 100)], 100),
        ((1,), [(4, 100)], 400),
        ((2, 4, 6), [(2, 4, 9), (2, 9, 6)], 9),
    ],
)
def test_the_length_of_sums_is_read_from_shapes(result, inputs, terms):
    assert sum_length(result, inputs) == terms


def test_shapes_integers_nan_and_several_results():
    assert_close([np.ones(3, np.int32), np.ones(2, np.float32)], [np.ones(3, np.int32), np.ones(2)])
    with pytest.raises(AssertionError, match="integers must be equal"):
        assert_close(np.array([1, 2]), np.array([1, 3]))
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.ones((2, 2), np.float32), np.ones((2, 3)))
    with pytest.raises(AssertionError, match="2 results, the reference has 1"):
        assert_close((np.ones(1, np.float32), np.ones(1, np.float32)), np.ones(1))
    nan = np.array([np.nan, np.inf, 1.0])
    assert_close(nan.astype(np.float32), nan)
    for wrong in ([np.nan, np.nan, 1.0], [np.nan, np.inf, np.nan], [0.0, np.inf, 1.0]):
        with pytest.raises(AssertionError):
            assert_close(np.array(wrong, np.float32), nan)


def test_torch_tensors_are_compared():
    torch = pytest.importorskip("torch")
    x = torch.linspace(-1, 1, 60).reshape(3, 20).to(torch.bfloat16)
    assert_close(torch.exp(x), np.exp, [x])


# ---- check_kernel --------------------------------------------------------------------------------


@nki.jit
def scaled(x, factor=2.0, break_at=None):
    """x * factor by tiles of 128 rows; wrong beyond `break_at` rows."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        rows = min(128, x.shape[0] - row)
        tile = nl.ndarray((rows, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[row : row + rows])
        wrong = break_at is not None and row + rows > break_at
        nisa.tensor_scalar(tile, tile, nl.multiply, factor * (1.1 if wrong else 1.0))
        nisa.dma_copy(out[row : row + rows], tile)
    return out


def test_check_kernel_draws_sizes_and_finds_nothing_wrong():
    seen = []

    def reference(x):
        seen.append(x.shape)
        return x * 2

    with target("trn2"):
        check_kernel(scaled, reference, shapes=[("M", "N")], examples=20)
    assert len(set(seen)) > 8 and any(rows % 128 and rows > 128 for rows, _ in seen), "ragged ones too"


def test_check_kernel_shrinks_what_is_wrong():
    with target("trn2"), pytest.raises(AssertionError, match="M=129, N=1, .*float32.*elements are wrong"):
        check_kernel(
            scaled, lambda x: x * 2, [("M", "N")], ["float32"], options={"break_at": 128}, examples=40
        )


def test_check_kernel_takes_fixed_sizes_platforms_and_refusals():
    def one_tile(x):
        out, tile = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(out, tile)
        return out

    kernel = nki.jit(one_tile)
    options = {"sizes": {"M": [64, 200]}, "targets": ["trn1", "trn2"], "examples": 8}
    check_kernel(kernel, lambda x: x, [("M", 32)], refuses=["partition-limit"], **options)
    with pytest.raises(nki.NkiError, match="M=200"):
        check_kernel(kernel, lambda x: x, [("M", 32)], **options)
