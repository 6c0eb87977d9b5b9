from dataclasses import dataclass
from typing import Any

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, random, run

import nki
import nki.language as nl
from nki import mx
from nkilib.experimental.matmul_mxfp8 import MatmulMxfp8KernelConfig, MlpBwdMatmulConfig
from nkilib.experimental.mlp_mxfp8.mlp_bwd_mxfp8 import (
    compute_phase1_down_proj_mm_grad_mxfp8,
    compute_phase2_hidden_states_grad_mxfp8,
    compute_phase3_gate_up_weight_grad_mxfp8,
    compute_phase4_down_weight_grad_mxfp8,
    get_program_sharding_info,
    mlp_backward_mxfp8_base_nki,
    mlp_backward_mxfp8_nki,
    mlp_backward_mxfp8_nki_ref,
)
from nkilib.experimental.mxfp_utils.mxfp8_utils import TensorDescriptor
from support import target

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = "float8_e4m3fn"
SIZE = (128, 256, 384)  # S, H, I


@dataclass
class ClampLimits(nl.NKIObject):
    linear_clamp_upper_limit: Any = None
    linear_clamp_lower_limit: Any = None
    non_linear_clamp_upper_limit: Any = None
    non_linear_clamp_lower_limit: Any = None


def rounded(x):
    return x.astype(np.float32).astype(BF16)


def tensors(s, h, i):
    """Return dY [S, H], x [S, H], the transpose of Wd [I, H] and gate_up [2I, H]."""
    return (
        random((s, h), BF16),
        random((s, h), BF16, seed=1),
        random((i, h), BF16, seed=2, scale=i**-0.5),
        random((2 * i, h), BF16, seed=3, scale=h**-0.5),
    )


def forward(x, gate_up, multiply):
    """Return checkpoints g, silu(g), u and m, rounded as a forward pass stores them."""
    both = multiply(x, gate_up)
    gate, up = np.split(both, 2, axis=1)
    act = gate / (1 + np.exp(-gate))
    return {
        "gate_pre": rounded(gate),
        "gate_act": rounded(act),
        "up": rounded(up),
        "intermediate": rounded(act * up),
    }


def gate_gradients(dm, g, act, u):
    sigmoid = 1 / (1 + np.exp(-g))
    return np.concatenate([dm * u * sigmoid * (1 + g * (1 - sigmoid)), dm * act], axis=1)


def gradients(dy, x, down_t, gate_up, saved, multiply):
    """Return the three gradients from checkpoints; `multiply` gives A B^T of [M, K] and [N, K]."""
    g, act, u = (saved[name].astype(np.float64) for name in ("gate_pre", "gate_act", "up"))
    both = rounded(gate_gradients(multiply(dy, down_t), g, act, u))
    return (
        multiply(both, gate_up.T),
        multiply(both.T, x.T),
        multiply(dy.T, saved["intermediate"].T),
    )


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).T


def near(found, expected, part=1e-2):
    """Check that errors are within a fraction of the largest gradient."""
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == BF16
        np.testing.assert_allclose(got.astype(np.float64), wanted, atol=part * np.abs(wanted).max())


@each_lnc
@pytest.mark.parametrize("size", [SIZE, (256, 640, 128)])
def test_gradients_from_checkpoints_are_those_of_the_specification(size, lnc):
    dy, x, down_t, gate_up = tensors(*size)
    saved = forward(x, gate_up, mx_emulation.product)
    found = run(mlp_backward_mxfp8_nki, dy, x, down_t, gate_up, lnc=lnc, on="trn3", **saved)
    near(found, gradients(dy, x, down_t, gate_up, saved, mx_emulation.product))


@pytest.mark.parametrize(
    "size",
    [
        (256, 512, 256),
        pytest.param((1024, 2048, 1536), marks=pytest.mark.slow),
    ],
)
def test_gradients_are_as_close_to_those_of_the_numbers_as_the_format_allows(size):
    dy, x, down_t, gate_up = tensors(*size)
    found = run(mlp_backward_mxfp8_nki, dy, x, down_t, gate_up, on="trn3")
    expected = gradients(dy, x, down_t, gate_up, forward(x, gate_up, exact), exact)
    format_itself = mlp_backward_mxfp8_nki_ref(dy, x, down_t, gate_up)
    for got, emulated, wanted in zip(found, format_itself, expected, strict=True):
        assert cosine(got, wanted) >= max(0.995, cosine(emulated, wanted) - 1e-5)
        error, least = (np.abs(z.astype(np.float64) - wanted).max() for z in (got, emulated))
        assert error <= max(8e-2 * np.abs(wanted).max(), 1.1 * least)


