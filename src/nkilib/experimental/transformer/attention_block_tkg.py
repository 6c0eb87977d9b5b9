"""The attention block of decode: norm, QKV, RoPE, attention over the cache, its update, output projection."""

from __future__ import annotations

import nki
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups
from nkilib.experimental.transformer.attention_block_cache import CacheUpdate
from nkilib.experimental.transformer.attention_block_checks import check_bounds
from nkilib.experimental.transformer.attention_block_parameters import (
    INPUT_EPS,
    AttentionBlock,
    BlockCaches,
    BlockInput,
    BlockInputNorm,
    BlockMasks,
    BlockOutput,
    HeadNormOptions,
    QuantizedWeights,
    RankShare,
    RotaryTables,
)
from nkilib.experimental.transformer.attention_block_ref import attention_block_tkg_ref
from nkilib.experimental.transformer.attention_block_run import run_block
from nkilib.experimental.transformer.attention_block_tkg_sharding import CPCollectiveMode, KVDPCollectiveMode

__all__ = ["CPCollectiveMode", "KVDPCollectiveMode", "attention_block_tkg", "attention_block_tkg_ref"]


@nki.jit
def attention_block_tkg(
    X: Tensor,
    X_hidden_dim_actual: int | None,
    rmsnorm_X_enabled: bool,
    rmsnorm_X_eps: float | None,
    rmsnorm_X_gamma: Tensor | None,
    W_qkv: Tensor,
    bias_qkv: Tensor | None,
    quantization_type_qkv: QuantizationType,
    weight_dequant_scale_qkv: Tensor | None,
    input_dequant_scale_qkv: Tensor | None,
    rmsnorm_QK_pre_rope_enabled: bool,
    rmsnorm_QK_pre_rope_eps: float,
    rmsnorm_QK_pre_rope_W_Q: Tensor | None,
    rmsnorm_QK_pre_rope_W_K: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    rope_contiguous_layout: bool,
    rmsnorm_QK_post_rope_enabled: bool,
    rmsnorm_QK_post_rope_eps: float,
    rmsnorm_QK_post_rope_W_Q: Tensor | None,
    rmsnorm_QK_post_rope_W_K: Tensor | None,
    K_cache_transposed: bool,
    active_blocks_table: Tensor | None,
    K_cache: Tensor,
    V_cache: Tensor,
    attention_mask: Tensor | None,
    sink: Tensor | None,
    update_cache: bool,
    kv_cache_update_idx: Tensor | None,
    W_out: Tensor | None,
    bias_out: Tensor | None,
    quantization_type_out: QuantizationType,
    weight_dequant_scale_out: Tensor | None,
    input_dequant_scale_out: Tensor | None,
    transposed_out: bool,
    out_in_sb: bool,
    transposed_in: bool = False,
    softmax_scale: float | None = None,
    enable_fa_s_prior_tiling: bool = True,
    fp8_packed: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    sbm: BufferManager | None = None,
    skip_attention: bool = False,
    is_h_transposed_by_4: bool = False,
    KVDP: int = 1,
    KVDP_replica_group: ReplicaGroups | None = None,
    KVDP_collective_mode: KVDPCollectiveMode | None = None,
    KVDP_rank: Tensor | None = None,
    pos_ids: Tensor | None = None,
    swa_start_pos_ids: Tensor | None = None,
    S_ctx: int | None = None,
    max_context_len: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    CP: int = 1,
    CP_replica_group: ReplicaGroups | None = None,
    CP_collective_mode: CPCollectiveMode | None = None,
    bound_min: Tensor | None = None,
    bound_max: Tensor | None = None,
    pending_updates: list[CacheUpdate] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
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

    Packed sequences: bound_min and bound_max [B, S] take the place of the mask and the positions. Of row b of
    the cache new token i sees keys bound_min <= j < bound_max; of the new tokens up to itself those with its
    bound_min, which names its sequence. Not with CP. Release 2.33 has packing, but its arguments could not be
    read: these are ours, named as in `attention_cte`.

    The new tokens are the last S of the S_ctx keys. update_cache writes them in place, sequence b from
    kv_cache_update_idx[b] on (in blocks: from that slot), nothing if that is negative or 2^32 - 1; K and V
    are then the caches, else the new tokens, K [d, B, S] and V [B, S, d]. k_scale and v_scale multiply what
    the caches get, clipped to the largest value of their dtype; FP8 caches need them. fp8_packed: FP8 keys in
    blocks [n, block_len / 2, d, 2], as `qkv` writes them. rmsnorm_X_eps None is 1e-3, softmax_scale None is
    1 / sqrt(d).

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

    A block of two sequences, 4 query heads of 32 elements and 64 keys, with a norm of X and an update of the
    caches:

    >>> import numpy as np
    >>> from nkilib.core.utils.common_types import QuantizationType
    >>> from nkilib.kernels import attention_block_tkg
    >>> rng = np.random.default_rng(0)
    >>> def random(*shape):
    ...     return (rng.standard_normal(shape) / 4).astype(np.float16)
    >>> x, k_cache, v_cache = random(2, 1, 128), random(2, 1, 64, 32), random(2, 1, 64, 32)
    >>> projection = dict(
    ...     X=x, X_hidden_dim_actual=None, W_qkv=random(128, 6 * 32), bias_qkv=None,
    ...     rmsnorm_X_enabled=True, rmsnorm_X_eps=1e-6, rmsnorm_X_gamma=np.ones((1, 128), np.float16),
    ...     quantization_type_qkv=QuantizationType.NONE,
    ...     weight_dequant_scale_qkv=None, input_dequant_scale_qkv=None)
    >>> heads = dict(
    ...     rmsnorm_QK_pre_rope_enabled=False, rmsnorm_QK_pre_rope_eps=1e-6,
    ...     rmsnorm_QK_pre_rope_W_Q=None, rmsnorm_QK_pre_rope_W_K=None,
    ...     cos=None, sin=None, rope_contiguous_layout=True,
    ...     rmsnorm_QK_post_rope_enabled=False, rmsnorm_QK_post_rope_eps=1e-6,
    ...     rmsnorm_QK_post_rope_W_Q=None, rmsnorm_QK_post_rope_W_K=None)
    >>> attention = dict(
    ...     K_cache=k_cache, V_cache=v_cache, K_cache_transposed=False, active_blocks_table=None,
    ...     attention_mask=np.ones((64, 2, 4, 1), np.uint8), sink=None,
    ...     update_cache=True, kv_cache_update_idx=np.array([[63], [63]], np.int32))
    >>> output = dict(
    ...     W_out=random(4 * 32, 128), bias_out=None, quantization_type_out=QuantizationType.NONE,
    ...     weight_dequant_scale_out=None, input_dequant_scale_out=None,
    ...     transposed_out=False, out_in_sb=False)
    >>> out, new_k, new_v = attention_block_tkg(**projection, **heads, **attention, **output)
    >>> out.shape, new_k.shape, new_v.shape
    ((2, 128), (2, 1, 64, 32), (2, 1, 64, 32))
    """
    caches = BlockCaches(
        K_cache,
        V_cache,
        bool(K_cache_transposed),
        active_blocks_table,
        bool(update_cache),
        kv_cache_update_idx,
        (k_scale, v_scale),
        fp8_packed,
    )
    eps = INPUT_EPS if rmsnorm_X_eps is None else rmsnorm_X_eps
    norm = BlockInputNorm(bool(rmsnorm_X_enabled), eps, rmsnorm_X_gamma, X_hidden_dim_actual)
    w_qkv = QuantizedWeights(quantization_type_qkv, weight_dequant_scale_qkv, input_dequant_scale_qkv)
    kind_out = QuantizationType.NONE if quantization_type_out is None else quantization_type_out
    w_out = QuantizedWeights(kind_out, weight_dequant_scale_out, input_dequant_scale_out)
    before = HeadNormOptions(
        rmsnorm_QK_pre_rope_enabled, rmsnorm_QK_pre_rope_eps, rmsnorm_QK_pre_rope_W_Q, rmsnorm_QK_pre_rope_W_K
    )
    after = HeadNormOptions(
        rmsnorm_QK_post_rope_enabled,
        rmsnorm_QK_post_rope_eps,
        rmsnorm_QK_post_rope_W_Q,
        rmsnorm_QK_post_rope_W_K,
    )
    packed = bound_min is not None or bound_max is not None
    if packed:
        check_bounds(bound_min, bound_max, attention_mask, pos_ids, swa_start_pos_ids, CP)
        pos_ids, swa_start_pos_ids = bound_max, bound_min
    masks = BlockMasks(
        attention_mask, pos_ids, swa_start_pos_ids, sink, max_context_len, enable_fa_s_prior_tiling, sbm
    )
    masks.packed = packed
    block = AttentionBlock(
        BlockInput(X, W_qkv, bias_qkv, norm, w_qkv, transposed_in, is_h_transposed_by_4),
        caches,
        masks,
        BlockOutput(W_out, bias_out, w_out, bool(transposed_out), bool(out_in_sb)),
        RotaryTables(cos, sin, bool(rope_contiguous_layout)),
        before,
        after,
        RankShare(KVDP, KVDP_replica_group, KVDP_collective_mode, KVDP_rank),
        RankShare(CP, CP_replica_group, CP_collective_mode),
        softmax_scale,
        skip_attention,
        S_ctx,
        dtype_mode,
    )
    out, keys, values, update = run_block(block)
    if update is not None:
        if pending_updates is None:
            update.write()
        else:
            pending_updates.append(update)
    return out, keys, values
