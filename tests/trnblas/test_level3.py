"""Matrices against scipy.linalg.blas, over shapes, flags, dtypes and backends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg.blas as blas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = [(1, 1, 1), (5, 3, 7), (1, 200, 1), (64, 100, 40), (130, 129, 515), (600, 20, 30)]
SCALES = [(1.0, 0.0), (2.5, -0.5)]


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def wide(*tensors):
    return [t.double().numpy() for t in tensors]


def triangular(n, dtype, batch=()):
    """Return a matrix whose triangles are both well conditioned."""
    return (random(*batch, n, n, dtype=torch.float64) / (2 * n**0.5) + 2 * torch.eye(n)).to(dtype)


# ---- gemm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gemm_is_that_of_scipy(shape, dtype, backend, near):
    m, k, n = shape
    for transA, transB, (alpha, beta) in itertools.product((False, True), (False, True), SCALES):
        A = random(*((k, m) if transA else (m, k)), dtype=dtype)
        B = random(*((n, k) if transB else (k, n)), dtype=dtype, seed=1)
        C = random(m, n, dtype=dtype, seed=2)
        a, b, c = wide(A, B, C)
        expected = blas.dgemm(alpha, a, b, beta, c, trans_a=transA, trans_b=transB)
        left, right = np.abs(a.T if transA else a), np.abs(b.T if transB else b)
        scale = abs(alpha) * left @ right + abs(beta) * np.abs(c)
        near(trnblas.gemm(alpha, A, B, beta, C, transA, transB), expected, scale, k)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(*[st.integers(0, 150)] * 3),
    alpha=st.sampled_from([0.0, 1.0, -2.0]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
    step=st.integers(1, 3),
)
def test_both_backends_agree_on_strided_operands_of_any_size(sizes, alpha, beta, step):
    m, k, n = sizes
    A, B, C = random(m, step * k)[:, ::step], random(step * k, n, seed=1)[::step], random(m, n, seed=2)
    results = []
    for name in ("pytorch", "nki"):
        trnblas.set_backend(name)
        results.append(trnblas.gemm(alpha, A, B, beta, C))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-4)


def test_results_are_new_tensors_and_arguments_are_unchanged(backend):
    A, C = random(4, 4), random(4, 4, seed=1)
    before = A.clone(), C.clone()
    for result in (trnblas.gemm(1.0, A, A, 1.0, C), trnblas.gemm(0.0, A, A, 1.0, C), trnblas.trsm(1.0, A, C)):
        result.zero_()
    assert torch.equal(A, before[0]) and torch.equal(C, before[1])


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)], ids=str)
def test_empty_products_are_zeros_plus_c(shape, backend):
    m, k, n = shape
    A, B, C = torch.empty(m, k), torch.empty(k, n), torch.ones(m, n)
    assert torch.equal(trnblas.gemm(1.0, A, B), torch.zeros(m, n))
    assert torch.equal(trnblas.gemm(2.0, A, B, 3.0, C), 3 * C)
    assert trnblas.batched_gemm(1.0, A.expand(2, m, k), B.expand(2, k, n)).shape == (2, m, n)
    assert trnblas.syrk(1.0, A).shape == (m, m)
    assert trnblas.trsm(1.0, torch.empty(m, m), C).shape == (m, n)


def test_alpha_zero_and_beta_zero_read_nothing(backend):
    nan, C = torch.full((3, 3), torch.nan), torch.ones(3, 3)
    assert torch.equal(trnblas.gemm(0.0, nan, nan, 2.0, C), 2 * C)
    assert torch.equal(trnblas.gemm(0.0, nan, nan), torch.zeros(3, 3))
    assert torch.equal(trnblas.gemm(2.0, C, C, 0.0, nan), torch.full((3, 3), 6.0))
    assert torch.equal(trnblas.syrk(0.0, nan, 1.0, C), C)
    assert torch.equal(trnblas.trsm(0.0, nan, C), torch.zeros(3, 3))


def test_infinities_and_nans_come_through(backend):
    A = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0]])
    result = trnblas.gemm(1.0, A, torch.ones(2, 2))
    assert torch.isinf(result[0]).all() and torch.isnan(result[1]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batched_gemm_is_gemm_of_each(dtype, backend, near):
    A, B, C = random(3, 40, 50, dtype=dtype), random(3, 60, 50, dtype=dtype), random(3, 40, 60, dtype=dtype)
    a, b, c = wide(A, B, C)
    expected = 2 * a @ b.swapaxes(1, 2) + 0.5 * c
    scale = 2 * np.abs(a) @ np.abs(b).swapaxes(1, 2) + np.abs(c)
    near(trnblas.batched_gemm(2.0, A, B, 0.5, C, transB=True), expected, scale, 50)
    near(trnblas.gemm(2.0, A, B, 0.5, C, transB=True), expected, scale, 50)


def test_batches_of_several_dimensions_broadcast(backend, near):
    A, B = random(2, 1, 5, 6), random(3, 6, 7)
    near(trnblas.batched_gemm(1.5, A, B), 1.5 * np.matmul(*wide(A, B)), 30.0, 6)


# ---- symm, syrk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side, uplo", list(itertools.product(("left", "right"), ("upper", "lower"))))
def test_symm_reads_one_triangle(side, uplo, dtype, backend, near):
    for n, other in ((1, 3), (7, 5), (130, 20)):
        shape = (n, other) if side == "left" else (other, n)
        A, B, C = (
            random(n, n, dtype=dtype),
            random(*shape, dtype=dtype, seed=1),
            random(*shape, dtype=dtype, seed=2),
        )
        a, b, c = wide(A, B, C)
        expected = blas.dsymm(1.5, a, b, 0.5, c, side=int(side == "right"), lower=int(uplo == "lower"))
        size = np.maximum(np.abs(a), np.abs(a).T)
        scale = 1.5 * (size @ np.abs(b) if side == "left" else np.abs(b) @ size) + np.abs(c)
        A[(torch.ones(n, n).tril(-1) if uplo == "upper" else torch.ones(n, n).triu(1)).bool()] = torch.nan
        near(trnblas.symm(1.5, A, B, 0.5, C, side, uplo), expected, scale, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("trans, uplo", list(itertools.product((False, True), ("upper", "lower"))))
def test_syrk_is_that_of_scipy_and_symmetric(trans, uplo, dtype, backend, near):
    for n, k in ((1, 1), (7, 5), (5, 140), (300, 20)):
        A = random(*((k, n) if trans else (n, k)), dtype=dtype)
        C = random(n, n, dtype=dtype, seed=1)
        a, c = wide(A, C)
        half = blas.dsyrk(1.5, a, 0.5, c, trans=int(trans), lower=int(uplo == "lower"))
        keep = np.tril if uplo == "lower" else np.triu
        expected = keep(half) + keep(half, -1 if uplo == "lower" else 1).T
        left = np.abs(a.T if trans else a)
        result = trnblas.syrk(1.5, A, 0.5, C, trans, uplo)
        near(result, expected, 1.5 * left @ left.T + np.maximum(np.abs(c), np.abs(c).T), k)
        if backend == "nki" and dtype != torch.float64:
            assert torch.equal(result, result.mT)


def test_syrk_of_batches(backend, near):
    A = random(2, 3, 20, 30)
    (a,) = wide(A)
    near(trnblas.syrk(1.0, A), a @ a.swapaxes(-1, -2), 60.0, 30)


# ---- triangles -----------------------------------------------------------------------------------

FLAGS = list(itertools.product(("left", "right"), ("upper", "lower"), (False, True), ("nonunit", "unit")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side, uplo, trans, diag", FLAGS)
def test_trsm_and_trmm_are_those_of_scipy(side, uplo, trans, diag, dtype, backend, near):
    flags = {
        "side": int(side == "right"),
        "lower": int(uplo == "lower"),
        "trans_a": int(trans),
        "diag": int(diag == "unit"),
    }
    for n, other in ((1, 1), (5, 3), (140, 20)):
        A = triangular(n, dtype)
        B = random(*((n, other) if side == "left" else (other, n)), dtype=dtype, seed=1)
        a, b = wide(A, B)
        product = blas.dtrmm(2.0, a, b, **flags)
        size = np.abs(a) + np.abs(a).T + np.eye(n)
        scale = 2 * (size @ np.abs(b) if side == "left" else np.abs(b) @ size)
        near(trnblas.trmm(2.0, A, B, side, uplo, trans, diag), product, scale, n)
        solution = blas.dtrsm(2.0, a, b, **flags)
        near(trnblas.trsm(2.0, A, B, side, uplo, trans, diag), solution, 4 * np.abs(solution).max(), n)


@pytest.mark.parametrize("side", ["left", "right"])
def test_trsm_and_trmm_of_batches(side, backend, near):
    A, B = triangular(150, torch.float32, (2, 2)), random(2, 2, 150, 150, seed=1)
    a, b = wide(A, B)
    upper = np.triu(a)
    product = upper @ b if side == "left" else b @ upper
    near(trnblas.trmm(1.0, A, B, side), product, 60.0, 150)
    solution = trnblas.trsm(1.0, A, B, side)
    x = solution.double().numpy()
    near(torch.from_numpy(upper @ x if side == "left" else x @ upper).float(), b, 60.0, 150)
    one = trnblas.trsm(1.0, A[0, 0], B, side)  # one triangle for all
    torch.testing.assert_close(one[0, 0], solution[0, 0], rtol=1e-5, atol=1e-5)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 300), columns=st.integers(1, 40), flags=st.sampled_from(FLAGS))
def test_a_solve_undoes_a_product(n, columns, flags):
    side = flags[0]
    A, X = triangular(n, torch.float32), random(*((n, columns) if side == "left" else (columns, n)), seed=1)
    for name in ("pytorch", "nki"):
        trnblas.set_backend(name)
        again = trnblas.trsm(0.5, A, trnblas.trmm(2.0, A, X, *flags), *flags)
        torch.testing.assert_close(again, X, rtol=1e-4, atol=1e-4)


# ---- refusals ------------------------------------------------------------------------------------


def test_wrong_arguments_are_named(backend):
    one, two = torch.ones(2, 3), torch.ones(2, 2)
    cases = [
        (lambda: trnblas.gemm(1.0, one, one), ValueError, r"gemm: op\(A\) is \(2, 3\).*: 3 != 2"),
        (lambda: trnblas.gemm(1.0, one, one.T.double()), TypeError, "A is torch.float32, B is torch.float64"),
        (
            lambda: trnblas.gemm(1.0, two, two, 1.0, one),
            ValueError,
            r"C has shape \(2, 3\), the result has \(2, 2\)",
        ),
        (lambda: trnblas.gemm(1.0, two, two, 1.0, two.double()), TypeError, "C is torch.float64"),
        (lambda: trnblas.gemm(1.0, two[0], two), ValueError, r"A must be a matrix.*shape \(2,\)"),
        (
            lambda: trnblas.gemm(1.0, two, two, precision="tf32"),
            ValueError,
            "precision must be None or 'fp64'",
        ),
        (lambda: trnblas.batched_gemm(1.0, two, two), ValueError, "batched_gemm: A must be a batch"),
        (
            lambda: trnblas.symm(1.0, two, two, side="l"),
            ValueError,
            "side must be 'left' or 'right', got 'l'",
        ),
        (lambda: trnblas.trsm(1.0, one, two), ValueError, r"trsm: A must be square, it has shape \(2, 3\)"),
        (lambda: trnblas.trsm(1.0, two, torch.ones(3, 2)), ValueError, "2 != 3"),
        (lambda: trnblas.syrk(1.0, one, 1.0, one), ValueError, "syrk: C must be square"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
