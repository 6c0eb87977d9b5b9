"""The loop over the blocks of a mixture of experts: what all forward kernels here are made of."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.moe.moe_cte.experts import BlockShare, finish_unit, middle_parts, share_of
from nkilib.core.moe.moe_cte.moe_cte_checks import (
    check,
)
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    BlockRun,
    ExpertsParameters,
    block_count,
    expert_count,
    hidden_size,
    intermediate_size,
    token_count,
    tokens_per_pass,
)
from nkilib.core.moe.moe_cte.outputs import Outputs, add_parts, copy_affinities, new_outputs
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
    runs = runs_of(p)
    numbers = unrolled(runs)
    alternates = cores == 2 and not has_loop(runs) and alternates_blocks(p)
    share = share_of(p, 1, 0) if alternates else share_of(p, cores, core)
    source = routing_source(p)
    routing = ExpertRouting(source)
    repeats = Repeats(source)
    out = new_outputs(p, alternates, core)
    zeros = zero_tile(share.hidden, out.rows.dtype)
    clear(out.rows[:, share.core * share.hidden : (share.core + 1) * share.hidden], zeros)
    if out.zeros is not None:
        part = hidden_size(p) // cores
        clear(out.zeros[:, core * part : (core + 1) * part], zeros)
    if p.affinity_columns > 0:
        for slot in range(core, p.slices, cores):
            copy_affinities(out.result[:, slot, hidden_size(p) :], p.affinities)
    run_static(p, share, routing, repeats, out, numbers[core::2] if alternates else numbers)
    for run in runs:
        if run.fixed < run.last:
            run_dynamic(p, share, routing, repeats, out, run)
    if out.partial is not None:
        add_parts(out, core)
    if not p.checkpoint:
        return out.result
    return (out.result, out.gate_up) if out.down is None else (out.result, out.gate_up, out.down)


def runs_of(p: ExpertsParameters) -> list:
    """Return the runs that the caller gave, or one of all blocks."""
    if p.runs is not None:
        return p.runs
    count = block_count(p)
    return [BlockRun(0, count if p.static_blocks is None else min(p.static_blocks, count), count)]


def unrolled(runs: list) -> list:
    """Return the numbers of the blocks that no loop takes."""
    numbers: list = []
    for run in runs:
        for number in range(run.first, run.fixed):
            numbers.append(number)
    return numbers


def has_loop(runs: list) -> bool:
    """Whether some blocks are left to a dynamic loop."""
    found = False
    for run in runs:
        found = found or run.fixed < run.last
    return found


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
        p.condition_blocks,
        p.high_low,
    )


def run_static(
    p: ExpertsParameters,
    share: BlockShare,
    routing: ExpertRouting,
    repeats: Repeats,
    out: Outputs,
    blocks: list,
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
    run: BlockRun,
) -> None:
    """Blocks of a run that are not unrolled, in a loop that ends at the first whose condition is 0."""

    def one_block(block: Any) -> None:
        for number in range(routing.passes):
            unit = routing.unit_at(block, number)
            parts = middle_parts(p, share, unit, out)
            finish_unit(p, share, unit, parts, out, repeats, False)

    nl.fori_loop(run.fixed, routing.active_end(run.first, run.last), one_block)
