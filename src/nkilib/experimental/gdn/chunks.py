"""The gated delta rule in chunks of 128 tokens.

With G the sums of the log decays of a chunk, D[i, j] = e^(G[i] - G[j]) and A[i, j] = beta[i] (k[i] . k[j])
D[i, j] below the diagonal, the values that a chunk writes are u = T (beta v - beta e^G k S), T = (I +
A)^-1, where S is the state before the chunk. TensorE inverts I + A by halves: with the inverses of two
diagonal blocks, that of the block of both is X - X B X, where B is the part of A between them. Nothing
grows beyond the inverse itself, however similar the keys are.

Tiles of several chunks are [tokens, chunks, ...], so that one instruction works on all of them.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import interleave_copy
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import DTypeLike, Tensor

CHUNK = PMAX
AT_ONCE = 4  # chunks of a group: [128, 4, 128] float32 is a PSUM bank
LEVELS = 7  # blocks of 2, 4, ... 128 tokens


class Masks(nl.NKIObject):
    """Constants: which tokens come before which, and between which blocks a level of the inversion works."""

    def __init__(self):
        self.ones = filled((PMAX, PMAX), 1.0)
        self.identity = selected(self.ones, nl.equal)  # [j, i]: i == j
        self.upto = selected(self.ones, nl.greater_equal)  # i >= j
        self.after = selected(self.ones, nl.less)  # i < j
        self.since = selected(self.ones, nl.less_equal)  # i <= j
        self.levels = filled((PMAX, LEVELS, PMAX), 0.0)
        for level in range(LEVELS):
            half = 2**level
            blocks = PMAX // (2 * half)
            later = self.levels[:, level, :].reshape_dim(1, (blocks, 2, half))[:, :, 1, :]
            nisa.memset(later, 1.0)
            rows = [[-2 * half, blocks], [0, half]]  # j - 2 half * block: 0 <= it < half
            nisa.affine_select(later, rows, 1, later, 0.0, nl.greater_equal)
            nisa.affine_select(later, rows, 1, later, 0.0, nl.less, offset=-half)


def filled(shape: tuple, value: float) -> Tensor:
    tile = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, value)
    return tile


def selected(ones: Tensor, compare: Any) -> Tensor:
    """[j, i]: 1 where i compares with j."""
    tile = like(ones)
    nisa.affine_select(tile, [[1, PMAX]], -1, ones, 0.0, compare)
    return tile


def bank(shape: tuple, dtype: DTypeLike = nl.float32) -> Tensor:
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def copied(tile: Tensor, dtype: DTypeLike, index: int = 0) -> Tensor:
    """A copy of a PSUM tile in SBUF."""
    copy = like(tile, dtype)
    interleave_copy(copy, tile, index)
    return copy


def products(stationary: Any, moving: Any) -> Tensor:
    """stationary[:, c].T @ moving[:, c] for each chunk c, in PSUM; either may be one matrix for all."""
    chunks = max(moving.shape[1] if len(moving.shape) == 3 else 1, stationary.shape[1])
    out = bank((stationary.shape[2], chunks, moving.shape[len(moving.shape) - 1]))
    for c in range(chunks):
        every = len(moving.shape) == 2
        nisa.nc_matmul(out[:, c, :], stationary[:, c, :], moving if every else moving[:, c, :])
    return out


def transposed(rows: Tensor, index: int = 0) -> Tensor:
    """rows [n, chunks, d] to [d, chunks, n]."""
    out = bank((rows.shape[2], rows.shape[1], rows.shape[0]), rows.dtype)
    for c in range(rows.shape[1]):
        nisa.nc_transpose(out[:, c, :], rows[:, c, :], engine=nisa.tensor_engine)
    return copied(out, rows.dtype, index)


def scaled(rows: Any, factors: Tensor, dtype: DTypeLike) -> Tensor:
    """rows [n, chunks, d] times factors [n, chunks]."""
    tile = nl.ndarray(rows.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(tile, rows, factors.expand_dim(2).broadcast(2, rows.shape[2]), nl.multiply)
    return tile


def load_rows(tokens: Tensor, start: int, size: int, chunks: int, dtype: DTypeLike | None = None) -> Tensor:
    """Tokens [S, d] from `start` on as [size, chunks, d]."""
    view = tokens[start : start + size * chunks].reshape_dim(0, (chunks, size)).permute((1, 0, 2))
    return load(view, dtype)


def store_rows(tokens: Tensor, start: int, rows: Tensor) -> None:
    """The other way."""
    size, chunks = rows.shape[0], rows.shape[1]
    view = tokens[start : start + size * chunks].reshape_dim(0, (chunks, size)).permute((1, 0, 2))
    nisa.dma_copy(view, rows)


def load_numbers(tokens: Tensor, start: int, size: int, chunks: int) -> Tensor:
    """A number for each token, [S], as [size, chunks] in float32."""
    view = tokens[start : start + size * chunks].reshape_dim(0, (chunks, size)).permute((1, 0))
    return load(view, nl.float32)


class Gates(nl.NKIObject):
    """The decays of some chunks, from their logs [n, chunks]. Every exponent is a sum: nothing cancels."""

    def __init__(self, masks: Masks, logs: Tensor):
        size, chunks = logs.shape
        self.masks = masks
        self.logs = logs
        upto, after = masks.upto[0:size, 0:size], masks.after[0:size, 0:size]
        self.grown = self.power(upto)  # what is left of the state before the chunk, at each token
        self.rest = self.power(after)  # what is left of each token behind the chunk
        self.whole = self.power(masks.ones[0:size])  # of the state before, behind the chunk: [128, chunks]

    def power(self, which: Tensor) -> Tensor:
        """e to the sums of the logs that a mask selects, [columns of the mask, chunks]."""
        sums = bank((which.shape[1], self.logs.shape[1]))
        nisa.nc_matmul(sums, which, self.logs)
        result = like(sums)
        nisa.activation(result, nl.exp, sums)
        return result

    def between(self, later_across: bool) -> Tensor:
        """What is left of a token at a later one or at itself, 0 at earlier ones.

        [j, c, i] = e^(g[j + 1] + ... + g[i]) with `later_across`; otherwise [i, c, j], its transpose.
        """
        size, chunks = self.logs.shape
        upto, after = self.masks.upto[0:size, 0:size], self.masks.after[0:size, 0:size]
        own, others = (after, upto) if later_across else (upto, after)
        sums = products(scaled(own.expand_dim(1).broadcast(1, chunks), self.logs, nl.float32), others)
        tile = like(sums)
        nisa.activation(tile, nl.exp, sums)
        sign = 1 if later_across else -1
        nisa.affine_select(tile, [[0, chunks], [sign, size]], -sign, tile, 0.0, nl.greater_equal)
        return tile


class Inverse(nl.NKIObject):
    """T = (I + A)^-1 of some chunks, and its transpose, [n, chunks, n] in float32, from A transposed."""

    def __init__(self, masks: Masks, system: Tensor):
        size, chunks = system.shape[0], system.shape[1]
        self.parts = nl.ndarray((size, LEVELS, chunks, size), nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            self.parts,
            system.expand_dim(1).broadcast(1, LEVELS),
            nl.multiply,
            -1.0,
            nl.multiply,
            masks.levels[0:size, :, 0:size].expand_dim(2).broadcast(2, chunks),
        )
        one = masks.identity[0:size, 0:size]
        self.plain = nl.ndarray((size, chunks, size), nl.float32, buffer=nl.sbuf)
        self.flipped = like(self.plain)
        every = one.expand_dim(1).broadcast(1, chunks)
        nisa.tensor_tensor(self.plain, products(self.parts[:, 0], one), every, nl.add)
        nisa.tensor_tensor(self.flipped, self.parts[:, 0], every, nl.add)
        for level in range(1, LEVELS):
            if 2**level < size:
                self.join(level)

    def join(self, level: int) -> None:
        """Two blocks of 2^level tokens to one."""
        between = copied(products(self.parts[:, level], self.plain), nl.float32, 1)
        across, down = products(self.flipped, between), products(between, self.flipped)
        nisa.tensor_tensor(self.plain, self.plain, across, nl.add)
        nisa.tensor_tensor(self.flipped, self.flipped, down, nl.add)
