"""float64 products from bfloat16 passes, to 1e-12 and better."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402
from trnblas.precision import SLICES, slices, split_product  # noqa: E402


@pytest.fixture(autouse=True)
def on_nki():
    trnblas.set_backend("nki")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def error(found, A, B):
    """Return the largest error relative to |A| |B|, measured in numpy's extended precision."""
    exact = A.numpy().astype(np.longdouble) @ B.numpy().astype(np.longdouble)
    return float((np.abs(found.numpy() - exact) / (A.abs() @ B.abs()).numpy()).max())


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (70, 130, 90), (20, 2100, 10)], ids=str)
def test_the_product_is_as_good_as_float64(shape):
    m, k, n = shape
    A, B = random(m, k), random(k, n, seed=1)
    found = trnblas.gemm(1.0, A, B, precision="fp64")
    assert found.dtype == torch.float64 and error(found, A, B) < 2e-16


def test_sums_that_cancel_are_right_where_float64_is_not():
    A, B = random(40, 1024), random(1024, 300, seed=1)
    exact = A.numpy().astype(np.longdouble) @ B.numpy().astype(np.longdouble)
    ours, theirs = (
        np.abs((x.numpy() - exact) / exact).max() for x in (trnblas.gemm(1.0, A, B, precision="fp64"), A @ B)
    )
    assert ours <= 1e-12 < theirs


@pytest.mark.slow
def test_a_product_of_1024_is_right_to_1e_12():
    A, B = torch.rand(1024, 1024, dtype=torch.float64), torch.rand(1024, 1024, dtype=torch.float64)
    found, exact = trnblas.gemm(1.0, A, B, precision="fp64"), A @ B
    assert ((found - exact).abs() / exact.abs()).max() <= 1e-12


def test_rows_and_columns_of_any_scale():
    A, B = random(6, 40), random(40, 5, seed=1)
    A, B = (
        A * 2.0 ** torch.tensor([[0.0], [900], [-900], [40], [-1060], [3]], dtype=A.dtype),
        B * 2.0 ** torch.tensor([0.0, 100, -100, 9, 1], dtype=A.dtype),
    )
    found, exact = split_product(A, B), A @ B
    assert (
        (found - exact).abs() <= 1e-14 * (A.abs() @ B.abs()) + 4e-322
    ).all()  # exact itself rounds subnormal terms


def test_zeros_infinities_and_nans():
    A = torch.zeros(3, 3, dtype=torch.float64)
    assert torch.equal(split_product(A, A), A)
    A[0, 0], A[1, 1] = torch.inf, torch.nan
    found = split_product(A, torch.ones_like(A))
    assert torch.isinf(found[0]).all() and torch.isnan(found[1]).all() and (found[2] == 0).all()


def test_slices_are_small_integers_that_add_up():
    x = random(4, 9)
    parts, exponents = slices(x, -1)
    assert len(parts) == SLICES and all(part.dtype == torch.bfloat16 for part in parts)
    assert all((part.abs() <= 128).all() and torch.equal(part.round(), part) for part in parts)
    total = sum(part.double() * 2.0 ** (-8 * i) for i, part in enumerate(parts))
    assert torch.allclose(torch.ldexp(total, exponents), x, rtol=0, atol=float(x.abs().max()) * 2.0**-54)


def test_flags_batches_and_scaling():
    A, B, C = random(2, 40, 30), random(2, 50, 40, seed=1), random(2, 30, 50, seed=2)
    found = trnblas.batched_gemm(2.0, A, B, -0.5, C, True, True, precision="fp64")
    torch.testing.assert_close(found, 2 * A.mT @ B.mT - 0.5 * C, rtol=1e-13, atol=1e-13)
    S = trnblas.syrk(1.0, A[0], precision="fp64")
    torch.testing.assert_close(S, A[0] @ A[0].T, rtol=1e-13, atol=1e-13)
    v = trnblas.gemv(1.0, A[0], B[0, 0, :30], precision="fp64")
    torch.testing.assert_close(v, A[0] @ B[0, 0, :30], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["pytorch", "nki"])
def test_narrower_operands_are_widened_and_the_result_is_float64(name):
    trnblas.set_backend(name)
    A = torch.rand(9, 9)
    found = trnblas.gemm(1.0, A, A, 1.0, A, precision="fp64")
    torch.testing.assert_close(found, A.double() @ A.double() + A.double(), rtol=1e-14, atol=0)


def test_empty_operands():
    assert trnblas.gemm(
        1.0, torch.empty(0, 3).double(), torch.empty(3, 2).double(), precision="fp64"
    ).shape == (0, 2)
    found = trnblas.gemm(1.0, torch.empty(2, 0).double(), torch.empty(0, 2).double(), precision="fp64")
    assert torch.equal(found, torch.zeros(2, 2, dtype=torch.float64))
