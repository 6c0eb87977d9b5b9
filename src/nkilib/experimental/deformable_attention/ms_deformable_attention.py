"""Multi-scale deformable attention: 128 queries in the partitions, a DMA for each of their points.

The DMA reads the four cells around the point of each query by number. VectorE multiplies the cells by their
weights and adds them up.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.deformable_attention.pyramid import (
    Options,
    Points,
    Pyramid,
    check_weights,
    corner_weights,
    load_weights,
    weighted,
)


@nki.jit
def ms_deformable_attention(
    value: Tensor,
    spatial_shapes: tuple,
    level_start_index: tuple,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    value_layout: str = "BLNC",
    sampling_locations_layout: str = "BQHLP2",
    align_corners: bool = False,
    padding_mode: str = "zeros",
) -> Tensor:
    """Return the weighted sum of bilinear samples of a feature pyramid for each query, [B, N_q, N_h * C_h].

    Args:
        value: "BLNC" [B, L, N_h, C_h] or "BNLC" [B, N_h, L, C_h], in float32, bfloat16 or float16.
        spatial_shapes: (H, W) of each level; their cells are all L, in this order.
        level_start_index: the first cell of each level.
        sampling_locations: "BQHLP2" [B, N_q, N_h, levels, points, 2] or "B2QHLP" [B, 2, N_q, N_h, levels,
            points]: (x, y) of each point, 0 to 1 across a level.
        attention_weights: [B, N_q, N_h, levels, points].
        align_corners: 0 and 1 are the centres of the outer cells; otherwise their outer edges.
        padding_mode: outside a level cells are 0 ("zeros"), or as the nearest one ("border").

    Sums are in float32, the result has the dtype of value. Two cores share blocks of 128 queries. The
    gradients are `ms_deformable_attention_bwd`.

    >>> value = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    >>> place, weight = np.full((1, 1, 1, 1, 1, 2), 0.5, np.float32), np.ones((1, 1, 1, 1, 1), np.float32)
    >>> ms_deformable_attention(value, ((2, 2),), (0,), place, weight).tolist()
    [[[1.5]]]
    """
    get_verified_program_sharding_info("ms_deformable_attention", (0, 1), 2)
    options = Options(value_layout, sampling_locations_layout, align_corners, padding_mode)
    p = Pyramid(value, spatial_shapes, level_start_index, sampling_locations, options)
    check_weights(p, attention_weights)
    out = nl.ndarray((p.batches, p.queries, p.heads * p.size), value.dtype, buffer=nl.shared_hbm)
    tiles = TiledRange(p.queries, PMAX)
    first, end = program_share(p.batches * len(tiles))
    for job in range(first, end):
        batch, queries = job // len(tiles), tiles[job % len(tiles)]
        points = Points(p, sampling_locations, batch, queries, 0, p.heads)
        weights = load_weights(attention_weights, batch, queries, 0, p.heads)
        parts = corner_weights(weighted(weights, points.down), points.across)
        parts = parts.reshape((queries.size, p.heads, 4 * p.samples))
        result = nl.ndarray((queries.size, p.heads * p.size), out.dtype, buffer=nl.sbuf)
        for head in range(p.heads):
            patches = points.patches(head, head, batch)
            place = result[:, head * p.size : (head + 1) * p.size]
            add_up(place, patches, parts[:, head, :], p.group())
        nisa.dma_copy(out[batch, queries.start_offset : queries.end_offset], result)
    return out


def add_up(result: Tensor, patches: Tensor, parts: Tensor, group: int) -> None:
    """result[q, c] = the sum of patches[q, ..., c] times their parts."""
    queries, size = result.shape
    cells = patches.reshape((queries, parts.shape[1], size))
    total = nl.ndarray((queries, size), nl.float32, buffer=nl.sbuf)
    groups = TiledRange(parts.shape[1], 4 * group)
    for some in groups:
        products = nl.ndarray((queries, some.size, size), nl.float32, buffer=nl.sbuf)
        part = parts[:, some.start_offset : some.end_offset].expand_dim(2).broadcast(2, size)
        nisa.tensor_tensor(products, cells[:, some.start_offset : some.end_offset, :], part, nl.multiply)
        added = total if some.index == 0 else nl.ndarray((queries, size), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(added, nl.add, products.permute((0, 2, 1)), 2)
        if some.index > 0:
            nisa.tensor_tensor(total, total, added, nl.add)
    nisa.activation(result, nl.copy, total)


def ms_deformable_attention_ref(
    value: np.ndarray,
    spatial_shapes: tuple,
    level_start_index: tuple,
    sampling_locations: np.ndarray,
    attention_weights: np.ndarray,
    align_corners: bool = False,
    padding_mode: str = "zeros",
) -> np.ndarray:
    """Compute in float64, cell by cell, from the default layouts."""
    value, places = np.asarray(value, np.float64), np.asarray(sampling_locations, np.float64)
    weights = np.asarray(attention_weights, np.float64)
    batches, queries, heads, _, points = weights.shape
    out = np.zeros((batches, queries, heads, value.shape[3]))
    for level, (height, width) in enumerate(spatial_shapes):
        for b, q, h, p in np.ndindex(batches, queries, heads, points):
            x, y = (
                places[b, q, h, level, p, i] * (n - 1 if align_corners else n) - 0.5 * (not align_corners)
                for i, n in enumerate((width, height))
            )
            if padding_mode == "border":
                x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
            for row, column in np.ndindex(height, width):
                part = max(0.0, 1 - abs(x - column)) * max(0.0, 1 - abs(y - row))
                cell = value[b, level_start_index[level] + row * width + column, h]
                out[b, q, h] += weights[b, q, h, level, p] * part * cell
    return out.reshape(batches, queries, -1)
