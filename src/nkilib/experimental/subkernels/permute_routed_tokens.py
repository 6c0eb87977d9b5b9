"""Tokens sorted by expert: a counting sort whose rows DMA writes directly to their positions.

The position of a (token, expert) pair follows from how many pairs have a larger expert, the same one, and the
same one earlier. TensorE sums one-hot rows for these counts, with a triangle of ones for running sums. Each
token is read once.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.masks import all_ones, triangle
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor
from nkilib.experimental.subkernels.argsort_unstable import argsort_unstable_ref
from nkilib.experimental.subkernels.tie_order import put_places

MAX_EXPERTS = 512  # one PSUM bank of counts
TAIL_WORDS = 3  # of 16 bits behind each row: the affinity, and the token's number in two


@nki.jit
def permute_routed_tokens(
    hidden_input: Tensor, expert_index: Tensor, expert_affinities_masked: Tensor
) -> Tensor:
    """Return rows [hidden | affinity | token] of all (token, expert) pairs, sorted by expert, [T K, C + c].

    hidden_input is [T, C] in bfloat16 or FP8 (its last columns may hold scales), expert_index [T, K]
    int32, expert_affinities_masked [T, E] (rounded to bfloat16 if it is float32). Behind hidden come the bits
    of the affinity in bfloat16 and of the token's number, from 0, in int32: c is 3 columns of bfloat16 or 6
    of FP8.
    The order is that of argsort_unstable(expert_index). T K may exceed the documented 128, and K be any.

    >>> import ml_dtypes
    >>> x = np.arange(2, dtype=ml_dtypes.bfloat16).reshape(2, 1) + 7
    >>> affinities = np.full((2, 8), 0.5, ml_dtypes.bfloat16)
    >>> rows = permute_routed_tokens(x, np.array([[5, 1], [1, 3]], np.int32), affinities)
    >>> rows[:, 0].tolist(), rows[:, 2].view(np.uint16).tolist()
    ([7.0, 8.0, 8.0, 7.0], [0, 1, 1, 0])
    """
    get_verified_program_sharding_info("permute_routed_tokens", (0, 1), 2)
    check(hidden_input, expert_index, expert_affinities_masked)
    tokens, k = expert_index.shape
    width = hidden_input.shape[1]
    tail = 2 * TAIL_WORDS if hidden_input.dtype in FP8 else TAIL_WORDS
    result = nl.ndarray((tokens * k, width + tail), hidden_input.dtype, buffer=nl.shared_hbm)
    order = ExpertOrder(expert_index, expert_affinities_masked.shape[1])
    for tile in order.own_tiles():
        start, end = tile.start_offset, tile.end_offset
        rows = load(hidden_input[start:end])
        affinities = load(expert_affinities_masked[start:end], nl.bfloat16)
        tails = row_tails(affinities, order.index_of(tile), start)
        tails = tails.view(hidden_input.dtype).reshape((tile.size, k, tail))
        places = order.places_of(tile)
        for column in range(k):
            place = places[:, column : column + 1]
            pattern = [[width + tail, tile.size], [1, width]]
            nisa.dma_copy(result.ap(pattern, vector_offset=place), rows)
            pattern = [[width + tail, tile.size], [1, tail]]
            nisa.dma_copy(result.ap(pattern, offset=width, vector_offset=place), tails[:, column, :])
    return result


def check(hidden: Tensor, index: Tensor, affinities: Tensor) -> None:
    assert_tensors(
        (
            ("hidden_input", hidden),
            ("expert_index", index),
            ("expert_affinities_masked", affinities),
        )
    )
    kernel_assert(
        len(index.shape) == 2 and index.dtype in (nl.int32, nl.uint32),
        f"expert_index: got {index.dtype} of shape {tuple(index.shape)}, expected int32 [T, K]",
    )
    tokens, experts = index.shape[0], affinities.shape[1]
    kernel_assert(
        len(hidden.shape) == 2 and hidden.shape[0] == tokens,
        f"hidden_input: got shape {tuple(hidden.shape)}, expected ({tokens}, C)",
    )
    kernel_assert(
        hidden.dtype in (nl.bfloat16, nl.float16) or hidden.dtype in FP8,
        f"hidden_input: got {hidden.dtype}, allowed are bfloat16 and FP8",
    )
    kernel_assert(
        affinities.shape[0] == tokens,
        f"expert_affinities_masked: got shape {tuple(affinities.shape)}, expected ({tokens}, E)",
    )
    kernel_assert(
        experts <= MAX_EXPERTS,
        f"expert_affinities_masked: got {experts} experts, allowed are at most {MAX_EXPERTS}",
    )


class ExpertOrder(nl.NKIObject):
    """Positions of all (token, expert) pairs; tiles of this core's tokens are processed in order."""

    def __init__(self, expert_index: Tensor, experts: int):
        self.tokens = expert_index.shape[0]
        self.k = expert_index.shape[1]
        self.experts = experts
        share = program_share(self.tokens, PMAX)
        self.start = share[0]
        self.end = share[1]
        self.index = load_index(expert_index)  # uint32 [128, tiles, K]
        self.numbers = nl.ndarray(self.index.shape, nl.float32, buffer=nl.sbuf)  # the same
        nisa.tensor_copy(self.numbers, self.index)
        self.columns = new_tile(PMAX, experts)
        nisa.iota(self.columns, [[1, experts]])
        self.ones = all_ones(nl.bfloat16)
        self.earlier = triangle(self.ones)
        self.same_token: Tensor = None if self.k == 1 else smaller_columns(self.k)
        self.count_all()

    def own_tiles(self) -> list:
        """Return this core's tiles of 128 tokens."""
        own = []
        for tile in TiledRange(self.tokens, PMAX):
            if self.start <= tile.start_offset and tile.start_offset < self.end:
                own.append(tile)
        return own

    def index_of(self, tile: TiledRangeIterator) -> Tensor:
        return self.index[0 : tile.size, tile.index, :]

    def count_all(self) -> None:
        """Count how often every expert is chosen: by all tokens, and by those before this core's."""
        every = nl.ndarray((PMAX, self.experts), nl.float32, buffer=nl.psum)
        mine = nl.ndarray((PMAX, self.experts), nl.float32, buffer=nl.psum)
        for tile in TiledRange(self.tokens, PMAX):
            hits = self.one_hot(tile)
            for hit in hits:
                nisa.nc_matmul(every, self.ones[0 : tile.size], hit)
                if tile.start_offset < self.start:
                    nisa.nc_matmul(mine, self.ones[0 : tile.size], hit)
        self.equal = new_tile(PMAX, self.experts)
        self.before = new_tile(PMAX, self.experts)
        nisa.tensor_copy(self.equal, every)
        if self.start > 0:
            nisa.tensor_copy(self.before, mine)
        else:
            nisa.memset(self.before, 0.0)
        ones = new_tile(PMAX, self.experts)
        nisa.memset(ones, 1.0)
        self.greater = new_tile(PMAX, self.experts)
        nisa.tensor_tensor_scan(self.greater, ones, self.equal, 0.0, op0=nl.multiply, op1=nl.add)
        total = float(self.tokens * self.k)
        nisa.tensor_scalar(self.greater, self.greater, nl.multiply, -1.0, op1=nl.add, operand1=total)

    def one_hot(self, tile: TiledRangeIterator) -> list:
        """Return one-hot rows [tokens, experts] for each of the K choices."""
        hits = []
        for column in range(self.k):
            hit = nl.ndarray((tile.size, self.experts), nl.bfloat16, buffer=nl.sbuf)
            number = self.numbers[0 : tile.size, tile.index, column : column + 1]
            nisa.tensor_scalar(hit, self.columns[0 : tile.size], nl.equal, number)
            hits.append(hit)
        return hits

    def places_of(self, tile: TiledRangeIterator) -> Tensor:
        """Return the ranks of the next tile, int32 [tokens, K]."""
        above = nl.ndarray((tile.size, self.experts), nl.float32, buffer=nl.psum)
        whole = nl.ndarray((PMAX, self.experts), nl.float32, buffer=nl.psum)
        for hit in self.one_hot(tile):
            nisa.nc_matmul(above, self.earlier[0 : tile.size, 0 : tile.size], hit)
            nisa.nc_matmul(whole, self.ones[0 : tile.size], hit)
        before = new_tile(tile.size, self.experts)
        nisa.tensor_tensor(before, above, self.before[0 : tile.size], op=nl.add)
        nisa.tensor_tensor(self.before, whole, self.before, op=nl.add)
        index = self.index_of(tile)
        chosen = pick(before, index)
        if self.k > 1:
            nisa.tensor_tensor(chosen, chosen, self.before_in_token(tile), op=nl.add)
        places = nl.ndarray(index.shape, nl.int32, buffer=nl.sbuf)
        greater, equal = pick(self.greater, index), pick(self.equal, index)
        put_places(places, greater, equal, chosen, self.tokens * self.k, descending=False)
        return places

    def before_in_token(self, tile: TiledRangeIterator) -> Tensor:
        """Count the earlier choices of the same token that are the same expert."""
        k, numbers = self.k, self.numbers[0 : tile.size, tile.index, :]
        match = nl.ndarray((tile.size, k, k), nl.float32, buffer=nl.sbuf)
        own, other = numbers.expand_dim(2).broadcast(2, k), numbers.expand_dim(1).broadcast(1, k)
        nisa.tensor_tensor(match, own, other, op=nl.equal)
        nisa.tensor_tensor(match, match, self.same_token[0 : tile.size], op=nl.multiply)
        count = new_tile(tile.size, k)
        nisa.tensor_reduce(count, nl.add, match, 2)
        return count


