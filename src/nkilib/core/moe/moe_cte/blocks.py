"""The loop over the blocks of a mixture of experts: what all forward kernels here are made of."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.experts import Outputs, Share, finish_unit, middle_parts, share_of
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    ExpertsParameters,
    block_count,
    check,
    expert_count,
    hidden_size,
    intermediate_size,
    token_count,
    tokens_per_pass,
)
from nkilib.core.moe.moe_cte.routing import Repeats, Routing, RoutingSource
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange

ZERO_BYTES = 16 * 1024  # of zeros that each partition stores at a time


def run_blocks(p: ExpertsParameters, any_size: bool = False) -> Any:
    """All blocks; returns out, or (out, checkpoints...). `any_size`: blocks of any multiple of 128."""
    check(p, any_size)
    cores, core = get_verified_program_sharding_info("moe_cte", (0, 1), 2)[1:]
    share = share_of(p, cores, core)
    source = routing_source(p)
    routing = Routing(source)
    repeats = Repeats(source)
    out = new_outputs(p)
    zeros = zero_tile(share.hidden, out.rows.dtype)
    for slice_of_result in out.slices:
        clear(slice_of_result[:, core * share.hidden : (core + 1) * share.hidden], zeros)
    fixed = block_count(p) if p.static_blocks is None else min(p.static_blocks, block_count(p))
    run_static(p, share, routing, repeats, out, fixed)
    if fixed < block_count(p):
        run_dynamic(p, share, routing, repeats, out, fixed)
    if not p.checkpoint:
        return out.result
    return (out.result, out.gate_up) if out.down is None else (out.result, out.gate_up, out.down)


def routing_source(p: ExpertsParameters) -> RoutingSource:
    return RoutingSource(
        p.position_to_id,
        p.block_to_expert,
        p.affinities,
        p.conditions,
        token_count(p),
        expert_count(p),
        p.block_size,
        tokens_per_pass(p),
        p.skip_token,
    )


def new_outputs(p: ExpertsParameters) -> Outputs:
    """The rows of the result, and the checkpoints that are asked for: the caller's or new ones."""
    dtype = p.hidden.dtype
    blocks = block_count(p)
    rows, size = p.hidden.shape
    shape: tuple = (rows, size) if p.slices == 1 else (rows, p.slices, size)
    result = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    slices = [result] if p.slices == 1 else []
    for number in range(p.slices - len(slices)):
        slices.append(result[:, number, :])
    gate_up, down = p.gate_up_checkpoint, p.down_checkpoint
    if not p.checkpoint:
        return Outputs(result, slices, slices[0], None, None)
    if gate_up is None:
        shape = (blocks, 2, intermediate_size(p), p.block_size)
        gate_up = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    if not p.checkpoint_down:
        down = None
    elif down is None:
        down = nl.ndarray((blocks, p.block_size, hidden_size(p)), dtype, buffer=nl.shared_hbm)
    return Outputs(result, slices, slices[0], gate_up, down)


def zero_tile(columns: int, dtype: Any) -> Any:
    """Zeros to `clear` rows of up to so many columns with."""
    zeros = nl.ndarray((PMAX, columns), dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    return zeros


def clear(rows: Any, zeros: Any) -> None:
    """Zeros in all rows of a part of HBM."""
    count, columns = rows.shape
    source = zeros[:, 0:columns]
    full = count // PMAX
    for group in TiledRange(full, max(1, ZERO_BYTES // (2 * columns))):
        part = rows[group.start_offset * PMAX : group.end_offset * PMAX]
        place = part.reshape_dim(0, (group.size, PMAX)).permute((1, 0, 2))
        nisa.dma_copy(place, source.expand_dim(1).broadcast(1, group.size))
    if count % PMAX != 0:
        nisa.dma_copy(rows[full * PMAX :], source[0 : count % PMAX])


def run_static(
    p: ExpertsParameters, share: Share, routing: Routing, repeats: Repeats, out: Outputs, blocks: int
) -> None:
    """Blocks 0 ... blocks - 1, unrolled. Gate and up of the next unit stand before down of this one, so that
    TensorE works while the cores exchange the middle."""
    units = []
    for block in range(blocks):
        for number in range(routing.passes):
            units.append(routing.unit(block, number))
    parts: Any = None
    for i in range(len(units)):
        if i == 0:
            parts = middle_parts(p, share, units[0], out)
        following = middle_parts(p, share, units[i + 1], out) if i + 1 < len(units) else None
        finish_unit(p, share, units[i], parts, out, repeats, i == 0)
        parts = following


def run_dynamic(
    p: ExpertsParameters, share: Share, routing: Routing, repeats: Repeats, out: Outputs, first: int
) -> None:
    """Blocks first ... up to the first whose condition is 0, in a loop that ends there."""

    def one_block(block: Any) -> None:
        for number in range(routing.passes):
            unit = routing.unit_at(block, number)
            parts = middle_parts(p, share, unit, out)
            finish_unit(p, share, unit, parts, out, repeats, False)

    nl.fori_loop(first, routing.active_count(), one_block)
