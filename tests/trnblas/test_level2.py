"""A matrix and a vector against scipy.linalg.blas, over shapes, flags, dtypes and backends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg.blas as blas

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = [(1, 1), (5, 3), (130, 40), (33, 200)]


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def wide(*tensors):
    return [t.double().numpy() for t in tensors]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gemv_is_that_of_scipy(shape, dtype, backend, near):
    for trans, (alpha, beta) in itertools.product((False, True), ((1.0, 0.0), (2.5, -0.5))):
        A = random(*shape, dtype=dtype)
        rows, columns = shape[::-1] if trans else shape
        x, y = random(columns, dtype=dtype, seed=1), random(rows, dtype=dtype, seed=2)
        a, b, c = wide(A, x, y)
        expected = blas.dgemv(alpha, a, b, beta, c, trans=int(trans))
        scale = abs(alpha) * np.abs(a.T if trans else a) @ np.abs(b) + abs(beta) * np.abs(c)
        near(trnblas.gemv(alpha, A, x, beta, y, trans), expected, scale, columns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("uplo", ["upper", "lower"])
def test_symv_reads_one_triangle(uplo, dtype, backend, near):
    for n in (1, 6, 140):
        A, x, y = random(n, n, dtype=dtype), random(n, dtype=dtype, seed=1), random(n, dtype=dtype, seed=2)
        expected = blas.dsymv(1.5, *wide(A, x), beta=0.5, y=wide(y)[0], lower=int(uplo == "lower"))
        a = np.abs(wide(A)[0])
        scale = 1.5 * np.maximum(a, a.T) @ np.abs(wide(x)[0]) + np.abs(wide(y)[0])
        unread = A.clone()
        unread[(torch.ones(n, n).tril(-1) if uplo == "upper" else torch.ones(n, n).triu(1)).bool()] = (
            torch.nan
        )
        near(trnblas.symv(1.5, unread, x, 0.5, y, uplo), expected, scale, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("uplo", ["upper", "lower"])
@pytest.mark.parametrize("diag", ["nonunit", "unit"])
def test_trmv_is_that_of_scipy(uplo, diag, dtype, backend, near):
    for n, trans in itertools.product((1, 6, 140), (False, True)):
        A, x = random(n, n, dtype=dtype), random(n, dtype=dtype, seed=1)
        flags = {"lower": int(uplo == "lower"), "trans": int(trans), "diag": int(diag == "unit")}
        expected = blas.dtrmv(*wide(A, x), **flags)
        scale = np.maximum(np.abs(wide(A)[0]), np.abs(wide(A)[0]).T) @ np.abs(wide(x)[0]) + np.abs(wide(x)[0])
        near(trnblas.trmv(A, x, uplo, trans, diag), expected, scale, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ger_is_that_of_scipy(shape, dtype, backend, near):
    x, y, A = (
        random(shape[0], dtype=dtype),
        random(shape[1], dtype=dtype, seed=1),
        random(*shape, dtype=dtype),
    )
    a, b, c = wide(x, y, A)
    scale = 2 * np.outer(np.abs(a), np.abs(b)) + np.abs(c)
    near(trnblas.ger(2.0, x, y, A), blas.dger(2.0, a, b, a=c), scale)
    near(trnblas.ger(2.0, x, y), blas.dger(2.0, a, b), scale)
    near(trnblas.ger(1.0, x, y), np.outer(a, b), scale)


def test_batches_and_strides(backend, near):
    A, x = random(3, 20, 12)[:, ::2].mT, random(3, 10, seed=1)
    a, b = wide(A, x)
    near(trnblas.gemv(1.0, A, x), np.einsum("bij,bj->bi", a, b), 50.0, 10)
    near(trnblas.ger(2.0, x, x), 2 * np.einsum("bi,bj->bij", b, b), 50.0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty_operands(shape, backend):
    A = torch.empty(shape)
    assert torch.equal(trnblas.gemv(1.0, A, torch.ones(shape[1])), torch.zeros(shape[0]))
    assert torch.equal(
        trnblas.gemv(1.0, A, torch.ones(shape[1]), 2.0, torch.ones(shape[0])), torch.full((shape[0],), 2.0)
    )
    assert trnblas.ger(1.0, torch.ones(shape[0]), torch.ones(shape[1])).shape == shape


def test_alpha_zero_reads_neither_matrix_nor_vector(backend):
    nan, y = torch.full((3, 3), torch.nan), torch.ones(3)
    assert torch.equal(trnblas.gemv(0.0, nan, nan[0], 2.0, y), 2 * y)
    assert torch.equal(trnblas.gemv(0.0, nan, nan[0]), torch.zeros(3))
    assert torch.equal(trnblas.ger(0.0, nan[0], y, torch.ones(3, 3)), torch.ones(3, 3))


def test_beta_zero_does_not_read_y(backend):
    assert torch.isfinite(
        trnblas.gemv(1.0, torch.eye(3), torch.ones(3), 0.0, torch.full((3,), torch.nan))
    ).all()


def test_wrong_flags_and_shapes_are_named(backend):
    with pytest.raises(ValueError, match="symv: uplo must be 'upper' or 'lower', got 'up'"):
        trnblas.symv(1.0, torch.eye(2), torch.ones(2), uplo="up")
    with pytest.raises(ValueError, match="trmv: diag must be 'nonunit' or 'unit', got True"):
        trnblas.trmv(torch.eye(2), torch.ones(2), diag=True)
    with pytest.raises(ValueError, match=r"trmv: A must be square, it has shape \(2, 3\)"):
        trnblas.trmv(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"gemv: op\(A\) is \(2, 3\), op\(B\) is \(2, 1\): 3 != 2"):
        trnblas.gemv(1.0, torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match=r"ger: A has shape \(3, 2\), the product has \(2, 3\)"):
        trnblas.ger(1.0, torch.ones(2), torch.ones(3), torch.ones(3, 2))
