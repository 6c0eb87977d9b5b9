import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, random, run

import nki
import nki.language as nl
from nki import mx
from nkilib.experimental.mlp_mxfp8.mlp_fwd_mxfp8 import (
    compute_fused_gate_up_down_mxfp8,
    mlp_forward_mxfp8_nki,
    mlp_forward_mxfp8_nki_ref,
)
from nkilib.experimental.mxfp_utils.mxfp8_utils import TensorDescriptor
from support import target

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
SAVED = ("save_gate_pre", "save_gate_act", "save_up", "save_hidden")


def tensors(s, h, i):
    """Return hidden [S, H], gate_up [2I, H] and down [H, I]."""
    return (
        random((s, h), BF16),
        random((2 * i, h), BF16, seed=1, scale=h**-0.5),
        random((h, i), BF16, seed=2, scale=i**-0.5),
    )


def empty(s, i):
    return np.zeros((s, i), BF16)


def check(x, gate_up, down, y, m, fp8=E4M3, saved=None):
    """Check each product against the emulation, from the rounded numbers it was computed from."""
    inner = down.shape[1]
    both = mx_emulation.product(x, gate_up, fp8)
    gate, up = both[:, :inner], both[:, inner:]
    act = gate / (1 + np.exp(-gate))
    close(m, act * up)
    close(y, mx_emulation.product(m, down, fp8))
    if saved:
        for name, expected in zip(SAVED, (gate, act, up, m.astype(np.float64)), strict=True):
            close(saved[name], expected)


@each_lnc
@pytest.mark.parametrize("fp8", [E4M3, E5M2])
@pytest.mark.parametrize("size", [(128, 512, 512), (72, 640, 384)])
def test_products_and_checkpoints_are_those_of_the_specification(size, fp8, lnc):
    x, gate_up, down = tensors(*size)
    m, saved = empty(size[0], size[2]), {name: empty(size[0], size[2]) for name in SAVED}
    y = run(mlp_forward_mxfp8_nki, x, gate_up, down, m, lnc=lnc, on="trn3", fp8_x4_dtype=f"{fp8}_x4", **saved)
    assert y.dtype == BF16
    check(x, gate_up, down, y, m, fp8, saved)
    np.testing.assert_array_equal(saved["save_hidden"], m)


def exact_result(x, gate_up, down):
    both = x.astype(np.float32) @ gate_up.astype(np.float32).T
    gate, up = np.split(both, 2, axis=1)
    return (gate / (1 + np.exp(-gate)) * up) @ down.astype(np.float32).T


def emulated_result(x, gate_up, down):
    """With nothing rounded but to MXFP8. On normal numbers its cosine to the exact result is 0.9978: tokens
    and gate and up each cost 3.9 % of its norm, the middle and down 2.6 %."""
    gate, up = np.split(mx_emulation.product(x, gate_up), 2, axis=1)
    return mx_emulation.product(gate / (1 + np.exp(-gate)) * up, down)


@pytest.mark.parametrize("size", [(256, 512, 512), pytest.param((2048, 4096, 3072), marks=pytest.mark.slow)])
def test_the_result_is_as_close_to_that_of_the_numbers_as_the_format_allows(size):
    x, gate_up, down = tensors(*size)
    y = run(mlp_forward_mxfp8_nki, x, gate_up, down, empty(size[0], size[2]), on="trn3")
    expected = exact_result(x, gate_up, down)
    format_itself = mlp_forward_mxfp8_nki_ref(x, gate_up, down)["y"]
    assert cosine(y, expected) >= cosine(emulated_result(x, gate_up, down), expected) - 3e-5
    error, least = (np.abs(z.astype(np.float64) - expected).max() for z in (y, format_itself))
    assert error <= 1.1 * least and error <= 8e-2 * np.abs(expected).max()


@pytest.mark.parametrize("layout", ["packed", "hardware"])
def test_quantised_operands_are_taken_as_they_are(layout):
    x, gate_up, down = tensors(64, 640, 512)
    quantized = [mx.quantize_operand(t, E4M3, "wrapX", layout) for t in (x, gate_up, down)]
    names = ("hidden_scales", "gate_up_scales", "down_scales")
    scales = {name: q[1] for name, q in zip(names, quantized, strict=True)}
    m = empty(64, 512)
    y = run(mlp_forward_mxfp8_nki, *(q[0] for q in quantized), m, on="trn3", **scales)
    check(x, gate_up, down, y, m)


