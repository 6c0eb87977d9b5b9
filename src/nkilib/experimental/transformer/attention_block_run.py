"""The steps of the attention block of decode, on the object that holds its arguments."""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.operands import OperandNames, Operands
from nkilib.core.output_projection.output_projection_tkg import project_tokens as project_tokens_out
from nkilib.core.qkv.qkv_checks import check as check_qkv
from nkilib.core.qkv.qkv_mx import as_mx
from nkilib.core.qkv.qkv_outputs import transpose_heads
from nkilib.core.qkv.qkv_parameters import ArgumentNames, K, Q, QKVParameters
from nkilib.core.utils.common_types import DtypeMode, NormType, QKVWeightLayout
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.projection_results import store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.transformer.attention_block_attend import attend
from nkilib.experimental.transformer.attention_block_cache import CacheUpdate
from nkilib.experimental.transformer.attention_block_checks import (
    check_block,
    check_caches,
    check_companions,
    check_kinds,
    check_masks,
    check_packing,
)
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
    AttentionBlock,
    BlockInput,
    BlockOutput,
    BlockSizes,
    sizes_of,
)
from nkilib.experimental.transformer.attention_block_ranks import Partial, Sharing

INPUT_NAMES = ArgumentNames(
    "X",
    "W_qkv",
    "bias_qkv",
    "quantization_type_qkv",
    "weight_dequant_scale_qkv",
    "input_dequant_scale_qkv",
    norm="rmsnorm_X_enabled",
    gamma="rmsnorm_X_gamma",
    eps="rmsnorm_X_eps",
    hidden_actual="X_hidden_dim_actual",
    swizzled="is_h_transposed_by_4",
)
OUTPUT_NAMES = OperandNames(
    "input_dequant_scale_out", "weight_dequant_scale_out", "W_out", "bias_out", "quantization_type_out"
)


def run_block(b: AttentionBlock) -> tuple[Tensor, Tensor, Tensor, CacheUpdate | None]:
    """Return (out, K, V, update) of an attention block; the caller writes the update of the caches."""
    check_kinds(b)
    check_companions(b)
    n, c = sizes_of(b), b.caches
    check_block(n, b)
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
    check_masks(inner, b)
    if c.packed:
        check_packing(inner, n_prgs)
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
    before, after = head_norm(b.norm_before), head_norm(b.norm_after)
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
        eps=i.norm.eps,
        hidden_actual=i.norm.hidden_actual,
        d_head=n.depth,
        q_heads=n.heads,
        kv_heads=1,
        dtype_mode=dtype_mode,
        names=INPUT_NAMES,
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
        transpose_heads(keys[i].expand_dim(1), transposed[:, :, first : first + keys[i].shape[0]])
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
        q = o.quantized
        p = Operands(attended, o.weights, o.bias, q.kind, q.in_scale, q.w_scale, mode, OUTPUT_NAMES)
        return project_tokens_out(p, o.transposed, o.in_sbuf, None)
    if o.in_sbuf:
        return attended
    out = nl.ndarray((n.batch, n.heads, n.depth, n.active), attended.dtype, buffer=nl.shared_hbm)
    if core == 0:
        nisa.dma_copy(out.permute((2, 0, 1, 3)), attended)
    return out
