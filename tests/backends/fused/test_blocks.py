"""Blocks of a large product: few for each thread, and the same bits for any number of threads."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.backends.fused import blocks as module
from nki.backends.fused.blocks import blocks
from nki.backends.reference.blas import one_blas_thread


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with one_blas_thread():
        yield


def product(left, right, threads):
    out = np.full((len(left), right.shape[1]), np.nan, np.float32)
    for block in blocks(left, right, out, threads):
        block()
    return out


def matrix(rng, rows, columns, transposed):
    if transposed:
        return rng.standard_normal((columns, rows), dtype=np.float32).T
    return rng.standard_normal((rows, columns), dtype=np.float32)


@given(
    *(st.integers(200, 1300) for _ in range(2)),
    st.integers(60, 400),
    *(st.booleans() for _ in range(2)),
    st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_the_bits_of_a_product_do_not_depend_on_the_number_of_threads(m, n, k, left, right, seed):
    rng = np.random.default_rng(seed)
    a, b = matrix(rng, m, k, left), matrix(rng, k, n, right)
    with mock.patch.object(module, "MIN_BLOCK", 1 << 22):
        found = [product(a, b, threads) for threads in (1, 2, 3, 16)]
    assert len({one.tobytes() for one in found}) == 1
    exact, magnitudes = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    assert np.all(np.abs(found[0] - exact) <= k * 2.0**-24 * magnitudes)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_bits_of_a_matrix_times_itself_do_not_depend_on_the_number_of_threads(threads):
    x = np.random.default_rng(0).standard_normal((1000, 1100), dtype=np.float32)
    with mock.patch.object(module, "MIN_BLOCK", 1 << 22):
        assert product(x.T, x, threads).tobytes() == product(x.T, x, 1).tobytes()


def count(m, n, k, threads, independent):
    left, right, out = (np.empty(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
    with mock.patch.object(module, "sums_are_independent", lambda: independent):
        return [np.shape(b.keywords["out"]) for b in blocks(left, right, out, threads)]


def test_where_sums_do_not_depend_on_the_cut_each_thread_has_a_block():
    assert count(2048, 4096, 512, 1, True) == [(2048, 4096)]
    assert count(2048, 4096, 512, 2, True) == [(2048, 2048)] * 2
    assert count(4096, 2048, 512, 8, True) == [(1024, 1024)] * 8
    assert count(1000, 2048, 512, 3, True) == [(1000, 672), (1000, 688), (1000, 688)]
    assert count(256, 2305, 1024, 7, True) == [(256, 320), (256, 336)] * 2 + [(256, 320)] + [
        (256, 336),
        (256, 337),
    ]


def test_small_and_narrow_products_are_not_cut_for_threads():
    assert count(512, 512, 96, 8, True) == [(512, 512)]
    assert count(128, 4096, 4096, 2, True) == count(128, 4096, 4096, 7, True) == [(128, 1024)] * 4


def test_elsewhere_the_size_alone_decides():
    assert count(2048, 4096, 512, 1, False) == count(2048, 4096, 512, 7, False) == [(1024, 1024)] * 8
