"""The fused decode kernels at slices of Llama 3, eight ranks sharing a layer."""

from __future__ import annotations

from dataclasses import replace

from nki import TensorSpec
from nkilib.core.utils.common_types import QuantizationType
from nkilib.experimental.transformer.attention_block_tkg import attention_block_tkg
from nkilib.experimental.transformer.transformer_tkg import transformer_tkg

from . import Case

D = 128
REQUIRED = attention_block_tkg.func.__code__.co_varnames[:36]


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(shape, dtype)


def cached_bytes(batch: int, heads: int, context: int) -> int:
    """Return the bytes of keys, values and the mask."""
    return 2 * 2 * batch * context * D + context * batch * heads


def block(batch: int, h: int, heads: int, context: int, lnc: int = 1) -> Case:
    """Bound by the sum of its parts, all memory-bound: QKV weights, caches and mask, output weights.

    Of the first case below, on sixteen DMA engines: 16.1, 43.1 and 10.7 us, and 0.2 us for hidden states.
    A launch adds a fixed cost that no schedule avoids: 9.4 us on trn2.
    """
    arguments = dict.fromkeys(REQUIRED) | {
        "X": tensor(batch, 1, h),
        "W_qkv": tensor(h, (heads + 2) * D),
        "rmsnorm_X_enabled": True,
        "rmsnorm_X_gamma": tensor(1, h),
        "quantization_type_qkv": QuantizationType.NONE,
        "cos": tensor(D // 2, batch, 1),
        "sin": tensor(D // 2, batch, 1),
        "rope_contiguous_layout": True,
        "K_cache": tensor(batch, 1, D, context),
        "V_cache": tensor(batch, 1, context, D),
        "K_cache_transposed": True,
        "attention_mask": tensor(context, batch, heads, 1, dtype="uint8"),
        "update_cache": True,
        "kv_cache_update_idx": tensor(batch, 1, dtype="int32"),
        "W_out": tensor(heads * D, h),
    }
    weights = h * (heads + 2) * D + heads * D * h
    return Case(
        "attention_block_tkg",
        f"{batch}x1, H {h}, {heads} heads of {D}, {context} keys bf16",
        attention_block_tkg,
        arguments,
        hbm_bytes=2 * (weights + 2 * batch * h) + cached_bytes(batch, heads, context),
        lnc=lnc,
    )


def block_of_ranks(kind: str, ranks: int, batch: int, h: int, heads: int, context: int) -> Case:
    """Time the same on ranks that share the sequences (KVDP), or the keys of all (CP)."""
    whole = block(batch, h, heads, context)
    own, keys = (batch // ranks, context) if kind == "KVDP" else (batch, context // ranks)
    changed = {
        "K_cache": tensor(own, 1, D, keys),
        "V_cache": tensor(own, 1, keys, D),
        "attention_mask": tensor(keys, own, heads * ranks, 1, dtype="uint8"),
        "kv_cache_update_idx": tensor(own, 1, dtype="int32"),
        kind: ranks,
        f"{kind}_replica_group": (tuple(range(ranks)),),
    }
    weights = h * (heads + 2) * D + heads * D * h
    return replace(
        whole,
        label=f"{kind}, {batch}x1, H {h}, {heads} heads of {D} each, {context} keys bf16",
        arguments=whole.arguments | changed,
        hbm_bytes=2 * (weights + 2 * batch * h) + cached_bytes(own, heads * ranks, keys),
        ranks=ranks,
        link_bytes=2 * batch * heads * D * 2 * (ranks - 1) // ranks,
    )


def layers(count: int, batch: int, h: int, heads: int, inner: int, context: int, lnc: int = 1) -> Case:
    arguments = {
        "X": tensor(batch, 1, h),
        "W_qkvs": [tensor(h, (heads + 2) * D)] * count,
        "W_outs": [tensor(heads * D, h)] * count,
        "W_gates": [tensor(h, inner)] * count,
        "W_ups": [tensor(h, inner)] * count,
        "W_downs": [tensor(inner, h)] * count,
        "W_gamma_qkvs": [tensor(1, h)] * count,
        "W_gamma_mlps": [tensor(1, h)] * count,
        "K_caches": [tensor(batch, 1, D, context)] * count,
        "V_caches": [tensor(batch, 1, context, D)] * count,
        "RoPE_cos": tensor(D // 2, batch, 1),
        "RoPE_sin": tensor(D // 2, batch, 1),
        "attention_mask": tensor(context, batch, heads, 1, dtype="uint8"),
        "position_ids": tensor(batch, 1, dtype="int32"),
        "num_layers": count,
    }
    weights = h * (heads + 2) * D + heads * D * h + 3 * h * inner
    return Case(
        "transformer_tkg",
        f"{count} layers, {batch}x1, H {h}, {heads} heads of {D}, I {inner}, {context} keys bf16",
        transformer_tkg,
        arguments,
        hbm_bytes=count * (2 * weights + cached_bytes(batch, heads, context)) + 4 * batch * h,
        lnc=lnc,
    )


CASES = [
    block(4, 4096, 4, 8192),
    block(4, 8192, 8, 8192, lnc=2),
    layers(1, 1, 4096, 4, 1792, 2048),
    layers(2, 4, 4096, 4, 1792, 8192),
    layers(2, 4, 8192, 8, 3584, 8192, lnc=2),
]