@each_lnc
@pytest.mark.parametrize("fp8", [FP8, "float8_e5m2"])
def test_missing_checkpoints_are_recomputed(fp8, lnc):
    dy, x, down_t, gate_up = tensors(*SIZE)
    options = {"fp8_x4_dtype": f"{fp8}_x4"}
    found = run(mlp_backward_mxfp8_nki, dy, x, down_t, gate_up, lnc=lnc, on="trn3", **options)
    near(found, mlp_backward_mxfp8_nki_ref(dy, x, down_t, gate_up, fp8))


def test_the_reference_is_the_emulation():
    dy, x, down_t, gate_up = tensors(*SIZE)
    saved = forward(x, gate_up, mx_emulation.product)
    g = saved["gate_pre"].astype(np.float64)
    saved["gate_act"] = g / (1 + np.exp(-g))
    expected = gradients(dy, x, down_t, gate_up, saved, mx_emulation.product)
    for got, wanted in zip(mlp_backward_mxfp8_nki_ref(dy, x, down_t, gate_up), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@each_lnc
def test_what_is_missing_of_the_checkpoints_is_made_of_gate_and_up(lnc):
    dy, x, down_t, gate_up = tensors(*SIZE)
    saved = forward(x, gate_up, mx_emulation.product)
    given = {name: saved[name] for name in ("gate_pre", "up")}
    found = run(mlp_backward_mxfp8_nki, dy, x, down_t, gate_up, lnc=lnc, on="trn3", **given)
    g, u = (saved[name].astype(np.float64) for name in given)
    saved["gate_act"] = g / (1 + np.exp(-g))
    saved["intermediate"] = rounded(saved["gate_act"] * u)
    near(found, gradients(dy, x, down_t, gate_up, saved, mx_emulation.product))


def test_transposed_and_quantised_operands_are_taken_as_they_are():
    dy, x, down_t, gate_up = tensors(*SIZE)
    saved = forward(x, gate_up, mx_emulation.product)
    expected = gradients(dy, x, down_t, gate_up, saved, mx_emulation.product)
    plain = {
        "gate_up_weight_T": gate_up.T.copy(),
        "down_weight_T": down_t,
        "output_grad_T": dy.T.copy(),
        "hidden_states_T": x.T.copy(),
    }
    near(run(mlp_backward_mxfp8_nki, dy, x, on="trn3", **plain, **saved), expected)
    for layout in ("packed", "hardware"):
        quantized = {name: mx.quantize_operand(t, FP8, "wrapX", layout) for name, t in plain.items()}
        options = {name: q[0] for name, q in quantized.items()}
        options |= {f"{name}_scales": q[1] for name, q in quantized.items()}
        near(run(mlp_backward_mxfp8_nki, dy, x, on="trn3", **options, **saved), expected)


def test_quantised_weights_serve_to_recompute():
    dy, x, down_t, gate_up = tensors(*SIZE)
    data, scales = mx.quantize_operand(gate_up)
    options = {
        "gate_up_weights": data,
        "gate_up_weights_scales": scales,
        "gate_up_weight_T": gate_up.T.copy(),
    }
    found = run(mlp_backward_mxfp8_nki, dy, x, down_t, on="trn3", **options)
    near(found, mlp_backward_mxfp8_nki_ref(dy, x, down_t, gate_up))


LIMITS = [
    ClampLimits(0.5, -0.25, 0.75, -0.5),
    ClampLimits(linear_clamp_upper_limit=0.5),
    ClampLimits(non_linear_clamp_lower_limit=-0.25),
]


@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("limits", LIMITS)
def test_clamped_activations_have_no_gradient(limits, has_checkpoints):
    dy, x, down_t, gate_up = tensors(*SIZE)
    gate, up = np.split(mx_emulation.product(x, gate_up), 2, axis=1)
    gate_range = [limits.non_linear_clamp_lower_limit, limits.non_linear_clamp_upper_limit]
    up_range = [limits.linear_clamp_lower_limit, limits.linear_clamp_upper_limit]

    def clamped(values, bounds):
        return values if bounds == [None, None] else np.clip(values, *bounds)

    def product_of(gate, up):
        act = gate / (1 + np.exp(-gate))
        return rounded(act * up)

    m = product_of(clamped(gate, gate_range), clamped(up, up_range))  # of what is not rounded yet
    gate, up = (rounded(v).astype(np.float64) for v in (gate, up))
    g, u = clamped(gate, gate_range), clamped(up, up_range)
    act = g / (1 + np.exp(-g))
    m = product_of(g, u) if has_checkpoints else m

    def inside(values, bounds):
        low, high = (
            (-np.inf if bounds[0] is None else bounds[0]),
            (np.inf if bounds[1] is None else bounds[1]),
        )
        return (values > low) & (values < high)

    both = gate_gradients(mx_emulation.product(dy, down_t), g, act, u)
    both = rounded(both * np.concatenate([inside(gate, gate_range), inside(up, up_range)], axis=1))
    expected = [
        mx_emulation.product(both, gate_up.T),
        mx_emulation.product(both.T, x.T),
        mx_emulation.product(dy.T, m.T),
    ]
    saved = {"gate_pre": rounded(gate), "up": rounded(up)} if has_checkpoints else {}
    found = run(mlp_backward_mxfp8_nki, dy, x, down_t, gate_up, on="trn3", clamp_limits=limits, **saved)
    near(found, expected)


# ---- descriptors ---------------------------------------------------------------------------------


@nki.jit
def base(dy, gate_pre, gate_act, up, gate_up_t, down_t, x_t, dy_t, m_t, with_scratch):
    s, h = dy.shape
    i = up.shape[1]
    grads = nl.ndarray((s, 2 * i), nl.bfloat16, buffer=nl.shared_hbm)
    grads_t = nl.ndarray((2 * i, s), nl.bfloat16, buffer=nl.shared_hbm)
    hidden_grad = nl.ndarray((s, h), nl.bfloat16, buffer=nl.shared_hbm)
    weight_grad = nl.ndarray((2 * i, h), nl.bfloat16, buffer=nl.shared_hbm)
    down_grad = nl.ndarray((h, i), nl.bfloat16, buffer=nl.shared_hbm)
    found = mlp_backward_mxfp8_base_nki(
        TensorDescriptor(dy),
        TensorDescriptor(gate_pre),
        TensorDescriptor(gate_act),
        TensorDescriptor(up),
        TensorDescriptor(gate_up_t),
        TensorDescriptor(down_t),
        TensorDescriptor(grads),
        TensorDescriptor(x_t),
        TensorDescriptor(dy_t),
        TensorDescriptor(m_t),
        TensorDescriptor(grads_t) if with_scratch else None,
        TensorDescriptor(hidden_grad),
        TensorDescriptor(weight_grad),
        TensorDescriptor(down_grad),
        matmul_config=MlpBwdMatmulConfig(phase1_config=MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M=4)),
    )
    return (found[0], found[1], found[2], grads, grads_t if with_scratch else grads)


