"""The attention block of decode: norm, QKV, RoPE, attention over the cache, its update, output projection."""

from __future__ import annotations

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.qkv.qkv_checks import check as check_qkv
from nkilib.core.qkv.qkv_mx import as_mx
from nkilib.core.qkv.qkv_outputs import turn
from nkilib.core.qkv.qkv_parameters import K, Q, QKVParameters
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import DtypeMode, NormType, QKVWeightLayout, QuantizationType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.projection_results import store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups
from nkilib.experimental.transformer.attention_block_attend import attend
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
    AttentionBlock,
    BlockCaches,
    BlockInput,
    BlockMasks,
    BlockOutput,
    BlockSizes,
    HeadNormOptions,
    InputNorm,
    QuantizedWeights,
    RankShare,
    RotaryTables,
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
    refuse_packing(fp8_packed)
    caches = BlockCaches(
        K_cache,
        V_cache,
        bool(K_cache_transposed),
        active_blocks_table,
        bool(update_cache),
        kv_cache_update_idx,
        (k_scale, v_scale),
    )
    norm = InputNorm(rmsnorm_X_enabled, rmsnorm_X_eps, rmsnorm_X_gamma, X_hidden_dim_actual)
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
    masks = BlockMasks(
        attention_mask, pos_ids, swa_start_pos_ids, sink, max_context_len, enable_fa_s_prior_tiling, sbm
    )
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


def run_block(b: AttentionBlock) -> tuple[Tensor, Tensor, Tensor, CacheUpdate | None]:
    """Return (out, K, V, update) of an attention block; the caller writes the update of the caches."""
    n, c = sizes_of(b), b.caches
    check_block(n, b.input.w_qkv)
    kernel_assert(
        b.output.weights is not None or not b.output.transposed,
        "transposed_out: got True without W_out, allowed with it",
    )
    sharding = get_verified_program_sharding_info("attention_block_tkg", (0, 1), 2)
    n_prgs, core = sharding[1], sharding[2]
    ranks: Sharing | None = None
    inner = n
    if b.kvdp.ranks > 1 or b.cp.ranks > 1:
        ranks = Sharing(b.kvdp, b.cp, n_prgs, core)
        inner = ranks.attended_here(n)
        kernel_assert(
            b.cp.ranks == 1 or b.masks.pos_ids is None or b.masks.mask is not None or b.skip_attention,
            "attention_mask: got None with pos_ids, CP needs one to select the rank that sees the new tokens",
        )
    check_caches(inner, c)
    new = project_tokens(b, n, n_prgs, core)
    if ranks is not None and b.kvdp.ranks > 1:
        new.keys = ranks.own_rows(new.keys, inner.tokens())
        new.values = ranks.own_rows(new.values, inner.tokens())
    attended = queries_by_batch(new.queries, n)
    columns = key_columns(new.keys, inner)
    if not b.skip_attention:
        values = attended_values(new.values, inner)
        attended = attend_here(b, n, inner, ranks, attended, columns, values, core)
    update = CacheUpdate(new.keys, new.values, columns, inner, c, n_prgs, core) if c.update else None
    out = projected(attended, n, core, b.output, b.dtype_mode)
    if update is None:
        stored = new_tokens(new.keys, new.values, columns, inner, n_prgs, core)
        return out, stored[0], stored[1], None
    return out, c.keys, c.values, update


@dataclass
class ProjectedTokens(nl.NKIObject):
    """Queries [d, N, tokens] of the new tokens; their keys and values in tiles [tokens <= 128, d]."""

    queries: Tensor
    keys: list
    values: list


def project_tokens(b: AttentionBlock, n: BlockSizes, n_prgs: int, core: int) -> ProjectedTokens:
    """Project the new tokens, and apply norms of heads and RoPE."""
    p = projection_of(b.input, n, b.dtype_mode)
    before, after = head_norm(b.norm_before, n.depth), head_norm(b.norm_after, n.depth)
    scale = n.depth**-0.5 if b.softmax_scale is None else b.softmax_scale
    dtype = b.input.x.dtype
    new = ProjectedTokens(nl.ndarray((n.depth, n.heads, n.tokens()), dtype, buffer=nl.sbuf), [], [])
    rows = projected_rows(p, n_prgs, core)
    for i in range(len(rows)):
        first, count = i * PMAX, rows[i].shape[0]
        rotary = None if b.rotary.cos is None else RotaryRows(b.rotary, first, count)
        q_end = n.heads * n.depth
        q = change_section(rows[i][:, 0:q_end], n.depth, Q, before, rotary, after)
        k = change_section(rows[i][:, q_end : q_end + n.depth], n.depth, K, before, rotary, after)
        transpose_queries(new.queries[:, :, first : first + count], q, scale)
        v = rows[i][:, q_end + n.depth :]
        stored = new_keys_and_values(k.reshape((count, n.depth)), v, b.caches, dtype)
        new.keys.append(stored[0])
        new.values.append(stored[1])
    return new


