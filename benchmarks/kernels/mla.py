"""Layers of DeepSeek V3.2 on trn3: RMSNorm to MX, multi-head latent attention, its sparse indexer."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.rmsnorm.rmsnorm_mx_prefill import rmsnorm_mx_prefill
from nkilib.core.subkernels.rmsnorm_mx_quantize_tkg import rmsnorm_mx_quantize_tkg
from nkilib.core.utils.common_types import RouterActFnType

from . import Case

HIDDEN = 7168


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def codes(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "uint8")


def fp8x4(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float8_e4m3fn_x4")


def passes(tokens: int, columns: int, count: float) -> float:
    """Return the microseconds in which VectorE reads rows of tokens `count` times, at 1.2 GHz."""
    return -(-tokens // 128) * columns * count / 1.2e3


def norm_prefill(tokens: int, experts: int = 0, lnc: int = 2) -> Case:
    """VectorE and ScalarE share 3.5 passes: squares, norm, out of PSUM, MX, out of PSUM again."""
    arguments = {"hidden_states": bf16(1, tokens, HIDDEN), "gamma": bf16(1, HIDDEN)}
    routed = {
        "router_weights": bf16(HIDDEN, experts),
        "router_bias": bf16(1, experts),
        "top_k": 8,
        "router_act_fn": RouterActFnType.NOAUX_TC,
        "n_group": 8,
        "topk_group": 4,
    }
    return Case(
        "rmsnorm_mx_prefill",
        f"{tokens}x{HIDDEN}" + (f", 8 of {experts} experts" if experts else ""),
        rmsnorm_mx_prefill,
        arguments | (routed if experts else {}),
        hbm_bytes=tokens * (3 * HIDDEN + 512 + 2 * experts) + 2 * HIDDEN * (1 + experts),
        flops={"bfloat16": 2.0 * tokens * HIDDEN * experts},
        other=("Vector", passes(tokens, HIDDEN, 1.75) / lnc),
        lnc=lnc,
        platform="trn3",
    )


def norm_decode(tokens: int, hidden: int) -> Case:
    words = (128, hidden // 512, tokens)
    return Case(
        "rmsnorm_mx_quantize_tkg",
        f"{tokens}x{hidden}",
        rmsnorm_mx_quantize_tkg,
        {
            "input": bf16(tokens, 1, hidden),
            "gamma": bf16(1, hidden),
            "output": bf16(128, tokens, hidden // 128),
            "output_quant": fp8x4(*words),
            "output_scale": codes(*words),
        },
        hbm_bytes=tokens * hidden * 5 + tokens * hidden // 32,
        other=("Vector", passes(tokens, hidden, 1.625)),
        platform="trn3",
    )


CASES = [
    norm_prefill(2048),
    norm_prefill(2048, 256),
    norm_decode(128, HIDDEN),
    norm_decode(32, 3072),
]
