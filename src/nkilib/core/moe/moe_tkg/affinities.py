"""What each expert's result of a token is multiplied by, in every partition: features lie there."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_tkg.parameters import (
    PACKED_COLUMNS,
    TOKEN_COLUMNS,
    MoEParameters,
    arrives_packed,
    hidden_size,
    local_experts,
)
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import DTypeLike, Tensor


def in_sbuf(tensor: Tensor, dtype: DTypeLike, first: int, rows: int) -> Tensor:
    """Some rows of a tensor in HBM or SBUF as a tile of this dtype."""
    part = tensor[first : first + rows]
    tile = nl.ndarray(part.shape, dtype, buffer=nl.sbuf)
    if is_hbm_buffer(tensor):
        nisa.dma_copy(tile, part)
    else:
        nisa.tensor_copy(tile, part)
    return tile


class Broadcast(nl.NKIObject):
    """Columns of [rows, n] tiles as rows in every partition, by a matmul with the identity."""

    def __init__(self, rows: int):
        self.identity = nl.ndarray((rows, rows), nl.float32, buffer=nl.sbuf)
        nisa.iota(self.identity, [[1, rows]], channel_multiplier=-1)
        nisa.tensor_scalar(self.identity, self.identity, nl.equal, 0.0)

    def put(self, dst: Tensor, column: Tensor) -> None:
        """dst[p, t] = column[t, 0]"""
        rows = column.shape[0]
        bank = nl.ndarray((PMAX, rows), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(bank, column.broadcast(1, PMAX), self.identity[0:rows, 0:rows])
        nisa.tensor_copy(dst, bank)


def selected_affinities(p: MoEParameters) -> Tensor:
    """Of the K chosen experts of each token, [128, K, T]."""
    tokens, k = p.index.shape
    if p.eager is not None:
        chosen = in_sbuf(p.eager, nl.float32, 0, tokens)
    else:
        all_experts = in_sbuf(p.affinities, nl.float32, 0, tokens)
        index = in_sbuf(p.index, p.index.dtype, 0, tokens)
        chosen = nl.ndarray((tokens, k), nl.float32, buffer=nl.sbuf)
        nisa.nc_n_gather(chosen, all_experts, index.view(nl.uint32))
    result = nl.ndarray((PMAX, k, tokens), nl.float32, buffer=nl.sbuf)
    broadcast = Broadcast(tokens)
    for column in range(k):
        broadcast.put(result[:, column, :], chosen[:, column : column + 1])
    return result


def local_affinities(p: MoEParameters, first: int, rows: int) -> Any:
    """Of the local experts, [tokens <= 128, E_L] float32; 0 where not chosen, if asked for."""
    local = local_experts(p)
    if arrives_packed(p):
        return packed_affinities(p, first, rows)
    ranks = p.affinities.shape[1] // local
    by_rank = p.affinities[first : first + rows].reshape_dim(1, (ranks, local))
    tile = nl.ndarray((rows, local), nl.float32, buffer=nl.sbuf)
    if ranks == 1:
        source = by_rank[:, 0, :]
    else:
        rank = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(rank, p.rank_id.reshape((1, 1)))
        source = by_rank.select(1, rank)
    if is_hbm_buffer(p.affinities):
        nisa.dma_copy(tile, source)
    else:
        nisa.tensor_copy(tile, source)
    if p.masked:
        nisa.tensor_tensor(tile, tile, chosen_mask(p, first, rows), op=nl.multiply)
    return tile


def chosen_mask(p: MoEParameters, first: int, rows: int) -> Tensor:
    """1 where expert_index of a token has the local expert's global number, else 0."""
    local = local_experts(p)
    index = in_sbuf(p.index, nl.float32, first, rows)
    rank = new_column(rows)
    nisa.dma_copy(rank, p.rank_id.reshape((1, 1)).broadcast(0, rows))
    numbers = nl.ndarray((rows, local), nl.float32, buffer=nl.sbuf)
    nisa.iota(numbers, [[1, local]])
    nisa.tensor_scalar(rank, rank, nl.multiply, float(local))
    nisa.tensor_scalar(numbers, numbers, nl.add, rank)
    mask = nl.ndarray((rows, local), nl.float32, buffer=nl.sbuf)
    nisa.memset(mask, 0.0)
    for column in range(index.shape[1]):
        number = index[:, column : column + 1]
        nisa.scalar_tensor_tensor(mask, numbers, nl.equal, number, nl.maximum, mask)
    return mask


# ---- rows that an all-to-all brought -------------------------------------------------------------


def row_tail(p: MoEParameters, first: int, rows: int) -> Tensor:
    """What stands behind some rows, [rows, 3] of 16 bits."""
    tail = nl.ndarray((rows, PACKED_COLUMNS), p.hidden.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tail, p.hidden[first : first + rows, hidden_size(p) :])
    return tail


def token_numbers(p: MoEParameters, first: int, rows: int, first_number: int = 0) -> Any:
    """Their tokens, int32 [rows, 1], counted from first_number; padding stays -1."""
    words = nl.ndarray((rows, TOKEN_COLUMNS), p.hidden.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(words, row_tail(p, first, rows)[:, PACKED_COLUMNS - TOKEN_COLUMNS :])
    stored, numbers = words.view(nl.int32), nl.ndarray((rows, 1), nl.int32, buffer=nl.sbuf)
    used = nl.ndarray((rows, 1), nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(used, stored, nl.greater_equal, 0.0, op1=nl.multiply, operand1=float(first_number))
    nisa.tensor_tensor(numbers, stored, used, op=nl.add)
    return numbers


def packed_affinities(p: MoEParameters, first: int, rows: int) -> Tensor:
    """[rows, E_L]: the packed affinity in the column of the row's expert, else 0; padding rows have none."""
    local = local_experts(p)
    affinity, used = nl.ndarray((rows, 1), nl.float32, nl.sbuf), nl.ndarray((rows, 1), nl.float32, nl.sbuf)
    nisa.tensor_copy(affinity, row_tail(p, first, rows)[:, 0:1].view(nl.bfloat16))
    nisa.tensor_scalar(used, token_numbers(p, first, rows), nl.greater_equal, 0.0)
    nisa.tensor_tensor(affinity, affinity, used, op=nl.multiply)
    tile = nl.ndarray((rows, local), nl.float32, buffer=nl.sbuf)
    if local == 1:
        nisa.tensor_copy(tile, affinity)
    else:
        nisa.tensor_scalar(tile, chosen_mask(p, first, rows), nl.multiply, affinity)
    return tile
