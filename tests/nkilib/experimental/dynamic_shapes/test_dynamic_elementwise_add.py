from __future__ import annotations

import warnings

import numpy as np
import pytest
from kernel_support import each_lnc, random, run

import nki
from nki.check import lint
from nkilib.experimental import dynamic_shapes
from nkilib.experimental.dynamic_shapes.dynamic_elementwise_add import (
    dynamic_elementwise_add,
    dynamic_elementwise_add_ref,
)


def count(tiles):
    return np.array([[tiles]], np.int32)


def check(rows, columns, tiles, lnc=1):
    a, b = random((rows, columns), "bfloat16", 0), random((rows, columns), "bfloat16", 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*never written")  # as documented: the rows beyond
        actual = run(dynamic_elementwise_add, a, b, count(tiles), lnc=lnc)
    assert actual.shape == (rows, columns) and actual.dtype == a.dtype
    np.testing.assert_array_equal(actual[: 128 * tiles], dynamic_elementwise_add_ref(a, b, count(tiles)))


@each_lnc
@pytest.mark.parametrize("tiles", [0, 1, 4])
def test_the_requested_rows_are_exact(tiles, lnc):
    check(512, 1024, tiles, lnc)


@each_lnc
def test_columns_need_not_divide_into_tiles(lnc):
    check(256, 2048 + 512, 2, lnc)
    check(128, 512, 1, lnc)


@pytest.mark.slow
@each_lnc
def test_a_large_matrix_is_exact(lnc):
    check(2048, 8192, 16, lnc)


@pytest.mark.tiny
def test_one_program_serves_every_count():
    a = random((256, 512), "bfloat16")
    for tiles in (2, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            actual = run(dynamic_shapes.dynamic_elementwise_add, a, a, count(tiles))
        np.testing.assert_array_equal(actual[: 128 * tiles], a[: 128 * tiles] * 2)


def test_trn3_gives_the_same_and_the_compiler_would_accept_the_kernel():
    a = random((256, 512), "bfloat16")
    np.testing.assert_array_equal(run(dynamic_elementwise_add, a, a, count(2), on="trn3"), a * 2)
    assert [str(finding) for finding in lint(dynamic_elementwise_add)] == []


MATRIX = np.zeros((256, 512), random((1,), "bfloat16").dtype)
REFUSED = {
    "input_a: got dtype float32, allowed is bfloat16": (MATRIX.astype(np.float32), MATRIX, count(1)),
    "input_b: got dtype float32, allowed is bfloat16": (MATRIX, MATRIX.astype(np.float32), count(1)),
    "input_b: got shape (128, 512), expected (256, 512)": (MATRIX, MATRIX[:128], count(1)),
    "input_a: got shape (1, 256, 512), allowed are two dimensions": (MATRIX[None], MATRIX[None], count(1)),
    "input_a: got 100 rows, allowed are multiples of 128": (MATRIX[:100], MATRIX[:100], count(1)),
    "input_a: got 500 columns, allowed are multiples of 512": (MATRIX[:, :500], MATRIX[:, :500], count(1)),
    "num_m_tiles: got shape (1,), expected (1, 1)": (MATRIX, MATRIX, count(1)[0]),
    "num_m_tiles: got dtype float32, allowed is int32": (MATRIX, MATRIX, count(1).astype(np.float32)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_arguments_are_refused_by_name(text):
    with pytest.raises(AssertionError) as refusal:
        run(dynamic_elementwise_add, *REFUSED[text])
    assert f"[NCC_INKI016] Kernel validation exception: {text}" in str(refusal.value)


def test_an_iteration_of_the_loop_is_bound_by_memory(monkeypatch):
    """Without data the body is timed once: 6 MiB, the fixed cost of a kernel, a loop and its barrier."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    matrix = nki.TensorSpec((2048, 8192), "bfloat16")
    profile = nki.profile(dynamic_elementwise_add)(matrix, matrix, nki.TensorSpec((1, 1), "int32"))
    assert profile.total_us < 16.1 + 15.0
