import numpy as np
import pytest
from kernel_support import both_cores, close, cosine, each_lnc, fp8_steps, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check import lint
from nkilib.core.rmsnorm.rmsnorm_quant import (
    RmsNormQuantKernelArgs,
    rmsnorm_quant_kernel,
    rmsnorm_quant_kernel_ref,
)
from nkilib.core.utils.common_types import DtypeMode, NormType, QuantizationType

ROW, STATIC = QuantizationType.ROW, QuantizationType.STATIC
SCALE_TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-3, "float16": 1e-3}
E4M3, E4M3FN = nl.float8_e4m3, nl.float8_e4m3fn


def check(got, hidden, gamma, kargs, dtype=E4M3, **tensors):
    """Values, packed scales and the residual output against the reference."""
    q, scale, total = rmsnorm_quant_kernel_ref(hidden, gamma, kargs, dtype=dtype, **tensors)
    if total is not None:
        got, total_out = got
        close(total_out, total, hidden.dtype)
    width = hidden.shape[-1]
    assert got.shape == (*hidden.shape[:-1], width if scale is None else width + 4)
    values = np.ascontiguousarray(got[..., :width])
    assert fp8_steps(values, q) <= 1
    dequantised, expected = values.astype(np.float64), q.astype(np.float64)
    if scale is not None:
        packed = np.ascontiguousarray(got[..., width:]).view(np.float32)
        np.testing.assert_allclose(packed, scale, rtol=SCALE_TOLERANCE[hidden.dtype.name])
        dequantised, expected = dequantised * packed, expected * scale
    assert cosine(dequantised, expected) >= 0.9995


def inputs(shape, dtype="bfloat16"):
    return random(shape, dtype, scale=3), random(shape[-1:], dtype, seed=1)


@pytest.mark.tiny
@pytest.mark.parametrize("shape", [(1, 7, 512), (300, 96), (2, 2, 33, 40), (5, 3), (1, 256)])
def test_rows_of_every_shape_on_one_core_and_two(shape):
    hidden, gamma = inputs(shape)
    kargs = RmsNormQuantKernelArgs(0.0)
    for got in both_cores(rmsnorm_quant_kernel, hidden, gamma, kargs):
        check(got, hidden, gamma, kargs)


@each_lnc
def test_the_rows_of_the_spec(lnc):
    for shape in [(2, 128, 2880), (1, 7, 512)]:
        hidden, gamma = inputs(shape)
        kargs = RmsNormQuantKernelArgs(0.0)
        check(run(rmsnorm_quant_kernel, hidden, gamma, kargs, lnc=lnc), hidden, gamma, kargs)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 160, 16384), (1, 2048, 8192), (1, 2048, 16384), (300, 4096)])
