"""The loop over the blocks of a mixture of experts: what all forward kernels here are made of."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.moe.moe_cte.experts import BlockShare, finish_unit, middle_parts, share_of
from nkilib.core.moe.moe_cte.moe_cte_checks import (
    check,
)
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    ExpertsParameters,
    block_count,
    expert_count,
    hidden_size,
    intermediate_size,
    token_count,
    tokens_per_pass,
)
from nkilib.core.moe.moe_cte.outputs import Outputs, add_parts, new_outputs
from nkilib.core.moe.moe_cte.routing import ExpertRouting, Repeats, RoutingSource
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.clearing import clear, zero_tile
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX

ALTERNATING_VISITS = 4  # blocks that a token stands in: fewer do not pay for the slices
ALTERNATING_BLOCKS = 8  # fewer leave a core idle too long if their number is odd
ALTERNATING_BYTES = 96 * 1024  # in each partition


def run_blocks(p: ExpertsParameters, any_size: bool = False) -> Any:
    """All blocks; returns out, or (out, checkpoints...). `any_size`: blocks of any multiple of 128."""
    check(p, any_size)
    cores, core = get_verified_program_sharding_info("moe_cte", (0, 1), 2)[1:]
    fixed = block_count(p) if p.static_blocks is None else min(p.static_blocks, block_count(p))
    alternates = cores == 2 and fixed == block_count(p) and alternates_blocks(p)
    share = share_of(p, 1, 0) if alternates else share_of(p, cores, core)
    source = routing_source(p)
    routing = ExpertRouting(source)
    repeats = Repeats(source)
    out = new_outputs(p, alternates, core)
    zeros = zero_tile(share.hidden, out.rows.dtype)
    clear(out.rows[:, share.core * share.hidden : (share.core + 1) * share.hidden], zeros)
    if out.zeros is not None:
        half = hidden_size(p) // 2
        clear(out.zeros[:, core * half : (core + 1) * half], zeros)
    numbers = range(core, fixed, 2) if alternates else range(fixed)
    run_static(p, share, routing, repeats, out, numbers)
    if fixed < block_count(p):
        run_dynamic(p, share, routing, repeats, out, fixed)
    if out.partial is not None:
        add_parts(out, core)
    if not p.checkpoint:
        return out.result
    return (out.result, out.gate_up) if out.down is None else (out.result, out.gate_up, out.down)


def alternates_blocks(p: ExpertsParameters) -> bool:
    """Whether two cores take every other block each, rather than half of every block.

    Then tokens are gathered once and weights come in whole rows; but each core has a part of the result,
    which is to be cleared and added. It pays where a token stands in several blocks.
    """
    tokens, size = tokens_per_pass(p), hidden_size(p)
    width = sizeinbytes(p.hidden.dtype)
    in_sbuf = width * size * (intermediate_size(p) + tokens) // PMAX  # down, and rows of the result
    often = p.position_to_id.size >= ALTERNATING_VISITS * token_count(p)
    return p.accumulating and often and block_count(p) >= ALTERNATING_BLOCKS and in_sbuf <= ALTERNATING_BYTES


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


def run_static(
    p: ExpertsParameters,
    share: BlockShare,
    routing: ExpertRouting,
    repeats: Repeats,
    out: Outputs,
    blocks: range,
) -> None:
    """The blocks of these numbers, unrolled. Gate and up of the next unit stand before down of this one, so
    that TensorE works while the cores exchange the middle."""
    units: list = []
    parts: list = []
    for block in blocks:
        for number in range(routing.passes):
            unit = routing.unit(block, number)
            units.append(unit)
            parts.append(middle_parts(p, share, unit, out))
            done = len(units) - 2
            if done >= 0:
                finish_unit(p, share, units[done], parts[done], out, repeats, done == 0)
    if len(units) > 0:
        done = len(units) - 1
        finish_unit(p, share, units[done], parts[done], out, repeats, done == 0)


def run_dynamic(
    p: ExpertsParameters,
    share: BlockShare,
    routing: ExpertRouting,
    repeats: Repeats,
    out: Outputs,
    first: int,
) -> None:
    """Blocks first ... up to the first whose condition is 0, in a loop that ends there."""

    def one_block(block: Any) -> None:
        for number in range(routing.passes):
            unit = routing.unit_at(block, number)
            parts = middle_parts(p, share, unit, out)
            finish_unit(p, share, unit, parts, out, repeats, False)

    nl.fori_loop(first, routing.active_count(), one_block)
