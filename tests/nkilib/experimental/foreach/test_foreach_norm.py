from __future__ import annotations

import numpy as np
import pytest
from kernel_support import each_lnc, random, run
from ulps import within_ulps

import nki
from nki.check import lint
from nki.machine.generations import TRN2
from nkilib.experimental.foreach import foreach_norm

pytestmark = pytest.mark.filterwarnings("error")

KERNELS = ["l2_norm_kernel", "l1_norm_kernel", "linf_norm_kernel"]
each_kernel = pytest.mark.parametrize("name", KERNELS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


def check(name, data, lnc=1):
    actual = run(getattr(foreach_norm, name), data, data.size, lnc=lnc)
    expected = getattr(foreach_norm, f"{name}_ref")(data, data.size)
    if data.dtype == np.float32:
        assert actual.shape == (1, 1) and actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
    else:
        within_ulps(actual, expected)


@each_lnc
@pytest.mark.parametrize("size", [1, 5, 128, 129])
@each_kernel
def test_small_vectors_agree_with_the_reference(name, size, lnc):
    check(name, random((size,)), lnc)


@each_lnc
@each_dtype
@each_kernel
def test_a_matrix_with_a_ragged_end_agrees_with_the_reference(name, dtype, lnc):
    check(name, random((300, 71), dtype), lnc)


@each_lnc
@each_kernel
def test_several_tiles_and_a_remainder_agree_with_the_reference(name, lnc):
    check(name, random((1_000_001,), "bfloat16"), lnc)


@pytest.mark.slow
@each_lnc
@each_kernel
def test_large_tensors_agree_with_the_reference(name, lnc):
    check(name, random((1_000_001,)), lnc)
    check(name, random((1 << 24,)), lnc)


@pytest.mark.tiny
def test_the_largest_magnitude_may_be_negative_and_last():
    data = np.ones(1000, np.float32)
    data[-1] = -3
    assert run(foreach_norm.linf_norm_kernel, data, 1000) == 3


@each_lnc
@pytest.mark.parametrize("place", [0, 300_000, 599_999, 600_000])
@each_kernel
def test_a_nan_anywhere_makes_the_norm_nan(name, place, lnc):
    data = np.zeros(600_001, np.float32)
    data[place] = np.nan
    assert np.isnan(run(getattr(foreach_norm, name), data, data.size, lnc=lnc)).all()


@each_kernel
def test_norms_of_zeros_and_of_infinity(name):
    kernel = getattr(foreach_norm, name)
    assert run(kernel, np.zeros(200, np.float32), 200) == 0
    assert run(kernel, np.array([1, -np.inf], np.float32), 2) == np.inf


@each_kernel
def test_trn3_gives_the_same_and_the_compiler_would_accept_the_kernel(name):
    kernel = getattr(foreach_norm, name)
    data = random((300, 7))
    expected = run(kernel, data, data.size)
    np.testing.assert_array_equal(run(kernel, data, data.size, on="trn3"), expected)
    assert [str(finding) for finding in lint(kernel)] == []


@each_kernel
def test_wrong_arguments_are_refused_by_name(name):
    kernel, data = getattr(foreach_norm, name), np.ones((4, 8), np.float32)
    with pytest.raises(AssertionError, match="numel: got 31, expected 32, the size of data"):
        run(kernel, data, 31)
    with pytest.raises(AssertionError, match="NCC_INKI016.*data: got dtype int32, allowed are float32"):
        run(kernel, data.astype(np.int32), 32)


@each_kernel
def test_16_million_elements_pass_near_the_rate_of_memory(name, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    size = 1 << 24
    profile = nki.profile(getattr(foreach_norm, name))(nki.TensorSpec((size,), "bfloat16"), size)
    bound = size * 2 / (TRN2.dma_engines * TRN2.dma_bytes_per_ns) / 1e3
    assert bound / profile.total_us > 0.77
