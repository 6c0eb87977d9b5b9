"""Every documented option of `transformer_tkg`, one at a time, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals
from options.qkv_reference import wide

from nkilib.core.utils.common_types import DtypeMode
from nkilib.experimental.transformer.transformer_tkg import transformer_tkg

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
B, A, H, N, D, I, S, LAYERS = 2, 1, 256, 2, 32, 128, 128, 3  # noqa: E741  the page's names
TOLERANCE, FP8_TOLERANCE = 3e-2, 6e-2  # of tokens that 16 bits hold, and of those rounded to FP8


def layers(**o: Any) -> np.ndarray:
    """The layers one after the other; FP8 weights times their scales, tokens of such layers in FP8."""
    x, mask = wide(o["X"]), o["attention_mask"] if o.get("attention_mask") is not None else o["mask_cache"]
    eps = o.get("eps", 1e-6)
    for layer in range(o["num_layers"]):
        w = {
            name: wide(o[name][layer]) for name in o if name.startswith("W_") and not name.endswith("scales")
        }
        heads = (rms(x, w["W_gamma_qkvs"], eps) @ w["W_qkvs"]).reshape(B, A, N + 2, D)
        q, k, v = turn(heads[:, :, :N], o), turn(heads[:, :, N : N + 1], o)[:, :, 0], heads[:, :, N + 1]
        keys = wide(o["K_caches"][layer])[:, 0].swapaxes(1, 2)[:, :S].copy()
        values = wide(o["V_caches"][layer])[:, 0, :S].copy()
        keys[:, S - A :], values[:, S - A :] = k, v
        weights = np.exp(np.einsum("band,bkd->kbna", q, keys) / np.sqrt(D)) * mask
        found = np.einsum("kbna,bkd->band", weights / weights.sum(0), values)
        x = x + found.reshape(B, A, N * D) @ w["W_outs"]
        y = rms(x, w["W_gamma_mlps"], eps)
        quantised = o["W_gates"][layer].dtype == FP8
        scale = {name: 1.0 for name in ("gate", "up", "down")}
        if quantised:
            scale = {name: wide(o[f"W_{name}_scales"][layer])[0] for name in scale}
        clamp = o.get("clamp_bound", 0.0)
        y = token_fp8(y, clamp) if quantised else y
        gate = y @ w["W_gates"] * scale["gate"]
        inner = gate / (1 + np.exp(-gate)) * (y @ w["W_ups"] * scale["up"])
        inner = token_fp8(inner, clamp) if quantised else inner
        x = x + inner @ w["W_downs"] * scale["down"]
    return x


def rms(x: np.ndarray, gamma: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma


def turn(x: np.ndarray, o: dict) -> np.ndarray:
    cos, sin = (wide(o[f"RoPE_{f}"]).transpose(1, 2, 0)[:, :, None] for f in ("cos", "sin"))
    low, high = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def token_fp8(x: np.ndarray, clamp: float) -> np.ndarray:
    """Each token in FP8 and back, clipped if asked."""
    x = np.clip(x, -clamp, clamp) if clamp else x
    scale = np.maximum(np.abs(x).max(-1, keepdims=True) / 240, 1e-5)
    return (x / scale).astype(np.float32).astype(FP8).astype(np.float64) * scale


def each_layer(shape: tuple, seed: int, scale: float = 1.0) -> list[np.ndarray]:
    return [random(shape, BF16, seed + 10 * layer, scale) for layer in range(LAYERS)]


ANGLE = np.random.default_rng(6).uniform(0, 6, (D // 2, B, A))
MASK = (np.random.default_rng(3).random((S, B, N, A)) < 0.7).astype(np.uint8)
MASK[-1], MASK[7, 0], MASK[100, 1] = 1, 0, 0
BASIC: dict[str, Any] = {
    "X": random((B, A, H), BF16),
    "W_qkvs": each_layer((H, (N + 2) * D), 1, H**-0.5),
    "W_outs": each_layer((N * D, H), 2, (N * D) ** -0.5),
    "W_gates": each_layer((H, I), 3, H**-0.5),
    "W_ups": each_layer((H, I), 4, H**-0.5),
    "W_downs": each_layer((I, H), 5, I**-0.5),
    "W_gamma_qkvs": each_layer((1, H), 6),
    "W_gamma_mlps": each_layer((1, H), 7),
    "K_caches": each_layer((B, 1, D, S), 8),
    "V_caches": each_layer((B, 1, S, D), 9),
    "RoPE_cos": np.cos(ANGLE).astype(BF16),
    "RoPE_sin": np.sin(ANGLE).astype(BF16),
    "attention_mask": MASK,
    "position_ids": np.array([[7], [100]], np.int32),
    "num_layers": 2,
}


def narrow(*chosen: int, **more: Any) -> dict[str, Any]:
    """FP8 weights, with scales, in the chosen layers."""
    o: dict[str, Any] = {"num_layers": LAYERS} | more
    for name in ("gate", "up", "down"):
        weights, scales = list(BASIC[f"W_{name}s"]), [None] * LAYERS
        for layer in chosen:
            wide_weights = weights[layer].astype(np.float32)
            scale = np.abs(wide_weights).max(0, keepdims=True) / 240
            weights[layer] = (wide_weights / scale).astype(FP8)
            scales[layer] = np.repeat(scale, 128, 0)
        o |= {f"W_{name}s": weights, f"W_{name}_scales": scales}
    return o


SCALE_SHAPES = {"gate": (128, I), "up": (128, I), "down": (128, H)}
IDLE = {f"W_{name}_scales": [np.ones(shape, np.float32)] * LAYERS for name, shape in SCALE_SHAPES.items()}
CASES = [
    Option("basic"),
    Option("scales-of-wide-weights", IDLE),  # have no effect
    Option("num_layers-1", {"num_layers": 1}),
    Option("num_layers-3", {"num_layers": 3}),
    Option("eps", {"eps": 2.0}),
    Option("no-positions", {"position_ids": None}),
    Option("groups-of-one", {"replica_groups": [[0]]}),
    Option("sbuf_residual_and_cc", {"sbuf_residual_and_cc": True}),
    Option("dtype_mode", {"dtype_mode": DtypeMode.AUTO}),
    Option("former-names", {"attention_mask": None, "mask_cache": MASK, "mask_active": MASK[-1:]}),
    Option("fp8-first", narrow(0), tolerance=FP8_TOLERANCE),
    Option("fp8-middle", narrow(1), tolerance=FP8_TOLERANCE),
    Option("fp8-last", narrow(2), tolerance=FP8_TOLERANCE),
    Option("fp8-ends", narrow(0, 2), tolerance=FP8_TOLERANCE),
    Option("fp8-all", narrow(0, 1, 2), tolerance=FP8_TOLERANCE),
    Option("fp8-one-layer", narrow(0, num_layers=1), tolerance=FP8_TOLERANCE),
    Option("clamp_bound", narrow(0, 1, clamp_bound=1.5), tolerance=FP8_TOLERANCE),
]
REFUSED = [
    *refusals(
        X=None,
        X__shape=random((B, A, 200), BF16),
        W_qkvs=BASIC["W_qkvs"][:1],
        W_qkvs__shape=[random((H, 7), BF16)] * 2,
        W_outs=[random((7, H), BF16)] * 2,
        W_gates=[random((7, I), BF16)] * 2,
        W_ups=[random((H, 9), BF16)] * 2,
        W_downs=[random((I, 9), BF16)] * 2,
        W_downs__none=[None, None],
        W_downs__fp8=[random((I, H), FP8)] * 2,
        W_gamma_qkvs=[],
        W_gamma_mlps=random((1, H), BF16),
        K_caches=BASIC["V_caches"][:1],
        K_caches__rank=[random((B, D, S), BF16)] * 2,
        V_caches__shape=BASIC["K_caches"],
        W_gamma_mlps__size=[random((1, 7), BF16)] * 2,
        V_caches=[],
        RoPE_cos=None,
        RoPE_sin=BASIC["RoPE_sin"][:3],
        attention_mask=None,
        attention_mask__shape=MASK[:, :, :1],
        position_ids=np.zeros((1, 1), np.int32),
        num_layers=0,
        clamp_bound=1.0,
        W_gate_scales=IDLE["W_gate_scales"],
        W_up_scales=IDLE["W_up_scales"],
        W_down_scales=IDLE["W_down_scales"],
        mask_cache=MASK,
        mask_active=MASK,
    ),
    Option("refuses-one-scale-missing", narrow(0) | {"W_up_scales": [None] * 3}, "W_up_scales"),
    Option("refuses-mixed-weights", narrow(0) | {"W_ups": BASIC["W_ups"]}, "W_ups"),
    Option("refuses-few-scales", narrow(0) | {"W_down_scales": []}, "W_down_scales"),
]
NAMED = {
    "refuses-W_downs__fp8": "W_down_scales",
    "refuses-W_gate_scales": "W_up_scales",  # the first that differs from the gates'
}
REFUSED = [case._replace(refused=NAMED.get(case.name, case.refused)) for case in REFUSED]


@each(on_both(CASES) + REFUSED)
def test_transformer_tkg(option: Option) -> None:
    check(option, transformer_tkg, BASIC, layers, TOLERANCE)