def new_tile(rows: int, columns: int) -> Tensor:
    return nl.ndarray((rows, columns), nl.float32, buffer=nl.sbuf)


def load_index(expert_index: Tensor) -> Tensor:
    """Load expert_index[128 n + p, k] at [p, n, k], as uint32."""
    tokens, k = expert_index.shape
    full, rest = tokens // PMAX, tokens % PMAX
    tile = nl.ndarray((PMAX, div_ceil(tokens, PMAX), k), expert_index.dtype, buffer=nl.sbuf)
    if rest > 0:
        nisa.memset(tile[:, full, :], 0)
        nisa.dma_copy(tile[0:rest, full, :], expert_index[full * PMAX :])
    if full > 0:
        whole = expert_index[0 : full * PMAX].reshape_dim(0, (full, PMAX))
        nisa.dma_copy(tile[:, 0:full, :], whole.permute((1, 0, 2)))
    return tile.view(nl.uint32)


def smaller_columns(k: int) -> Tensor:
    """Return [128, K, K]: 1 at [i, j] where j < i, in every partition."""
    tile = nl.ndarray((PMAX, k, k), nl.float32, buffer=nl.sbuf)
    nisa.iota(tile, [[1, k], [-1, k]])
    nisa.tensor_scalar(tile, tile, nl.greater, 0.0)
    return tile


