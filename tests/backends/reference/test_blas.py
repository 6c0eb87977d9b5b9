"""BLAS for tiles: one thread, and products that are added to what is there."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.reference import blas
from nki.backends.reference.blas import add_product, one_blas_thread


def matrix(rng, rows, columns, slack=0):
    """Dense rows, `slack` numbers apart."""
    return rng.standard_normal((rows, columns + slack), dtype=np.float32)[:, :columns]


@pytest.fixture(scope="module", autouse=True)
def looked_up():
    with one_blas_thread():
        yield


@pytest.fixture(scope="module")
def sgemm(looked_up):
    if blas._sgemm is None:
        pytest.skip("this numpy has another BLAS")


@pytest.mark.usefixtures("sgemm")
@given(
    st.integers(1, 128), st.integers(2, 128), st.integers(2, 512), st.integers(0, 9), st.integers(0, 2**31)
)
@settings(max_examples=200, deadline=None)
def test_adding_a_product_gives_the_bits_of_numpys_product_and_sum(k, m, n, slack, seed):
    rng = np.random.default_rng(seed)
    left, right, dst = matrix(rng, k, m, slack), matrix(rng, k, n, slack), matrix(rng, m, n, slack)
    expected = dst + np.matmul(left.T, right)
    assert add_product(dst, left, right)
    np.testing.assert_array_equal(dst, expected)


@pytest.mark.usefixtures("sgemm")
def test_infinities_and_nans_equal_those_of_numpy():
    rng = np.random.default_rng(0)
    left, right, dst = matrix(rng, 8, 4), matrix(rng, 8, 6), matrix(rng, 4, 6)
    left[0, 0], right[1, 2], dst[3, 3] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = dst + np.matmul(left.T, right)
    assert add_product(dst, left, right)
    np.testing.assert_array_equal(dst, expected)


def test_numpy_multiplies_matrices_that_blas_cannot_take():
    rng = np.random.default_rng(0)
    left, right, dst = matrix(rng, 8, 4), matrix(rng, 8, 6), matrix(rng, 4, 6)
    before = dst.copy()
    assert not add_product(dst, left[:, ::2], right)
    assert not add_product(dst, left, right[:, ::-1])
    assert not add_product(dst.astype(np.float64), left, right)
    assert not add_product(dst[:, :1], left, right[:, :1])
    assert not add_product(dst, left[:4], right)
    assert not add_product(dst.reshape(4, 2, 3), left, right)
    np.testing.assert_array_equal(dst, before)


@nki.jit
def three_products(a, b):
    psum = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, buffer=nl.psum)
    stationary, moving = nl.ndarray(a.shape, a.dtype), nl.ndarray(b.shape, b.dtype)
    nisa.dma_copy(stationary, a)
    nisa.dma_copy(moving, b)
    for _ in range(3):
        nisa.nc_matmul(psum, stationary, moving)
    tile = nl.ndarray(psum.shape, nl.float32)
    nisa.tensor_copy(tile, psum)
    out = nl.ndarray(psum.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.parametrize("shape", [(128, 128, 512), (17, 5, 33), (1, 2, 2), (128, 1, 512)])
def test_a_kernel_computes_the_same_without_that_blas(shape):
    k, m, n = shape
    rng = np.random.default_rng(1)
    a, b = matrix(rng, k, m), matrix(rng, k, n)
    found = three_products(a, b)
    with mock.patch.object(blas, "_sgemm", None):
        np.testing.assert_array_equal(three_products(a, b), found)


def test_blas_has_as_many_threads_as_before_afterwards():
    before = [library["num_threads"] for library in threadpoolctl.threadpool_info()]
    with one_blas_thread(), one_blas_thread():
        pass
    assert [library["num_threads"] for library in threadpoolctl.threadpool_info()] == before
