"""The twelve elementwise kernels, on tensors whose results do not cancel: tolerances are relative."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import each_lnc, run
from ulps import within_ulps

import nki
from nki.check import lint
from nki.machine.generations import TRN2
from nkilib.experimental.foreach import foreach_elementwise as foreach

pytestmark = pytest.mark.filterwarnings("error")

SCALAR = ["add_scalar_kernel", "sub_scalar_kernel", "mul_scalar_kernel", "div_scalar_kernel"]
SCALED = ["add_tensor_kernel", "sub_tensor_kernel", "lerp_kernel"]
PLAIN = ["mul_tensor_kernel", "div_tensor_kernel"]
THREE = ["addcdiv_kernel", "addcmul_kernel"]
KERNELS = [*SCALAR, *SCALED, *PLAIN, *THREE, "sqrt_kernel"]

each_kernel = pytest.mark.parametrize("name", KERNELS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


def signed(shape, low, high, dtype, seed):
    """Return random values of either sign, with magnitudes between low and high."""
    generator = np.random.default_rng(seed)
    values = generator.uniform(low, high, shape) * generator.choice([-1, 1], shape)
    return values.astype(np.float32).astype(dtype)


def scalar(value, dtype="float32"):
    return np.full((128, 1), value, dtype)


def arguments(name, shape, dtype):
    """Return a kernel's arguments; the first tensor outweighs the others, so that nothing cancels."""
    data, size = signed(shape, 8, 16, dtype, 0), int(np.prod(shape))
    others = [signed(shape, 0.5, 2, dtype, seed) for seed in (1, 2)]
    if name in SCALAR:
        return (data, scalar(1.75), size)
    if name in SCALED:
        return (data, others[0], scalar(0.375), size)
    if name in PLAIN:
        return (data, others[0], size)
    if name in THREE:
        return (data, *others, scalar(0.75), size)
    return (np.abs(data), size)


def check(name, args, lnc=1):
    kernel, reference = getattr(foreach, name), getattr(foreach, f"{name}_ref")
    before = [a.copy() for a in args if isinstance(a, np.ndarray)]
    actual, expected = run(kernel, *args, lnc=lnc), reference(*args)
    assert actual.shape == args[0].shape and actual.dtype == args[0].dtype
    if actual.dtype == np.float32:
        np.testing.assert_allclose(actual, expected, rtol=1e-5 if "div" in name else 2e-6)
    else:
        within_ulps(actual, expected)
    for old, new in zip(before, args, strict=False):
        np.testing.assert_array_equal(old, new)


@each_lnc
@each_dtype
@each_kernel
def test_a_matrix_with_a_ragged_end_agrees_with_the_reference(name, dtype, lnc):
    check(name, arguments(name, (300, 70), dtype), lnc)


@each_lnc
@pytest.mark.parametrize("size", [1, 127, 128])
@each_kernel
def test_fewer_elements_than_one_tile_agree_with_the_reference(name, size, lnc):
    check(name, arguments(name, (size,), "float32"), lnc)


@each_lnc
@pytest.mark.parametrize("name", ["add_tensor_kernel", "sqrt_kernel"])
def test_several_tiles_and_a_remainder_agree_with_the_reference(name, lnc):
    check(name, arguments(name, (1_000_003,), "bfloat16"), lnc)


@pytest.mark.slow
@each_lnc
@each_kernel
def test_large_tensors_agree_with_the_reference(name, lnc):
    check(name, arguments(name, (1_000_003,), "float32"), lnc)
    check(name, arguments(name, (4096, 4096), "bfloat16"), lnc)


@pytest.mark.tiny
def test_scaled_sum_of_two_tensors():
    x, y = np.arange(300, dtype=np.float32), np.ones(300, np.float32)
    np.testing.assert_array_equal(run(foreach.add_tensor_kernel, x, y, scalar(2.0), 300), x + 2)


def test_scalars_may_have_a_narrow_dtype():
    data = signed((5, 77), 8, 16, "bfloat16", 0)
    args = (data, scalar(0.375, data.dtype), data.size)
    check("mul_scalar_kernel", args)


def test_the_result_has_the_dtype_of_the_first_tensor():
    wide, narrow = signed((200,), 8, 16, "float32", 0), signed((200,), 0.5, 2, "bfloat16", 1)
    check("add_tensor_kernel", (wide, narrow, scalar(2.0), 200))
    check("add_tensor_kernel", (narrow, wide, scalar(2.0), 200))


