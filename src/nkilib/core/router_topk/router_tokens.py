"""Routing of up to 128 tokens: their logits, the best experts, and the affinities of these."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.router_topk.noaux_tc import select
from nkilib.core.router_topk.router_checks import MAX_K
from nkilib.core.router_topk.router_operands import Bias, Router
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

COLUMN_TILES = (32, 64)  # columns of the PE array that one of several small matmuls may take
LOWEST = -3.0e38  # the logit of an expert that does not exist
MARK = 3.0e38  # in place of the top-K logits


# ---- up to 128 tokens ----------------------------------------------------------------------------


def route(router: Router, tokens: Tensor, weights: Tensor, bias: Bias, begin: int) -> None:
    """All results of the tokens from `begin` on."""
    count, k = tokens.shape[2], router.k
    logits = compute_logits(router, tokens, weights, bias)
    store(router.logits, begin, logits[:, 0 : router.experts])
    if router.noaux is not None:
        chosen, places = select(router.noaux, logits[:, 0 : router.experts], k, router.normalize_top)
        store_index(router, begin, places)
        store(router.affinities, begin, chosen.all)
        if router.top_affinities is not None:
            store(router.top_affinities, begin, chosen.of_top(places, k))
        return
    best = new_tile(count, MAX_K)
    places = nl.ndarray((count, MAX_K), nl.uint32, buffer=nl.sbuf)
    nisa.max8(best, logits)
    nisa.nc_find_index8(places, logits, best)
    store_index(router, begin, places)
    affinities = Affinities(router, logits, best)
    store(router.top_affinities, begin, affinities.top)
    if router.scatter and router.sparse:
        scatter(router, begin, affinities.top, places)
    else:
        store(router.affinities, begin, affinities.of_all(router, logits, best))


def store_index(router: Router, begin: int, places: Tensor) -> None:
    """The best experts, in the dtype that the result has."""
    index = places if router.index is None else places.view(router.index.dtype)
    store(router.index, begin, index[:, 0 : router.k])


def new_tile(rows: int, columns: int) -> Tensor:
    return nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)


def compute_logits(router: Router, tokens: Tensor, weights: Tensor, bias: Bias) -> Any:
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

    def __init__(self, router: Router, logits: Tensor, best: Tensor):
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

    def of_all(self, router: Router, logits: Tensor, best: Tensor) -> Any:
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


def store(target: Tensor | None, begin: int, values: Tensor) -> None:
    """values to rows begin .. of a result in HBM or SBUF, in its dtype; a target of None is left out."""
    if target is None:
        return
    rows = target[begin : begin + values.shape[0]]
    if not is_hbm_buffer(target):
        nisa.tensor_copy(rows, values)
    else:
        nisa.dma_copy(rows, cast_to(target.dtype, values))


def cast_to(dtype: DTypeLike, values: Tensor) -> Any:
    if values.dtype == dtype:
        return values
    tile = nl.ndarray(values.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, values)
    return tile


def scatter(router: Router, begin: int, top: Tensor, places: Tensor) -> None:
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
