"""The router of DeepSeek V3 for a decode step: experts of the best groups alone.

Two cores share the hidden dimension, so that each loads half of the weights, and exchange their sums.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.mlp.rows import castable
from nkilib.core.router_topk.noaux_tc import NoAux, check_noaux, noaux_tc_ref, select
from nkilib.core.utils.kernel_assert import assert_members, assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, is_hbm_buffer, program_share
from nkilib.core.utils.projection import BANK_COLUMNS, Activations, project
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.transposes import spread_rows, transpose_rows
from nkilib.core.utils.types import DTypeLike, Tensor

MAX_K = 8


class RouterOutputs(enum.Enum):
    """What deepseek_v3_router returns."""

    DENSE = "dense"  # weights [T, E], 0 for experts that are not chosen
    TOPK = "topk"  # (experts uint32 [T, top_k], their weights [T, top_k])
    ALL = "all"  # (weights [T, E], experts, their weights)


@nki.jit
def deepseek_v3_router(
    normed: Tensor,
    router_weight: Tensor,
    e_score_correction_bias: Tensor,
    n_group: int,
    topk_group: int,
    top_k: int,
    routed_scaling_factor: float,
    outputs: RouterOutputs = RouterOutputs.DENSE,
    output_in_sbuf: bool = False,
) -> Any:
    """Return float32 weights [T, E] of the top_k experts of each token, 0 for all others.

    A score is sigmoid(x w); score + e_score_correction_bias chooses: the topk_group groups whose two best
    experts have the largest sums, then the top_k experts in these. Their weights are their scores divided by
    their sum, times routed_scaling_factor.

    normed is [T, H] in HBM, or a tile [128, H / 128, T] in SBUF with column 128 j + p at [p, j]; T <= 128 and
    H is a multiple of 128. router_weight is [E, H], or transposed [H, E]; E <= 512, and E = H is refused.
    The bias is [E]; top_k and topk_group are at most 8. Products are in float32 if an operand is, else in
    bfloat16, their sums in float32.

    outputs TOPK gives (experts uint32 [T, top_k], their weights), the best first; ALL gives the weights of
    all experts and these two. With output_in_sbuf the results are tiles, complete on each core. Read of the
    page: the signature, the rule, that normed may be a hidden-major tile and the weight transposed, and
    DENSE; the other outputs, the layout of the tile and the dtypes are ours.

    >>> x, w = np.ones((1, 128), np.float32), np.zeros((16, 128), np.float32)
    >>> bias = np.arange(16, dtype=np.float32)
    >>> deepseek_v3_router(x, w, bias, 4, 2, 4, 2.0)[0, 11:].tolist()
    [0.0, 0.5, 0.5, 0.5, 0.5]
    """
    cores = get_verified_program_sharding_info("deepseek_v3_router", (0, 1), 2)[1]
    tokens, experts = check(normed, router_weight, e_score_correction_bias, top_k, outputs)
    rule = NoAux(n_group, topk_group, routed_scaling_factor)
    check_noaux(rule, experts, top_k, e_score_correction_bias)
    rule.bias = load(e_score_correction_bias.expand_dim(0).broadcast(0, tokens), nl.float32)
    logits = compute_logits(normed, router_weight, tokens, experts, cores)
    chosen, places = select(rule, logits, top_k, normalize=True)
    results: list = []
    if outputs != RouterOutputs.TOPK:
        results.append(chosen.all)
    if outputs != RouterOutputs.DENSE:
        results.append(places[:, 0:top_k])
        results.append(chosen.of_top(places, top_k))
    if not output_in_sbuf:
        results = stored(results)
    return results[0] if len(results) == 1 else tuple(results)


def check(x: Tensor, weight: Tensor, bias: Tensor, k: int, outputs: RouterOutputs) -> tuple[int, int]:
    """Return (T, E)."""
    assert_tensors((("normed", x), ("router_weight", weight), ("e_score_correction_bias", bias)))
    assert_members(("outputs", outputs, RouterOutputs))
    shape = tuple(x.shape)
    if is_hbm_buffer(x):
        valid = len(shape) == 2 and 1 <= shape[0] <= PMAX and shape[1] % PMAX == 0
        kernel_assert(valid, f"normed: got shape {shape}, expected [T <= 128, H], H a multiple of 128")
        tokens, hidden = shape
    else:
        valid = len(shape) == 3 and shape[0] == PMAX and shape[2] <= PMAX
        kernel_assert(valid, f"normed: got a tile of shape {shape}, expected [128, H / 128, T <= 128]")
        tokens, hidden = shape[2], PMAX * shape[1]
    sizes = tuple(weight.shape)
    kernel_assert(
        len(sizes) == 2 and hidden in sizes and sizes[0] != sizes[1],
        f"router_weight: got shape {sizes}, expected (E, {hidden}) or ({hidden}, E), E other than {hidden}",
    )
    experts = sizes[0] if sizes[1] == hidden else sizes[1]
    kernel_assert(
        experts <= BANK_COLUMNS, f"router_weight: got {experts} experts, allowed are {BANK_COLUMNS}"
    )
    assert_shape(bias, (experts,), "e_score_correction_bias")
    most = min(MAX_K, experts)
    kernel_assert(1 <= k <= most, f"top_k: got {k}, allowed are 1 to {most}")
    return tokens, experts


def compute_logits(x: Tensor, weight: Tensor, tokens: int, experts: int, cores: int) -> Tensor:
    """x w in float32, [T, E], on each core: they share the tiles of the hidden dimension."""
    transposed = weight.shape[1] == experts
    steps = (weight.shape[0] if transposed else weight.shape[1]) // PMAX
    first, end = program_share(steps) if steps >= cores else (0, steps)
    exact = x.dtype == nl.float32 or weight.dtype == nl.float32
    dtype = nl.float32 if exact else nl.bfloat16
    spread = end - first if is_hbm_buffer(x) else 0
    columns = token_columns(x, first, end, dtype)
    logits = nl.ndarray((tokens, experts), nl.float32, buffer=nl.sbuf)
    if transposed:
        part = Activations(columns, (end - first) * PMAX, first * PMAX, spread=spread)
        nisa.tensor_copy(logits, project(part, weight, 0, experts, feature_major=False)[0].sums)
    else:
        nisa.tensor_copy(logits, multiply_rows(columns, weight, first, end, spread > 0))
    if cores == 2 and steps >= cores:
        nisa.tensor_tensor(logits, logits, swap(logits, nl.program_id(0), 0), nl.add)
    return logits


def token_columns(x: Tensor, first: int, end: int, dtype: DTypeLike) -> Tensor:
    """Tiles first ... end of the hidden dimension, [128, tiles, T]; from HBM each partition has a run."""
    if is_hbm_buffer(x):
        return spread_rows([castable(load(x[:, first * PMAX : end * PMAX]), dtype)])
    own = x[:, first:end, :]
    if x.dtype == dtype:
        return own
    columns = like(own, dtype)
    nisa.tensor_copy(columns, own)
    return columns


def multiply_rows(columns: Tensor, weight: Tensor, first: int, end: int, spread: bool) -> Any:
    """x w of weights [E, H], which TensorE transposes: [T, E] in PSUM."""
    tokens, experts = columns.shape[2], weight.shape[0]
    sums = nl.ndarray((tokens, experts), nl.float32, buffer=nl.psum)
    for some in TiledRange(experts, PMAX):
        rows = load(weight[some.start_offset : some.end_offset, first * PMAX : end * PMAX])
        rows = castable(rows, columns.dtype)
        across = transposed_rows(rows, end - first, spread)
        for step in range(end - first):
            nisa.nc_matmul(
                sums[:, some.start_offset : some.end_offset], columns[:, step, :], across[:, step, :]
            )
    return sums


def transposed_rows(rows: Tensor, steps: int, spread: bool) -> Tensor:
    """Weights of some experts with the hidden dimension in the partitions, in the order of the tokens."""
    if spread:
        return spread_rows([rows])
    across = nl.ndarray((PMAX, steps, rows.shape[0]), rows.dtype, buffer=nl.sbuf)
    transpose_rows(across, 0, 0, rows)
    return across


def stored(tiles: list) -> list:
    """The tiles in HBM: cores share the rows."""
    first, end = program_share(tiles[0].shape[0])
    results = []
    for tile in tiles:
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        if first < end:
            nisa.dma_copy(out[first:end], tile[first:end])
        results.append(out)
    return results


def deepseek_v3_router_ref(
    normed: np.ndarray,
    router_weight: np.ndarray,
    e_score_correction_bias: np.ndarray,
    n_group: int,
    topk_group: int,
    top_k: int,
    routed_scaling_factor: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (weights [T, E], experts [T, top_k]) in float64."""
    x, w = np.asarray(normed, np.float64), np.asarray(router_weight, np.float64)
    logits = x @ (w.T if w.shape[1] == x.shape[1] else w)
    index, weights = noaux_tc_ref(
        logits, e_score_correction_bias, top_k, n_group, topk_group, routed_scaling_factor, True
    )
    return weights, index
