"""The gradients of multi-scale deformable attention.

Each core has heads of its own. The products of the gradient with the sampled cells give the gradients of
weights and locations. Those of the cells are added up by patch: TensorE sums the queries of a tile that share
a patch, and a DMA adds the sums to rows of four cells in HBM. At the end each cell collects its four parts.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.deformable_attention.pyramid import (
    Level,
    Options,
    Points,
    Pyramid,
    check_weights,
    corner_weights,
    load_weights,
    weighted,
)
from nkilib.experimental.misc.indexed_rows import BANK_COLUMNS, equal_places, first_of_equal, rows_at

RUN = 32  # cells in each partition, of those collected at a time


@nki.jit
def ms_deformable_attention_bwd(
    grad_output: Tensor,
    value: Tensor,
    spatial_shapes: tuple,
    level_start_index: tuple,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    value_layout: str = "BLNC",
    sampling_locations_layout: str = "BQHLP2",
    align_corners: bool = False,
    padding_mode: str = "zeros",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ms_deformable_attention: of value, sampling_locations and attention_weights.

    grad_output is [B, N_q, N_h * C_h]; the other arguments are those of `ms_deformable_attention`. Each
    gradient has the shape, layout and dtype of what it belongs to. On the border between two cells the
    derivative is that of the later one, as in torch; beyond a border it is 0 with padding_mode "border". Sums
    are in float32. Two cores share the heads.

    >>> import numpy as np
    >>> value, place = np.zeros((1, 4, 1, 1), np.float32), np.full((1, 1, 1, 1, 1, 2), 0.5, np.float32)
    >>> one, weight = np.ones((1, 1, 1), np.float32), np.ones((1, 1, 1, 1, 1), np.float32)
    >>> ms_deformable_attention_bwd(one, value, ((2, 2),), (0,), place, weight)[0].ravel().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    get_verified_program_sharding_info("ms_deformable_attention_bwd", (0, 1), 2)
    options = Options(value_layout, sampling_locations_layout, align_corners, padding_mode)
    p = Pyramid(value, spatial_shapes, level_start_index, sampling_locations, options)
    check_weights(p, attention_weights)
    assert_tensors((("grad_output", grad_output),))
    assert_shape(grad_output, (p.batches, p.queries, p.heads * p.size), "grad_output")
    grads = Gradients(p, value, sampling_locations, attention_weights)
    first, end = program_share(p.heads)
    for batch in range(p.batches if first < end else 0):
        sums = PatchSums(p, end - first)
        for queries in TiledRange(p.queries, PMAX):
            points = Points(p, sampling_locations, batch, queries, first, end)
            weights = load_weights(attention_weights, batch, queries, first, end)
            rows = slice(queries.start_offset, queries.end_offset)
            dy = load(grad_output[batch, rows, first * p.size : end * p.size])
            dots = nl.ndarray((queries.size, end - first, 4 * p.samples), nl.float32, buffer=nl.sbuf)
            parts = corner_weights(weighted(weights, points.down), points.across)
            parts = parts.reshape((queries.size, end - first, 4 * p.samples))
            for own in range(end - first):
                dy_head = dy[:, own * p.size : (own + 1) * p.size]
                patches = points.patches(first + own, own, batch)
                multiply_cells(dots[:, own, :], patches, dy_head, p.group())
                sums.add(own, points, parts[:, own, :], dy_head)
            grads.store(batch, rows, first, end, points, weights, dots)
        sums.collect(grads.value, batch, first)
    return grads.value, grads.locations, grads.weights


def multiply_cells(dots: Tensor, patches: Tensor, dy: Tensor, group: int) -> None:
    """dots[q, s] = the product of cell s of a query with the gradient of its result."""
    queries, size = dy.shape
    cells = patches.reshape((queries, dots.shape[1], size))
    for some in TiledRange(dots.shape[1], 4 * group):
        products = nl.ndarray((queries, some.size, size), nl.float32, buffer=nl.sbuf)
        every = dy.expand_dim(1).broadcast(1, some.size)
        nisa.tensor_tensor(products, cells[:, some.start_offset : some.end_offset, :], every, nl.multiply)
        nisa.tensor_reduce(dots[:, some.start_offset : some.end_offset], nl.add, products, 2)


class Gradients(nl.NKIObject):
    """The three results."""

    def __init__(self, pyramid: Pyramid, value: Tensor, locations: Tensor, weights: Tensor):
        self.pyramid = pyramid
        self.value = nl.ndarray(value.shape, value.dtype, buffer=nl.shared_hbm)
        self.locations = nl.ndarray(locations.shape, locations.dtype, buffer=nl.shared_hbm)
        self.weights = nl.ndarray(weights.shape, weights.dtype, buffer=nl.shared_hbm)

    def store(
        self, batch: int, rows: Any, first: int, end: int, points: Points, weights: Any, dots: Tensor
    ) -> None:
        """Store the gradients of the weights and locations of some queries and heads."""
        shape = points.cell.shape
        queries, samples = weights.shape
        by_corner = dots.reshape((queries, samples, 2, 2))
        plain = summed(corner_weights(points.down, points.across), by_corner)
        store(self.weights[batch, rows, first:end], plain.reshape(shape))
        down, across = weighted(weights, points.down), weighted(weights, points.across)
        dx = summed(corner_weights(down, points.x.slopes()), by_corner).reshape(shape)
        dy = summed(corner_weights(points.y.slopes(), across), by_corner).reshape(shape)
        if self.pyramid.options.pairs_last:
            both = nl.ndarray(tuple(shape) + (2,), self.locations.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(both[:, :, :, :, 0], dx)
            nisa.tensor_copy(both[:, :, :, :, 1], dy)
            nisa.dma_copy(self.locations[batch, rows, first:end], both)
        else:
            store(self.locations[batch, 0, rows, first:end], dx)
            store(self.locations[batch, 1, rows, first:end], dy)


def summed(parts: Tensor, dots: Tensor) -> Tensor:
    """Sums over the corners of parts times dots, [queries, samples]."""
    nisa.tensor_tensor(parts, parts, dots, nl.multiply)
    total = nl.ndarray((parts.shape[0], parts.shape[1]), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(total, nl.add, parts, (2, 3))
    return total


class PatchSums(nl.NKIObject):
    """Gradients of patches in HBM: for each head and level a row of four cells for each cell.

    Rows in front of the first and behind the last are zero, so that a cell finds the patches that begin above
    it and to the left of it. A patch never begins in the last column: what is there is zero too.
    """

    def __init__(self, pyramid: Pyramid, heads: int):
        self.pyramid = pyramid
        self.width = 4 * pyramid.size
        zeros = zero_tile(self.width, nl.float32)
        self.tables = []
        for own in range(heads * len(pyramid.levels)):
            level = pyramid.levels[own % len(pyramid.levels)]
            rows = level.width + 1 + div_ceil(level.height * level.width, PMAX * RUN) * PMAX * RUN
            table = nl.ndarray((rows, self.width), nl.float32, buffer=nl.private_hbm)
            clear(table, zeros)
            self.tables.append(table)

    def add(self, own: int, points: Points, parts: Any, dy: Tensor) -> None:
        """Add the parts [queries, 4 * samples] of dy [queries, size] to the patches of a head."""
        p = self.pyramid
        queries = dy.shape[0]
        for i in range(len(p.levels)):
            for k in range(p.points):
                sample = i * p.points + k
                some = parts[:, 4 * sample : 4 * sample + 4].expand_dim(2).broadcast(2, p.size)
                rows = nl.ndarray((queries, 4, p.size), nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(rows, dy.expand_dim(1).broadcast(1, 4), some, nl.multiply)
                places = nl.ndarray((queries, 1), nl.int32, buffer=nl.sbuf)
                cell = points.cell[:, own, i, k : k + 1]
                nisa.tensor_scalar(places, cell, nl.add, p.levels[i].width + 1)
                self.add_rows(self.tables[own * len(p.levels) + i], places, rows)

    def add_rows(self, table: Tensor, places: Tensor, rows: Tensor) -> None:
        """Add rows [queries, 4, size] to the rows of a table, equal places first among themselves."""
        same = equal_places(places, nl.float32)
        targets = first_of_equal(places, same)
        flat = rows.reshape((rows.shape[0], self.width))
        total = like(flat)
        for bank in TiledRange(self.width, BANK_COLUMNS):
            some = (slice(None), slice(bank.start_offset, bank.end_offset))
            added = nl.ndarray((rows.shape[0], bank.size), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(added, same, flat[some], is_stationary_onezero=True)
            nisa.activation(total[some], nl.copy, added)
        there = rows_at(table, targets)
        nisa.dma_compute(there, [there, total], nl.add, oob_mode=nisa.oob_mode.skip)

    def collect(self, grad: Tensor, batch: int, first: int) -> None:
        """Add up the four parts of every cell, and store them as gradients of the values."""
        levels = self.pyramid.levels
        for i in range(len(self.tables)):
            self.collect_level(grad, batch, first + i // len(levels), levels[i % len(levels)], self.tables[i])

    def collect_level(self, grad: Tensor, batch: int, head: int, level: Level, table: Tensor) -> None:
        size, count = self.pyramid.size, level.height * level.width
        run = min(RUN, div_ceil(count, PMAX), max(1, RUN * 128 // size))
        for tile in TiledRange(count, PMAX * run):
            total = None
            for row in range(level.rows):
                for column in range(level.columns):
                    start = level.width + 1 + tile.start_offset - row * level.width - column
                    pattern = [[run * self.width, PMAX], [self.width, run], [1, size]]
                    offset = start * self.width + (2 * row + column) * size
                    part = load(table.ap(pattern, offset=offset))
                    if total is None:
                        total = part
                    else:
                        nisa.tensor_tensor(total, total, part, nl.add)
            self.store_run(grad, batch, head, level.start + tile.start_offset, tile.size, total)

    def store_run(self, grad: Tensor, batch: int, head: int, start: int, count: int, total: Any) -> None:
        """Store `count` cells of total [128, run, size]: those of full partitions, and the last one's."""
        cells = grad[batch, :, head, :] if self.pyramid.options.cells_first else grad[batch, head]
        run = total.shape[1]
        full, rest = count // run, count % run
        if full > 0:
            place = cells[start : start + full * run].reshape_dim(0, (full, run))
            store(place, total[0:full])
        if rest > 0:
            place = cells[start + full * run : start + count].reshape_dim(0, (1, rest))
            store(place, total[full : full + 1, 0:rest, :])