def test_the_large_rows_of_the_spec(shape):
    hidden, gamma = inputs(shape)
    kargs = RmsNormQuantKernelArgs(0.0)
    for got in both_cores(rmsnorm_quant_kernel, hidden, gamma, kargs):
        check(got, hidden, gamma, kargs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", [ROW, STATIC])
@pytest.mark.parametrize("norm", [NormType.RMS_NORM, NormType.NO_NORM])
@pytest.mark.parametrize("bound", [0.0, 4.0, 1])
def test_every_kind_of_norm_and_quantisation(dtype, kind, norm, bound):
    hidden, gamma = inputs((5, 30, 64), dtype)
    kargs = RmsNormQuantKernelArgs(bound, norm, kind)
    tensors = {"input_dequant_scale": np.full((128, 1), 0.02, np.float32)} if kind == STATIC else {}
    gamma = None if norm == NormType.NO_NORM else gamma
    check(run(rmsnorm_quant_kernel, hidden, gamma, kargs, **tensors), hidden, gamma, kargs, **tensors)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", [ROW, STATIC])
@pytest.mark.parametrize("norm", [NormType.RMS_NORM, NormType.NO_NORM])
@pytest.mark.parametrize("given", ["residual", "pre_norm_gamma", "both"])
def test_a_residual_and_a_norm_before_it(dtype, kind, norm, given):
    hidden, gamma = inputs((150, 96), dtype)
    tensors = {"residual": random(hidden.shape, dtype, seed=2), "pre_norm_gamma": random(96, dtype, seed=3)}
    tensors = tensors if given == "both" else {given: tensors[given]}
    if kind == STATIC:
        tensors["input_dequant_scale"] = np.array([[0.02]], np.float32)
    kargs = RmsNormQuantKernelArgs(0.0, norm, kind, eps=1e-3)
    for got in both_cores(rmsnorm_quant_kernel, hidden, gamma, kargs, **tensors):
        check(got, hidden, gamma, kargs, **tensors)


def test_a_gamma_may_be_a_row_and_of_another_dtype():
    hidden, gamma = inputs((4, 8, 32))
    kargs = RmsNormQuantKernelArgs(0.0)
    gamma = gamma.astype(np.float32)[None]
    check(run(rmsnorm_quant_kernel, hidden, gamma, kargs), hidden, gamma, kargs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_wide_rows_are_worked_on_in_parts(dtype):
    """Two gammas and a residual of rows so wide that the gammas do not stay in SBUF."""
    hidden, gamma = inputs((3, 16384), dtype)
    tensors = {
        "residual": random(hidden.shape, dtype, seed=2),
        "pre_norm_gamma": random(16384, dtype, seed=3),
    }
    kargs = RmsNormQuantKernelArgs(4.0)
    check(run(rmsnorm_quant_kernel, hidden, gamma, kargs, **tensors), hidden, gamma, kargs, **tensors)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("given", [(), ("residual",), ("pre_norm_gamma",), ("residual", "pre_norm_gamma")])
@pytest.mark.parametrize("rows", [256, 640])
def test_the_widest_rows_fit_into_sbuf(dtype, given, rows):
    hidden, gamma = nki.TensorSpec((rows, 16384), dtype), nki.TensorSpec((16384,), dtype)
    tensors = {name: {"residual": hidden, "pre_norm_gamma": gamma}[name] for name in given}
    profile = run(nki.profile(rmsnorm_quant_kernel), hidden, gamma, RmsNormQuantKernelArgs(4.0), **tensors)
    assert profile.timeline.spill_bytes == 0


def test_zeros_have_the_smallest_scale():
    hidden = np.zeros((2, 8), np.float32)
    got = run(rmsnorm_quant_kernel, hidden, np.ones(8, np.float32), RmsNormQuantKernelArgs(0.0))
    assert not got[:, :8].astype(np.float32).any()
    assert (np.ascontiguousarray(got[:, 8:]).view(np.float32) == np.float32(1e-5)).all()


@pytest.mark.parametrize(
    ("platform", "options", "dtype"),
    [
        ("trn3", {"dtype_mode": DtypeMode.OCP}, E4M3FN),
        ("trn3", {"dtype_mode": DtypeMode.AUTO}, E4M3FN),
        ("trn2", {"dtype_mode": DtypeMode.AUTO}, E4M3),
        ("trn3", {"auto_resolve_fp8_dtype": True}, E4M3FN),
        ("trn3", {"auto_resolve_fp8_dtype": False}, E4M3),
    ],
)
def test_the_flavour_of_fp8(platform, options, dtype):
    hidden, gamma = inputs((6, 64))
    kargs = RmsNormQuantKernelArgs(0.0)
    got = run(rmsnorm_quant_kernel, hidden, gamma, kargs, on=platform, **options)
    assert got.dtype.name == dtype
    check(got, hidden, gamma, kargs, dtype)


def test_the_header_of_the_documentation_names_another_path():
    from nkilib.core.rmsnorm_quant.rmsnorm_quant import rmsnorm_quant_kernel as other

    assert other is rmsnorm_quant_kernel


def test_it_can_be_called_inside_another_kernel():
    @nki.jit
    def outer(hidden, gamma):
        packed = rmsnorm_quant_kernel(hidden, gamma, RmsNormQuantKernelArgs(0.0))
        copy = nl.ndarray(packed.shape, packed.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(copy, packed)
        return copy

    hidden, gamma = inputs((6, 64))
    check(run(outer, hidden, gamma), hidden, gamma, RmsNormQuantKernelArgs(0.0))


def test_it_compiles():
    assert [str(f) for f in lint(rmsnorm_quant_kernel)] == []


def test_it_reaches_the_speed_of_the_scalar_engine():
    """Two passes over the row at 1.2 GHz are the bound on trn2 (the Vector engine takes 0.98 of that)."""
    spec, gamma = nki.TensorSpec((1024, 8192), "bfloat16"), nki.TensorSpec((8192,), "bfloat16")

    total = run(nki.profile(rmsnorm_quant_kernel), spec, gamma, RmsNormQuantKernelArgs(0.0)).total_us
    assert 2 * 1024 * 8192 / 128 / 1.2e3 / total >= 0.7


# ---- refusals


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"norm_type": NormType.LAYER_NORM}, "norm_type: got NormType.LAYER_NORM, allowed are RMS_NORM"),
        ({"quantization_type": QuantizationType.MX}, "quantization_type: got QuantizationType.MX, allowed"),
        ({"lower_bound": -1.0}, "lower_bound: got -1.0, allowed are numbers >= 0"),
        ({"eps": 0.0}, "eps: got 0.0, allowed are numbers > 0"),
    ],
)
def test_arguments_are_checked_when_they_are_made(options, text):
    with pytest.raises(AssertionError, match=f"Kernel validation exception: {text}"):
        RmsNormQuantKernelArgs(**{"lower_bound": 0.0, **options})


