"""One token of the delta rule for many heads: S <- decay S; S <- S + k (beta (v - S^T k))^T; out = S^T q.

The state of a head is [K, V] with K in the partitions. TensorE multiplies it by the decayed k and q, which
gives what the state knows of k and its part of the result before it changes; the new part of the state is
the product of the rows of k with a block-diagonal tile of what is written, for four heads at a time.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_io import hardware_queue, load
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

HEADS = 32  # at a time
L2_EPSILON = 1e-6


def normalized(rows: Tensor, scale: float = 1.0) -> Tensor:
    """rows / |row| * scale, [n, d] in float32."""
    squares, sums = like(rows, nl.float32), new_column(rows.shape[0])
    nisa.activation_reduce(squares, nl.square, rows, nl.add, sums)
    nisa.tensor_scalar(sums, sums, nl.add, L2_EPSILON)
    nisa.activation(sums, nl.rsqrt, sums)
    result = like(rows, nl.float32)
    nisa.tensor_scalar(result, rows, nl.multiply, sums, op1=nl.multiply, operand1=scale)
    return result


def flipped(tile: Tensor) -> Tensor:
    """The transpose of a float32 tile."""
    bank = nl.ndarray((tile.shape[1], tile.shape[0]), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(bank, tile, engine=nisa.tensor_engine)
    result = like(bank)
    nisa.tensor_copy(result, bank)
    return result


class DeltaStep(nl.NKIObject):
    """A token of n heads: rows k and q [n, K] and v [n, V], decay [K, n], beta [n, 1]; all float32."""

    def __init__(self, k: Tensor, q: Tensor, v: Tensor, decay: Tensor, beta: Tensor):
        self.k = k
        self.v = v
        self.decay = decay
        self.beta = beta
        self.k_columns = flipped(k)
        self.q_columns = flipped(q)
        products = like(k)
        nisa.tensor_tensor(products, k, q, nl.multiply)
        self.overlap = new_column(k.shape[0])  # k . q
        nisa.tensor_reduce(self.overlap, nl.add, products, 1)

    def advance(self, source: Tensor, target: Tensor) -> Tensor:
        """Move states in HBM, [n, K, V], by the token from place to place; return the results [n, V]."""
        groups = TiledRange(source.shape[0], max(1, BANK_COLUMNS // source.shape[2]))
        states = []  # a tile for each group: it is stored while others are worked on
        for group in groups:
            states.append(load(source[group.start_offset : group.end_offset].permute((1, 0, 2))))
        known, read = self.read(states)
        new, out = like(self.v), like(self.v)
        nisa.tensor_tensor(new, self.v, known, nl.subtract)
        nisa.tensor_scalar(new, new, nl.multiply, self.beta)
        nisa.scalar_tensor_tensor(out, new, nl.multiply, self.overlap, nl.add, read)
        for group in groups:
            state = states[group.index]
            self.write(state, new, group.start_offset)
            rows = target[group.start_offset : group.end_offset].permute((1, 0, 2))
            nisa.dma_copy(rows, state, dge_mode=hardware_queue())
        return out

    def read(self, states: list) -> tuple:
        """The decayed states times k, and times q, rows [n, V]; the states decay."""
        size, heads = self.decay.shape
        values = self.v.shape[1]
        pairs = nl.ndarray((size, heads, 2), nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(pairs[:, :, 0], self.k_columns, self.decay, nl.multiply)
        nisa.tensor_tensor(pairs[:, :, 1], self.q_columns, self.decay, nl.multiply)
        bank = nl.ndarray((values, heads, 2), nl.float32, buffer=nl.psum)
        for head in range(heads):
            state = states[head // states[0].shape[1]][:, head % states[0].shape[1], :]
            nisa.nc_matmul(bank[:, head, :], state, pairs[:, head, :])
        first = 0
        for state in states:
            decay = self.decay[:, first : first + state.shape[1]].expand_dim(2).broadcast(2, values)
            nisa.tensor_tensor(state, state, decay, nl.multiply)
            first += state.shape[1]
        both = nl.ndarray((values, 2, heads), nl.float32, buffer=nl.sbuf)
        nisa.activation(both, nl.copy, bank.permute((0, 2, 1)))
        return flipped(both[:, 0, :]), flipped(both[:, 1, :])

    def write(self, state: Tensor, new: Tensor, first: int) -> None:
        """state <- state + k new^T, for the heads from `first` on."""
        size, heads, values = state.shape
        rows = new.shape[0]
        blocks = nl.ndarray((rows, heads, values), nl.float32, buffer=nl.sbuf)
        every = new.expand_dim(1).broadcast(1, heads)
        nisa.affine_select(blocks, [[-1, heads], [0, values]], 1, every, 0.0, nl.equal, offset=-first)
        added = nl.ndarray((size, heads, values), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(added, self.k, blocks)
        nisa.tensor_tensor(state, state, added, nl.add)
