"""Decode attention, paged prefill attention and nonzero rows at the sizes of language models."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nki import TensorSpec
from nkilib.core.attention.attention_segmented_cte import attention_segmented_cte
from nkilib.core.attention.attention_tkg import AttnTKGConfig, attention_tkg
from nkilib.core.subkernels.find_nonzero_indices import find_nonzero_indices
from nkilib.experimental.attention_mxfp8 import attention_mxfp8_tkg

from . import Case
from .attention import TENSOR_GHZ, TILE

GPSIMD_GHZ = 1.2


@nki.jit
def decode(q, k_active, v_active, k_prior, v_prior, mask, cfg, more):
    """Call attention_tkg as a larger kernel does: queries and new keys are already in SBUF."""
    out = nl.ndarray((cfg.bs, cfg.q_head, cfg.d_head, cfg.s_active), q.dtype, buffer=nl.shared_hbm)
    queries = nl.ndarray(q.shape, q.dtype, buffer=nl.sbuf)
    keys = nl.ndarray(k_active.shape, k_active.dtype, buffer=nl.sbuf)
    nisa.dma_copy(queries, q, dge_mode=nisa.dge_mode.hwdge)
    nisa.dma_copy(keys, k_active, dge_mode=nisa.dge_mode.hwdge)
    return attention_tkg(queries, keys, v_active, k_prior, v_prior, mask, out, cfg, None, **more)[0]


def cached(batch: int, heads: int, keys: int, head_dim: int, block_len: int = 0, lnc: int = 1) -> Case:
    """Bound by DMA: the cache, and the mask where positions do not define it."""
    cfg = AttnTKGConfig(
        batch, heads, 1, keys, keys, head_dim, block_len, qk_in_sb=True, tp_k_prior=block_len > 0
    )
    more: dict[str, Any] = {}
    k_prior = v_prior = TensorSpec((batch, 1, keys, head_dim), "bfloat16")
    if block_len:
        more["active_blocks_table"] = TensorSpec((batch, keys // block_len), "int32")
        k_prior = v_prior = TensorSpec((batch * keys // block_len, block_len, head_dim), "bfloat16")
    else:
        k_prior = TensorSpec((batch, 1, head_dim, keys), "bfloat16")
    columns = batch * heads
    return Case(
        "attention_tkg",
        f"batch {batch}, {heads} heads, {keys} x {head_dim}"
        + (f", blocks of {block_len}" if block_len else ""),
        decode,
        {
            "q": TensorSpec((head_dim, columns), "bfloat16"),
            "k_active": TensorSpec((head_dim, batch), "bfloat16"),
            "v_active": TensorSpec((batch, 1, 1, head_dim), "bfloat16"),
            "k_prior": k_prior,
            "v_prior": v_prior,
            "mask": TensorSpec((keys, batch, heads, 1), "uint8"),
            "cfg": cfg,
            "more": more,
        },
        hbm_bytes=4 * batch * keys * head_dim + keys * columns + 4 * columns * head_dim,
        lnc=lnc,
    )


def paged(
    heads: int, key_heads: int, queries: int, prior: int, head_dim: int, block: int, lnc: int = 1
) -> Case:
    """Bound by TensorE, like attention_cte.

    Scores, transposed probabilities and values of all pairs of tiles that see each other.
    """
    pairs = heads * sum(prior // TILE + tile + 1 for tile in range(queries // TILE))
    blocks = (prior + queries) // block
    cache = TensorSpec((blocks, key_heads, block, head_dim), "bfloat16")
    return Case(
        "attention_segmented_cte",
        f"{heads} heads ({key_heads} kv), {queries} new, {prior} cached x {head_dim}, blocks of {block}",
        attention_segmented_cte,
        {
            "q": TensorSpec((heads, queries, head_dim), "bfloat16"),
            "k_cache": cache,
            "v_cache": cache,
            "block_tables": TensorSpec((1, blocks), "int32"),
            "prior_tokens": TensorSpec((1, 1), "int32"),
            "block_size": block,
            "prior_seg_size": 2048,
            "num_q_heads": heads,
        },
        hbm_bytes=2 * (2 * heads * queries * head_dim + 2 * key_heads * (prior + queries) * head_dim),
        other=("Tensor", pairs * (2 * TILE + head_dim) / TENSOR_GHZ / 1e3 / lnc),
        lnc=lnc,
    )


def nonzero(rows: int, columns: int, lnc: int = 2) -> Case:
    """Bound by GpSimdE, which processes eight columns at a time, four cycles an element."""
    groups = -(-columns // lnc // 8)
    return Case(
        "find_nonzero_indices",
        f"{rows} x {columns} fp32",
        find_nonzero_indices,
        (TensorSpec((rows, columns), "float32"),),
        hbm_bytes=8 * rows * columns,
        other=("GpSimd", groups * 4 * rows / GPSIMD_GHZ / 1e3),
        lnc=lnc,
    )


def quantised(batch: int, keys: int, steps: int = 1, table: bool = False, lnc: int = 1) -> Case:
    """Bound by DMA: the cache with its scales."""
    heads, head_dim, blocks = 64, 128, batch * keys // 128
    new = TensorSpec((batch, steps, head_dim), "bfloat16")
    cache = TensorSpec((blocks, 32, 160), "float32")
    named = {"active_blocks_table": TensorSpec((batch, keys // 128), "int32")} if table else {}
    return Case(
        "attention_mxfp8_tkg",
        f"batch {batch}, {heads} heads, {steps} new, {keys} x {head_dim}" + (", table" if table else ""),
        attention_mxfp8_tkg,
        {
            "q": TensorSpec((batch, heads, steps, head_dim), "bfloat16"),
            "k_active": new,
            "v_active": new,
            "k_prior": cache,
            "v_prior": cache,
            "mask": TensorSpec((batch * keys // 2048, 128, 16), "uint8"),
            **named,
        },
        hbm_bytes=2 * blocks * 32 * 160 * 4,
        lnc=lnc,
        platform="trn3",
    )


CASES = [
    cached(4, 8, 8192, 128),
    cached(4, 8, 8192, 128, block_len=32),
    cached(4, 8, 8192, 128, lnc=2),
    cached(8, 5, 2048, 128),
    paged(8, 1, 1024, 8192, 128, 32),
    paged(8, 1, 512, 4096, 128, 128, lnc=2),
    nonzero(1024, 16),
    nonzero(10240, 128),
    quantised(2, 16384),
    quantised(4, 16384, table=True, lnc=2),
    quantised(2, 16384, steps=2, lnc=2),
]