def projection_of(i: BlockInput, n: BlockSizes, dtype_mode: DtypeMode) -> QKVParameters:
    """Return the checked parameters of the projection."""
    p = QKVParameters(
        hidden_tile(i.x) if i.transposed else i.x,
        i.w_qkv,
        bias=i.bias,
        quantization=i.quantized.kind,
        w_scale=i.quantized.w_scale,
        in_scale=i.quantized.in_scale,
        norm=NormType.RMS_NORM if i.norm.enabled else NormType.NO_NORM,
        gamma=i.norm.gamma,
        eps=DEFAULT_EPS if i.norm.eps is None else i.norm.eps,
        hidden_actual=i.norm.hidden_actual,
        d_head=n.depth,
        q_heads=n.heads,
        kv_heads=1,
        dtype_mode=dtype_mode,
    )
    if i.norm.enabled and i.norm.gamma is None:
        p.norm = NormType.RMS_NORM_SKIP_GAMMA
    as_mx(p, i.transposed_by_4, QKVWeightLayout.CONTIGUOUS)
    check_qkv(p)
    return p


def attend_here(
    b: AttentionBlock,
    n: BlockSizes,
    inner: BlockSizes,
    ranks: Sharing | None,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    core: int,
) -> Tensor:
    """Return the attention of this rank's heads, [d, B, N, S]; ranks exchange queries and results."""
    masks, c, sink = b.masks, b.caches, b.masks.sink
    if ranks is None:
        return attend(q, keys, values, n, c, masks, b.dtype_mode)
    if b.kvdp.ranks > 1:
        masks.sink = ranks.gathered_sinks(sink, n.heads)
        queries = ranks.queries_of_batches(q, inner)
        found = attend(queries, keys, values, inner, c, masks, b.dtype_mode)
        return ranks.results_of_batches(found, inner)
    masks.sink = None  # it counts once, when the parts are joined
    statistics: dict[str, Tensor] = {}
    masks.statistics = statistics
    queries = ranks.queries_of_all(q, inner)
    found = attend(queries, keys, values, inner, c, masks, b.dtype_mode)
    part = Partial(found, statistics, inner, core)
    return ranks.joined(part, inner, sink, b.input.x.dtype)


def key_columns(keys: list, n: BlockSizes) -> Tensor:
    """Return tiles [tokens <= 128, d] as [d, tokens]."""
    transposed = nl.ndarray((n.depth, 1, n.tokens()), keys[0].dtype, buffer=nl.sbuf)
    for i in range(len(keys)):
        first = i * PMAX
        turn(keys[i].expand_dim(1), transposed[:, :, first : first + keys[i].shape[0]])
    return transposed.reshape((n.depth, n.tokens()))


def attended_values(values: list, n: BlockSizes) -> Tensor:
    """Return values as attention takes them: a single tile unchanged, several as [B, 1, S, d] in HBM."""
    if len(values) == 1:
        return values[0]
    stored = nl.ndarray((n.batch, 1, n.active, n.depth), values[0].dtype, buffer=nl.private_hbm)
    store_rows(stored.reshape((n.tokens(), n.depth)), values, 0, 0, 0, n.depth)
    return stored


def new_tokens(keys: list, values: list, columns: Tensor, n: BlockSizes, n_prgs: int, core: int) -> tuple:
    """Store the new keys [d, B, S] and values [B, S, d] to HBM."""
    new_keys = nl.ndarray((n.depth, n.batch, n.active), keys[0].dtype, buffer=nl.shared_hbm)
    new_values = nl.ndarray((n.batch, n.active, n.depth), values[0].dtype, buffer=nl.shared_hbm)
    if core == 0:
        nisa.dma_copy(new_keys.reshape((n.depth, n.tokens())), columns)
    if core == n_prgs - 1:
        store_rows(new_values.reshape((n.tokens(), n.depth)), values, 0, 0, 0, n.depth)
    return new_keys, new_values


def projected(attended: Tensor, n: BlockSizes, core: int, o: BlockOutput, mode: DtypeMode) -> Tensor:
    """Return the output projection of [d, B, N, S]; without weights that itself, in SBUF or HBM."""
    if o.weights is not None:
        return output_projection_tkg(
            attended,
            o.weights,
            o.bias,
            o.quantized.kind,
            o.quantized.w_scale,
            o.quantized.in_scale,
            o.transposed,
            o.in_sbuf,
            dtype_mode=mode,
        )
    if o.in_sbuf:
        return attended
    out = nl.ndarray((n.batch, n.heads, n.depth, n.active), attended.dtype, buffer=nl.shared_hbm)
    if core == 0:
        nisa.dma_copy(out.permute((2, 0, 1, 3)), attended)
    return out
