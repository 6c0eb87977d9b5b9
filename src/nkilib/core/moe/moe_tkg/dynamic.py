"""All experts, each for the tokens that weigh something with it: as many blocks of them as there are.

A table in HBM lists these tokens for each expert. A loop whose trips are known at run time takes a block of
them, gathers their rows, and adds the results to theirs: an expert that no token chose is not loaded.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
from nkilib.core.moe.moe_tkg.affinities import Broadcast, local_affinities
from nkilib.core.moe.moe_tkg.experts import Item, Tokens
from nkilib.core.moe.moe_tkg.mx_tokens import mx_tokens
from nkilib.core.moe.moe_tkg.parameters import (
    MoEParameters,
    hidden_size,
    input_in_sbuf,
    intermediate_size,
    is_mx,
    local_experts,
    matmul_dtype,
    scales_outputs,
    token_count,
)
from nkilib.core.moe.moe_tkg.steps import add_ready, step_middles
from nkilib.core.utils.common_types import MoEBlockIOLayout
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.masks import all_ones, triangle
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.transposes import rows_from_spread, spread_rows
from nkilib.core.utils.types import Tensor

PAIR = 2  # of a token and its affinity's bits


def check_dynamic(p: MoEParameters, block_size: int | None) -> None:
    name = "is_all_expert_dynamic: got True"
    kernel_assert(p.all_expert, f"{name} without is_all_expert, allowed only with it")
    kernel_assert(
        block_size is not None and block_size > 0, f"block_size: got {block_size}, needed by dynamic experts"
    )
    kernel_assert(
        not input_in_sbuf(p) and not p.output_in_sbuf and p.layout == MoEBlockIOLayout.B_S_H,
        f"{name}, allowed only with tokens in HBM and output_layout B_S_H",
    )


def dynamic_experts(p: MoEParameters, out: Tensor, cores: int, core: int, block_size: int) -> Any:
    """out = sums over the experts, this core's part of H."""
    tokens, width = token_count(p), hidden_size(p) // cores
    table = TokenTable(p, min(block_size, PMAX))
    sums = nl.ndarray((tokens, width), nl.float32, buffer=nl.private_hbm)
    zeros = nl.ndarray((min(tokens, PMAX), width), nl.float32, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    for rows in TiledRange(tokens, PMAX):
        nisa.dma_copy(sums[rows.start_offset : rows.end_offset], zeros[0 : rows.size])
    broadcast = Broadcast(table.block)
    for expert in range(local_experts(p)):
        add_blocks(p, sums, table, broadcast, expert, cores, core)
    for rows in TiledRange(tokens, PMAX):
        start, end = rows.start_offset, rows.end_offset
        store(out[start:end, core * width : (core + 1) * width], load(sums[start:end]))
    return out


def add_blocks(
    p: MoEParameters,
    sums: Tensor,
    table: TokenTable,
    broadcast: Broadcast,
    expert: int,
    cores: int,
    core: int,
) -> None:
    """sums += an expert's results, in as many iterations as it has blocks."""
    trips = nisa.register_alloc()
    nisa.register_load(trips, table.trips[0:1, expert : expert + 1])

    def body(number):
        pairs = load(table.blocks[expert].select(0, number))
        places = pairs[:, 0:1]
        rows = nl.ndarray((table.block, p.hidden.shape[1]), p.hidden.dtype, buffer=nl.sbuf)
        nisa.memset(rows, 0.0)
        source = p.hidden.ap([[rows.shape[1], table.block], [1, rows.shape[1]]], vector_offset=places)
        nisa.dma_copy(rows, source, oob_mode=nisa.oob_mode.skip)
        values = [castable(rows, matmul_dtype(p))]
        x = mx_tokens(p, values, cores) if is_mx(p) else Tokens(spread_rows(values), 1, cores)
        weight = None
        if scales_outputs(p):
            weight = nl.ndarray((PMAX, table.block), nl.float32, buffer=nl.sbuf)
            broadcast.put(weight, pairs[:, 1:2].view(nl.float32))
        item = Item(expert, 0, intermediate_size(p), 0, table.block, weight)
        total = nl.ndarray((PMAX, sums.shape[1] // PMAX, table.block), nl.float32, buffer=nl.sbuf)
        nisa.memset(total, 0.0)
        add_ready(p, total, x, step_middles(p, x, [item], core), core)
        results = nl.ndarray((table.block, sums.shape[1]), nl.float32, buffer=nl.sbuf)
        rows_from_spread(results, total)
        pattern = [[sums.shape[1], table.block], [1, sums.shape[1]]]
        target = sums.ap(pattern, vector_offset=places)
        nisa.dma_compute(target, [target, results], nl.add, oob_mode=nisa.oob_mode.skip)

    nl.fori_loop(0, trips, body)


class TokenTable(nl.NKIObject):
    """(token, affinity) of every expert in blocks, filled up with (-1, 0): [E_L, blocks, block, 2]."""

    def __init__(self, p: MoEParameters, block: int):
        experts, tokens = local_experts(p), token_count(p)
        self.block = block
        self.capacity = div_ceil(tokens, block)
        rows = experts * self.capacity * block
        cells = nl.ndarray((rows, PAIR), nl.int32, buffer=nl.private_hbm)
        self.clear(cells, experts)
        self.blocks = cells.reshape((experts, self.capacity, block, PAIR))
        self.ones = all_ones(nl.bfloat16)
        self.earlier = triangle(self.ones)
        self.counts = nl.ndarray((PMAX, experts), nl.float32, buffer=nl.sbuf)
        nisa.memset(self.counts, 0.0)
        for tile in TiledRange(tokens, PMAX):
            self.enter(p, cells, tile)
        self.trips = nl.ndarray((PMAX, experts), nl.int32, buffer=nl.sbuf)  # blocks, rounded up
        half = 0.5 - 0.5 / block
        nisa.tensor_scalar(self.trips, self.counts, nl.multiply, 1.0 / block, op1=nl.add, operand1=half)

    def clear(self, cells: Tensor, experts: int) -> None:
        """Entries of no token."""
        each = self.capacity * self.block
        empty = nl.ndarray((1, each, PAIR), nl.int32, buffer=nl.sbuf)
        nisa.memset(empty[:, :, 0], -1)
        nisa.memset(empty[:, :, 1], 0)
        for expert in range(experts):
            nisa.dma_copy(cells[expert * each : (expert + 1) * each].expand_dim(0), empty)

    def enter(self, p: MoEParameters, cells: Tensor, tile: TiledRangeIterator) -> None:
        """The tokens of a tile, behind those of earlier ones."""
        experts, rows = self.counts.shape[1], tile.size
        weights = nl.ndarray((rows, experts), nl.float32, buffer=nl.sbuf)
        if scales_outputs(p):
            weights = local_affinities(p, tile.start_offset, rows)
        else:
            nisa.memset(weights, 1.0)
        places = self.places_of(weights)
        pairs = nl.ndarray((rows, experts, PAIR), nl.int32, buffer=nl.sbuf)
        nisa.iota(pairs[:, :, 0], [[0, experts]], offset=tile.start_offset, channel_multiplier=1)
        nisa.tensor_copy(pairs[:, :, 1], weights.view(nl.int32))
        for expert in range(experts):
            place = cells.ap([[PAIR, rows], [1, PAIR]], vector_offset=places[:, expert : expert + 1])
            nisa.dma_copy(place, pairs[:, expert, :], oob_mode=nisa.oob_mode.skip)

    def places_of(self, weights: Tensor) -> Tensor:
        """Rows of the table, int32 [tokens, E_L]; -1 where the weight is 0. Counts move on."""
        rows, experts = weights.shape
        hits = nl.ndarray((rows, experts), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(hits, weights, nl.not_equal, 0.0)
        above = nl.ndarray((rows, experts), nl.float32, buffer=nl.psum)
        whole = nl.ndarray((PMAX, experts), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(above, self.earlier[0:rows, 0:rows], hits)
        nisa.nc_matmul(whole, self.ones[0:rows], hits)
        place = nl.ndarray((rows, experts), nl.float32, buffer=nl.sbuf)
        nisa.iota(place, [[self.capacity * self.block, experts]], offset=1)
        nisa.tensor_tensor(place, place, self.counts[0:rows], op=nl.add)
        nisa.tensor_tensor(place, above, place, op=nl.add)
        nisa.tensor_tensor(place, place, hits, op=nl.multiply)
        nisa.tensor_tensor(self.counts, whole, self.counts, op=nl.add)
        places = nl.ndarray((rows, experts), nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(places, place, nl.subtract, 1.0)
        return places
