import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, run

from nki import mx
from nkilib.experimental.quantize_mxfp8.quantize_mxfp8 import (
    quantize_block_mxfp8_kernel,
    quantize_block_mxfp8_kernel_ref,
    should_store_packed_scales,
)
from support import target

DTYPES = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def numbers(shape, dtype=ml_dtypes.bfloat16):
    """Return numbers of many magnitudes, with a block of zeros."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 8, shape)).astype(dtype)
    x[:2, :] = 0
    return x


def check(x, name, packed, lnc=1, **options):
    data, scales = run(
        quantize_block_mxfp8_kernel, x, name, lnc=lnc, on="trn3", enable_scale_packing=packed, **options
    )
    expected = mx_emulation.quantized(x, name)
    assert data.dtype == DTYPES[name] and scales.dtype == np.uint8
    np.testing.assert_array_equal(data.view(np.uint8), mx_emulation.as_stored(expected))
    np.testing.assert_array_equal(scales, mx_emulation.stored_scales(expected.scales, packed))


@each_lnc
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(128, 512), (8, 512), (72, 640), (24, 384), (40, 2560)])
def test_elements_and_scales_are_those_of_the_specification_bit_for_bit(shape, name, packed, lnc):
    check(numbers(shape), name, packed, lnc, run_with_lnc2=lnc == 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(512, 2048), (1000, 4096), (4096, 4096)])
def test_published_sizes_are_quantised_bit_for_bit(shape, name):
    check(numbers(shape), name, packed=True)


def test_a_core_that_shares_nothing_leaves_the_work_to_the_first():
    check(numbers((16, 512)), "float8_e4m3fn", True, lnc=2, run_with_lnc2=False)


def test_float16_is_quantised_too():
    check(numbers((16, 512), np.float16), "float8_e5m2", False)


@pytest.mark.parametrize("packed", [True, False])
def test_what_the_host_makes_and_reads_is_what_the_kernel_makes(packed):
    x = numbers((16, 1152))
    data, scales = run(
        quantize_block_mxfp8_kernel, x, "float8_e4m3fn", on="trn3", enable_scale_packing=packed
    )
    expected = quantize_block_mxfp8_kernel_ref(x, "float8_e4m3fn", packed)
    np.testing.assert_array_equal(data, expected[0])
    np.testing.assert_array_equal(scales, expected[1])
    back = mx.dequantize_operand(data, scales, scale_layout="packed" if packed else "hardware")
    np.testing.assert_array_equal(back, mx_emulation.quantized(x).values)


@pytest.mark.tiny
def test_packed_scales_are_stored_at_each_fourth_tile_and_the_last():
    assert [t for t in range(6) if should_store_packed_scales(t, 6)] == [3, 5]
    assert [t for t in range(8) if should_store_packed_scales(t, 8)] == [3, 7]
    assert should_store_packed_scales(0, 1) is True
    with pytest.raises(AssertionError, match="tile_k_idx: got 4, there are 4 tiles"):
        should_store_packed_scales(4, 4)


@pytest.mark.parametrize(
    "shape, dtype, name, text",
    [
        ((8, 512), ml_dtypes.bfloat16, "float8_e4m3", "return_fp8_dtype: got float8_e4m3, allowed are"),
        (
            (8, 500),
            ml_dtypes.bfloat16,
            "float8_e5m2",
            "the contraction K is 500, it must be a multiple of 128",
        ),
        ((12, 512), ml_dtypes.bfloat16, "float8_e5m2", "has 12 features, a multiple of 8 is needed"),
        ((8, 512), np.float32, "float8_e5m2", "got dtype float32, expected bfloat16 or float16"),
        ((8, 2, 512), ml_dtypes.bfloat16, "float8_e5m2", "expected a matrix"),
    ],
)
def test_wrong_arguments_are_refused(shape, dtype, name, text):
    with pytest.raises(AssertionError, match="NCC_INKI016") as refusal:
        run(quantize_block_mxfp8_kernel, np.ones(shape, dtype), name, on="trn3")
    assert text in str(refusal.value)


def test_it_compiles_and_its_example_is_right():
    with target("trn3"):
        compiles_and_example_runs(quantize_block_mxfp8_kernel)
