"""Keys and values that the QKV projection writes into caches, in place."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, each_lnc, fp8_steps, random, run

from nkilib.core.qkv import qkv, qkv_ref
from nkilib.core.qkv.qkv_ref import cached_ref
from nkilib.core.utils.common_types import QKNormConfig

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
H, DEPTH, Q_HEADS, KV_HEADS = 128, 32, 2, 2
WIDTH = KV_HEADS * DEPTH
HEADS = {"d_head": DEPTH, "num_q_heads": Q_HEADS, "num_kv_heads": KV_HEADS}
LIMITS = (-240.0, 240.0)
each_dtype = pytest.mark.parametrize("dtype", [BF16, FP8])


def operands(batch, sequence):
    x = random((batch, sequence, H), BF16)
    w = random((H, (Q_HEADS + 2 * KV_HEADS) * DEPTH), BF16, 1, H**-0.5)
    angle = np.random.default_rng(4).uniform(0, 6, (batch, sequence, DEPTH))
    tables = {"cos_cache": np.cos(angle).astype(BF16), "sin_cache": np.sin(angle).astype(BF16)}
    return x, w, {"fused_rope": True, **tables, **HEADS}


def scales(dtype):
    """FP8 caches are quantised: k_scale and v_scale."""
    if dtype != FP8:
        return {}
    return {"k_scale": np.full((128, 1), 0.02, np.float32), "v_scale": np.full((128, 1), 0.03, np.float32)}


def written(x, w, keys, values, lnc, form, slots=None, **options):
    """What the kernel leaves in its caches, beside what it should."""
    result = qkv_ref(x, w, **{name: value for name, value in options.items() if "scale" not in name})
    reference = {"slots": slots, "limits": LIMITS, "depth": DEPTH}
    wanted_keys = cached_ref(keys, result.k, scale=options.get("k_scale"), form=form, **reference)
    wanted_values = cached_ref(values, result.v, scale=options.get("v_scale"), **reference)
    if slots is not None:
        options |= {"use_block_kv": True, "block_size": values.shape[1], "slot_mapping": slots}
    options |= {"transpose_k_cache": form == "transposed", "fp8_packed": form == "packed"}
    q, got_keys, got_values = run(qkv, x, w, lnc=lnc, k_cache=keys, v_cache=values, **options)
    close(q, result.q)
    return (got_keys, wanted_keys), (got_values, wanted_values)


def same(got, wanted):
    """Equal but for one step of FP8, or the tolerance of bfloat16."""
    if got.dtype == FP8:
        assert fp8_steps(got, wanted) <= 1
        assert np.mean(got.astype(np.float32) != wanted.astype(np.float32)) < 0.02
    else:
        close(got, wanted.astype(np.float64))


@pytest.mark.tiny
@each_lnc
@each_dtype
@pytest.mark.parametrize("form", ["rows", "transposed"])
@pytest.mark.parametrize("shape", [(2, 70), (5, 1), (1, 140)])
def test_flat_caches_get_the_first_positions(shape, form, dtype, lnc):
    batch, sequence = shape
    x, w, options = operands(batch, sequence)
    keys = random((batch, sequence + 10, WIDTH), dtype, 5)
    values = random((batch, sequence + 10, WIDTH), dtype, 6)
    keys = np.ascontiguousarray(keys.swapaxes(1, 2)) if form == "transposed" else keys
    for got, wanted in written(x, w, keys, values, lnc, form, **options, **scales(dtype)):
        same(got, wanted)


@each_lnc
@each_dtype
@pytest.mark.parametrize("form", ["rows", "transposed", "packed"])
@pytest.mark.parametrize("block_size", [8, 12])
def test_blocks_are_found_by_slot_and_others_are_skipped(block_size, form, dtype, lnc):
    x, w, options = operands(2, 70)
    blocks = 20
    slots = np.random.default_rng(7).permutation(blocks * block_size)[:140].astype(np.int32)
    slots[[3, 80]] = -1
    slots[5] = blocks * block_size
    shapes = {
        "rows": (blocks, block_size, WIDTH),
        "transposed": (blocks * KV_HEADS, DEPTH, block_size),
        "packed": (blocks, block_size // 2, WIDTH, 2),
    }
    keys, values = random(shapes[form], dtype, 5), random(shapes["rows"], dtype, 6)
    slots = slots.reshape(2, 70)
    for got, wanted in written(x, w, keys, values, lnc, form, slots, **options, **scales(dtype)):
        same(got, wanted)


def test_slots_far_into_a_large_cache_are_exact():
    x, w, options = operands(1, 4)
    keys, values = np.zeros((40000, DEPTH, 16), FP8), np.zeros((20000, 16, WIDTH), FP8)
    slots = np.array([319999, 319998, 262143, 131073], np.int32)
    for got, wanted in written(x, w, keys, values, 1, "transposed", slots, **options, **scales(FP8)):
        same(got, wanted)


def test_given_limits_clip_what_is_stored():
    x, w, options = operands(1, 100)
    keys, values = (np.zeros((1, 100, WIDTH), FP8) for _ in range(2))
    tiny = np.full((128, 1), 1e-3, np.float32)
    run(
        qkv,
        x,
        w,
        k_cache=keys,
        v_cache=values,
        k_scale=tiny,
        v_scale=tiny,
        fp8_max=96.0,
        fp8_min=-64.0,
        **options,
    )
    for cache in (keys, values):
        assert cache.astype(np.float32).max() == 96.0 and cache.astype(np.float32).min() == -64.0


def test_without_query_heads_only_the_caches_are_returned():
    x = random((1, 100, H), BF16)
    w = random((H, 2 * WIDTH), BF16, 1, H**-0.5)
    options = HEADS | {"num_q_heads": 0, "qk_norm_pre_rope": QKNormConfig()}
    keys, values = (np.zeros((1, 128, WIDTH), BF16) for _ in range(2))
    expected = qkv_ref(x, w, **options)
    got_keys, got_values = run(qkv, x, w, k_cache=keys, v_cache=values, **options)
    close(got_keys[:, :100], expected.k)
    close(got_values[:, :100], expected.v)
    assert not got_keys[:, 100:].any()