@each_lnc
@pytest.mark.parametrize("with_scratch", [True, False])
def test_the_base_runs_the_phases_on_descriptors(with_scratch, lnc):
    dy, x, down_t, gate_up = tensors(*SIZE)
    saved = forward(x, gate_up, mx_emulation.product)
    transposes = [t.T.copy() for t in (gate_up, x, dy, saved["intermediate"])]
    found = run(
        base,
        dy,
        saved["gate_pre"],
        saved["gate_act"],
        saved["up"],
        transposes[0],
        down_t,
        *transposes[1:],
        with_scratch,
        lnc=lnc,
        on="trn3",
    )
    near(found[:3], gradients(dy, x, down_t, gate_up, saved, mx_emulation.product))
    g, act, u = (saved[name].astype(np.float64) for name in ("gate_pre", "gate_act", "up"))
    close(found[3], gate_gradients(mx_emulation.product(dy, down_t), g, act, u))
    if with_scratch:
        np.testing.assert_array_equal(found[4], found[3].T)
    # from its own rounded [dg | du], each product is exact to the last bits
    close(found[0], mx_emulation.product(found[3], gate_up.T))
    close(found[1], mx_emulation.product(found[3].T, x.T))


@nki.jit
def phases(dy, gate_pre, gate_act, up, gate_up_t, down_t, x_t, dy_t, m_t, row):
    s, h = dy.shape
    i = up.shape[1]
    fp8 = nl.float8_e4m3fn_x4
    grads = nl.ndarray((s, 2 * i), nl.bfloat16, buffer=nl.shared_hbm)
    grads_t = nl.ndarray((2 * i, s), nl.bfloat16, buffer=nl.shared_hbm)
    hidden_grad = nl.ndarray((s, h), nl.bfloat16, buffer=nl.shared_hbm)
    weight_grad = nl.ndarray((2 * i, h), nl.bfloat16, buffer=nl.shared_hbm)
    down_grad = nl.ndarray((h, i), nl.bfloat16, buffer=nl.shared_hbm)
    grads_td, scratch_td = TensorDescriptor(grads), TensorDescriptor(grads_t)
    checkpoints = TensorDescriptor(gate_pre), TensorDescriptor(gate_act), TensorDescriptor(up)
    done = compute_phase1_down_proj_mm_grad_mxfp8(
        TensorDescriptor(dy),
        *checkpoints,
        grads_td,
        scratch_td,
        TensorDescriptor(down_t),
        row,
        nl.bfloat16,
        fp8,
    )
    assert done is None
    compute_phase2_hidden_states_grad_mxfp8(
        TensorDescriptor(hidden_grad), TensorDescriptor(gate_up_t), grads_td, row, nl.bfloat16, fp8
    )
    compute_phase3_gate_up_weight_grad_mxfp8(
        TensorDescriptor(weight_grad), TensorDescriptor(x_t), scratch_td, nl.bfloat16, fp8
    )
    compute_phase4_down_weight_grad_mxfp8(
        TensorDescriptor(down_grad), TensorDescriptor(dy_t), TensorDescriptor(m_t), 0, nl.bfloat16, fp8
    )
    return hidden_grad, weight_grad, down_grad


