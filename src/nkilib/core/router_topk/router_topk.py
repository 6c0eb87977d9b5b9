"""The router of a mixture of experts: logits of every token, its top-K experts, and their affinities.

Tokens lie in the PSUM partitions: x is stationary, the weights stream by. Of each row of logits max8 and
nc_find_index8 take the best experts; nc_match_replace8 marks their places, so that one comparison leaves
zeros elsewhere, however many experts are taken.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.router_topk.router_operands import (
    CHUNK_BYTES,
    Bias,
    Router,
    copy_in_chunks,
    hidden_parts,
    load_columns,
    token_share,
    token_slice,
)
from nkilib.core.router_topk.router_tokens import route
from nkilib.core.utils.projection import bytes_of
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.common_types import RouterActFnType
from ..utils.kernel_helpers import is_hbm_buffer
from ..utils.tile_io import load
from ..utils.tiled_range import TiledRange
from .noaux_tc import NoAux, noaux_tc_ref
from .router_checks import (
    XHBMLayout_H_T__0,
    XHBMLayout_T_H__1,
    XSBLayout__128_Hdiv128_T__3,
    XSBLayout_tp102__0,
    XSBLayout_tp201__2,
    XSBLayout_tp2013__1,
    check_arguments,
    check_groups,
    check_hidden,
    check_layouts,
    check_mechanisms,
    check_results,
    check_rule,
    check_tensors,
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


@nki.jit
def router_topk(
    x: Tensor,
    w: Tensor,
    w_bias: Tensor | None,
    router_logits: Tensor,
    expert_affinities: Tensor,
    expert_index: Tensor,
    act_fn: RouterActFnType,
    k: int,
    x_hbm_layout: int,
    x_sb_layout: int,
    router_pre_norm: bool = True,
    norm_topk_prob: bool = False,
    use_column_tiling: bool = False,
    use_indirect_dma_scatter: bool = False,
    return_eager_affi: bool = False,
    use_PE_broadcast_w_bias: bool = False,
    shard_on_tokens: bool = False,
    skip_store_expert_index: bool = False,
    skip_store_router_logits: bool = False,
    output_in_sbuf: bool | None = None,
    x_input_in_sbuf: bool | None = None,
    expert_affin_in_sb: bool | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
):
    """logits = x w + w_bias in float32; the k largest of each token, and what they weigh.

    x is [H, T] (x_hbm_layout 0) or [T, H] (1) in HBM, or a tile in SBUF in the layout x_sb_layout (constants
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
    by DMA. Of x in HBM any x_sb_layout is taken: the kernel chooses
    how it loads x. With shard_on_tokens two cores share the tokens, else both do all; so they do
    for results in SBUF, which each core has its own of. output_in_sbuf, x_input_in_sbuf and
    expert_affin_in_sb are of older releases and have no effect: buffers are seen from the tensors.

    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((16, 256), np.float32), rng.standard_normal((256, 8), np.float32)
    >>> out = [np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32), np.zeros((16, 2), np.int32)]
    >>> logits, index, affinities = router_topk(x, w, None, *out, RouterActFnType.SOFTMAX, 2, 1, 0)
    >>> bool((index == np.argsort(-(x @ w), axis=1)[:, :2]).all())
    True
    """
    outputs = (router_logits, expert_affinities, expert_index)
    check_tensors(x, w, w_bias, outputs)
    check_layouts(x_hbm_layout, x_sb_layout)
    router = Router(x, w, act_fn, k, x_hbm_layout, x_sb_layout)
    if act_fn == RouterActFnType.NOAUX_TC:
        router.noaux = NoAux(n_group, topk_group, routed_scaling_factor)
    check_arguments(router, x, w, w_bias)
    check_groups(router, n_group, topk_group, routed_scaling_factor)
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
def router_topk_input_x_load(
    x: Tensor, hbm_layout: int = XHBMLayout_H_T__0, sb_layout: int = XSBLayout_tp2013__1
):
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
def router_topk_input_w_load(w: Tensor, x_sb_layout: int):
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


def router_topk_ref(
    x: np.ndarray,
    w: np.ndarray,
    w_bias: np.ndarray | None,
    act_fn: RouterActFnType,
    k: int,
    x_hbm_layout: int,
    router_pre_norm: bool = True,
    norm_topk_prob: bool = False,
    **groups,
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
