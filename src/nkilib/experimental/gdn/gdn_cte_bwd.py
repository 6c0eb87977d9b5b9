"""The gradients of the gated delta rule, by chunks from the last to the first.

A first pass runs the rule and stores, for every chunk, its inverse T, the state S before it and the values
u that it writes. The second pass carries the gradient of the state backwards. With M = q k^T D, all sums
over tokens: du = M^T do + e^(rest) k dS, dr = T^T du is the gradient of beta (v - e^G k S), and dA = -dr
u^T that of A.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.gdn.chunks import (
    CHUNK,
    Gates,
    Masks,
    bank,
    copied,
    load_numbers,
    load_rows,
    transposed,
)
from nkilib.experimental.gdn.gdn_cte import Chunks, Rows, check, first_state, groups


@nki.jit
def gdn_cte_bwd(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g_log: Tensor,
    beta: Tensor,
    scale: float = 1.0,
    recurrent_state: Tensor | None = None,
    grad_state: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of gdn_cte: of query, key, value, g_log, beta and recurrent_state.

    grad_output is [B, Hv, S, Dv], grad_state [B, Hv, Dk, Dv] the gradient of the final state (None: zeros);
    the other arguments are those of `gdn_cte`, here with Dv <= 128. Each gradient has the shape and dtype
    of what it belongs to; that of the first state is float32, and returned for None too. Everything is
    computed in float32. Two cores share the key heads. The documented library has no such kernel.

    >>> import numpy as np
    >>> one, zero = np.ones((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    >>> [float(g.ravel()[0]) for g in gdn_cte_bwd(one, one, one, 3 * one, zero, zero + 0.5)]
    [1.5, 1.5, 0.5, 0.0, 3.0, 0.5]
    """
    get_verified_program_sharding_info("gdn_cte_bwd", (0, 1), 2)
    check(query, key, value, g_log, beta, recurrent_state)
    values = value.shape[3]
    kernel_assert(values <= PMAX, f"value: got Dv = {values}, allowed is up to {PMAX}")
    assert_tensors((("grad_output", grad_output),), (("grad_state", grad_state),))
    assert_shape(grad_output, value.shape, "grad_output")
    states = (value.shape[0], value.shape[1], query.shape[3], values)
    if grad_state is not None:
        assert_shape(grad_state, states, "grad_state")
    grads = Gradients(query, key, value, g_log, beta, states)
    masks, shared = Masks(), value.shape[1] // query.shape[1]
    first, end = program_share(query.shape[0] * query.shape[1])
    for job in range(first, end):
        b, h = job // query.shape[1], job % query.shape[1]
        heads = []
        for own in range(h * shared, (h + 1) * shared):
            given = None if recurrent_state is None else recurrent_state[b, own]
            head = Head(b, own, scale, g_log[b, own], beta[b, own], value[b, own])
            head.forward(masks, query[b, h], key[b, h], first_state(given, states))
            head.state = first_state(None if grad_state is None else grad_state[b, own], states)
            heads.append(head)
        parts = groups(query.shape[2])
        for i in range(len(parts)):
            part = parts[len(parts) - 1 - i]
            for c in range(part[2]):
                start = part[0] + (part[2] - 1 - c) * part[1]
                grads.step(masks, heads, grad_output[b], query[b, h], key[b, h], start, part[1])
        for head in heads:
            nisa.dma_copy(grads.state[b, head.number], head.state)
    return grads.q, grads.k, grads.v, grads.g, grads.beta, grads.state


class Head(nl.NKIObject):
    """A value head: its inputs, what the first pass stores, and the gradient of its state."""

    def __init__(self, batch: int, number: int, scale: float, logs: Tensor, beta: Tensor, v: Tensor):
        self.batch = batch
        self.number = number
        self.scale = scale
        self.logs = logs
        self.beta = beta
        self.v = v
        self.state: Any = None
        self.new = nl.ndarray(v.shape, nl.float32, buffer=nl.private_hbm)
        self.inverse = nl.ndarray((v.shape[0], CHUNK), nl.float32, buffer=nl.private_hbm)
        self.states: list = []

    def forward(self, masks: Masks, query: Tensor, key: Tensor, state: Tensor) -> None:
        """Run the rule, and store inverses, states and written values."""
        for part in groups(query.shape[0]):
            start, size, count = part
            q = load_rows(query, start, size, count, nl.float32)
            k = load_rows(key, start, size, count, nl.float32)
            v = load_rows(self.v, start, size, count, nl.float32)
            gates = Gates(masks, load_numbers(self.logs, start, size, count))
            rates = load_numbers(self.beta, start, size, count)
            chunks = Chunks(masks, gates, rates, self.scale, Rows(q, k, v))
            seen: list = []
            chunks.advance(state, seen)
            for c in range(count):
                row = start + c * size
                nisa.dma_copy(self.new[row : row + size], seen[c][0])
                nisa.dma_copy(self.inverse[row : row + size, 0:size], chunks.inverse.plain[:, c, :])
                before = nl.ndarray(state.shape, nl.float32, buffer=nl.private_hbm)
                nisa.dma_copy(before, seen[c][1])
                self.states.append(before)


