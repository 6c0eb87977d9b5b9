"""Every documented option of `attention_block_tkg`, one at a time, against float64."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_support import random
from options.attention_block_reference import NONE, ROOM, ROW, STATIC, A, B, D, H, N, S, block
from options.common import Option, check, each, on_both, refusals

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import DtypeMode
from nkilib.experimental.transformer.attention_block_tkg import attention_block_tkg
from nkilib.experimental.transformer.attention_block_tkg_sharding import CPCollectiveMode, KVDPCollectiveMode

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
COLUMNS = (N + 2) * D
TOLERANCE = 2e-2

MASK = (np.random.default_rng(1).random((S, B, N, A)) < 0.6).astype(np.uint8)
MASK[-A:] = np.triu(np.ones((A, A), np.uint8))[:, None, None, :]
INDEX = np.array([[7], [140]], np.int32)
MASK[7 : 7 + A, 0] = 0  # written while they are read
ANGLE = np.random.default_rng(2).uniform(0, 6, (D // 2, B, A))
GAMMA, SMALL = random((1, H), BF16, 3), random((1, D), BF16, 4)
BASIC: dict[str, Any] = {
    "X": random((B, A, H), BF16),
    "X_hidden_dim_actual": None,
    "rmsnorm_X_enabled": False,
    "rmsnorm_X_eps": None,
    "rmsnorm_X_gamma": None,
    "W_qkv": random((H, COLUMNS), BF16, 5, H**-0.5),
    "bias_qkv": None,
    "quantization_type_qkv": NONE,
    "weight_dequant_scale_qkv": None,
    "input_dequant_scale_qkv": None,
    "rmsnorm_QK_pre_rope_enabled": False,
    "rmsnorm_QK_pre_rope_eps": 1e-6,
    "rmsnorm_QK_pre_rope_W_Q": None,
    "rmsnorm_QK_pre_rope_W_K": None,
    "cos": None,
    "sin": None,
    "rope_contiguous_layout": True,
    "rmsnorm_QK_post_rope_enabled": False,
    "rmsnorm_QK_post_rope_eps": 1e-6,
    "rmsnorm_QK_post_rope_W_Q": None,
    "rmsnorm_QK_post_rope_W_K": None,
    "K_cache_transposed": False,
    "active_blocks_table": None,
    "K_cache": random((B, 1, ROOM, D), BF16, 6),
    "V_cache": random((B, 1, ROOM, D), BF16, 7),
    "attention_mask": MASK,
    "sink": None,
    "update_cache": False,
    "kv_cache_update_idx": None,
    "W_out": random((N * D, H), BF16, 8, (N * D) ** -0.5),
    "bias_out": None,
    "quantization_type_out": NONE,
    "weight_dequant_scale_out": None,
    "input_dequant_scale_out": None,
    "transposed_out": False,
    "out_in_sb": False,
}
ROPE = {"cos": np.cos(ANGLE).astype(BF16), "sin": np.sin(ANGLE).astype(BF16)}
UPDATE = {"update_cache": True, "kv_cache_update_idx": INDEX}
TURNED = {"K_cache_transposed": True, "K_cache": random((B, 1, D, ROOM), BF16, 6)}
ONE = np.full((128, 1), 2.0, np.float32)
NARROW = {
    "K_cache": random((B, 1, ROOM, D), FP8, 6),
    "V_cache": random((B, 1, ROOM, D), FP8, 7),
    "k_scale": ONE,
    "v_scale": 2 * ONE,
}
POS = {"pos_ids": np.array([[60, 61], [100, 101]], np.float32), "attention_mask": None, "S_ctx": S}
LOW, HIGH = np.array([[10, 10], [0, 77]], np.int32), np.array([[60, 60], [55, 90]], np.int32)
BOUNDS = {"bound_min": LOW, "bound_max": HIGH, "attention_mask": None, "S_ctx": S}
BLOCK = 128
TABLE = np.array([[3], [1]], np.int32)
PAGED = {
    "active_blocks_table": TABLE,
    "K_cache": random((4, BLOCK, D), BF16, 6),
    "V_cache": random((4, BLOCK, D), BF16, 7),
}
PAGED_MASK = np.ones((S, B, N, A), np.uint8)
PAGED_MASK[-A:] = np.triu(np.ones((A, A), np.uint8))[:, None, None, :]
PAGED |= {"attention_mask": PAGED_MASK}
PAGED_INDEX = {"update_cache": True, "kv_cache_update_idx": np.array([[2 * BLOCK + 5], [0]], np.int32)}
PAIRS = np.array([[3, 0], [1, 2]], np.int32)
PACKED = {
    "active_blocks_table": np.array([[3, 0, 5, 7], [1, 2, 4, 6]], np.int32),
    "attention_mask": None,
    "pos_ids": POS["pos_ids"] + 90,
    "fp8_packed": True,
    "K_cache": random((9, 64 // 2, D, 2), FP8, 6),
    "V_cache": random((9, 64, D), FP8, 7),
    "k_scale": ONE,
    "v_scale": ONE,
}


def row(size: int) -> np.ndarray:
    return np.random.default_rng(9).uniform(0.01, 0.1, (128, size)).astype(np.float32)


FP8_QKV = {"W_qkv": random((H, COLUMNS), FP8, 5)}
FP8_OUT = {"W_out": random((N * D, H), FP8, 8)}


def head_norms() -> list[Option]:
    cases = []
    for when in ("pre", "post"):
        name = f"rmsnorm_QK_{when}_rope"
        on = {f"{name}_enabled": True}
        gammas = {f"{name}_W_Q": SMALL, f"{name}_W_K": 2 * SMALL}
        cases += [
            Option(f"{name}", on),
            Option(f"{name}-rope", on | ROPE),
            Option(f"{name}-gammas", on | gammas | ROPE),
            Option(f"{name}-one-gamma", on | {f"{name}_W_K": SMALL}),
            Option(f"{name}-eps", on | {f"{name}_eps": 2.0}),
        ]
    return cases


CASES = [
    Option("basic"),
    Option("rmsnorm_X", {"rmsnorm_X_enabled": True, "rmsnorm_X_eps": 1e-6, "rmsnorm_X_gamma": GAMMA}),
    Option("rmsnorm_X-no-gamma", {"rmsnorm_X_enabled": True, "rmsnorm_X_eps": 1e-6}),
    Option("rmsnorm_X_eps", {"rmsnorm_X_enabled": True, "rmsnorm_X_eps": 3.0, "rmsnorm_X_gamma": GAMMA}),
    Option("rmsnorm_X_eps-None", {"rmsnorm_X_enabled": True, "X": random((B, A, H), BF16, scale=0.02)}),
    Option("X_hidden_dim_actual", {"rmsnorm_X_enabled": True, "X_hidden_dim_actual": 200}),
    Option("bias_qkv", {"bias_qkv": random((1, COLUMNS), BF16, 9)}),
    Option("ROW", FP8_QKV | {"quantization_type_qkv": ROW, "weight_dequant_scale_qkv": row(COLUMNS)}),
    Option(
        "STATIC",
        FP8_QKV
        | {
            "quantization_type_qkv": STATIC,
            "weight_dequant_scale_qkv": np.full((128, 3), 2**-5, np.float32),
            "input_dequant_scale_qkv": np.full((128, 1), 2**-6, np.float32),
        },
    ),
    *head_norms(),
    Option("rope", ROPE),
    Option("rope-interleaved", ROPE | {"rope_contiguous_layout": False}),
    Option("K_cache_transposed", TURNED),
    Option("caches-of-three-dimensions", {name: BASIC[name][:, 0] for name in ("K_cache", "V_cache")}),
    Option(
        "more-sequences-in-the-caches",
        {name: random((4, 1, ROOM, D), BF16, 6) for name in ("K_cache", "V_cache")},
    ),
    Option("sink", {"sink": random((N, 1), seed=9)}),
    Option("update_cache", UPDATE),
    Option("update_cache-transposed", UPDATE | TURNED),
    Option(
        "update_cache-skips", {"update_cache": True, "kv_cache_update_idx": np.array([[-1], [3]], np.int32)}
    ),
    Option(
        "update_cache-unsigned",
        {"update_cache": True, "kv_cache_update_idx": np.array([[2**32 - 1], [3]], np.uint32)},
    ),
    Option("no-W_out", {"W_out": None}),
    Option("bias_out", {"bias_out": random((1, H), BF16, 9)}),
    Option("ROW-out", FP8_OUT | {"quantization_type_out": ROW, "weight_dequant_scale_out": row(H)}),
    Option(
        "STATIC-out",
        FP8_OUT
        | {
            "quantization_type_out": STATIC,
            "weight_dequant_scale_out": np.full((128, 1), 2**-5, np.float32),
            "input_dequant_scale_out": np.full((128, 1), 2**-7, np.float32),
        },
        tolerance=6e-2,  # attention is rounded to 16 bits before, so that some FP8 numbers differ
    ),
    Option("softmax_scale", {"softmax_scale": 0.5}),
    Option("enable_fa_s_prior_tiling", {"enable_fa_s_prior_tiling": False}),
    Option("fp8-caches", NARROW),
    Option("fp8-caches-updated", NARROW | UPDATE, tolerance=6e-2),
    Option("fp8-caches-clip", NARROW | UPDATE | {"k_scale": 100 * ONE}, tolerance=6e-2),
    Option("scales-of-16-bit-caches", {"k_scale": ONE, "v_scale": 3 * ONE}),
    Option("skip_attention", {"skip_attention": True}),
    Option("skip_attention-no-W_out", {"skip_attention": True, "W_out": None}),
    Option("pos_ids", POS),
    Option(
        "pos_ids-no-S_ctx",
        POS | {"S_ctx": None} | {name: random((B, 1, 256, D), BF16, 6) for name in ("K_cache", "V_cache")},
    ),
    Option("swa_start_pos_ids", POS | {"swa_start_pos_ids": POS["pos_ids"] - 20}),
    Option("bounds", BOUNDS),
    Option(
        "bounds-float32",
        BOUNDS | {name: BOUNDS[name].astype(np.float32) for name in ("bound_min", "bound_max")},
    ),
    Option("bounds-of-new-sequences", BOUNDS | {"bound_min": np.array([[9, 10], [3, 0]], np.int32)}),
    Option("bounds-without-cache", BOUNDS | {"bound_min": LOW + 20, "bound_max": LOW + 20}),
    Option("bounds-to-the-end", BOUNDS | {"bound_min": 0 * LOW, "bound_max": 0 * LOW + S - A}),
    Option("bounds-sink", BOUNDS | {"sink": random((N, 1), "float32", 11)}),
    Option("bounds-updated", BOUNDS | UPDATE),
    Option("bounds-transposed", BOUNDS | TURNED),
    Option("bounds-fp8-caches", BOUNDS | NARROW),
    Option("bounds-rope", BOUNDS | ROPE),
    Option("bounds-blocks", PAGED | BOUNDS),
    Option("bounds-max_context_len", BOUNDS | {"max_context_len": np.array([50], np.int32)}),
    Option("S_ctx", {"S_ctx": 128}),
    Option("max_context_len", {"max_context_len": np.array([50], np.int32)}),
    Option("dtype_mode", {"dtype_mode": DtypeMode.AUTO}),
    Option("blocks", PAGED),
    Option("blocks-updated", PAGED | PAGED_INDEX),
    Option("blocks-S_ctx", PAGED | {"S_ctx": BLOCK}),
    Option(
        "float16", {name: x.astype(np.float16) for name, x in BASIC.items() if getattr(x, "dtype", 0) == BF16}
    ),
    Option("sbm", {"sbm": None}),
]
ONE_CORE = [
    Option("transposed_out", {"transposed_out": True}),
    Option("fp8_packed", PACKED),
    Option(
        "fp8_packed-updated",
        PACKED | {"update_cache": True, "kv_cache_update_idx": np.array([[8 * 64 + 5], [-1]], np.int32)},
        tolerance=6e-2,
    ),
]
REFUSED = [
    *refusals(
        X=None,
        X__rank=random((B, H), BF16),
        W_qkv=None,
        W_qkv__columns=random((H, COLUMNS + 1), BF16),
        bias_qkv=random((1, 3), BF16),
        X_hidden_dim_actual=H + 1,
        rmsnorm_X_gamma=GAMMA,
        quantization_type_qkv="ROW",
        quantization_type_qkv__none=None,
        weight_dequant_scale_qkv=row(COLUMNS),
        input_dequant_scale_qkv=ONE,
        rmsnorm_QK_pre_rope_W_Q=SMALL,
        rmsnorm_QK_pre_rope_W_K=SMALL,
        rmsnorm_QK_post_rope_W_Q=SMALL,
        rmsnorm_QK_post_rope_W_K=SMALL,
        K_cache=random((B, 1, D, ROOM), BF16),
        K_cache__none=None,
        V_cache=random((B, D), BF16),
        attention_mask=None,
        attention_mask__rank=MASK[0],
        attention_mask__shape=MASK[:, :1],
        sink=random((N + 1, 1)),
        sink__number=1.0,
        W_out=random((7, H), BF16),
        bias_out=random((1, 3), BF16),
        weight_dequant_scale_out=row(H),
        input_dequant_scale_out=ONE,
        quantization_type_out="ROW",
        is_h_transposed_by_4=True,
        fp8_packed=True,
        swa_start_pos_ids=POS["pos_ids"],
        KVDP_replica_group=((0, 1),),
        KVDP_collective_mode=KVDPCollectiveMode.ALL_TO_ALL,
        KVDP_collective_mode__text="fast",
        KVDP_rank=np.zeros((1, 1), np.int32),
        KVDP=0,
        CP_replica_group=((0, 1),),
        CP_collective_mode=CPCollectiveMode.REDUCE_SCATTER,
        CP_collective_mode__text="fast",
        dtype_mode="OCP",
        S_ctx=1000,
        max_context_len=3,
    ),
    Option("refuses-rows-of-W_qkv", {"W_qkv": random((128, COLUMNS), BF16)}, "X"),
    Option("refuses-keys-of-pos_ids", POS | {"S_ctx": None}, "S_ctx"),
    Option(
        "refuses-packed-few-keys",
        PACKED | {"active_blocks_table": np.array([[3, 0], [1, 2]], np.int32)},
        "fp8_packed",
    ),
    Option("refuses-cos-alone", {"cos": ROPE["cos"]}, "sin"),
    Option("refuses-sin-alone", {"sin": ROPE["sin"]}, "cos"),
    Option("refuses-sin-shape", ROPE | {"sin": ROPE["sin"][:3]}, "sin"),
    Option("refuses-k_scale-alone", NARROW | {"v_scale": None}, "v_scale"),
    Option("refuses-fp8-without-scales", NARROW | {"k_scale": None, "v_scale": None}, "k_scale"),
    Option("refuses-scale-of-many-numbers", NARROW | {"k_scale": GAMMA}, "k_scale"),
    Option("refuses-update-without-index", {"update_cache": True}, "kv_cache_update_idx"),
    Option("refuses-transposed_out-without-W_out", {"W_out": None, "transposed_out": True}, "transposed_out"),
    Option("refuses-bias-without-W_out", {"W_out": None, "bias_out": GAMMA}, "bias_out"),
    Option("refuses-gamma-size", {"rmsnorm_X_enabled": True, "rmsnorm_X_gamma": SMALL}, "rmsnorm_X_gamma"),
    Option(
        "refuses-head-gamma-size",
        {"rmsnorm_QK_pre_rope_enabled": True, "rmsnorm_QK_pre_rope_W_Q": GAMMA},
        "rmsnorm_QK_pre_rope_W_Q",
    ),
    Option("refuses-ROW-without-scale", FP8_QKV | {"quantization_type_qkv": ROW}, "weight_dequant_scale_qkv"),
    Option(
        "refuses-ROW-out-without-scale", FP8_OUT | {"quantization_type_out": ROW}, "weight_dequant_scale_out"
    ),
    Option("refuses-S_ctx-of-blocks", PAGED | {"S_ctx": 64}, "S_ctx"),
    Option("refuses-table-shape", PAGED | {"active_blocks_table": TABLE[:1]}, "active_blocks_table"),
    Option("refuses-transposed-blocks", PAGED | {"K_cache_transposed": True}, "K_cache_transposed"),
    Option("refuses-packed-16-bits", PAGED | {"fp8_packed": True}, "K_cache"),
    Option("refuses-pos_ids-shape", POS | {"pos_ids": POS["pos_ids"][:1]}, "pos_ids"),
    Option("refuses-bound_min-alone", BOUNDS | {"bound_max": None}, "bound_max"),
    Option("refuses-bound_max-alone", BOUNDS | {"bound_min": None}, "bound_min"),
    Option("refuses-bound_max-shape", BOUNDS | {"bound_max": HIGH[:1]}, "bound_max"),
    Option("refuses-bound_min-shape", BOUNDS | {"bound_min": LOW[:1]}, "bound_min"),
    Option("refuses-bounds-and-mask", {"bound_min": LOW, "bound_max": HIGH}, "attention_mask"),
    Option("refuses-bounds-and-pos_ids", BOUNDS | {"pos_ids": POS["pos_ids"]}, "pos_ids"),
    Option("refuses-bounds-and-CP", BOUNDS | {"CP": 2, "CP_replica_group": ((0, 1),)}, "CP"),
    Option("refuses-KVDP-without-groups", {"KVDP": 2}, "KVDP_replica_group"),
    Option("refuses-CP-without-groups", {"CP": 2}, "CP_replica_group"),
]


@each(on_both(CASES, slow=True) + ONE_CORE + REFUSED)
def test_attention_block_tkg(option: Option) -> None:
    check(option, attention_block_tkg, BASIC, block, TOLERANCE)


@nki.jit
def placed(arguments, transposed):
    """The block with a manager, tokens that come in SBUF, and a result that stays there."""
    sbm = SbufManager(0, 196608)
    x = arguments["X"].reshape((B * A, 128, H // 128))
    tokens = nl.ndarray((128, B * A, H // 128), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tokens, x.permute((1, 0, 2)))
    arguments["X"] = tokens
    found = attention_block_tkg(**arguments, out_in_sb=True, transposed_out=transposed, sbm=sbm)
    out = nl.ndarray(found[0].shape, found[0].dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, found[0])
    return out


def test_tokens_and_results_in_sbuf() -> None:
    given = {name: value for name, value in BASIC.items() if name not in ("out_in_sb", "transposed_out")}
    expected = block(**BASIC)[0]
    near = {"rtol": 0, "atol": TOLERANCE * np.abs(expected).max()}
    np.testing.assert_allclose(placed(dict(given), False).astype(np.float64), expected, **near)
    turned = expected.reshape(B * A, 128, H // 128).transpose(1, 2, 0)
    np.testing.assert_allclose(placed(dict(given), True).astype(np.float64), turned, **near)


def test_tokens_by_partition() -> None:
    x = np.ascontiguousarray(BASIC["X"].reshape(B * A, 1, 128, H // 128).transpose(2, 1, 3, 0))
    out = attention_block_tkg(**BASIC | {"X": x}, transposed_in=True)[0]
    np.testing.assert_allclose(out.astype(np.float64), block(**BASIC)[0], rtol=0, atol=0.05)


def test_an_index_without_an_update_is_reported() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        attention_block_tkg(**BASIC | {"kv_cache_update_idx": INDEX, "softmax_scale": 0.125})
    assert any("kv_cache_update_idx has no effect" in str(warning.message) for warning in shown)


def test_a_number_of_columns_without_a_norm_is_reported() -> None:
    with pytest.warns(UserWarning, match="X_hidden_dim_actual has no effect.*norm"):
        out = attention_block_tkg(**BASIC | {"X_hidden_dim_actual": 100})[0]
    np.testing.assert_allclose(out.astype(np.float64), block(**BASIC)[0], rtol=0, atol=0.05)
