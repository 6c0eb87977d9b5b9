"""The attention block of decode: norm, QKV, RoPE, attention over the cache, its update, output projection."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.qkv.qkv_checks import check as check_qkv
from nkilib.core.qkv.qkv_mx import as_mx
from nkilib.core.qkv.qkv_outputs import turn
from nkilib.core.qkv.qkv_parameters import K, Q, QKVParameters
from nkilib.core.utils.common_types import DtypeMode, NormType, QKVWeightLayout, QuantizationType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.projection_results import store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.experimental.transformer.attention_block_attend import Masks, attend
from nkilib.experimental.transformer.attention_block_cache import CacheUpdate
from nkilib.experimental.transformer.attention_block_heads import (
    RotaryRows,
    change_section,
    head_norm,
    hidden_tile,
    new_keys_and_values,
    projected_rows,
    queries_by_batch,
    transpose_queries,
)
from nkilib.experimental.transformer.attention_block_parameters import (
    DEFAULT_EPS,
    BlockCaches,
    BlockSizes,
    check_block,
    check_caches,
    refuse_packing,
    sizes_of,
)
from nkilib.experimental.transformer.attention_block_ranks import Partial, Sharing
from nkilib.experimental.transformer.attention_block_ref import attention_block_tkg_ref
from nkilib.experimental.transformer.attention_block_tkg_sharding import CPCollectiveMode, KVDPCollectiveMode

__all__ = ["CPCollectiveMode", "KVDPCollectiveMode", "attention_block_tkg", "attention_block_tkg_ref"]


@nki.jit
def attention_block_tkg(
    X: Any,
    X_hidden_dim_actual: int | None,
    rmsnorm_X_enabled: bool,
    rmsnorm_X_eps: float | None,
    rmsnorm_X_gamma: Any,
    W_qkv: Any,
    bias_qkv: Any,
    quantization_type_qkv: QuantizationType,
    weight_dequant_scale_qkv: Any,
    input_dequant_scale_qkv: Any,
    rmsnorm_QK_pre_rope_enabled: bool,
    rmsnorm_QK_pre_rope_eps: float,
    rmsnorm_QK_pre_rope_W_Q: Any,
    rmsnorm_QK_pre_rope_W_K: Any,
    cos: Any,
    sin: Any,
    rope_contiguous_layout: bool,
    rmsnorm_QK_post_rope_enabled: bool,
    rmsnorm_QK_post_rope_eps: float,
    rmsnorm_QK_post_rope_W_Q: Any,
    rmsnorm_QK_post_rope_W_K: Any,
    K_cache_transposed: bool,
    active_blocks_table: Any,
    K_cache: Any,
    V_cache: Any,
    attention_mask: Any,
    sink: Any,
    update_cache: bool,
    kv_cache_update_idx: Any,
    W_out: Any,
    bias_out: Any,
    quantization_type_out: QuantizationType,
    weight_dequant_scale_out: Any,
    input_dequant_scale_out: Any,
    transposed_out: bool,
    out_in_sb: bool,
    transposed_in: bool = False,
    softmax_scale: float | None = None,
    enable_fa_s_prior_tiling: bool = True,
    fp8_packed: bool = False,
    k_scale: Any = None,
    v_scale: Any = None,
    sbm: Any = None,
    skip_attention: bool = False,
    is_h_transposed_by_4: bool = False,
    KVDP: int = 1,
    KVDP_replica_group: Any = None,
    KVDP_collective_mode: Any = None,
    KVDP_rank: Any = None,
    pos_ids: Any = None,
    swa_start_pos_ids: Any = None,
    S_ctx: int | None = None,
    max_context_len: Any = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    CP: int = 1,
    CP_replica_group: Any = None,
    CP_collective_mode: Any = None,
    pending_updates: Any = None,
) -> Any:
    """The attention block of decode, from hidden states to what is added to them. Returns (out, K, V).

        q, k, v = norm(X) W_qkv + bias          # N query heads, one key and one value head
        q, k = norm(RoPE(norm(q))), norm(RoPE(norm(k)))
        out = softmax(q K^T softmax_scale) V W_out + bias_out

    X [B, S, H], or [128, B S, H / 128] in SBUF, or [128, n, H / (128 n), B S] on n cores (transposed_in);
    W_qkv [H, (N + 2) d], gammas [1, H] and [1, d], cos and sin [d / 2, B, S] of pairs (i, i + d / 2), or
    (2 i, 2 i + 1) if not rope_contiguous_layout. Caches [B, 1, Smax, d], keys [B, 1, d, Smax] if
    K_cache_transposed, or blocks [n, block_len, d] with active_blocks_table [B, blocks]; the 1 may be absent.
    attention_mask [S_ctx, B, N, S], or pos_ids (and swa_start_pos_ids) as `attention_tkg` takes them; sink
    [N, 1]. W_out [N d, H].

    The new tokens are the last S of the S_ctx keys. update_cache writes them in place, sequence b from
    kv_cache_update_idx[b] on (in blocks: from that slot), nothing if that is negative or 2^32 - 1; K and V
    are then the caches, else the new tokens, K [d, B, S] and V [B, S, d]. k_scale and v_scale multiply what
    FP8 caches get. rmsnorm_X_eps None is 1e-6, softmax_scale None is 1 / sqrt(d).

    out [B S, H], or [128, n, H / (128 n), B S] (transposed_out), as a tile if out_in_sb; without W_out
    [B, N, d, S], or a tile [d, B, N, S]. skip_attention leaves q, scaled, in the place of attention's result.

    KVDP ranks share the sequences: each rank has X and cos of all B, the weights of its own N heads, and of
    caches, mask [S_ctx, B / KVDP, N KVDP, S], positions, table and index those of its sequences; sink [N, 1]
    of its heads, or of all. Heads are ordered by rank. KVDP_rank, one int32, is the rank's number in its
    group; None derives it from the groups. CP ranks share the keys: each has S_ctx / CP of them, mask
    [S_ctx / CP, B, N CP, S], positions that count its own keys, and -1 as the index of tokens that another
    rank stores. The new tokens are the last of every rank's keys, so the mask selects the rank that sees
    them; it is [S, B, N CP, S] with pos_ids. Either way out has this rank's heads and all B: add up what
    ranks return.

    MX weights (trn3): W_qkv as `qkv` takes them, is_h_transposed_by_4 being its is_h_dim_4h_transposed, and
    W_out as `output_projection_tkg` does: X and the result of attention are quantised to MXFP8 for them.
    pending_updates, our own addition: a list of an enclosing kernel that receives the CacheUpdate, to be
    written later instead of here. Published tests pass more than the 128 queries B S N of the page: up to
    4096 tokens are accepted.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, w, k, v = (rng.standard_normal(s, np.float32).astype(np.float16) for s in
    ...               [(2, 1, 128), (128, 6 * 32), (2, 1, 64, 32), (2, 1, 64, 32)])
    >>> options = dict.fromkeys(attention_block_tkg.func.__code__.co_varnames[:36])  # None, all of them
    >>> options |= dict(X=x, W_qkv=w, K_cache=k, V_cache=v, quantization_type_qkv=QuantizationType.NONE)
    >>> out, new_k, new_v = attention_block_tkg(**options, skip_attention=True)
    >>> out.shape, new_k.shape, new_v.shape
    ((2, 4, 32, 1), (32, 2, 1), (2, 1, 32))
    """
    refuse_packing(fp8_packed)
    c = BlockCaches(
        K_cache,
        V_cache,
        bool(K_cache_transposed),
        active_blocks_table,
        bool(update_cache),
        kv_cache_update_idx,
        (k_scale, v_scale),
    )
    n = sizes_of(X, transposed_in, W_qkv, c, (attention_mask, cos, pos_ids), S_ctx, (KVDP, CP))
    check_block(n, W_qkv)
    kernel_assert(
        W_out is not None or not transposed_out, "transposed_out: got True without W_out, allowed with it"
    )
    sharding = get_verified_program_sharding_info("attention_block_tkg", (0, 1), 2)
    n_prgs, core = sharding[1], sharding[2]
    ranks: Any = None
    inner = n
    if KVDP > 1 or CP > 1:
        ranks = Sharing(
            (KVDP, KVDP_replica_group, KVDP_collective_mode),
            (CP, CP_replica_group, CP_collective_mode),
            n_prgs,
            core,
        )
        inner = ranks.attended_here(n)
        kernel_assert(
            CP == 1 or pos_ids is None or attention_mask is not None or skip_attention,
            "attention_mask: got None with pos_ids, CP needs one to select the rank that sees the new tokens",
        )
    check_caches(inner, c)
    p = QKVParameters(
        hidden_tile(X) if transposed_in else X,
        W_qkv,
        bias=bias_qkv,
        quantization=quantization_type_qkv,
        w_scale=weight_dequant_scale_qkv,
        in_scale=input_dequant_scale_qkv,
        norm=NormType.RMS_NORM if rmsnorm_X_enabled else NormType.NO_NORM,
        gamma=rmsnorm_X_gamma,
        eps=DEFAULT_EPS if rmsnorm_X_eps is None else rmsnorm_X_eps,
        hidden_actual=X_hidden_dim_actual,
        d_head=n.depth,
        q_heads=n.heads,
        kv_heads=1,
        dtype_mode=dtype_mode,
    )
    if rmsnorm_X_enabled and rmsnorm_X_gamma is None:
        p.norm = NormType.RMS_NORM_SKIP_GAMMA
    as_mx(p, is_h_transposed_by_4, QKVWeightLayout.CONTIGUOUS)
    check_qkv(p)
    before = head_norm(
        rmsnorm_QK_pre_rope_enabled,
        rmsnorm_QK_pre_rope_eps,
        rmsnorm_QK_pre_rope_W_Q,
        rmsnorm_QK_pre_rope_W_K,
        n.depth,
    )
    after = head_norm(
        rmsnorm_QK_post_rope_enabled,
        rmsnorm_QK_post_rope_eps,
        rmsnorm_QK_post_rope_W_Q,
        rmsnorm_QK_post_rope_W_K,
        n.depth,
    )
    scale = n.depth**-0.5 if softmax_scale is None else softmax_scale
    transposed = nl.ndarray((n.depth, n.heads, n.tokens()), X.dtype, buffer=nl.sbuf)
    keys, values = [], []
    rows = projected_rows(p, n_prgs, core)
    for i in range(len(rows)):
        first, count = i * PMAX, rows[i].shape[0]
        rotary = None
        if cos is not None:
            rotary = RotaryRows(cos, sin, bool(rope_contiguous_layout), first, count)
        q_end = n.heads * n.depth
        q = change_section(rows[i][:, 0:q_end], n.depth, Q, before, rotary, after)
        k = change_section(rows[i][:, q_end : q_end + n.depth], n.depth, K, before, rotary, after)
        transpose_queries(transposed[:, :, first : first + count], q, scale)
        v = rows[i][:, q_end + n.depth :]
        new = new_keys_and_values(k.reshape((count, n.depth)), v, c, X.dtype)
        keys.append(new[0])
        values.append(new[1])
    if KVDP > 1:
        keys = ranks.own_rows(keys, inner.tokens(), KVDP_rank)
        values = ranks.own_rows(values, inner.tokens(), KVDP_rank)
    attended = queries_by_batch(transposed, n)
    columns = key_columns(keys, inner)
    if not skip_attention:
        masks = Masks(attention_mask, pos_ids, swa_start_pos_ids, sink, max_context_len)
        masks.tiled = enable_fa_s_prior_tiling
        masks.sbm = sbm
        masks.dtype_mode = dtype_mode
        new = (columns, attended_values(values, inner))
        if ranks is None:
            attended = attend(attended, new[0], new[1], n, c, masks)
        elif KVDP > 1:
            masks.sink = ranks.gathered_sinks(sink, n.heads)
            queries = ranks.queries_of_batches(attended, inner, KVDP_rank)
            found = attend(queries, new[0], new[1], inner, c, masks)
            attended = ranks.results_of_batches(found, inner, KVDP_rank)
        else:
            masks.sink = None  # it counts once, when the parts are joined
            masks.statistics = {}
            queries = ranks.queries_of_all(attended, inner)
            found = attend(queries, new[0], new[1], inner, c, masks)
            part = Partial(found, masks.statistics, inner, core)
            attended = ranks.joined(part, inner, sink, X.dtype)
    update = CacheUpdate(keys, values, columns, inner, c, n_prgs, core) if c.update else None
    out = projected(
        attended,
        n,
        core,
        W_out,
        bias_out,
        (quantization_type_out, weight_dequant_scale_out, input_dequant_scale_out),
        (bool(transposed_out), bool(out_in_sb)),
        dtype_mode,
    )
    if update is None:
        stored = new_tokens(keys, values, columns, inner, n_prgs, core)
        return out, stored[0], stored[1]
    if pending_updates is None:
        update.write()
    else:
        pending_updates.append(update)
    return out, c.keys, c.values


def key_columns(keys: list, n: BlockSizes) -> Any:
    """Return tiles [tokens <= 128, d] as [d, tokens]."""
    transposed = nl.ndarray((n.depth, 1, n.tokens()), keys[0].dtype, buffer=nl.sbuf)
    for i in range(len(keys)):
        first = i * PMAX
        turn(keys[i].expand_dim(1), transposed[:, :, first : first + keys[i].shape[0]])
    return transposed.reshape((n.depth, n.tokens()))


def attended_values(values: list, n: BlockSizes) -> Any:
    """Return values as attention takes them: a single tile unchanged, several as [B, 1, S, d] in HBM."""
    if len(values) == 1:
        return values[0]
    stored = nl.ndarray((n.batch, 1, n.active, n.depth), values[0].dtype, buffer=nl.private_hbm)
    store_rows(stored.reshape((n.tokens(), n.depth)), values, 0, 0, 0, n.depth)
    return stored


def new_tokens(keys: list, values: list, columns: Any, n: BlockSizes, n_prgs: int, core: int) -> tuple:
    """Store the new keys [d, B, S] and values [B, S, d] to HBM."""
    new_keys = nl.ndarray((n.depth, n.batch, n.active), keys[0].dtype, buffer=nl.shared_hbm)
    new_values = nl.ndarray((n.batch, n.active, n.depth), values[0].dtype, buffer=nl.shared_hbm)
    if core == 0:
        nisa.dma_copy(new_keys.reshape((n.depth, n.tokens())), columns)
    if core == n_prgs - 1:
        store_rows(new_values.reshape((n.tokens(), n.depth)), values, 0, 0, 0, n.depth)
    return new_keys, new_values


def projected(
    attended: Any, n: BlockSizes, core: int, w_out: Any, bias: Any, quantized: tuple, form: tuple, mode: Any
) -> Any:
    """Return the output projection of [d, B, N, S], or without weights that itself."""
    transposed, in_sbuf = form
    if w_out is not None:
        kind, w_scale, in_scale = quantized
        return output_projection_tkg(
            attended,
            w_out,
            bias,
            QuantizationType.NONE if kind is None else kind,
            w_scale,
            in_scale,
            transposed,
            in_sbuf,
            dtype_mode=mode,
        )
    if in_sbuf:
        return attended
    out = nl.ndarray((n.batch, n.heads, n.depth, n.active), attended.dtype, buffer=nl.shared_hbm)
    if core == 0:
        nisa.dma_copy(out.permute((2, 0, 1, 3)), attended)
    return out
