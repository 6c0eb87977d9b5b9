"""The MLP of one expert for one unit of tokens: gather, gate and up, down, and the way back to the tokens.

Two cores share the columns: of gate and up, and, with the middle exchanged, of down. Each then owns its half
of every output row, which it alone reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.gate_up import activate, clamp_block, load_bias_columns
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    ExpertsParameters,
    hidden_size,
    intermediate_size,
    is_mx,
    matmul_dtype,
)
from nkilib.core.moe.moe_cte.mx_experts import MxDown, mx_middle
from nkilib.core.moe.moe_cte.outputs import Outputs
from nkilib.core.moe.moe_cte.routing import Repeats, TokenUnit
from nkilib.core.utils.common_types import ExpertAffinityScaleMode, GateUpDim
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import (
    BANK_COLUMNS,
    Activations,
    ProductBlock,
    load_weights,
    matching_dtype,
    multiply,
    project,
    span_columns,
    token_major_blocks,
    weight_chunks,
)
from nkilib.core.utils.projection_results import beside, new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor

BEFORE = (ExpertAffinityScaleMode.PRE_SCALE, ExpertAffinityScaleMode.PRE_SCALE_DELAYED)


@dataclass
class BlockShare(nl.NKIObject):
    """The part of a core: columns of gate and up, and of down."""

    cores: int
    core: int
    inner: int  # columns of gate and up, starting at inner * core
    hidden: int  # columns of down, starting at hidden * core


def share_of(p: ExpertsParameters, cores: int, core: int) -> BlockShare:
    return BlockShare(cores, core, intermediate_size(p) // cores, hidden_size(p) // cores)


# ---- tokens --------------------------------------------------------------------------------------


def gather_tokens(p: ExpertsParameters, unit: TokenUnit) -> Activations:
    """The tokens of a unit as gate and up contract them. Where there is no row for padding, zeros."""
    size = hidden_size(p)
    tile = nl.ndarray((PMAX, size // PMAX, unit.size), matmul_dtype(p), buffer=nl.sbuf)
    missing = nisa.oob_mode.skip if p.skip_token else nisa.oob_mode.error
    if p.hidden.dtype == tile.dtype and tile.dtype != nl.float32:
        if p.skip_token:
            nisa.memset(tile, 0.0, engine=nisa.gpsimd_engine)
        source = p.hidden.ap(
            [[size, unit.size], [PMAX, size // PMAX], [1, PMAX]],
            vector_offset=unit.rows.view(nl.uint32),
        )
        nisa.dma_transpose(tile, source, oob_mode=missing)
        return Activations(tile, size)
    for c in range(unit.size // PMAX):
        rows = nl.ndarray((PMAX, size), p.hidden.dtype, buffer=nl.sbuf)
        if p.skip_token:
            nisa.memset(rows, 0.0)
        nisa.dma_copy(rows, p.hidden.vector_select(0, unit.rows[:, c : c + 1]), oob_mode=missing)
        transpose_rows(tile, 0, c * PMAX, rows)
    return Activations(tile, size)


def affinity_row(unit: TokenUnit) -> Tensor:
    """The affinities of a unit along the free dimension, in every partition: [128, tokens], float32."""
    row = nl.ndarray((PMAX, unit.size), nl.float32, buffer=nl.sbuf)
    identity = nl.shared_identity_matrix(PMAX, nl.float32)
    ones = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    for c in range(unit.size // PMAX):
        diagonal = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(diagonal, identity, nl.multiply, unit.affinity[:, c : c + 1])
        spread = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(spread, ones, diagonal)
        nisa.tensor_copy(row[:, c * PMAX : (c + 1) * PMAX], spread)
    return row


# ---- gate and up ---------------------------------------------------------------------------------


def middle_parts(p: ExpertsParameters, share: BlockShare, unit: TokenUnit, out: Outputs) -> list:
    """act(gate) * up of a unit, this core's columns first, then the other core's."""
    x = gather_tokens(p, unit)
    if is_mx(p):
        row = affinity_row(unit) if p.scaling in BEFORE else None
        return [mx_middle(p, unit, x.tile, row, out, share.cores, share.core)]
    own = middle(p, share, unit, x, out)
    if share.cores == 1:
        return [own]
    return [own, exchanged(own, share)]


def middle(
    p: ExpertsParameters, share: BlockShare, unit: TokenUnit, x: Activations, out: Outputs
) -> Activations:
    """act(gate) * up, feature-major: the layout that down contracts."""
    first, count = share.core * share.inner, share.inner
    tile = nl.ndarray((PMAX, div_ceil(count, PMAX), unit.size), matmul_dtype(p), buffer=nl.sbuf)
    row = affinity_row(unit) if p.scaling in BEFORE else None
    for span in TiledRange(count, span_columns(x, p.gate_up)):
        column = first + span.start_offset
        gates, ups = gate_and_up(p, unit, x, column, span.size)
        if gates is not None:
            complete(p, GateUpDim.GATE, unit, gates, row, column, span.size)
            keep_gate_up(out, GateUpDim.GATE, unit, gates, column)
        complete(p, GateUpDim.UP, unit, ups, row, column, span.size)
        keep_gate_up(out, GateUpDim.UP, unit, ups, column)
        for i in range(len(ups)):
            dst = tile[0 : ups[i].columns, (span.start_offset + ups[i].column) // PMAX, :]
            if gates is None:
                activate(dst, ups[i].sums, p.act_fn)
            else:
                active = beside(gates[i])
                activate(active, gates[i].sums, p.act_fn)
                nisa.tensor_tensor(dst, active, ups[i].sums, op=nl.multiply)
    return Activations(tile, count, first)


def gate_and_up(p: ExpertsParameters, unit: TokenUnit, x: Activations, column: int, columns: int) -> tuple:
    """Some columns of x Wg and of x Wu: blocks [columns <= 128, tokens]; without a gate (None, x Wu).

    Where these are all columns of whole blocks, gate and up are one matrix, whose rows are twice as long.
    """
    experts, size, _, inner = p.gate_up.shape
    whole = columns == inner and inner % PMAX == 0 and 2 * inner <= span_columns(x, p.gate_up)
    if whole and not p.skip_gate:
        both = p.gate_up.reshape((experts, size, 2 * inner)).select(0, unit.expert)
        blocks = project(x, both, 0, 2 * inner, feature_major=True)
        gates, ups = blocks[0 : inner // PMAX], blocks[inner // PMAX :]
        for block in ups:
            block.column = block.column - inner
        return gates, ups
    weight = p.gate_up.select(0, unit.expert)
    gate: Any = None
    if not p.skip_gate:
        gate = project(x, weight[:, GateUpDim.GATE.value, :], column, columns, feature_major=True)
    return gate, project(x, weight[:, GateUpDim.UP.value, :], column, columns, feature_major=True)


def complete(
    p: ExpertsParameters,
    which: GateUpDim,
    unit: TokenUnit,
    blocks: list,
    row: Tensor | None,
    column: int,
    columns: int,
) -> None:
    """sums * row * scale + bias of gate or up, clamped."""
    side = which.value
    linear = p.gate if which == GateUpDim.GATE else p.up
    scale = scale_columns(p, side, unit, column, columns)
    bias = None
    if p.gate_up_bias is not None:
        bias = load_bias_columns(p.gate_up_bias.select(0, unit.expert)[side : side + 1, :], column, columns)
    for block in blocks:
        tile = block.column // PMAX
        factor = None if scale is None else scale[0 : block.columns, tile : tile + 1]
        shift = None if bias is None else bias[0 : block.columns, tile : tile + 1]
        finish(block, factor, row, shift)
        clamp_block(linear, block)


def scale_columns(p: ExpertsParameters, side: int, unit: TokenUnit, column: int, columns: int) -> Any:
    """The scale of each column, one for each partition of its block: [128, blocks]; None without scales."""
    if p.gate_up_scale is None:
        return None
    scale = scale_of(p.gate_up_scale, unit)
    if scale.shape[1] == 1:
        tile = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, scale.broadcast(0, PMAX))
        return tile.broadcast(1, div_ceil(columns, PMAX))
    return load_bias_columns(scale, side * intermediate_size(p) + column, columns)


def scale_of(scale: Tensor, unit: TokenUnit) -> Any:
    """The scales of the unit's expert, or of all: [1, columns or 1] in HBM."""
    by_expert = scale.reshape((scale.shape[0], 1, scale.size // scale.shape[0]))
    return by_expert[0] if scale.shape[0] == 1 else by_expert.select(0, unit.expert)


def finish(block: ProductBlock, factor: Tensor | None, row: Tensor | None, shift: Tensor | None) -> None:
    """sums * factor * row + shift; None leaves one out."""
    if row is not None:
        value = beside(block)
        by = 1.0 if factor is None else factor
        nisa.scalar_tensor_tensor(value, block.sums, nl.multiply, by, nl.multiply, row[0 : block.columns])
        block.sums = value
        factor = None
    if factor is not None or shift is not None:
        value = beside(block)
        by = 1.0 if factor is None else factor
        add = 0.0 if shift is None else shift
        nisa.tensor_scalar(value, block.sums, nl.multiply, by, op1=nl.add, operand1=add)
        block.sums = value


def keep_gate_up(out: Outputs, which: GateUpDim, unit: TokenUnit, blocks: list, column: int) -> None:
    """Store the blocks in the layout of the backward pass, if it needs them."""
    if out.gate_up is None:
        return
    for block in blocks:
        tile = nl.ndarray((block.columns, unit.size), out.gate_up.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(tile, block.sums)
        start = column + block.column
        features = out.gate_up[unit.block][which.value, start : start + block.columns, :]
        nisa.dma_copy(features[:, unit.first : unit.first + unit.size], tile)


def exchanged(own: Activations, share: BlockShare) -> Activations:
    """The other core's columns of the middle."""
    other = nl.ndarray(own.tile.shape, own.tile.dtype, buffer=nl.sbuf)
    full, rest = own.size // PMAX, own.size % PMAX
    if full > 0:
        swap(own.tile[:, 0:full, :], other[:, 0:full, :], share.core)
    if rest > 0:
        swap(own.tile[0:rest, full, :], other[0:rest, full, :], share.core)
    return Activations(other, own.size, (1 - share.core) * share.inner)


def swap(give: Tensor, take: Tensor, core: int, pipe: int = 0) -> None:
    """Give a tile to the other core, and take the one that it gives."""
    nisa.sendrecv(give, take, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)


# ---- down ----------------------------------------------------------------------------------------


def finish_unit(
    p: ExpertsParameters,
    share: BlockShare,
    unit: TokenUnit,
    parts: list,
    out: Outputs,
    repeats: Repeats,
    first: bool,
) -> None:
    """The down projection of a unit, added to the rows of its tokens. `first`: these are still zero."""
    column, columns = share.core * share.hidden, share.hidden
    counts, targets = repeats.of(unit)
    factors = row_factors(p, unit, counts)
    chunks = load_down(p, unit, parts, column, columns)
    scale, bias = down_rows(p, unit, column, columns)
    rows = new_rows(unit.size, columns, out.rows.dtype)
    mine = out.rows[:, column : column + columns]
    adds = p.accumulating and not first
    for c in range(len(rows)):
        if adds:
            nisa.dma_copy(rows[c], mine.vector_select(0, unit.valid_rows[:, c : c + 1]))
    stored = None if out.down is None else new_rows(unit.size, columns, out.down.dtype)
    for span in TiledRange(columns, BANK_COLUMNS):
        blocks = token_major_blocks(unit.size, span.size, packed=False)
        for chunk in chunks:
            chunk.add(blocks, span)
        for block in blocks:
            c, at = block.token // PMAX, span.start_offset + block.column
            finish_down(block, scale, bias, at)
            if stored is not None:
                nisa.tensor_copy(stored[c][:, at : at + block.columns], block.sums)
            combine(rows[c][:, at : at + block.columns], block, factors, c, adds)
    for c in range(len(rows)):
        place = mine.vector_select(0, targets[:, c : c + 1])
        nisa.dma_copy(place, rows[c], oob_mode=nisa.oob_mode.skip)
        if stored is not None:
            start = unit.first + c * PMAX
            positions = out.down[unit.block][start : start + PMAX, column : column + columns]
            nisa.dma_copy(positions, stored[c])


@dataclass
class LoadedChunk(nl.NKIObject):
    """Rows of down in SBUF, and the part of the middle that is contracted with them."""

    weights: Any
    x: Any
    tile: int

    def add(self, blocks: list, span: TiledRangeIterator) -> None:
        """Its products for some columns, to the sums."""
        weights = self.weights[:, :, span.start_offset : span.end_offset]
        multiply(blocks, self.x, weights, self.tile, feature_major=False)


def load_down(p: ExpertsParameters, unit: TokenUnit, parts: list, column: int, columns: int) -> list:
    """All that the core needs of down, in long rows; MX weights come when they are wanted."""
    if is_mx(p):
        return [MxDown(p, unit.expert, parts[0], column, columns)]
    weight = p.down.select(0, unit.expert)
    chunks = []
    for part in parts:
        for chunk in weight_chunks(part, columns, weight):
            chunks.append(
                LoadedChunk(
                    load_weights(weight, chunk, column, columns, dtype=matching_dtype(weight, part.tile)),
                    part.tile,
                    chunk.tile,
                )
            )
    return chunks


def down_rows(p: ExpertsParameters, unit: TokenUnit, column: int, columns: int) -> tuple:
    """(scales, bias) of the columns of down, in every partition; None for what there is not."""
    scale = bias = None
    if p.down_scale is not None and not is_mx(p):
        source = scale_of(p.down_scale, unit)
        if source.shape[1] == 1:
            scale = broadcast(source).broadcast(1, columns)
        else:
            scale = broadcast(source[:, column : column + columns])
    if p.down_bias is not None:
        bias = down_bias_part(p, unit, column, columns)
    return scale, bias


def down_bias_part(p: ExpertsParameters, unit: TokenUnit, column: int, columns: int) -> Tensor:
    """The bias of some columns of down, in every partition; zeros where another rank adds it."""
    row = p.down_bias.expand_dim(1).select(0, unit.expert)
    width = row.shape[1]
    start = p.bias_rank * width
    first, last = max(column, start), min(column + columns, start + width)
    if last - first == columns:
        return broadcast(row[:, first - start : last - start])
    tile = nl.ndarray((PMAX, columns), row.dtype, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    if first < last:
        source = row[:, first - start : last - start]
        nisa.dma_copy(tile[:, first - column : last - column], source.broadcast(0, PMAX))
    return tile


def broadcast(row: Tensor) -> Tensor:
    """A row of HBM in every partition."""
    tile = nl.ndarray((PMAX, row.shape[1]), row.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, row.broadcast(0, PMAX))
    return tile


def finish_down(block: ProductBlock, scale: Tensor | None, bias: Tensor | None, at: int) -> None:
    """sums * scale + bias"""
    if scale is not None:
        value = beside(block)
        nisa.tensor_tensor(value, block.sums, scale[:, at : at + block.columns], op=nl.multiply)
        block.sums = value
    if bias is not None:
        value = beside(block)
        nisa.tensor_tensor(value, block.sums, bias[:, at : at + block.columns], op=nl.add)
        block.sums = value


def row_factors(p: ExpertsParameters, unit: TokenUnit, counts: Tensor) -> Any:
    """What each token's result is multiplied by: its affinity, and how often it is in the unit."""
    scaled = p.scaling == ExpertAffinityScaleMode.POST_SCALE
    if not p.accumulating:
        return unit.affinity if scaled else None
    if not scaled:
        return counts
    factors = nl.ndarray(counts.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(factors, unit.affinity, counts, op=nl.multiply)
    return factors


def combine(dst: Tensor, block: ProductBlock, factors: Tensor, c: int, adds: bool) -> None:
    """dst = sums * factor, plus dst if it adds."""
    factor = 1.0 if factors is None else factors[:, c : c + 1]
    if adds:
        nisa.scalar_tensor_tensor(dst, block.sums, nl.multiply, factor, nl.add, dst)
    elif (block.column // BANK_COLUMNS + c) % 2 == 0:
        nisa.tensor_scalar(dst, block.sums, nl.multiply, factor)
    else:
        nisa.activation(dst, nl.copy, block.sums, scale=factor)
