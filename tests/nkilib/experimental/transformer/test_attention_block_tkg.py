"""The attention block of decode against its float64 reference."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, fp8_steps, random, run

from nkilib.core.utils.common_types import QuantizationType
from nkilib.experimental.transformer.attention_block_attend import attention_tkg
from nkilib.experimental.transformer.attention_block_tkg import attention_block_tkg, attention_block_tkg_ref

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
H, N, D = 256, 4, 32
REQUIRED = attention_block_tkg.func.__code__.co_varnames[:36]
needs_attention = pytest.mark.skipif(attention_tkg is None, reason="attention_tkg is not built")
each_attention = pytest.mark.parametrize("skip", [True, pytest.param(False, marks=needs_attention)])


def inputs(batch=2, active=1, room=320, window=256, transposed=False, dtype=BF16, **changed):
    """Return arguments by name: all required ones, None for those that are not used."""
    cache = (batch, 1, D, room) if transposed else (batch, 1, room, D)
    mask = (np.random.default_rng(3).random((window, batch, N, active)) < 0.7).astype(np.uint8)
    mask[-active:] = np.triu(np.ones((active, active)))[:, None, None, :]
    given = dict.fromkeys(REQUIRED) | {
        "X": random((batch, active, H), BF16),
        "W_qkv": random((H, (N + 2) * D), BF16, 1, H**-0.5),
        "quantization_type_qkv": QuantizationType.NONE,
        "K_cache": random(cache, dtype, 4),
        "V_cache": random((batch, 1, room, D), dtype, 5),
        "K_cache_transposed": transposed,
        "attention_mask": mask,
    }
    return given | changed


def everything(batch, active):
    """Return inputs with norms, bias and RoPE."""
    angle = np.random.default_rng(6).uniform(0, 6, (D // 2, batch, active))
    given = {"rmsnorm_X_enabled": True, "rmsnorm_X_gamma": random((1, H), BF16, 7)}
    given |= {"bias_qkv": random((1, (N + 2) * D), BF16, 8), "cos": np.cos(angle).astype(BF16)}
    given |= {"sin": np.sin(angle).astype(BF16), "rope_contiguous_layout": True}
    for when in ("pre", "post"):
        given |= {f"rmsnorm_QK_{when}_rope_enabled": True, f"rmsnorm_QK_{when}_rope_eps": 1e-5}
        given |= {
            f"rmsnorm_QK_{when}_rope_W_{name}": random((1, D), BF16, 9 + i) for i, name in enumerate("QK")
        }
    return given


def near(got, expected, tolerance=2e-2):
    assert got.shape == expected.shape
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tolerance, atol=tolerance)


def agree(arguments, lnc=1, **options):
    out, keys, values = attention_block_tkg_ref(**arguments, **options)  # first: caches are written in place
    got, k, v = run(attention_block_tkg, **arguments, lnc=lnc, **options)
    near(got, out)
    if not arguments["update_cache"]:
        near(k, keys.transpose(2, 0, 1))
        near(v, values)
    return k, v, keys, values


@each_lnc
@each_attention
@pytest.mark.parametrize("active", [1, 3])
@pytest.mark.parametrize("contiguous", [True, False])
def test_norms_and_both_layouts_of_rope(contiguous, active, skip, lnc):
    arguments = inputs(active=active) | everything(2, active) | {"rope_contiguous_layout": contiguous}
    agree(arguments, lnc, skip_attention=skip)


@each_lnc
@each_attention
def test_output_projection_and_its_transposed_result(skip, lnc):
    arguments = inputs(W_out=random((N * D, H), BF16, 11, 0.1), bias_out=random((1, H), BF16, 12))
    agree(arguments, lnc, skip_attention=skip)
    got = run(attention_block_tkg, **arguments | {"transposed_out": True}, lnc=lnc, skip_attention=skip)[0]
    expected = attention_block_tkg_ref(**arguments, skip_attention=skip)[0]
    near(got.transpose(3, 1, 0, 2).reshape(2, H), expected)


@each_lnc
@each_attention
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("active", [1, 3])
def test_new_tokens_are_written_at_the_index_of_their_sequence(active, transposed, skip, lnc):
    index = np.array([[7], [-1], [300]], np.int32).view(np.uint32)
    arguments = inputs(3, active, transposed=transposed, update_cache=True, kv_cache_update_idx=index)
    before = {name: arguments[name].copy() for name in ("K_cache", "V_cache")}
    keys, values, new_keys, new_values = agree(arguments, lnc, skip_attention=skip)
    expected_keys = before["K_cache"].swapaxes(2, 3) if transposed else before["K_cache"]
    expected_values = before["V_cache"]
    for b, at in ((0, 7), (2, 300)):
        expected_keys[b, 0, at : at + active] = new_keys[b].astype(BF16)
        expected_values[b, 0, at : at + active] = new_values[b].astype(BF16)
    near(keys.swapaxes(2, 3) if transposed else keys, expected_keys.astype(np.float64), 1e-2)
    near(values, expected_values.astype(np.float64), 1e-2)


@each_lnc
@pytest.mark.parametrize("active", [1, 2])
def test_blocks_are_written_by_slot(active, lnc):
    blocks = (40, 16, D)
    arguments = inputs(3, active) | {"K_cache": random(blocks, BF16, 4), "V_cache": random(blocks, BF16, 5)}
    arguments |= {"active_blocks_table": np.arange(30, dtype=np.int32).reshape(3, 10), "update_cache": True}
    arguments |= {"kv_cache_update_idx": np.array([[100], [639], [-1]], np.int32), "attention_mask": None}
    expected = [arguments[name].reshape(-1, D).copy() for name in ("K_cache", "V_cache")]
    *caches, keys, values = agree(arguments, lnc, skip_attention=True)
    for cache, wanted, new in zip(caches, expected, (keys, values), strict=True):
        wanted[100 : 100 + active], wanted[639] = new[0].astype(BF16), new[1, 0].astype(BF16)
        near(cache.reshape(-1, D), wanted.astype(np.float64), 1e-2)


@needs_attention
def test_sinks_and_positions_instead_of_a_mask():
    agree(inputs(sink=random((N, 1), "float32", 13)))
    arguments = inputs(2, 1)
    positions = np.array([[100], [200]], np.int32)
    mask = np.zeros((256, 2, N, 1), np.uint8)
    mask[:100, 0], mask[:200, 1], mask[255] = 1, 1, 1
    expected = attention_block_tkg_ref(**arguments | {"attention_mask": mask})[0]
    arguments["attention_mask"] = None
    near(run(attention_block_tkg, **arguments, pos_ids=positions, S_ctx=256)[0], expected)


@each_attention
def test_fp8_caches_get_scaled_tokens(skip):
    index = np.array([[7], [9]], np.int32)
    arguments = inputs(dtype=FP8, update_cache=True, kv_cache_update_idx=index)
    scales = {"k_scale": np.full((128, 1), 20, np.float32), "v_scale": np.full((128, 1), 30, np.float32)}
    arguments["K_cache"] = (arguments["K_cache"].astype(np.float32) * 0.1).astype(FP8)
    keys, values, new_keys, new_values = agree(
        arguments, 1, skip_attention=skip, **scales, softmax_scale=0.01
    )
    for b, at in ((0, 7), (1, 9)):
        assert fp8_steps(keys[b, 0, at], new_keys[b, 0].astype(FP8)) <= 1
        assert fp8_steps(values[b, 0, at], new_values[b, 0].astype(FP8)) <= 1


@each_lnc
@each_attention
@pytest.mark.parametrize("shape", [(150, 1), (50, 3)])
def test_more_tokens_than_partitions(shape, skip, lnc):
    batch, active = shape
    index = (np.arange(batch, dtype=np.int32)[:, None] * 2) % 60
    arguments = inputs(batch, active, 64, 64, update_cache=True, kv_cache_update_idx=index)
    keys, values, new_keys, new_values = agree(
        arguments | everything(batch, active), lnc, skip_attention=skip
    )
    for b in (0, 42, 43, 49, batch - 1):
        at = index[b, 0]
        near(keys[b, 0, at : at + active], new_keys[b], 1e-2)
        near(values[b, 0, at : at + active], new_values[b], 1e-2)


@each_attention
def test_more_tokens_than_columns_of_a_bank(skip):
    arguments = inputs(600, 1, 64, 64) | everything(600, 1)
    agree(arguments, 2, skip_attention=skip)


@each_lnc
def test_hidden_states_by_partition(lnc):
    arguments = inputs() | everything(2, 1)
    expected = attention_block_tkg_ref(**arguments, skip_attention=True)[0]
    x = arguments["X"].reshape(2, lnc, 128, H // 128 // lnc)
    arguments["X"] = np.ascontiguousarray(x.transpose(2, 1, 3, 0))
    near(run(attention_block_tkg, **arguments, transposed_in=True, skip_attention=True, lnc=lnc)[0], expected)


def test_wrong_arguments_raise():
    for changed, text in (
        ({"fp8_packed": True}, "fp8_packed"),
        ({"transposed_out": True}, "transposed_out"),
        ({"update_cache": True}, "kv_cache_update_idx"),
        ({"W_qkv": random((H, 7 * D + 1), BF16)}, "W_qkv"),
    ):
        with pytest.raises(AssertionError, match=text):
            run(attention_block_tkg, **inputs() | changed)


def test_the_compiler_accepts_it_and_the_example_runs():
    compiles_and_example_runs(attention_block_tkg)