def test_swizzled_operands_are_taken_as_they_are():
    x, gate_up, down = tensors(64, 640, 512)
    m = empty(64, 512)
    flags = {f"{name}_is_swizzled": True for name in ("hidden", "gate_up", "down")}
    y = run(mlp_forward_mxfp8_nki, *map(mx.swizzle, (x, gate_up, down)), m, on="trn3", **flags)
    check(x, gate_up, down, y, m)


def test_the_result_may_be_float32():
    x, gate_up, down = tensors(16, 256, 128)
    m = empty(16, 128)
    hints = {f"{part}_tiles_{side}": 2 for part in ("gate_up", "down") for side in "mnk"}
    y = run(mlp_forward_mxfp8_nki, x, gate_up, down, m, on="trn3", dtype=nl.float32, **hints)
    assert y.dtype == np.float32
    close(y, mx_emulation.product(m, down), terms=128)


def test_without_sharing_the_first_core_does_all():
    x, gate_up, down = tensors(16, 256, 128)
    m = empty(16, 128)
    y = run(mlp_forward_mxfp8_nki, x, gate_up, down, m, lnc=2, on="trn3", run_with_lnc2=False)
    check(x, gate_up, down, y, m)


@nki.jit
def some_rows(hidden, gate_up, down, intermediate, gate_pre, base, rows):
    out = nl.ndarray((rows, hidden.shape[1]), nl.bfloat16, buffer=nl.shared_hbm)
    compute_fused_gate_up_down_mxfp8(
        TensorDescriptor(hidden),
        TensorDescriptor(gate_up),
        TensorDescriptor(down, is_f_by_k=False),
        TensorDescriptor(intermediate),
        TensorDescriptor(out),
        base,
        nl.bfloat16,
        save_gate_pre_td=TensorDescriptor(gate_pre),
    )
    return out


def test_descriptors_give_rows_from_an_offset():
    x, gate_up, down = tensors(64, 256, 384)
    m, gate_pre = empty(64, 384), empty(64, 384)
    y = run(some_rows, x, gate_up, down.T.copy(), m, gate_pre, 16, 40, on="trn3")
    check(x[16:56], gate_up, down, y, m[16:56])
    close(gate_pre[16:56], mx_emulation.product(x[16:56], gate_up[:384]))
    assert not m[:16].any() and not m[56:].any()


def test_the_reference_is_the_emulation():
    x, gate_up, down = tensors(16, 256, 128)
    found = mlp_forward_mxfp8_nki_ref(x, gate_up, down)
    check(x, gate_up, down, found["y"].astype(np.float32).astype(BF16), found["m"])


def refused(text, *arguments, **options):
    with pytest.raises(AssertionError, match="NCC_INKI016") as refusal:
        run(mlp_forward_mxfp8_nki, *arguments, on="trn3", **options)
    assert text in str(refusal.value)


def test_wrong_arguments_are_refused():
    x, gate_up, down = tensors(16, 256, 128)
    m = empty(16, 128)
    refused("gate_up_weights: has 128 rows, expected 2 I = 256", x, gate_up[:128], down, m)
    refused("gate_up_weights: contracts 128, hidden has H = 256", x, gate_up[:, :128], down, m)
    refused("intermediate_hbm: got shape (16, 64), expected (16, 128)", x, gate_up, down, m[:, :64])
    refused("intermediate_hbm: got float32", x, gate_up, down, m.astype(np.float32))
    refused("save_up: got shape (8, 128), expected (16, 128)", x, gate_up, down, m, save_up=m[:8])
    refused("save_gate_pre: got dtype int32", x, gate_up, down, m, save_gate_pre=m.astype(np.int32))
    refused("fp8_x4_dtype: got float4_e2m1fn_x4", x, gate_up, down, m, fp8_x4_dtype="float4_e2m1fn_x4")
    refused("gate_up TILES_IN_BLOCK_M: got 0", x, gate_up, down, m, gate_up_tiles_m=0)
    refused("down TILES_IN_BLOCK_K: got 0", x, gate_up, down, m, down_tiles_k=0)


def test_it_compiles_and_its_example_is_right():
    with target("trn3"):
        compiles_and_example_runs(mlp_forward_mxfp8_nki)
