"""The attention block of GPT-OSS with a sliding window, for prefill: projections, RoPE, attention, cache.

Keys of the window before the new tokens come from the cache, all others from the projection: no query reads
more than sliding_window keys, however long the sequence is. The units and stages are those of attention_cte.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_stages import run_stages
from nkilib.core.attention.attention_units import PrefillCall, PrefillMask, plan_units
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRangeIterator
from nkilib.core.utils.types import Tensor
from nkilib.experimental.attention.swa_cache import (
    PagedHeads,
    gather_window,
    paged_heads,
    write_pairs,
    write_tokens,
)
from nkilib.experimental.attention.swa_checks import (
    BlockShape,
    check_angles,
    check_cache,
    check_places,
    check_sizes,
    check_tensors,
    check_weights,
)
from nkilib.experimental.attention.swa_projection import Rotation, project_qkv

CORES = (0, 1)


@nki.jit
def swa_fused_cte(
    hidden_states: Tensor,
    qkv_weight: Tensor,
    op_weight: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    sink: Tensor | None,
    prior_tokens: Tensor,
    qkv_bias: Tensor | None,
    op_bias: Tensor | None,
    scale: float = 1.0,
    sliding_window: int = 128,
    block_size: int = 128,
    num_q_heads: int = 16,
    num_kv_heads: int = 2,
    d_head: int = 64,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (out [B, S, H], k_cache, v_cache) of an attention block with a sliding window; caches change.

        q, k, v = x Wqkv + b, RoPE of q and k         # new token s has position prior_tokens + s
        out = softmax(scale q k^T, sink) v Wo + bo    # over the last sliding_window keys up to its own

    Shapes (Nq = num_q_heads, N = num_kv_heads, d = d_head, I = (Nq + 2 N) d):

    | argument | shape |
    |---|---|
    | hidden_states | [B, S, H], bfloat16 or float16 |
    | qkv_weight, qkv_bias | [H, I], [1, I] or [I]: queries, keys, values |
    | op_weight, op_bias | [Nq d, H], [1, H] or [H] |
    | k_cache, v_cache | [blocks, N, block_size, d] in the dtype of hidden_states, or v_cache in FP8 |
    | k_cache in FP8 | [blocks, N, block_size / 2, d, 2]: neighbouring tokens side by side |
    | block_tables | [B, most blocks of a sequence] int32; -1 is no block |
    | cos_cache, sin_cache | [B, S, d] or [B, S, d / 2], of the new tokens |
    | sink | [Nq, 1], [1, Nq] or [Nq]: a logit that joins the softmax and has no value; None: none |
    | prior_tokens | one int32 for all sequences, or one for each |
    | k_scale, v_scale | one float32, [1], [1, 1] or [128, 1] (row 0 counts), with FP8 caches |

    Both caches are FP8 or neither is: FP8 ones hold x / scale. New tokens attend to each other unquantised.
    Position p of a sequence is row p % block_size of block table[p // block_size]. prior_tokens may be odd.
    The window is read before anything is written, so tables may reuse blocks. Two cores share tokens, heads
    and columns of out: H is even.

    Read of the page: signature, the layouts of FP8 caches, scales and results. The layout of 16-bit keys, of
    weights, tables, sink and angles is ours, as in attention_segmented_cte and qkv.

    >>> import ml_dtypes
    >>> ones = lambda *shape: np.ones(shape, ml_dtypes.bfloat16)
    >>> cache, zero = ones(3, 1, 128, 64), np.zeros((1, 1), np.int32)
    >>> sizes = {"num_q_heads": 1, "num_kv_heads": 1, "d_head": 64}
    >>> tensors = ones(1, 2, 128), ones(128, 192), ones(64, 128), cache, cache.copy(), zero, ones(1, 2, 64)
    >>> out, k, v = swa_fused_cte(*tensors, 0 * ones(1, 2, 64), None, zero, None, None, **sizes)
    >>> float(out[0, 1, 0]), float(v[0, 0, 1, 0]), float(v[0, 0, 2, 0])
    (8192.0, 128.0, 1.0)
    """
    cores = get_verified_program_sharding_info("swa_fused_cte", (0, 1), 2)[1]
    check_tensors(hidden_states, qkv_weight, op_weight, k_cache, v_cache, block_tables, cos_cache, sin_cache)
    n = BlockShape(
        hidden_states.shape[0],
        hidden_states.shape[1],
        hidden_states.shape[2],
        num_q_heads,
        num_kv_heads,
        d_head,
        sliding_window,
        block_size,
    )
    check_sizes(n, scale, cores)
    check_weights(n, hidden_states, qkv_weight, op_weight, qkv_bias, op_bias, sink)
    check_angles(n, cos_cache, sin_cache)
    check_cache(n, hidden_states, k_cache, v_cache, k_scale, v_scale)
    check_places(n, block_tables, prior_tokens)

    dtype = hidden_states.dtype
    quantized = v_cache.dtype in FP8
    keys = paged_heads(k_cache, block_size, quantized, k_scale)
    values = paged_heads(v_cache, block_size, False, v_scale)
    tables = block_tables.reinterpret_cast(nl.int32)
    starts = load_starts(prior_tokens, n.batch)
    k_window = nl.ndarray((n.batch, n.kv_heads, n.before, n.depth), dtype, buffer=nl.private_hbm)
    v_window = nl.ndarray((n.batch, n.kv_heads, n.before, n.depth), dtype, buffer=nl.private_hbm)
    for b in range(n.batch):
        gather_window(k_window[b], keys, tables[b : b + 1], starts[b])
        gather_window(v_window[b], values, tables[b : b + 1], starts[b])

    rows = nl.ndarray((n.batch, n.tokens, n.columns), dtype, buffer=nl.shared_hbm)
    angles = (n.batch * n.tokens, cos_cache.shape[2])
    rope = Rotation(cos_cache.reshape(angles), sin_cache.reshape(angles), n.queries + n.keys, n.depth)
    project_qkv(
        rows.reshape((n.batch * n.tokens, n.columns)),
        hidden_states.reshape((n.batch * n.tokens, n.hidden)),
        qkv_weight,
        qkv_bias,
        rope,
    )
    if cores == 2:
        for tensor in (rows, k_cache, v_cache):
            nisa.core_barrier(tensor, CORES)

    attention = nl.ndarray((n.batch, n.q_heads, n.depth, n.tokens), dtype, buffer=nl.shared_hbm)
    units: list = []
    logits = None if sink is None else sink.reshape((n.q_heads, 1))
    for b in range(n.batch):
        call = PrefillCall(
            heads_of(rows[b], 0, n.q_heads, n.depth),
            heads_of(rows[b], n.queries, n.kv_heads, n.depth),
            heads_of(rows[b], n.queries + n.keys, n.kv_heads, n.depth),
            k_window[b],
            v_window[b],
            window_mask(n, number_of(prior_tokens, b)),
            scale,
            True,
            True,
            True,
            nl.float32,
            None,
            logits,
        )
        call.out = attention[b]
        units.extend(plan_units(call))
    run_stages(units)
    for b in range(n.batch):
        write_caches(n, keys, values, rows[b], tables[b : b + 1], starts[b])
    if cores == 2:
        nisa.core_barrier(attention, CORES)
    bias = None if op_bias is None else op_bias.reshape((1, n.hidden))
    return output_projection_cte(attention, op_weight, bias), k_cache, v_cache


