"""The router of a mixture of experts: logits of every token, its top-K experts, and their affinities.

Tokens lie in the PSUM partitions: x is stationary, the weights stream by. Of each row of logits max8 and
nc_find_index8 take the best experts; nc_match_replace8 marks their places, so that one comparison leaves
zeros elsewhere, however many experts are taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.projection import bytes_of
from nkilib.core.utils.tile_sizes import PMAX

from ..utils.common_types import RouterActFnType
from ..utils.kernel_helpers import get_program_sharding_info, is_hbm_buffer
from ..utils.tile_io import load
from ..utils.tiled_range import TiledRange
from .noaux_tc import NoAux, NoAuxAffinities, choices, noaux_tc_ref
from .router_checks import (
    MAX_K,
    XHBMLayout_H_T__0,
    XHBMLayout_T_H__1,
    XSBLayout__128_Hdiv128_T__3,
    XSBLayout_tp102__0,
    XSBLayout_tp201__2,
    XSBLayout_tp2013__1,
    check_arguments,
    check_hidden,
    check_layouts,
    check_mechanisms,
    check_results,
    check_rule,
)

__all__ = [
    "XHBMLayout_H_T__0",
    "XHBMLayout_T_H__1",
    "XSBLayout__128_Hdiv128_T__3",
    "XSBLayout_tp102__0",
    "XSBLayout_tp201__2",
    "XSBLayout_tp2013__1",
    "router_topk",
    "router_topk_input_w_load",
    "router_topk_input_x_load",
    "router_topk_ref",
]

BLOCK_BYTES = 64 * 1024  # of tokens per partition that are loaded together
CHUNK_BYTES = 8 * 1024  # per partition of one transfer: matmuls start before a block is complete
COLUMN_TILES = (32, 64)  # columns of the PE array that one of several small matmuls may take
LOWEST = -3.0e38  # the logit of an expert that does not exist
MARK = 3.0e38  # in place of the top-K logits


@nki.jit
def router_topk(
    x,
    w,
    w_bias,
    router_logits,
    expert_affinities,
    expert_index,
    act_fn,
    k,
    x_hbm_layout,
    x_sb_layout,
    router_pre_norm=True,
    norm_topk_prob=False,
    use_column_tiling=False,
    use_indirect_dma_scatter=False,
    return_eager_affi=False,
    use_PE_broadcast_w_bias=False,
    shard_on_tokens=False,
    skip_store_expert_index=False,
    skip_store_router_logits=False,
    output_in_sbuf=None,
    x_input_in_sbuf=None,
    expert_affin_in_sb=None,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=1.0,
):
    """logits = x w + w_bias in float32; the k largest of each token, and what they weigh.

    x is [H, T] (x_hbm_layout 0) or [T, H] (1) in HBM, or a tile in SBUF as x_sb_layout says (the constants
    of this module). w is [H, E], w_bias [1, E], [E] or None. The results go to router_logits [T, E],
    expert_index [T, k] (int32 or uint32, largest logit first, of equal ones the lower index) and
    expert_affinities [T, E], in HBM or, up to 128 tokens, in SBUF. They are returned as [router_logits,
    expert_index, expert_affinities], with return_eager_affi also the affinities of the chosen experts [T, k].

    act is softmax or sigmoid (act_fn). With router_pre_norm affinities are act(logits) of all experts;
    norm_topk_prob then leaves the top k, divided by their sum, and 0 elsewhere. Without router_pre_norm they
    are act of the top-k logits alone and 0 elsewhere; norm_topk_prob is then refused, as in published tests.

    NOAUX_TC is the rule of DeepSeek-V3 (noaux_tc.py names the sources): scores are sigmoid(x w); w_bias,
    which it needs, is added for the selection only; of the n_group groups of experts the topk_group stay
    whose two best sum to most. Affinities are the scores of the chosen, divided by their sum with
    norm_topk_prob, times routed_scaling_factor, and 0 elsewhere. These three arguments are named
    as on the page of rmsnorm_mx_prefill; router_pre_norm makes no difference here.

    use_column_tiling, use_PE_broadcast_w_bias and use_indirect_dma_scatter choose how, never what: matmuls of
    up to 64 tokens side by side in the PE array, the bias added by a matmul, the top-k affinities scattered
    by DMA. Of x in HBM any x_sb_layout is taken: how x travels is
    the kernel's business. With shard_on_tokens two cores share the tokens, else both do all; so they do
    for results in SBUF, which each core has its own of. output_in_sbuf, x_input_in_sbuf and
    expert_affin_in_sb are of older releases and have no effect: buffers are seen from the tensors.

    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((16, 256), np.float32), rng.standard_normal((256, 8), np.float32)
    >>> out = [np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32), np.zeros((16, 2), np.int32)]
    >>> logits, index, affinities = router_topk(x, w, None, *out, RouterActFnType.SOFTMAX, 2, 1, 0)
    >>> bool((index == np.argsort(-(x @ w), axis=1)[:, :2]).all())
    True
    """
    router = Router(x, w, act_fn, k, x_hbm_layout, x_sb_layout)
    if act_fn == RouterActFnType.NOAUX_TC:
        router.noaux = NoAux(n_group, topk_group, routed_scaling_factor)
    check_arguments(router, x, w, w_bias)
    check_results(router, router_logits, expert_affinities, expert_index)
    all_in_hbm = (
        is_hbm_buffer(router_logits) and is_hbm_buffer(expert_affinities) and is_hbm_buffer(expert_index)
    )
    check_mechanisms(router, use_indirect_dma_scatter, shard_on_tokens, all_in_hbm)
    check_rule(router, router_pre_norm, norm_topk_prob)
    router.set_rule(router_pre_norm, norm_topk_prob)
    router.column_tiling = use_column_tiling
    router.scatter = use_indirect_dma_scatter and is_hbm_buffer(expert_affinities)
    router.logits = None if skip_store_router_logits else router_logits
    router.index = None if skip_store_expert_index else expert_index
    router.affinities = expert_affinities
    results = [router_logits, expert_index, expert_affinities]
    if return_eager_affi:
        buffer = nl.shared_hbm if is_hbm_buffer(expert_affinities) else nl.sbuf
        router.top_affinities = nl.ndarray((router.tokens, k), expert_affinities.dtype, buffer=buffer)
        results.append(router.top_affinities)
    layout = x_sb_layout if router.x_in_sbuf else XSBLayout__128_Hdiv128_T__3
    weights = router_topk_input_w_load(w, layout)
    bias = Bias(w_bias, use_PE_broadcast_w_bias and router.noaux is None)
    if router.noaux is not None:
        router.noaux.bias = bias.rows
        bias = Bias(None, False)
    first, last = token_share(router.tokens, shard_on_tokens and all_in_hbm)
    for block in TiledRange(last - first, router.block_tokens):
        start = first + block.start_offset
        tokens = x if router.x_in_sbuf else load_columns(x, x_hbm_layout, start, block.size)
        for tile in TiledRange(block.size, PMAX):
            inside = tile.start_offset + (start if router.x_in_sbuf else 0)
            part = token_slice(tokens, layout, inside, tile.size)
            route(router, part, weights, bias, start + tile.start_offset)
    return results


@nki.jit
def router_topk_input_x_load(x, hbm_layout=XHBMLayout_H_T__0, sb_layout=XSBLayout_tp2013__1):
    """x in HBM as the SBUF tile of a layout. The page has (0, 3) and (1, 0), (1, 1), (1, 2) only."""
    check_layouts(hbm_layout, sb_layout)
    hidden, tokens = x.shape[hbm_layout], x.shape[1 - hbm_layout]
    check_hidden(hidden, sb_layout, "x")
    if sb_layout == XSBLayout__128_Hdiv128_T__3:
        return load_columns(x, hbm_layout, 0, tokens)
    tile = nl.ndarray((PMAX, tokens, hidden // PMAX), x.dtype, buffer=nl.sbuf)
    if sb_layout == XSBLayout_tp201__2:
        nisa.tensor_copy(tile.permute((0, 2, 1)), load_columns(x, hbm_layout, 0, tokens))
    else:
        for part in hidden_parts(hidden, sb_layout):
            target = tile[:, :, part.start_offset // PMAX : part.end_offset // PMAX]
            if hbm_layout == XHBMLayout_T_H__1:
                rows = x[:, part.start_offset : part.end_offset].reshape_dim(1, (PMAX, part.size // PMAX))
                nisa.dma_copy(target, rows.permute((1, 0, 2)))
            else:
                rows = x[part.start_offset : part.end_offset].reshape_dim(0, (PMAX, part.size // PMAX))
                nisa.tensor_copy(target.permute((0, 2, 1)), load(rows))
    return tile


@nki.jit
def router_topk_input_w_load(w, x_sb_layout):
    """w [H, E] in SBUF as [128, H/128, E], its rows in the order x has there."""
    hidden, experts = w.shape
    check_hidden(hidden, x_sb_layout, "w")
    tile = nl.ndarray((PMAX, hidden // PMAX, experts), w.dtype, buffer=nl.sbuf)
    chunk = max(1, CHUNK_BYTES // (experts * bytes_of(w)))
    if x_sb_layout in (XSBLayout_tp201__2, XSBLayout__128_Hdiv128_T__3):
        copy_in_chunks(tile, w.reshape_dim(0, (hidden // PMAX, PMAX)).permute((1, 0, 2)), chunk)
    else:
        for part in hidden_parts(hidden, x_sb_layout):
            rows = w[part.start_offset : part.end_offset].reshape_dim(0, (PMAX, part.size // PMAX))
            copy_in_chunks(tile[:, part.start_offset // PMAX : part.end_offset // PMAX], rows, chunk)
    return tile


# ---- arguments -----------------------------------------------------------------------------------


class Router(nl.NKIObject):
    """One call: sizes, the rule that makes affinities of logits, and where results go."""

    def __init__(self, x, w, act_fn, k, x_hbm_layout, x_sb_layout):
        self.x_in_sbuf = not is_hbm_buffer(x)
        self.x_hbm_layout = x_hbm_layout
        self.x_sb_layout = x_sb_layout
        self.hidden = w.shape[0]
        self.experts = w.shape[1]
        self.k = k
        self.softmax = act_fn == RouterActFnType.SOFTMAX
        self.act_fn = act_fn
        self.tokens = tokens_of(x, self.x_in_sbuf, x_hbm_layout, x_sb_layout)
        per_token = self.hidden // PMAX * bytes_of(x)
        self.block_tokens = max(1, BLOCK_BYTES // (per_token * PMAX)) * PMAX
        self.sparse = False  # affinities of other experts than the top k are 0
        self.divide_by_all = False
        self.divide_by_top = False
        self.column_tiling = False
        self.scatter = False
        self.noaux = None  # the rule of NOAUX_TC
        self.normalize_top = False
        self.logits = None
        self.index = None
        self.affinities = None
        self.top_affinities = None

    def set_rule(self, pre_norm: bool, norm_topk_prob: bool) -> None:
        """softmax over the top k is softmax over all, restricted to them and divided by their sum."""
        self.normalize_top = norm_topk_prob
        self.sparse = norm_topk_prob or not pre_norm
        self.divide_by_all = self.softmax and not self.sparse
        self.divide_by_top = norm_topk_prob or (self.softmax and self.sparse)


def tokens_of(x: Any, in_sbuf: bool, hbm_layout: int, sb_layout: int) -> int:
    if in_sbuf:
        return x.shape[2] if sb_layout == XSBLayout__128_Hdiv128_T__3 else x.shape[1]
    return x.shape[1] if hbm_layout == XHBMLayout_H_T__0 else x.shape[0]


# ---- operands ------------------------------------------------------------------------------------


class Bias(nl.NKIObject):
    """w_bias in SBUF: in every partition, or one row that a matmul brings to all of them."""

    def __init__(self, w_bias: Any, by_matmul: bool):
        self.rows = None  # [128, E], float32
        self.row = None  # [1, E]
        self.ones: Any = None  # [1, 128]
        if w_bias is not None:
            experts = w_bias.size
            if by_matmul:
                self.row = nl.ndarray((1, experts), w_bias.dtype, buffer=nl.sbuf)
                nisa.dma_copy(self.row, w_bias.reshape((1, experts)))
                self.ones = nl.ndarray((1, PMAX), w_bias.dtype, buffer=nl.sbuf)
                nisa.memset(self.ones, 1.0)
            else:
                self.rows = nl.ndarray((PMAX, experts), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(self.rows, w_bias.reshape((1, experts)).ap([[0, PMAX], [1, experts]]))


def token_share(tokens: int, shard_on_tokens: bool) -> tuple[int, int]:
    """(first, last) of the tokens this core routes."""
    if not shard_on_tokens:
        return 0, tokens
    n_prgs, prg_id = get_program_sharding_info()[1:]
    return prg_id * tokens // n_prgs, (prg_id + 1) * tokens // n_prgs


def hidden_parts(hidden: int, sb_layout: int) -> tuple:
    """The runs of H that are spread over the partitions each on its own: halves for layout 1."""
    return TiledRange(hidden, hidden // 2 if sb_layout == XSBLayout_tp2013__1 else hidden)


def load_columns(x: Any, hbm_layout: int, start: int, count: int) -> Any:
    """Tokens start .. start + count - 1 in SBUF, [128, H/128, count]."""
    steps = x.shape[hbm_layout] // PMAX
    chunk = max(1, CHUNK_BYTES // (count * bytes_of(x)))
    tile = nl.ndarray((PMAX, steps, count), x.dtype, buffer=nl.sbuf)
    if hbm_layout == XHBMLayout_H_T__0:
        rows = x[:, start : start + count].reshape_dim(0, (steps, PMAX))
        copy_in_chunks(tile, rows.permute((1, 0, 2)), chunk)
    else:
        rows = x[start : start + count].reshape_dim(1, (steps, PMAX))
        for part in TiledRange(steps, chunk):
            columns = rows[:, part.start_offset : part.end_offset, :]
            nisa.dma_transpose(tile[:, part.start_offset : part.end_offset, :], columns)
    return tile


def copy_in_chunks(tile: Any, source: Any, chunk: int) -> None:
    """[128, n, ...] in several transfers: matmuls start before the last has come."""
    for part in TiledRange(tile.shape[1], chunk):
        nisa.dma_copy(
            tile[:, part.start_offset : part.end_offset], source[:, part.start_offset : part.end_offset]
        )


def token_slice(tokens: Any, sb_layout: int, start: int, count: int) -> Any:
    """[128, H/128, count] of a tile of tokens."""
    if sb_layout == XSBLayout__128_Hdiv128_T__3:
        return tokens[:, :, start : start + count]
    return tokens[:, start : start + count, :].permute((0, 2, 1))


# ---- up to 128 tokens ----------------------------------------------------------------------------


def route(router: Router, tokens: Any, weights: Any, bias: Bias, begin: int) -> None:
    """All results of the tokens from `begin` on."""
    count, k = tokens.shape[2], router.k
    logits = compute_logits(router, tokens, weights, bias)
    store(router.logits, begin, logits[:, 0 : router.experts])
    scores, selected = None, logits
    if router.noaux is not None:
        scores = new_tile(count, router.experts)
        nisa.activation(scores, nl.sigmoid, logits[:, 0 : router.experts])
        selected = choices(router.noaux, scores)
    best = new_tile(count, MAX_K)
    places = nl.ndarray((count, MAX_K), nl.uint32, buffer=nl.sbuf)
    nisa.max8(best, selected)
    nisa.nc_find_index8(places, selected, best)
    index = places if router.index is None else places.view(router.index.dtype)
    store(router.index, begin, index[:, 0:k])
    if router.noaux is not None:
        chosen = NoAuxAffinities(router.noaux, scores, selected, best, k, router.normalize_top)
        store(router.affinities, begin, chosen.all)
        if router.top_affinities is not None:
            store(router.top_affinities, begin, chosen.of_top(places, k))
        return
    affinities = Affinities(router, logits, best)
    store(router.top_affinities, begin, affinities.top)
    if router.scatter and router.sparse:
        scatter(router, begin, affinities.top, places)
    else:
        store(router.affinities, begin, affinities.of_all(router, logits, best))


def new_tile(rows: int, columns: int) -> Any:
    return nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)


def compute_logits(router: Router, tokens: Any, weights: Any, bias: Bias) -> Any:
    """x w + bias, [tokens, experts]; at least 8 columns, which max8 needs."""
    steps, count = tokens.shape[1], tokens.shape[2]
    columns = tile_columns(count) if router.column_tiling else PMAX
    tiles = min(PMAX // columns, steps)
    psum = nl.ndarray((PMAX, router.experts), nl.float32, buffer=nl.psum)
    for step in range(steps):
        column = step % tiles * columns
        nisa.nc_matmul(
            psum[column : column + count],
            tokens[:, step, :],
            weights[:, step, :],
            tile_position=(0, column),
            tile_size=(PMAX, columns),
        )
    if bias.row is not None:
        nisa.nc_matmul(psum[0:count], bias.ones[:, 0:count], bias.row)
    logits = new_tile(count, max(MAX_K, router.experts))
    if router.experts < MAX_K:
        nisa.memset(logits[:, router.experts : MAX_K], LOWEST)
    result = logits[:, 0 : router.experts]
    if bias.rows is not None:
        nisa.tensor_tensor(result, psum[0:count], bias.rows[0:count], nl.add)
    else:
        nisa.tensor_copy(result, psum[0:count])
    for tile in range(1, tiles):
        nisa.tensor_tensor(result, result, psum[tile * columns : tile * columns + count], nl.add)
    return logits


def tile_columns(tokens: int) -> int:
    """Columns of the PE array that a matmul of so many tokens takes."""
    for columns in COLUMN_TILES:
        if tokens <= columns:
            return columns
    return PMAX


class Affinities(nl.NKIObject):
    """Of the top k [tokens, k], final; of all experts and what to multiply them by, before the selection."""

    def __init__(self, router: Router, logits: Any, best: Any):
        count = logits.shape[0]
        shift = None
        if router.softmax:
            shift = new_tile(count, 1)
            nisa.tensor_scalar(shift, best[:, 0:1], nl.multiply, -1.0)
        function = nl.exp if router.softmax else nl.sigmoid
        self.all = new_tile(count, router.experts)
        self.top = new_tile(count, router.k)
        total, top_total = new_tile(count, 1), new_tile(count, 1)
        nisa.activation_reduce(self.all, function, logits[:, 0 : router.experts], nl.add, total, bias=shift)
        nisa.activation_reduce(self.top, function, best[:, 0 : router.k], nl.add, top_total, bias=shift)
        self.factor = None
        if router.divide_by_all or router.divide_by_top:
            self.factor = new_tile(count, 1)
            nisa.reciprocal(self.factor, total if router.divide_by_all else top_total)
            nisa.tensor_scalar(self.top, self.top, nl.multiply, self.factor)

    def of_all(self, router: Router, logits: Any, best: Any) -> Any:
        """Affinities of every expert; best is overwritten."""
        if router.sparse:
            if router.k < MAX_K:
                nisa.memset(best[:, router.k : MAX_K], MARK)  # matches no logit
            nisa.nc_match_replace8(logits, logits, best, MARK)
            marked = logits[:, 0 : router.experts]
            nisa.scalar_tensor_tensor(self.all, marked, nl.equal, MARK, nl.multiply, self.all)
        if self.factor is not None:
            nisa.tensor_scalar(self.all, self.all, nl.multiply, self.factor)
        return self.all


def store(target: Any, begin: int, values: Any) -> None:
    """values to rows begin .. of a result in HBM or SBUF, in its dtype; a target of None is left out."""
    if target is None:
        return
    rows = target[begin : begin + values.shape[0]]
    if not is_hbm_buffer(target):
        nisa.tensor_copy(rows, values)
    else:
        nisa.dma_copy(rows, cast_to(target.dtype, values))


def cast_to(dtype: Any, values: Any) -> Any:
    if values.dtype == dtype:
        return values
    tile = nl.ndarray(values.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, values)
    return tile


def scatter(router: Router, begin: int, top: Any, places: Any) -> None:
    """Zeros to the rows of expert_affinities, then the top k by DMA to their places."""
    count, k, target = top.shape[0], router.k, router.affinities
    zeros = nl.ndarray((count, router.experts), target.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(target[begin : begin + count], zeros)
    values = cast_to(target.dtype, top)
    offsets = nl.ndarray((count, k), nl.int32, buffer=nl.sbuf)
    nisa.iota(offsets, [[0, k]], offset=begin * router.experts, channel_multiplier=router.experts)
    nisa.tensor_tensor(offsets, offsets, places.view(nl.int32)[:, 0:k], nl.add)
    flat = target.reshape((target.size, 1))
    for rank in range(k):
        places_of_rank = flat.ap([[1, count], [1, 1]], vector_offset=offsets[:, rank : rank + 1])
        nisa.dma_copy(places_of_rank, values[:, rank : rank + 1])


def router_topk_ref(
    x, w, w_bias, act_fn, k, x_hbm_layout, router_pre_norm=True, norm_topk_prob=False, **groups
):
    """[logits, index, affinities, those of the top k] in numpy, in float64: sort, then apply the rule."""
    tokens = (x.T if x_hbm_layout == XHBMLayout_H_T__0 else x).astype(np.float64)
    logits = tokens @ w.astype(np.float64)
    if act_fn == RouterActFnType.NOAUX_TC:
        index, affinities = noaux_tc_ref(logits, w_bias, k, normalize=norm_topk_prob, **groups)
        return [logits, index, affinities, np.take_along_axis(affinities, index, axis=1)]
    if w_bias is not None:
        logits = logits + np.reshape(w_bias, (1, -1)).astype(np.float64)
    index = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    chosen = np.zeros(logits.shape, bool)
    np.put_along_axis(chosen, index, True, axis=1)
    scored = logits if router_pre_norm else np.where(chosen, logits, -np.inf)
    if act_fn == RouterActFnType.SOFTMAX:
        powers = np.exp(scored - scored.max(axis=1, keepdims=True))
        affinities = powers / powers.sum(axis=1, keepdims=True)
    else:
        affinities = 1.0 / (1.0 + np.exp(-scored))
    if norm_topk_prob:
        affinities = np.where(chosen, affinities, 0.0)
        affinities = affinities / affinities.sum(axis=1, keepdims=True)
    return [logits, index, affinities, np.take_along_axis(affinities, index, axis=1)]