def test_calls_by_keyword():
    data, end = signed((130,), 8, 16, "float32", 0), signed((130,), 0.5, 2, "float32", 1)
    named = {"data": data, "end": end, "weight_tensor": scalar(0.25), "numel": 130}
    np.testing.assert_allclose(run(foreach.lerp_kernel, **named), foreach.lerp_kernel_ref(**named), rtol=2e-6)


@each_dtype
def test_division_by_zero_and_infinity_is_as_in_ieee_754(dtype):
    above = np.array([1, -1, 0, 1, -1, np.inf, np.nan, np.inf], np.float32).astype(dtype)
    below = np.array([0, 0, 0, np.inf, -np.inf, np.inf, 1, 2], np.float32).astype(dtype)
    within_ulps(
        run(foreach.div_tensor_kernel, above, below, 8), foreach.div_tensor_kernel_ref(above, below, 8), 0
    )
    zero = scalar(0.0)
    within_ulps(
        run(foreach.div_scalar_kernel, above, zero, 8), foreach.div_scalar_kernel_ref(above, zero, 8), 0
    )


def test_square_roots_of_zero_infinity_tiny_and_negative_numbers():
    data = np.array([0, np.inf, 1e-40, 1e-36, 3e38, -1, -1e-30, -1e30, -np.inf, np.nan], np.float32)
    actual = run(foreach.sqrt_kernel, data, data.size)
    np.testing.assert_allclose(actual, foreach.sqrt_kernel_ref(data, data.size), rtol=2e-6)


@each_kernel
def test_trn3_and_other_ways_to_call_give_the_same(name):
    kernel, args = getattr(foreach, name), arguments(name, (3, 50), "float32")
    expected = run(kernel, *args)
    for other in (kernel[1], kernel[(2,)], nki.jit()(kernel)):
        np.testing.assert_array_equal(run(other, *args), expected)
    np.testing.assert_array_equal(run(kernel, *args, on="trn3"), expected)


@nki.jit
def sum_of_three(a, b, c, one):
    return foreach.add_tensor_kernel(foreach.add_tensor_kernel(a, b, one, a.size), c, one, a.size)


def test_a_kernel_can_be_called_inside_another():
    a = np.arange(300, dtype=np.float32)
    np.testing.assert_array_equal(run(sum_of_three, a, a, a, scalar(1.0)), 3 * a)


@each_kernel
def test_the_compiler_would_accept_the_kernel(name):
    assert [str(finding) for finding in lint(getattr(foreach, name))] == []


# ---- refusals --------------------------------------------------------------------------------------

DATA = np.ones((4, 8), np.float32)
ONE = np.ones((128, 1), np.float32)
REFUSED = {
    "numel: got 31, expected 32, the size of data1": (DATA, DATA, ONE, 31),
    "data2: got shape (8, 4), expected (4, 8)": (DATA, DATA.reshape(8, 4), ONE, 32),
    "data1: got dtype int32, allowed are float32, bfloat16 and float16": (
        DATA.astype(np.int32),
        DATA,
        ONE,
        32,
    ),
    "data2: got dtype int32": (DATA, DATA.astype(np.int32), ONE, 32),
    "alpha_tensor: got shape (1, 1), expected (128, 1)": (DATA, DATA, ONE[:1], 32),
    "alpha_tensor: got dtype int32": (DATA, DATA, ONE.astype(np.int32), 32),
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_arguments_are_refused_by_name(text):
    with pytest.raises(AssertionError) as refusal:
        run(foreach.add_tensor_kernel, *REFUSED[text])
    assert f"[NCC_INKI016] Kernel validation exception: {text}" in str(refusal.value)


@each_kernel
def test_every_kernel_checks_the_number_of_elements(name):
    args = arguments(name, (40,), "float32")
    with pytest.raises(AssertionError, match="numel: got 41, expected 40"):
        run(getattr(foreach, name), *args[:-1], 41)


# ---- speed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in KERNELS if "div_tensor" not in n and "addcdiv" not in n])
def test_16_million_elements_pass_at_the_rate_of_memory(name, monkeypatch):
    """VectorE's reciprocal, six cycles per element, limits the quotients of two tensors."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    args = arguments(name, (1, 1), "bfloat16")
    size = 1 << 24
    specs = [nki.TensorSpec((size,), "bfloat16") if a.size == 1 else a for a in args[:-1]]
    tensors = 1 + sum(isinstance(a, nki.TensorSpec) for a in specs)
    bound = tensors * size * 2 / (TRN2.dma_engines * TRN2.dma_bytes_per_ns) / 1e3
    share = bound / nki.profile(getattr(foreach, name))(*specs, size).total_us
    assert share > (0.7 if name == "sqrt_kernel" else 0.9)