def test_invalid_arguments_raise_with_what_is_needed():
    assert RmsNormQuantKernelArgs(0.0).needs_rms_normalization()
    assert not RmsNormQuantKernelArgs(0.0, NormType.NO_NORM).needs_rms_normalization()
    assert RmsNormQuantKernelArgs(2.0).has_lower_bound() and not RmsNormQuantKernelArgs(0.0).has_lower_bound()


X, GAMMA = np.zeros((2, 8), np.float32), np.ones(8, np.float32)
PLAIN = RmsNormQuantKernelArgs(0.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hidden": X[0]}, r"hidden: got shape \(8,\), at least 2 dimensions"),
        ({"hidden": X.astype(np.int32)}, "hidden: got int32, allowed are bfloat16, float16, float32"),
        ({"ln_w": None}, "ln_w: got None, gamma is required for RMS_NORM"),
        ({"ln_w": GAMMA[:4]}, r"ln_w: got shape \(4,\), expected \(8,\) or \(1, 8\)"),
        ({"pre_norm_gamma": GAMMA[:4]}, r"pre_norm_gamma: got shape \(4,\), expected \(8,\)"),
        ({"residual": X[:1]}, r"residual: got shape \(1, 8\), expected \(2, 8\)"),
        (
            {"kargs": RmsNormQuantKernelArgs(0.0, quantization_type=STATIC)},
            "input_dequant_scale: got None, a tensor is required for STATIC",
        ),
        ({"kargs": 3}, "kargs: got 3, expected RmsNormQuantKernelArgs"),
    ],
)
def test_what_is_wrong_is_named(arguments, text):
    arguments = {"hidden": X, "ln_w": GAMMA, "kargs": PLAIN, **arguments}
    with pytest.raises(AssertionError, match=f"Kernel validation exception: {text}"):
        rmsnorm_quant_kernel(**arguments)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 16385), "got H=16385, allowed are at most 16384"),
        ((33, 1, 8), "got B=33, allowed are at most 32"),
        ((1, 32769, 8), "got S=32769, allowed are at most 32768"),
        ((32 * 32768 + 1, 8), "got 1048577 rows, allowed are at most 1048576"),
    ],
)
def test_sizes_beyond_the_documented_ones_raise(shape, text):
    hidden = nki.TensorSpec(shape, "bfloat16")
    with pytest.raises(AssertionError, match=text):
        nki.profile(rmsnorm_quant_kernel)(hidden, nki.TensorSpec(shape[-1:], "bfloat16"), PLAIN)