def heads_of(rows: Tensor, column: int, heads: int, depth: int) -> Tensor:
    """View columns of rows [S, I] as [heads, S, d]."""
    return rows[:, column : column + heads * depth].reshape_dim(1, (heads, depth)).permute((1, 0, 2))


def window_mask(n: BlockShape, prior_tokens: Tensor) -> PrefillMask:
    """Causal, with a window that reaches back to n.before keys of the cache."""
    mask = PrefillMask(True, n.window, 1, None, False, prior_tokens, None, None)
    mask.prior_window = n.before
    return mask


def number_of(prior_tokens: Tensor, b: int) -> Tensor:
    """The prior tokens of a sequence, [1]."""
    numbers = prior_tokens.reshape((prior_tokens.size,)).reinterpret_cast(nl.int32)
    at = b if prior_tokens.size > 1 else 0
    return numbers[at : at + 1]


def load_starts(prior_tokens: Tensor, batch: int) -> list:
    """The prior tokens of each sequence in every partition, int32 [128, 1]."""
    starts = []
    for b in range(batch):
        tile = nl.ndarray((PMAX, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(tile, number_of(prior_tokens, b).reshape((1, 1)).broadcast(0, PMAX))
        starts.append(tile)
    return starts


def write_caches(
    n: BlockShape, keys: PagedHeads, values: PagedHeads, rows: Tensor, table: Tensor, start: Tensor
) -> None:
    """Write this core's part of the new keys and values of a sequence."""
    first, end = program_share(n.tokens)
    own = TiledRangeIterator(end - first, 0, first, end)
    by_head = rows[:, n.queries :].reshape_dim(1, (2, n.kv_heads, n.depth))
    write_tokens(values, by_head[:, 1], table, start, own)
    if keys.packed:
        first, end = program_share(n.tokens // 2 + 1)  # the first and the last pair may be half new
        write_pairs(keys, by_head[:, 0], table, start, TiledRangeIterator(end - first, 0, first, end))
    else:
        write_tokens(keys, by_head[:, 0], table, start, own)


# ---- reference -----------------------------------------------------------------------------------


def swa_fused_cte_ref(
    hidden: np.ndarray,
    qkv_weight: np.ndarray,
    op_weight: np.ndarray,
    k_prior: np.ndarray,
    v_prior: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    sink: np.ndarray | None = None,
    qkv_bias: np.ndarray | float = 0.0,
    op_bias: np.ndarray | float = 0.0,
    scale: float = 1.0,
    sliding_window: int = 128,
    num_q_heads: int = 16,
    d_head: int = 64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out [S, H], k, v) of one sequence in float64; k and v [N, prior + S, d] have the prior tokens first.

    q, k, v and the result of attention are rounded to the dtype of hidden [S, H], as on the way through HBM.
    """
    kv_heads, prior, _ = k_prior.shape
    rounded = lambda x: np.float64(x.astype(np.float32).astype(hidden.dtype))  # noqa: E731
    heads = (np.float64(hidden) @ np.float64(qkv_weight) + qkv_bias).reshape(len(hidden), -1, d_head)
    half, turned = d_head // 2, heads[:, : num_q_heads + kv_heads]
    c, s = (np.float64(x)[:, None, :half] for x in (cos, sin))
    lower, upper = turned[..., :half], turned[..., half:]
    turned = np.concatenate([lower * c - upper * s, upper * c + lower * s], axis=-1)
    q, k = np.split(rounded(turned).swapaxes(0, 1), [num_q_heads])
    v = rounded(heads[:, num_q_heads + kv_heads :]).swapaxes(0, 1)
    k, v = np.concatenate([k_prior, k], axis=1), np.concatenate([v_prior, v], axis=1)
    each = num_q_heads // kv_heads
    scores = scale * np.einsum("hqd,hkd->hqk", q, np.repeat(k, each, axis=0))
    at, place = prior + np.arange(len(hidden))[:, None], np.arange(k.shape[1])
    scores = np.where((place <= at) & (place > at - sliding_window), scores, -np.inf)
    logit = np.full(num_q_heads, -np.inf) if sink is None else np.float64(np.ravel(sink))
    highest = np.maximum(scores.max(-1), logit[:, None])[..., None]
    weights = np.exp(scores - highest)
    sums = weights.sum(-1, keepdims=True) + np.exp(logit[:, None, None] - highest)
    found = rounded((weights / sums) @ np.repeat(v, each, axis=0))
    out = found.swapaxes(0, 1).reshape(len(hidden), -1) @ np.float64(op_weight) + op_bias
    return out, k, v
