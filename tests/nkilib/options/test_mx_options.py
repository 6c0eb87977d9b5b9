"""The options of MX weights (trn3) of QKV and output projections, one at a time, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both
from options.qkv_reference import normalized, rounded, wide

from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.qkv.qkv import qkv_cte, qkv_tkg
from nkilib.core.utils.common_types import NormType, QKVWeightLayout, QuantizationType

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
B, S, H, D, NQ, NKV = 1, 6, 512, 32, 2, 1
COLUMNS = (NQ + 2 * NKV) * D
HEADS = {"d_head": D, "num_q_heads": NQ, "num_kv_heads": NKV}
MX, STATIC_MX, ROW_MX = QuantizationType.MX, QuantizationType.STATIC_MX, QuantizationType.ROW_MX
EXACT, TOKENS_IN_MX = 1e-2, 5e-2  # of results in 16 bits, and of tokens that are rounded to MXFP8
LOGICAL = random((H, COLUMNS), FP8, 1)
SCALES = np.random.default_rng(2).integers(118, 124, (H // 32, COLUMNS)).astype(np.uint8)


def packed(w: np.ndarray, layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS) -> np.ndarray:
    """[H / 4, I, 4]: which rows of [H, I] share a word."""
    rows = np.arange(len(w)).reshape(-1, 4)
    if layout == QKVWeightLayout.MX_INTERLEAVED:
        first = 2 * np.arange(len(w) // 4)
        rows = np.stack([first, first + 1, len(w) // 2 + first, len(w) // 2 + first + 1], 1)
    return np.ascontiguousarray(w[rows].transpose(0, 2, 1))


def swizzled(x: np.ndarray) -> np.ndarray:
    """Element 4 r + q of the last axis at q H / 4 + r."""
    return np.ascontiguousarray(x.reshape(*x.shape[:-1], -1, 4).swapaxes(-1, -2).reshape(x.shape))


def projection(**o: Any) -> np.ndarray:
    """y of logical weights; the keywords are those of `qkv_cte`."""
    x, w, factor = wide(o["input"]), wide(LOGICAL), 1.0
    if x.shape[-1] == H + 4:
        factor, x = o["input"][..., -4:].copy().view(np.float32).astype(np.float64), x[..., :-4]
    gamma = o.get("gamma_norm_weights")
    if o.get("is_h_dim_4h_transposed") or o.get("is_input_swizzled"):
        back = np.argsort(swizzled(np.arange(H)))
        x, gamma = x[..., back], None if gamma is None else gamma[..., back]
    if o.get("fused_norm_type"):
        x = normalized(x, o["fused_norm_type"], gamma, None, 1e-6, H)
    kind = o["quantization_type"]
    if kind == MX:
        w = w * np.repeat(2.0 ** (SCALES.astype(np.float64) - 127), 32, 0)
    if kind == STATIC_MX:
        factor = float(o["qkv_in_scale"].flat[0])
        if o["input"].dtype.itemsize > 1:
            x = rounded(np.clip(x / factor, -448, 448), FP8)
    y = x @ w * factor
    if kind == STATIC_MX:
        y = y * np.repeat(np.broadcast_to(wide(o["qkv_w_scale"])[0], (3,)), [NQ * D, NKV * D, NKV * D])
    if kind == ROW_MX:
        y = y * wide(o["qkv_w_scale"])[0]
    return y if o.get("bias") is None else y + wide(o["bias"])


STATIC_SCALES = {
    "qkv_w_scale": np.float32([[2**-5, 2**-6, 2**-4]]),
    "qkv_in_scale": np.full((1, 1), 2**-6, np.float32),
}
ROWS = np.empty((B, S, H + 4), FP8)
ROWS[..., :H], ROWS[..., H:] = random((B, S, H), FP8), np.full((B, S, 1), 0.25, np.float32).view(FP8)
ROW_SCALE = np.random.default_rng(3).uniform(0.01, 0.1, (1, COLUMNS)).astype(np.float32)
BASIC = HEADS | {
    "input": random((B, S, H), BF16),
    "fused_qkv_weights": packed(LOGICAL),
    "quantization_type": STATIC_MX,
    **STATIC_SCALES,
}
IN_MX = {"quantization_type": MX, "qkv_w_scale": SCALES, "qkv_in_scale": None}
GAMMA = random((1, H), BF16, 4)
NORM = {"fused_norm_type": NormType.RMS_NORM, "gamma_norm_weights": GAMMA}
SWIZZLED = {"is_h_dim_4h_transposed": True, "input": swizzled(BASIC["input"])}
PAIRS = {
    "weight_layout": QKVWeightLayout.MX_INTERLEAVED,
    "fused_qkv_weights": packed(LOGICAL, QKVWeightLayout.MX_INTERLEAVED),
}
CASES = [
    Option("STATIC_MX"),
    Option("STATIC_MX-view", {"fused_qkv_weights": packed(LOGICAL).reshape(H, COLUMNS)}),
    Option("STATIC_MX-one-scale", {"qkv_w_scale": np.float32([[2**-5]])}),
    Option("MX_CONTIGUOUS", {"weight_layout": QKVWeightLayout.MX_CONTIGUOUS}),
    Option("MX_INTERLEAVED", PAIRS),
    Option("is_h_dim_4h_transposed", SWIZZLED),
    Option("bias", {"bias": random((1, COLUMNS), BF16, 5)}),
    Option("MX", IN_MX, tolerance=TOKENS_IN_MX),
    Option("MX-swizzled", IN_MX | SWIZZLED, tolerance=TOKENS_IN_MX),
    Option("MX-norm", IN_MX | NORM, tolerance=TOKENS_IN_MX),
    Option(
        "MX-norm-swizzled",
        IN_MX | SWIZZLED | NORM | {"gamma_norm_weights": swizzled(GAMMA)},
        tolerance=TOKENS_IN_MX,
    ),
]
PREFILL = [
    Option("is_input_swizzled", {"is_input_swizzled": True, "input": SWIZZLED["input"]}),
    Option("STATIC_MX-fp8-tokens", {"input": random((B, S, H), FP8)}),
    Option(
        "ROW_MX", {"input": ROWS, "quantization_type": ROW_MX, "qkv_w_scale": ROW_SCALE, "qkv_in_scale": None}
    ),
]
REFUSED = [
    Option("refuses-trn2", {}, "quantization_type"),
    Option("refuses-missing-scales", IN_MX | {"qkv_w_scale": None}, "qkv_w_scale", on="trn3"),
    Option("refuses-scales-shape", IN_MX | {"qkv_w_scale": SCALES[:3]}, "qkv_w_scale", on="trn3"),
    Option(
        "refuses-scales-dtype", IN_MX | {"qkv_w_scale": SCALES.astype(np.int32)}, "qkv_w_scale", on="trn3"
    ),
    Option(
        "refuses-in_scale", IN_MX | {"qkv_in_scale": STATIC_SCALES["qkv_in_scale"]}, "qkv_in_scale", on="trn3"
    ),
    Option("refuses-both-orders", SWIZZLED | PAIRS, "is_h_dim_4h_transposed", on="trn3"),
    Option(
        "refuses-weights-dtype",
        {"fused_qkv_weights": random((H // 4, COLUMNS), BF16)},
        "fused_qkv_weights",
        on="trn3",
    ),
    Option("refuses-missing-in_scale", {"qkv_in_scale": None}, "qkv_in_scale", on="trn3"),
]


def on_trn3(cases: list[Option]) -> list[Option]:
    return [case._replace(on="trn3") for case in on_both(cases, slow=True)]


@each(on_trn3([*CASES, *PREFILL]) + REFUSED)
def test_prefill(option: Option) -> None:
    check(option, qkv_cte, BASIC, projection, EXACT)


RENAMED = {
    "input": "hidden",
    "fused_qkv_weights": "qkv_w",
    "bias": "qkv_bias",
    "gamma_norm_weights": "norm_w",
}
RENAMED |= {"fused_norm_type": "norm_type"}


def named(o: dict) -> dict[str, Any]:
    return {RENAMED.get(name, name): value for name, value in o.items()}


@each(on_trn3(CASES) + REFUSED)
def test_decode(option: Option) -> None:
    back = {new: old for old, new in RENAMED.items()}
    changes = named({"fused_norm_type": NormType.NO_NORM} | option.changes)
    option = option._replace(changes=changes, refused=RENAMED.get(option.refused, option.refused))
    check(
        option,
        qkv_tkg,
        named(BASIC),
        lambda **o: projection(**{back.get(name, name): value for name, value in o.items()}),
        EXACT,
    )


# ---- output projections --------------------------------------------------------------------------

N, WIDTH = 4, 256
OUT = random((N * D, WIDTH), FP8, 6)
OUT_SCALES = np.random.default_rng(7).integers(118, 124, (N * D // 32, WIDTH)).astype(np.uint8)
COMPACT = np.random.default_rng(8).integers(118, 124, (N * D // 128, WIDTH // 128)).astype(np.uint8)
ATTENTION = random((B, N, D, S), BF16, 9)


def projected(o: dict, x: np.ndarray, scales: str) -> np.ndarray:
    w, kind = wide(OUT), o["quantization_type"]
    if kind == MX:
        given = 2.0 ** (o[f"weight_scale{scales}"].astype(np.float64) - 127)
        tile = 128 if o.get("compact_weight_scales") else 32
        w = w * np.repeat(np.repeat(given, tile, 0), 128 if o.get("compact_weight_scales") else 1, 1)
        y = x @ w
    else:
        s = float(o[f"input_scale{scales}"].flat[0])
        y = rounded(np.clip(x / s, -448, 448), FP8) @ w * s * float(o[f"weight_scale{scales}"].flat[0])
    return y if o.get("bias") is None else y + wide(o["bias"])


def of(scales: str) -> dict[str, Any]:
    column = np.full((128, 1), 2.0**-5, np.float32)
    return {
        "weight": packed(OUT).reshape(N * D, WIDTH),
        "quantization_type": STATIC_MX,
        f"input_scale{scales}": column,
        f"weight_scale{scales}": column,
    }


def mx_of(scales: str) -> dict[str, Any]:
    words = packed(OUT).reshape(N * D // 4, WIDTH * 4).view(np.uint32)
    return {
        "weight": words,
        "quantization_type": MX,
        f"input_scale{scales}": None,
        f"weight_scale{scales}": OUT_SCALES,
    }


def out_cases(scales: str) -> list[Option]:
    mx = mx_of(scales)
    return [
        Option("STATIC_MX"),
        Option("STATIC_MX-bias", {"bias": random((1, WIDTH), BF16, 3)}),
        Option("MX", mx, tolerance=TOKENS_IN_MX),
        Option("MX-bias", mx | {"bias": random((1, WIDTH), BF16, 3)}, tolerance=TOKENS_IN_MX),
    ]


def out_refused(scales: str) -> list[Option]:
    mx, weight_scale = mx_of(scales), f"weight_scale{scales}"
    return [
        Option("refuses-trn2", {}, "quantization_type"),
        Option("refuses-ROW_MX", {"quantization_type": ROW_MX}, "quantization_type", on="trn3"),
        Option("refuses-no-scales", mx | {weight_scale: None}, weight_scale, on="trn3"),
        Option("refuses-scales-shape", mx | {weight_scale: OUT_SCALES[:1]}, weight_scale, on="trn3"),
        Option(
            "refuses-input-scale",
            mx | {f"input_scale{scales}": OUT_SCALES},
            f"input_scale{scales}",
            on="trn3",
        ),
        Option("refuses-no-input-scale", {f"input_scale{scales}": None}, f"input_scale{scales}", on="trn3"),
    ]


SMALL_SCALES = {"compact_weight_scales": True, "weight_scales": COMPACT}


@each(
    on_trn3(
        [*out_cases("s"), Option("compact_weight_scales", mx_of("s") | SMALL_SCALES, tolerance=TOKENS_IN_MX)]
    )
    + out_refused("s")
    + [Option("refuses-compact-STATIC_MX", SMALL_SCALES, "compact_weight_scales", on="trn3")]
)
def test_output_projection_cte(option: Option) -> None:
    def expected(**o: Any) -> np.ndarray:
        x = wide(o["attention"]).transpose(0, 3, 1, 2).reshape(B * S, N * D)
        return projected(o, x, "s").reshape(B, S, WIDTH)

    check(option, output_projection_cte, of("s") | {"attention": ATTENTION}, expected, EXACT)


@each(on_trn3(out_cases("")) + out_refused(""))
def test_output_projection_tkg(option: Option) -> None:
    def expected(**o: Any) -> np.ndarray:
        return projected(o, wide(o["attention"]).transpose(1, 3, 2, 0).reshape(B * S, N * D), "")

    basic = of("") | {"attention": np.ascontiguousarray(ATTENTION.transpose(2, 0, 1, 3))}
    check(option, output_projection_tkg, basic, expected, EXACT)
