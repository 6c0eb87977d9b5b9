"""Cases of the QKV projection: every documented option at an unusual value, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, refusals

from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
)

BF16, FP8, FP8_OCP, WIDE_FP8 = (
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)
B, S, H, D, NQ, NKV = 2, 5, 256, 32, 3, 2
COLUMNS = (NQ + 2 * NKV) * D
WIDTH = NKV * D
HEADS = {"d_head": D, "num_q_heads": NQ, "num_kv_heads": NKV}
ACROSS = NormType.RMS_NORM_ACROSS_HEADS

BASIC: dict[str, Any] = {
    "input": random((B, S, H), BF16),
    "fused_qkv_weights": random((H, COLUMNS), BF16, 1, H**-0.5),
}
ANGLE = np.random.default_rng(2).uniform(0, 6, (B, S, D))
ROPE = HEADS | {
    "fused_rope": True,
    "cos_cache": np.cos(ANGLE).astype(BF16),
    "sin_cache": np.sin(ANGLE).astype(BF16),
}
GAMMA, BETA = random((1, H), BF16, 3), random((1, H), BF16, 4)
NARROW = random((H, COLUMNS), FP8, 1)
ROW_SCALE = np.random.default_rng(5).uniform(0.01, 0.1, (1, COLUMNS)).astype(np.float32)
ONE = np.full((128, 1), 0.25, np.float32)


def tokens_with_scales() -> np.ndarray:
    x = np.empty((B, S, H + 4), FP8)
    x[..., :H] = random((B, S, H), FP8)
    x[..., H:] = np.full((B, S, 1), 0.5, np.float32).view(FP8)
    return x


def norm_of(kind: NormType, **more: Any) -> dict[str, Any]:
    return {"fused_norm_type": kind, "gamma_norm_weights": GAMMA} | more


def vectors(name: str, kind: str, size: int = D) -> dict[str, Any]:
    """qk_norm_pre_rope_q_gamma and its like."""
    return {f"{name}_{part}_{kind}": random((1, size), BF16, 6 + i) for i, part in enumerate("qk")}


def head_norms() -> list[Option]:
    cases = []
    for name in ("qk_norm_pre_rope", "qk_norm_post_rope"):
        for kind in (NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA, NormType.LAYER_NORM, ACROSS):
            config = {name: QKNormConfig(kind, kind, 1e-2)}
            cases.append(Option(f"{name}-{kind.name}", HEADS | config))
            cases.append(Option(f"{name}-{kind.name}-rope", ROPE | config))
        both = QKNormConfig()
        cases += [
            Option(f"{name}-q-only", HEADS | {name: QKNormConfig(k_norm=None)}),
            Option(f"{name}-k-only", HEADS | {name: QKNormConfig(q_norm=NormType.NO_NORM)}),
            Option(f"{name}-eps", HEADS | {name: QKNormConfig(eps=3.0)}),
            Option(f"{name}-gammas", ROPE | {name: both} | vectors(name, "gamma")),
            Option(f"{name}-betas", ROPE | {name: both} | vectors(name, "beta")),
            Option(
                f"{name}-gammas-and-betas",
                HEADS | {name: both} | vectors(name, "gamma") | vectors(name, "beta"),
            ),
            Option(
                f"{name}-gammas-inside",
                HEADS | {name: QKNormConfig(**{f"{p}_gamma_norm_weights": GAMMA[:, :D] for p in "qk"})},
            ),
            Option(
                f"{name}-across-gammas",
                ROPE
                | {name: QKNormConfig(ACROSS, ACROSS)}
                | {f"{name}_q_gamma": GAMMA[:, : NQ * D], f"{name}_k_gamma": GAMMA[:, :WIDTH]},
            ),
        ]
    return cases


def caches(dtype: Any = BF16, keys: tuple = (B, 8, WIDTH), values: tuple = (B, 8, WIDTH)) -> dict[str, Any]:
    scales = {"k_scale": ONE, "v_scale": 2 * ONE} if np.dtype(dtype).itemsize == 1 else {}
    return HEADS | {"k_cache": random(keys, dtype, 8), "v_cache": random(values, dtype, 9)} | scales


SLOTS = np.array([[3, 17, -1, 0, 9], [40, 4, 11, 6, 22]], np.int32)  # one is skipped, one outside
PAGED = {"use_block_kv": True, "block_size": 8, "slot_mapping": SLOTS}
BLOCKS = {"values": (3, 8, WIDTH)}


def cached() -> list[Option]:
    turned = {"transpose_k_cache": True}
    cases = []
    for dtype in (BF16, np.float16, FP8, FP8_OCP, WIDE_FP8):
        name = np.dtype(dtype).name
        on = "trn3" if dtype == FP8_OCP else "trn2"
        tolerance = 0.07 if np.dtype(dtype).itemsize == 1 else None
        tolerance = 0.13 if dtype == WIDE_FP8 else tolerance
        flat, blocks = caches(dtype), caches(dtype, (3, 8, WIDTH), **BLOCKS) | PAGED
        turned_flat = caches(dtype, (B, WIDTH, 8)) | turned
        turned_blocks = caches(dtype, (3 * NKV, D, 8), **BLOCKS) | PAGED | turned
        found = {
            "flat": flat,
            "transposed": turned_flat,
            "blocks": blocks,
            "blocks-transposed": turned_blocks,
        }
        if np.dtype(dtype).itemsize == 1:
            found["packed"] = caches(dtype, (3, 4, WIDTH, 2), **BLOCKS) | PAGED | {"fp8_packed": True}
        cases += [Option(f"cache-{form}-{name}", o, "", 1, on, tolerance) for form, o in found.items()]
    narrow = caches(FP8)
    clipped = {"fp8_max": 3.0, "fp8_min": -2.0}
    cases += [
        Option("cache-with-rope", caches() | ROPE),
        Option("cache-with-scales-of-16-bits", caches() | {"k_scale": ONE, "v_scale": 2 * ONE}),
        Option(
            "cache-scales-of-one-number", narrow | {"k_scale": ONE[:1], "v_scale": ONE[0]}, tolerance=0.07
        ),
        Option("fp8_max", narrow | {"fp8_max": 2.0}, tolerance=0.07),
        Option("fp8_min", narrow | clipped, tolerance=0.07),
        Option("fp8_max-of-16-bits", caches() | {"k_scale": ONE, "v_scale": ONE} | clipped),
        Option("kv_dtype", narrow | {"kv_dtype": FP8}, tolerance=0.07),
        Option(
            "slots-in-one-row",
            caches(BF16, (3, 8, WIDTH), **BLOCKS) | PAGED | {"slot_mapping": SLOTS.ravel()},
        ),
        Option(
            "no-query-heads",
            caches() | {"num_q_heads": 0, "fused_qkv_weights": random((H, 2 * WIDTH), BF16, 1, H**-0.5)},
        ),
    ]
    return cases


PLAIN = [
    Option("basic"),
    Option("heads-are-given", HEADS),
    Option("bias", {"bias": random((1, COLUMNS), BF16, 5)}),
    Option("output-NBSd", HEADS | {"output_layout": QKVOutputLayout.NBSd}),
    Option("output-NBdS", HEADS | {"output_layout": QKVOutputLayout.NBdS}),
    Option("output-NBdS-by-d_head-alone", {"d_head": D, "output_layout": QKVOutputLayout.NBdS}),
    Option("float16", {name: x.astype(np.float16) for name, x in BASIC.items()}),
    Option("float32", {name: x.astype(np.float32) for name, x in BASIC.items()}),
    Option("weights-of-float32", {"fused_qkv_weights": BASIC["fused_qkv_weights"].astype(np.float32)}),
    Option("fp8-weights-as-they-are", {"fused_qkv_weights": NARROW}),
    Option("norm-RMS", norm_of(NormType.RMS_NORM)),
    Option("norm-LAYER", norm_of(NormType.LAYER_NORM)),
    Option("norm-LAYER-bias", norm_of(NormType.LAYER_NORM, layer_norm_bias=BETA)),
    Option("norm-SKIP_GAMMA", {"fused_norm_type": NormType.RMS_NORM_SKIP_GAMMA}),
    Option("norm_eps", norm_of(NormType.RMS_NORM, norm_eps=2.0)),
    Option("norm_eps-LAYER", norm_of(NormType.LAYER_NORM, norm_eps=2.0)),
    Option("hidden_actual", norm_of(NormType.RMS_NORM, hidden_actual=200)),
    Option(
        "hidden_actual-SKIP_GAMMA", {"fused_norm_type": NormType.RMS_NORM_SKIP_GAMMA, "hidden_actual": 130}
    ),
    Option("use_auto_allocation", {"use_auto_allocation": True}),
    Option("load_input_with_DMA_transpose", {"load_input_with_DMA_transpose": False}),
    Option("dtype_mode", {"dtype_mode": DtypeMode.AUTO}),
    Option(
        "ROW",
        {"fused_qkv_weights": NARROW, "quantization_type": QuantizationType.ROW, "qkv_w_scale": ROW_SCALE},
    ),
    Option(
        "ROW-128-rows",
        {
            "fused_qkv_weights": NARROW,
            "quantization_type": QuantizationType.ROW,
            "qkv_w_scale": np.repeat(ROW_SCALE, 128, 0),
        },
    ),
    Option(
        "ROW-e5m2",
        {
            "fused_qkv_weights": random((H, COLUMNS), WIDE_FP8, 1),
            "quantization_type": QuantizationType.ROW,
            "qkv_w_scale": ROW_SCALE,
        },
    ),
]
STATIC = HEADS | {
    "fused_qkv_weights": NARROW,
    "quantization_type": QuantizationType.STATIC,
    "qkv_w_scale": np.float32([[0.5, 0.125, 2.0]]),
    "qkv_in_scale": np.full((1, 1), 2**-5, np.float32),
}
PLAIN += [
    Option("STATIC", STATIC),
    Option("STATIC-one-scale", STATIC | {"qkv_w_scale": np.float32([[0.5]])}),
    Option("STATIC-clips", STATIC | {"qkv_in_scale": np.full((128, 1), 2**-8, np.float32)}),
    Option(
        "STATIC-OCP",
        STATIC | {"fused_qkv_weights": random((H, COLUMNS), FP8_OCP, 1), "dtype_mode": DtypeMode.OCP},
        on="trn3",
    ),
]
PREFILL = [
    Option("rope", ROPE),
    Option("rope-NBdS", ROPE | {"output_layout": QKVOutputLayout.NBdS}),
    Option("rope-cos-of-both-halves", ROPE | {"cos_cache": random((B, S, D), BF16, 7)}),
    Option("k_cos_cache", ROPE | {"k_cos_cache": random((B, S, D), BF16, 7)}),
    Option("k_sin_cache", ROPE | {"k_sin_cache": random((B, S, D), BF16, 7)}),
    Option(
        "transposed_in", {"input": np.ascontiguousarray(BASIC["input"].swapaxes(1, 2)), "transposed_in": True}
    ),
    Option(
        "tokens-of-fp8-with-scales",
        {
            "input": tokens_with_scales(),
            "fused_qkv_weights": NARROW,
            "quantization_type": QuantizationType.ROW,
            "qkv_w_scale": ROW_SCALE,
        },
    ),
    *head_norms(),
    *cached(),
]
RESIDUALS = {
    "fused_residual_add": True,
    "mlp_prev": random((B, S, H), BF16, 11),
    "attention_prev": BASIC["input"],
}
NONE_AT_ALL = [
    *refusals(
        input__list=[1.0],
        input__none=None,
        input__rank=BASIC["input"][0],
        input__width=np.zeros((B, S, 128), BF16),
        input__dtype=BASIC["input"].astype(np.int32),
        fused_qkv_weights__none=None,
        fused_qkv_weights__rank=np.zeros((H,), BF16),
        fused_qkv_weights__dtype=np.zeros((H, COLUMNS), np.int32),
        bias__number=1.0,
        bias__size=np.zeros((1, 7), BF16),
        output_layout="BSD",
        output_layout__needs=None,
        quantization_type="ROW",
        quantization_type__none=None,
        quantization_type__mx=QuantizationType.MX,
        qkv_w_scale=ROW_SCALE,
        qkv_in_scale=ONE,
        mlp_prev=BASIC["input"],
        attention_prev=BASIC["input"],
        fused_norm_type="RMS",
        fused_norm_type__across=ACROSS,
        gamma_norm_weights=GAMMA,
        layer_norm_bias=BETA,
        norm_eps=0.0,
        hidden_actual=H + 1,
        cos_cache=ROPE["cos_cache"],
        sin_cache=ROPE["sin_cache"],
        k_cos_cache=ROPE["cos_cache"],
        k_sin_cache=ROPE["sin_cache"],
        d_head=0,
        d_head__text="32",
        num_kv_heads=0,
        fp8_max=240.0,
        fp8_min=-240.0,
        kv_dtype=FP8,
        transpose_k_cache=True,
        fp8_packed=True,
        block_size=8,
        slot_mapping=SLOTS,
        is_h_dim_4h_transposed=True,
        weight_layout=QKVWeightLayout.MX_INTERLEAVED,
        dtype_mode="OCP",
        output_hbm=np.zeros((1, 1, 1), BF16),
    ),
]
PREFILL_REFUSALS = [
    *NONE_AT_ALL,
    *refusals(
        store_output_in_sbuf=True,
        strided_input_config="dense",
        k_cache=np.zeros((B, 8, WIDTH), BF16),
        v_cache=np.zeros((B, 8, WIDTH), BF16),
        k_scale=ONE,
        v_scale=ONE,
        qk_norm_pre_rope=NormType.RMS_NORM,
        qk_norm_post_rope="RMS",
        **{
            f"qk_norm_{when}_rope_{part}_{kind}": GAMMA[:, :D]
            for when in ("pre", "post")
            for part in "qk"
            for kind in ("gamma", "beta")
        },
    ),
    Option("refuses-rope-without-cos", ROPE | {"cos_cache": None}, "cos_cache"),
    Option("refuses-rope-without-sin", ROPE | {"sin_cache": None}, "sin_cache"),
    Option("refuses-rope-without-heads", ROPE | {"d_head": None}, "d_head"),
    Option("refuses-sin-of-another-shape", ROPE | {"sin_cache": GAMMA}, "sin_cache"),
    Option("refuses-k_sin-of-another-shape", ROPE | {"k_sin_cache": GAMMA}, "k_sin_cache"),
    Option(
        "refuses-gamma-of-another-size",
        HEADS | {"qk_norm_pre_rope": QKNormConfig(), "qk_norm_pre_rope_k_gamma": GAMMA},
        "qk_norm_pre_rope_k_gamma",
    ),
    Option(
        "refuses-gamma-of-no-norm",
        HEADS | {"qk_norm_pre_rope": QKNormConfig(q_norm=None), "qk_norm_pre_rope_q_gamma": GAMMA[:, :D]},
        "qk_norm_pre_rope_q_gamma",
    ),
    Option(
        "refuses-gamma-that-is-skipped",
        HEADS
        | {
            "qk_norm_post_rope": QKNormConfig(NormType.RMS_NORM_SKIP_GAMMA),
            "qk_norm_post_rope_q_gamma": GAMMA[:, :D],
        },
        "qk_norm_post_rope_q_gamma",
    ),
    Option("refuses-fp8-cache-without-scales", caches(FP8) | {"k_scale": None, "v_scale": None}, "k_scale"),
    Option("refuses-kv_dtype-of-another-cache", caches(FP8) | {"kv_dtype": BF16}, "kv_dtype"),
    Option("refuses-packed-flat-cache", caches(FP8) | {"fp8_packed": True}, "fp8_packed"),
    Option("refuses-cache-of-another-shape", caches() | {"k_cache": np.zeros((B, 8, 7), BF16)}, "k_cache"),
    Option("refuses-blocks-without-size", caches() | PAGED | {"block_size": None}, "block_size"),
    Option(
        "refuses-blocks-without-slots",
        caches(BF16, (3, 8, WIDTH), **BLOCKS) | PAGED | {"slot_mapping": None},
        "slot_mapping",
    ),
    Option("refuses-cache-with-layout", caches() | {"output_layout": QKVOutputLayout.NBSd}, "output_layout"),
    Option("refuses-scale-of-many-numbers", caches(FP8) | {"k_scale": GAMMA}, "k_scale"),
    Option("refuses-squares-without-heads", {"q_squared_sum_out": np.zeros((B, S), np.float32)}, "d_head"),
    Option("refuses-squares-of-another-size", HEADS | {"v_squared_sum_out": ONE}, "v_squared_sum_out"),
    Option(
        "refuses-ROW-without-scale",
        {"fused_qkv_weights": NARROW, "quantization_type": QuantizationType.ROW},
        "qkv_w_scale",
    ),
    Option("refuses-STATIC-without-input-scale", STATIC | {"qkv_in_scale": None}, "qkv_in_scale"),
    Option("refuses-STATIC-without-heads", STATIC | {"num_q_heads": None}, "d_head"),
    Option(
        "refuses-ROW-with-input-scale",
        STATIC | {"quantization_type": QuantizationType.ROW, "qkv_w_scale": ROW_SCALE},
        "qkv_in_scale",
    ),
    Option("refuses-missing-residual", RESIDUALS | {"attention_prev": None}, "attention_prev"),
    Option("refuses-residual-of-another-shape", RESIDUALS | {"mlp_prev": GAMMA}, "mlp_prev"),
    Option("refuses-RMS-without-gamma", {"fused_norm_type": NormType.RMS_NORM}, "gamma_norm_weights"),
    Option(
        "refuses-gamma-of-the-wrong-size",
        norm_of(NormType.RMS_NORM, gamma_norm_weights=BETA[:, :9]),
        "gamma_norm_weights",
    ),
    Option("refuses-bias-of-RMS", norm_of(NormType.RMS_NORM, layer_norm_bias=BETA), "layer_norm_bias"),
    Option(
        "refuses-hidden_actual-too-large", norm_of(NormType.RMS_NORM, hidden_actual=H + 1), "hidden_actual"
    ),
]