def test_phases_can_be_called_one_by_one():
    dy, x, down_t, gate_up = tensors(*SIZE)
    saved = forward(x, gate_up, mx_emulation.product)
    transposes = [t.T.copy() for t in (gate_up, x, dy, saved["intermediate"])]
    checkpoints = [saved[name] for name in ("gate_pre", "gate_act", "up")]
    found = run(phases, dy, *checkpoints, transposes[0], down_t, *transposes[1:], 0, on="trn3")
    near(found, gradients(dy, x, down_t, gate_up, saved, mx_emulation.product))


@nki.jit
def shares(x):
    cores, core = get_program_sharding_info(True)
    out = nl.ndarray((cores, 1), nl.int32, buffer=nl.shared_hbm)
    assert get_program_sharding_info(False) == (1, 0)
    tile = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nki.isa.memset(tile, 10 * cores + core)
    nki.isa.dma_copy(out[core : core + 1], tile)
    return out


def test_sharding_info_returns_core_count_and_index():
    assert run(shares, np.zeros((1, 1), np.float32), lnc=2, on="trn3").ravel().tolist() == [20, 21]
    assert run(shares, np.zeros((1, 1), np.float32), on="trn3")[0, 0] == 10


# ---- refusals ------------------------------------------------------------------------------------


def refused(text, *arguments, **options):
    with pytest.raises(AssertionError, match="NCC_INKI016") as refusal:
        run(mlp_backward_mxfp8_nki, *arguments, on="trn3", **options)
    assert text in str(refusal.value)


def test_wrong_arguments_are_refused():
    dy, x, down_t, gate_up = tensors(*SIZE)
    up = np.zeros((128, 384), BF16)
    saved = {"gate_pre": up, "up": up}
    refused("down_proj_weight: got None, it or down_weight_T is needed", dy, x)
    refused("gate_up_weight_T: got None, it or gate_up_weights", dy, x, down_t)
    refused("gate_up_weights: got None", dy, x, down_t, gate_up_weight_T=gate_up.T.copy())
    refused("hidden_states: got shape (64, 256), expected (128, 256)", dy, x[:64], down_t, gate_up)
    refused("up: got shape (128, 256), expected (128, 384)", dy, x, down_t, gate_up, up=up[:, :256])
    refused("gate_up_weights: is [640, 256], expected [768, 256]", dy, x, down_t, gate_up[:640])
    refused("gate_up_weight_T: contracts 640", dy, x, down_t, gate_up[:640], **saved)
    refused("down_weight_T: contracts 128", dy, x, down_t[:, :128], gate_up, **saved)
    config = MlpBwdMatmulConfig(phase3_config=MatmulMxfp8KernelConfig(TILES_IN_BLOCK_N=0))
    refused("phase3_config.TILES_IN_BLOCK_N: got 0", dy, x, down_t, gate_up, matmul_config=config)


def test_it_compiles_and_its_example_is_right():
    with target("trn3"):
        compiles_and_example_runs(mlp_backward_mxfp8_nki)
