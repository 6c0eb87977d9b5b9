"""Attention of the new tokens over the caches, inside the attention block of decode."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_tkg import AttnTKGConfig, attention_tkg
from nkilib.core.utils.common_types import DtypeMode
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.types import Tensor
from nkilib.experimental.transformer.attention_block_parameters import BlockCaches, BlockMasks, BlockSizes


def attend(
    q: Tensor, keys: Tensor, values: Tensor, n: BlockSizes, c: BlockCaches, masks: BlockMasks, mode: DtypeMode
) -> Tensor:
    """Return softmax(q K^T) V as [d, B, N, S] in SBUF.

    q has that shape, keys are [d, tokens], values [B, 1, S, d].
    """
    cfg = AttnTKGConfig(
        bs=n.batch,
        q_head=n.heads,
        s_active=n.active,
        curr_sprior=n.window,
        full_sprior=n.room,
        d_head=n.depth,
        block_len=n.block_len,
        tp_k_prior=not c.keys_transposed,
        use_pos_id=masks.pos_ids is not None,
        qk_in_sb=True,
        out_in_sb=True,
        enable_fa_s_prior_tiling=masks.tiled,
        fp8_packed=c.packed,
    )
    columns = n.tokens() * n.heads
    dtype = q.dtype if masks.statistics is None else nl.float32
    out = nl.ndarray((n.depth, columns), dtype, buffer=nl.sbuf)
    mask = masks.mask
    if mask is None:
        mask = causal_mask(n, masks.start_pos_ids if masks.packed else None)
    attention_tkg(
        q.reshape((n.depth, columns)),
        keys,
        values,
        with_head(c.keys, n),
        with_head(c.values, n),
        mask,
        out,
        cfg,
        masks.sbm,
        rope_pos_ids=masks.pos_ids,
        start_pos_ids=masks.start_pos_ids,
        sink=masks.sink,
        active_blocks_table=c.table,
        cp_softmax_stats_out=masks.statistics,
        max_context_len=masks.max_context_len,
        dtype_mode=mode,
    )
    return out.reshape((n.depth, n.batch, n.heads, n.active))


def with_head(cache: Tensor, n: BlockSizes) -> Tensor:
    """Return a flat cache with its dimension of one kv head."""
    if n.block_len > 0 or len(cache.shape) == 4:
        return cache
    return cache.reshape((cache.shape[0], 1, cache.shape[1], cache.shape[2]))


def causal_mask(n: BlockSizes, sequences: Tensor | None = None) -> Tensor:
    """Return [S, B, N, S] in HBM: each new token sees the new tokens up to itself.

    With the numbers of their sequences [B, S], those of its own alone.
    """
    columns = n.batch * n.heads
    tile = nl.ndarray((n.active, columns, n.active), nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, 1.0)
    nisa.affine_select(tile, [[0, columns], [1, n.active]], -1, tile, 0.0, cmp_op=nl.greater_equal)
    if sequences is not None:
        together = same_sequence(n, sequences).expand_dim(2).broadcast(2, n.heads)
        by_batch = tile.reshape_dim(1, (n.batch, n.heads))
        nisa.tensor_tensor(by_batch, by_batch, together, nl.multiply)
    mask = nl.ndarray((n.active, n.batch, n.heads, n.active), nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(mask.reshape((n.active, columns, n.active)), tile)
    return mask


def same_sequence(n: BlockSizes, sequences: Tensor) -> Tensor:
    """[j, b, i] = 1 where new tokens i and j of a row are of one sequence."""
    shape = (n.active, n.batch, n.active)
    together = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    of_queries = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(of_queries, sequences.expand_dim(0).broadcast(0, n.active))
    of_keys = load(sequences.permute((1, 0)), nl.float32).expand_dim(2).broadcast(2, n.active)
    nisa.tensor_tensor(together, of_queries, of_keys, nl.equal)
    return together
