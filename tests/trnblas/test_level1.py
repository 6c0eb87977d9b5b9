"""Vectors against scipy.linalg.blas, both backends: PyTorch serves them on either."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg.blas as blas

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = [1, 2, 7, 128, 1000]


def vectors(n, dtype, count=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_every_operation_is_that_of_scipy(n, dtype, backend, near):
    x, y = vectors(n, dtype)
    a, b = x.double().numpy(), y.double().numpy()
    near(
        trnblas.axpy(2.5, x, y),
        blas.daxpy(a, b.copy(), a=2.5),
        np.abs(2.5 * a) + np.abs(b),
    )
    near(trnblas.scal(-3.0, x), blas.dscal(-3.0, a.copy()), 3 * np.abs(a))
    near(trnblas.dot(x, y), blas.ddot(a, b), np.abs(a) @ np.abs(b), n)
    near(trnblas.nrm2(x), blas.dnrm2(a), blas.dnrm2(a), n)
    near(trnblas.asum(x), blas.dasum(a), blas.dasum(a), n)
    assert trnblas.iamax(x) == blas.idamax(a)


def test_strided_vectors_are_read_at_their_places(backend, near):
    (table,) = vectors(60, torch.float32, 1)
    x, y = table.reshape(20, 3)[:, 1], table.reshape(20, 3).flip(0)[:, 2]
    a, b = x.double().numpy(), y.double().numpy()
    near(trnblas.dot(x, y), a @ b, np.abs(a) @ np.abs(b), 20)
    near(trnblas.axpy(0.5, x, y), 0.5 * a + b, np.abs(a) + np.abs(b))


def test_arguments_are_unchanged(backend):
    x, y = vectors(9, torch.float32)
    before = x.clone(), y.clone()
    results = [trnblas.axpy(0.0, x, y), trnblas.axpy(1.0, x, y), trnblas.scal(1.0, x)]
    for result in results:
        result.zero_()
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


def test_empty_vectors_have_sum_zero_and_no_largest_element(backend):
    x = torch.empty(0)
    assert trnblas.dot(x, x) == trnblas.asum(x) == trnblas.nrm2(x) == trnblas.nrm2(x.double()) == 0
    assert trnblas.iamax(x) == -1
    assert trnblas.axpy(2.0, x, x).shape == trnblas.scal(2.0, x).shape == (0,)


@pytest.mark.parametrize(
    "dtype, value", [(torch.float32, 1e30), (torch.float64, 1e200), (torch.float16, 300.0)]
)
def test_the_norm_does_not_overflow_on_the_way(dtype, value, backend):
    for size in (value, 1e-6 if dtype == torch.float16 else 1 / value):
        x = torch.full((4,), size, dtype=dtype)
        assert float(trnblas.nrm2(x)) == pytest.approx(2 * float(x[0]), rel=1e-3)


def test_the_norm_of_what_is_not_finite_is_not_finite(backend):
    assert torch.isinf(trnblas.nrm2(torch.tensor([1.0, torch.inf], dtype=torch.float64)))
    assert torch.isnan(trnblas.nrm2(torch.tensor([1.0, torch.nan], dtype=torch.float64)))


def test_axpy_with_alpha_zero_does_not_read_x(backend):
    y = torch.ones(3)
    assert torch.equal(trnblas.axpy(0.0, torch.full((3,), torch.nan), y), y)


def test_iamax_returns_the_first_of_equal_magnitudes(backend):
    assert trnblas.iamax(torch.tensor([1.0, -3.0, 3.0])) == 1


def test_sums_of_narrow_floats_do_not_lose_small_terms(backend):
    assert float(trnblas.asum(torch.ones(5000, dtype=torch.bfloat16))) == pytest.approx(5000, rel=4e-3)