def pick(data: Tensor, index: Tensor) -> Tensor:
    """Return data[p, index[p, k]], in the dtype of data."""
    rows = index.shape[0]
    dst = nl.ndarray(index.shape, data.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(dst, data[0:rows], index)
    return dst


def row_tails(affinities: Tensor, index: Tensor, first: int) -> Tensor:
    """Return the tail of each row, [tokens, K, 3] of 16 bits: affinity, token number in two halves."""
    rows, k = index.shape
    tails = nl.ndarray((rows, k, TAIL_WORDS), nl.uint16, buffer=nl.sbuf)
    nisa.tensor_copy(tails[:, :, 0], pick(affinities, index).view(nl.uint16))
    number = nl.ndarray((rows, 1), nl.int32, buffer=nl.sbuf)
    nisa.iota(number, [[0, 1]], offset=first, channel_multiplier=1)
    halves = number.view(nl.uint16).expand_dim(1).broadcast(1, k)
    nisa.tensor_copy(tails[:, :, 1:], halves)
    return tails


def permute_routed_tokens_ref(
    hidden_input: np.ndarray, expert_index: np.ndarray, expert_affinities_masked: np.ndarray
) -> np.ndarray:
    """Sort, gather and concatenate the bits in numpy."""
    tokens, k = expert_index.shape
    order = argsort_unstable_ref(expert_index).ravel()
    token, expert = (order // k).astype(np.int32), expert_index.ravel()[order]
    parts = [
        np.ascontiguousarray(hidden_input[token]).view(np.uint8),
        expert_affinities_masked[token, expert].reshape(-1, 1).view(np.uint8),
        token.reshape(-1, 1).view(np.uint8),
    ]
    return np.concatenate(parts, axis=1).view(hidden_input.dtype)