class Gradients(nl.NKIObject):
    """The results."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: tuple):
        self.q = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
        self.k = nl.ndarray(k.shape, k.dtype, buffer=nl.shared_hbm)
        self.v = nl.ndarray(v.shape, v.dtype, buffer=nl.shared_hbm)
        self.g = nl.ndarray(g.shape, g.dtype, buffer=nl.shared_hbm)
        self.beta = nl.ndarray(beta.shape, beta.dtype, buffer=nl.shared_hbm)
        self.state = nl.ndarray(states, nl.float32, buffer=nl.shared_hbm)

    def step(
        self, masks: Masks, heads: list, dy: Tensor, query: Tensor, key: Tensor, start: int, size: int
    ) -> None:
        """One chunk of the value heads that share a key head."""
        q, k = load_rows(query, start, size, 1, nl.float32), load_rows(key, start, size, 1, nl.float32)
        tokens = slice(start, start + size)
        dq, dk = None, None
        for head in heads:
            chunk = Chunk(masks, head, q, k, dy[head.number], start, size)
            place = (head.batch, head.number, tokens)
            store(self.v[place], times(chunk.dr, chunk.beta))
            store(self.beta[place].expand_dim(1), chunk.rates())
            store(self.g[place].expand_dim(1), chunk.logs())
            dq, dk = total(dq, chunk.queries()), total(dk, chunk.keys())
            chunk.move()
        batch, number = heads[0].batch, heads[0].number // len(heads)
        store(self.q[batch, number, tokens], dq)
        store(self.k[batch, number, tokens], dk)


def total(before: Tensor | None, added: Tensor) -> Tensor:
    """The sum of two tiles, of which the first may not be there yet."""
    if before is None:
        return added
    nisa.tensor_tensor(before, before, added, nl.add)
    return before


def product(stationary: Any, moving: Any) -> Tensor:
    """stationary.T @ moving in PSUM."""
    out = bank((stationary.shape[1], moving.shape[1]))
    nisa.nc_matmul(out, stationary, moving)
    return out


def flipped(tile: Tensor) -> Tensor:
    """The transpose of a tile, in SBUF."""
    return transposed(tile.expand_dim(1))[:, 0, :]


def times(tile: Tensor, factor: Any) -> Tensor:
    """A tile times one number in each partition, [n, 1], or another tile."""
    result = like(tile, nl.float32)
    if factor.shape[1] == 1 and tile.shape[1] != 1:
        nisa.tensor_scalar(result, tile, nl.multiply, factor)
    else:
        nisa.tensor_tensor(result, tile, factor, nl.multiply)
    return result


def row_sums(tile: Tensor) -> Tensor:
    sums = new_column(tile.shape[0])
    nisa.tensor_reduce(sums, nl.add, tile, 1)
    return sums


class Chunk(nl.NKIObject):
    """The gradients of one chunk of a value head; [n, 1, d] rows of q and k, [n, d] of all others."""

    def __init__(self, masks: Masks, head: Head, q: Tensor, k: Tensor, dy: Tensor, start: int, size: int):
        self.masks = masks
        self.head = head
        self.q = q[:, 0, :]
        self.k = k[:, 0, :]
        gates = Gates(masks, load_numbers(head.logs, start, size, 1))
        self.grown = gates.grown
        self.rest = gates.rest
        self.whole = gates.whole
        self.beta = load_numbers(head.beta, start, size, 1)
        self.left = gates.between(False)[:, 0, :]
        self.dy = load_rows(dy, start, size, 1, nl.float32)[:, 0, :]
        nisa.activation(self.dy, nl.copy, self.dy, scale=head.scale)
        self.new = load(head.new[start : start + size])
        self.before = load(head.states[start // CHUNK])
        self.q_columns = transposed(q)[:, 0, :]
        self.k_columns = transposed(k)[:, 0, :]
        self.new_columns = flipped(self.new)
        self.dy_columns = flipped(self.dy)
        self.similar = times(product(self.k_columns, self.k_columns), self.left)  # k k^T D
        self.scores = times(product(self.q_columns, self.k_columns), self.left)
        self.carried = times(product(self.k_columns, head.state), self.rest)
        inverse = load(head.inverse[start : start + size, 0:size])
        self.solve(inverse, load_rows(head.v, start, size, 1, nl.float32)[:, 0, :])

    def solve(self, inverse: Tensor, v: Tensor) -> None:
        """dr, dA and what follows from the state before."""
        du = like(self.carried)
        nisa.tensor_tensor(du, self.carried, product(self.scores, self.dy), nl.add)
        self.dr = copied(product(inverse, du), nl.float32)
        self.dr_columns = flipped(self.dr)
        self.known = times(product(self.k_columns, self.before), self.grown)  # e^G k S
        self.error = like(v)
        nisa.tensor_tensor(self.error, v, self.known, nl.subtract)
        system = product(self.dr_columns, self.new_columns)
        self.system = like(system, nl.float32)
        nisa.tensor_scalar(self.system, system, nl.multiply, -1.0)
        size = v.shape[0]
        nisa.affine_select(self.system, [[-1, size]], 1, self.system, 0.0, nl.greater)  # below the diagonal
        self.matches = times(product(self.dy_columns, self.new_columns), self.left)  # dM D
        self.pairs = times(times(self.system, self.left), self.beta)  # beta dA D

    def rates(self) -> Tensor:
        """The gradient of beta."""
        return total(row_sums(times(self.dr, self.error)), row_sums(times(self.system, self.similar)))

    def logs(self) -> Tensor:
        """The gradient of g_log: that of G from here to the end of the chunk, and that of its end."""
        masks, size = self.masks, self.k.shape[0]
        by_pair = times(times(self.system, self.similar), self.beta)
        by_score = times(product(self.dy_columns, self.new_columns), self.scores)
        nisa.tensor_tensor(by_pair, by_pair, by_score, nl.add)
        down = row_sums(by_pair)
        nisa.tensor_tensor(down, down, product(by_pair, masks.ones[0:size, 0:1]), nl.subtract)
        read = times(product(self.q_columns, self.before), self.grown)
        total(down, row_sums(times(read, self.dy)))
        known = times(row_sums(times(self.known, self.dr)), self.beta)
        nisa.tensor_tensor(down, down, known, nl.subtract)
        carried = row_sums(times(self.carried, self.new))
        nisa.tensor_tensor(down, down, carried, nl.subtract)
        kept = times(row_sums(times(self.before, self.head.state)), self.whole[0 : self.before.shape[0]])
        sums = bank((size, 1))
        nisa.nc_matmul(sums, masks.since[0:size, 0:size], down)
        nisa.nc_matmul(sums, masks.ones[0:size, 0:size], carried)
        nisa.nc_matmul(sums, masks.ones[0 : self.before.shape[0], 0:size], kept)
        return copied(sums, nl.float32)

    def queries(self) -> Tensor:
        """The gradient of q."""
        read = times(product(self.dy_columns, flipped(self.before)), self.grown)
        nisa.tensor_tensor(read, read, product(flipped(self.matches), self.k), nl.add)
        return read

    def keys(self) -> Tensor:
        """The gradient of k."""
        sums = bank(self.k.shape)
        nisa.nc_matmul(sums, self.matches, self.q)
        nisa.nc_matmul(sums, flipped(self.pairs), self.k)
        nisa.nc_matmul(sums, self.pairs, self.k)
        known = times(times(product(self.dr_columns, flipped(self.before)), self.grown), self.beta)
        carried = times(product(self.new_columns, flipped(self.head.state)), self.rest)
        nisa.tensor_tensor(carried, carried, known, nl.subtract)
        nisa.tensor_tensor(carried, carried, sums, nl.add)
        return carried

    def move(self) -> None:
        """The gradient of the state, to before the chunk."""
        state = self.head.state
        read = product(times(self.q, self.grown), self.dy)
        known = product(times(times(self.k, self.grown), self.beta), self.dr)
        whole = self.whole[0 : state.shape[0]]
        nisa.scalar_tensor_tensor(state, state, nl.multiply, whole, nl.add, read)
        nisa.tensor_tensor(state, state, known, nl.subtract)
