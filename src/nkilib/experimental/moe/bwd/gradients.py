"""The gradients in HBM: allocated, cleared, accumulated block by block, and returned in their own dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.moe.bwd.moe_bwd_parameters import (
    BackwardParameters,
    expert_count,
    hidden_size,
    intermediate_size,
)

GROUP_BYTES = 48 * 1024  # of a gradient in each partition, between its load and its store


@dataclass
class Given(nl.NKIObject):
    """Gradients that the caller allocated, or None."""

    hidden: Tensor | None
    affinities: Tensor | None
    gate_up: Tensor | None
    down: Tensor | None


class Gradient(nl.NKIObject):
    """One gradient: `out` is returned, `total` accumulates; they differ if their dtypes do.

    `holds_values`: the caller allocated it and initialised it with values to add to.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        given: Tensor | None,
        wide: DTypeLike | None,
        initialized: bool,
    ):
        self.out = nl.ndarray(shape, dtype, buffer=nl.shared_hbm) if given is None else given
        self.holds_values = given is not None and initialized
        self.total = self.out
        if wide is not None and wide != self.out.dtype:
            self.total = nl.ndarray(shape, wide, buffer=nl.shared_hbm)


@dataclass
class GradientPart(nl.NKIObject):
    """A part of a gradient, as matrices [rows, columns]."""

    total: Tensor
    out: Tensor


class Gradients(nl.NKIObject):
    """All gradients, and the columns of H, first ... first + columns, that this core has."""

    def __init__(self, p: BackwardParameters, given: Given, cores: int, core: int):
        experts, size, inner = expert_count(p), hidden_size(p), intermediate_size(p)
        wide = p.accumulation_dtype
        self.cores = cores
        self.core = core
        self.columns = size // cores
        self.first = core * self.columns
        early = p.initialized
        self.hidden = Gradient(p.hidden.shape, p.hidden.dtype, given.hidden, wide, early)
        self.affinities = Gradient(p.affinities.shape, p.affinities.dtype, given.affinities, None, early)
        self.gate_up = Gradient(p.gate_up.shape, p.gate_up.dtype, given.gate_up, wide, early)
        self.down = Gradient(p.down.shape, p.down.dtype, given.down, wide, early)
        if p.bias:
            self.gate_up_bias = Gradient((experts, 2, inner), p.gate_up.dtype, None, wide, False)
            self.down_bias = Gradient((experts, size), p.down.dtype, None, wide, False)

    def weight_parts(self, gradient: Gradient) -> list:
        """Return this core's part of the gradient of a weight, expert by expert."""
        parts = []
        for e in range(gradient.out.shape[0]):
            total, out = gradient.total[e], gradient.out[e]
            if len(gradient.out.shape) == 4:
                parts.append(GradientPart(self.of_column(total), self.of_column(out)))
            else:
                parts.append(GradientPart(self.of_row(total), self.of_row(out)))
        return parts

    def row_parts(self, gradient: Gradient) -> list:
        """Return this core's part of rows [n, H]."""
        return [GradientPart(self.of_row(gradient.total), self.of_row(gradient.out))]

    def side_parts(self, gradient: Gradient) -> list:
        """Return the gradient of the bias of gate and up, which core 0 computes."""
        if self.core != 0:
            return []
        shape = (gradient.out.shape[0], gradient.out.shape[1] * gradient.out.shape[2])
        return [GradientPart(gradient.total.reshape(shape), gradient.out.reshape(shape))]

    def of_row(self, rows: Tensor) -> Tensor:
        """Return this core's columns of rows [n, H]."""
        return rows[:, self.first : self.first + self.columns]

    def of_column(self, weight: Tensor) -> Tensor:
        """Return this core's rows of a gate/up weight [H, 2, I], as a matrix."""
        own = weight[self.first : self.first + self.columns]
        return own.reshape((self.columns, weight.shape[1] * weight.shape[2]))

    def start(self, p: BackwardParameters) -> None:
        """Initialise totals that hold the caller's values, and clear the small ones."""
        if self.core == 0 and not self.affinities.holds_values:
            clear_vector(self.affinities.total)
        if p.bias:
            start_parts(self.down_bias, self.row_parts(self.down_bias))
            start_parts(self.gate_up_bias, self.side_parts(self.gate_up_bias))
        if self.hidden.holds_values:
            self.start_hidden()
        if self.gate_up.holds_values:
            self.start_gate_up()
        if self.down.holds_values:
            self.start_down()

    def start_hidden(self) -> None:
        start_parts(self.hidden, self.row_parts(self.hidden))

    def start_gate_up(self) -> None:
        start_parts(self.gate_up, self.weight_parts(self.gate_up))

    def start_down(self) -> None:
        start_parts(self.down, self.weight_parts(self.down))

    def finish(self, p: BackwardParameters) -> None:
        """Round the totals to the dtype of the results."""
        finish_parts(self.row_parts(self.hidden))
        finish_parts(self.weight_parts(self.gate_up))
        finish_parts(self.weight_parts(self.down))
        if p.bias:
            finish_parts(self.row_parts(self.down_bias))
            finish_parts(self.side_parts(self.gate_up_bias))

    def results(self, p: BackwardParameters) -> tuple:
        hidden, affinities, gate_up, down = self.hidden, self.affinities, self.gate_up, self.down
        if not p.bias:
            return hidden.out, affinities.out, gate_up.out, down.out
        biases = self.gate_up_bias, self.down_bias
        return hidden.out, affinities.out, gate_up.out, down.out, biases[0].out, biases[1].out


