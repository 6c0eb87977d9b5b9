"""Tiles of the gradient of attention: 128 queries, in the partitions, against up to 512 keys.

With P = e^(scale Q K^T - lse) over the visible pairs and delta = sum over d of o dy,

    dS = P (dY V^T - delta),  dV = P^T dY,  dQ = scale dS K,  dK = scale dS^T Q

Queries, keys and values are lists of pieces [D, tokens], each of up to 128 channels of the head.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

KEYS = 512  # of a tile: a PSUM bank of float32
UNBOUNDED = 1.0e9  # beyond every key


class ScoreOptions(nl.NKIObject):
    """The scale of the scores, and the dtype of the matmuls."""

    def __init__(self, scale: float, dtype: DTypeLike):
        self.scale = scale
        self.dtype = dtype


def transposed_tokens(x: Tensor) -> Tensor:
    """Return x [D, S] transposed, [128, S / 128, D]: token 128 g + p at [p, g]."""
    head_dim, tokens = x.shape
    found = nl.ndarray((PMAX, tokens // PMAX, head_dim), x.dtype)
    for tile in TiledRange(tokens, PMAX):
        bank = nl.ndarray((PMAX, head_dim), x.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, x[:, tile.start_offset : tile.end_offset])
        nisa.tensor_copy(found[:, tile.index, :], bank)
    return found


def pair_products(left: list, right: list, queries: slice, keys: slice) -> Tensor:
    """Sums over the pieces of left^T right, [queries, keys] in PSUM."""
    size = keys.stop - keys.start
    bank = nl.ndarray((PMAX, size), nl.float32, buffer=nl.psum)
    for i in range(len(left)):
        nisa.nc_matmul(bank, left[i][:, queries], right[i][:, keys])
    return bank


def probabilities(
    options: ScoreOptions,
    scores: Tensor,
    neg_lse: Tensor,
    seen: tuple[Tensor, Tensor] | None,
    block: TiledRangeIterator,
) -> Tensor:
    """Return P [128 queries, keys]; 0 where the mask hides a key. neg_lse and both of `seen` are [128, 1]."""
    if seen is not None:
        masked = nl.ndarray((PMAX, block.size), nl.float32)
        nisa.range_select(
            masked, scores, nl.greater_equal, nl.less, seen[0], seen[1], range_start=block.start_offset
        )
        scores = masked
    p = nl.ndarray((PMAX, block.size), options.dtype)
    nisa.activation(p, nl.exp, scores, bias=neg_lse, scale=options.scale)
    return p


def score_gradient(options: ScoreOptions, products: Tensor, p: Tensor, delta: Tensor) -> Tensor:
    """Return dS = P (dY V^T - delta)."""
    ds = nl.ndarray(p.shape, options.dtype)
    nisa.scalar_tensor_tensor(ds, products, nl.subtract, delta, nl.multiply, p)
    return ds


def add_product(total: Any, by_query: Tensor, tile: Tensor, scale: float) -> None:
    """total [D, keys] += scale by_query^T tile."""
    bank = nl.ndarray(total.shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, by_query, tile)
    nisa.scalar_tensor_tensor(total, bank, nl.multiply, scale, nl.add, total)


def add_queries(sums: list, by_key: list, ds: Tensor, block: TiledRangeIterator) -> None:
    """sums [D, 128 queries] += K dS^T for each piece, 128 keys at a time."""
    for part in TiledRange(block.size, PMAX):
        bank = nl.ndarray((PMAX, PMAX), ds.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, ds[:, part.start_offset : part.end_offset])
        transposed = nl.ndarray((PMAX, PMAX), ds.dtype)
        nisa.activation(transposed, nl.copy, bank)
        first = (block.start_offset + part.start_offset) // PMAX
        for i in range(len(sums)):
            nisa.nc_matmul(sums[i], by_key[i][:, first, :], transposed)