def start_parts(gradient: Gradient, parts: list) -> None:
    """Clear the totals, or copy the caller's values to them."""
    zeros = None
    for part in parts:
        if gradient.holds_values:
            if part.total.dtype != part.out.dtype:
                nisa.dma_copy(part.total, part.out)
        else:
            zeros = zero_tile(part.total.shape[1], part.total.dtype) if zeros is None else zeros
            clear(part.total, zeros)


def finish_parts(parts: list) -> None:
    for part in parts:
        if part.total.dtype != part.out.dtype:
            nisa.dma_copy(part.out, part.total)


def clear_vector(vector: Tensor) -> None:
    """Clear a column in HBM."""
    size = vector.size
    full = size // PMAX * PMAX
    flat = vector.reshape((size,))
    if full > 0:
        columns = full // PMAX
        clear(flat[0:full].reshape((PMAX, columns)), zero_tile(columns, vector.dtype))
    if full < size:
        clear(flat[full:size].reshape((1, size - full)), zero_tile(size - full, vector.dtype))


# ---- sums over the tokens of a unit --------------------------------------------------------------


def add_products(
    place: Tensor, stationary: list, moving: list, start: Callable[[], None] | None = None
) -> None:
    """Set place[i, j] += sum over tokens of stationary[:, i] * moving[:, j]; both are rows of tokens.

    The address in HBM is known only at run time, so a load waits for all earlier stores: much is loaded at
    once, and stored at once. With `start` the place holds nothing yet; `start` runs before the first store,
    so that matmuls overlap with writing zeros.
    """
    rows, columns = place.shape
    width = 4 if place.dtype == nl.float32 else 2
    room = max(1, GROUP_BYTES // (width * columns)) * PMAX
    for group in TiledRange(rows, room):
        part = place[group.start_offset : group.end_offset]
        sums = load_tiles(part) if start is None else new_tiles(part)
        for tile in TiledRange(group, PMAX):
            dst = sums[0 : tile.size, tile.index, :]
            add_product(dst, stationary, moving, tile.start_offset, tile.size, start is not None)
        if start is not None and group.index == 0:
            start()
        store_tiles(part, sums)


def new_tiles(matrix: Tensor) -> Tensor:
    """Allocate a tile for matrix[128 k + p, j] at [p, k, j]."""
    rows, columns = matrix.shape
    return nl.ndarray((PMAX, div_ceil(rows, PMAX), columns), matrix.dtype, buffer=nl.sbuf)


def load_tiles(matrix: Tensor) -> Tensor:
    tile = new_tiles(matrix)
    for piece in tile_pieces(matrix, tile):
        nisa.dma_copy(piece[1], piece[0])
    return tile


def store_tiles(matrix: Tensor, tile: Tensor) -> None:
    """Store a tile to the matrix that load_tiles reads."""
    for piece in tile_pieces(matrix, tile):
        nisa.dma_copy(piece[0], piece[1])


def tile_pieces(matrix: Tensor, tile: Tensor) -> list:
    """Return (part of the matrix, part of the tile) for each transfer: full tiles first, then a short one."""
    rows = matrix.shape[0]
    full, rest = rows // PMAX, rows % PMAX
    pieces = []
    if full > 0:
        part = matrix[0 : full * PMAX].reshape_dim(0, (full, PMAX))
        pieces.append((part.permute((1, 0, 2)), tile[:, 0:full, :]))
    if rest > 0:
        pieces.append((matrix[full * PMAX :], tile[0:rest, full, :]))
    return pieces


def add_product(dst: Tensor, stationary: list, moving: list, at: int, count: int, is_zero: bool) -> None:
    """Set dst[i, j] += sum over tokens of stationary[:, at + i] * moving[:, j]."""
    for span in TiledRange(moving[0].shape[1], BANK_COLUMNS):
        bank = nl.ndarray((count, span.size), nl.float32, buffer=nl.psum)
        for c in range(len(moving)):
            weights = stationary[c][:, at : at + count]
            nisa.nc_matmul(bank, weights, moving[c][:, span.start_offset : span.end_offset])
        part = dst[:, span.start_offset : span.end_offset]
        if is_zero:
            interleave_copy(part, bank, span.index)
        else:
            nisa.tensor_tensor(part, bank, part, op=nl.add)
