"""How attention_cte does it: the three stages of a unit, and what is loaded and stored around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_intervals import broadcast_number, query_positions, visible_keys
from nkilib.core.attention.attention_transfers import load_transposed, move_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor

from ..utils.kernel_helpers import div_ceil
from ..utils.tiled_range import TiledRange
from .attention_units import KEY_BLOCK, Group, PrefillCall, PrefillSection, PrefillUnit, QueryRow

if TYPE_CHECKING:
    from nkilib.core.attention.attention_units import PrefillUnit

BLOCK_TILES = KEY_BLOCK // PMAX  # tiles of keys of one block of scores
AHEAD = 2  # units whose operands are requested before their first stage begins
LOAD_KEYS = 1024  # keys of one transfer: the first units need not wait for the whole section
NO_MAXIMUM = 1.0e30  # -max of a row without visible keys: finite, so that e^(masked - max) is 0 and not NaN
SMALLEST_SUM = 1.0e-30  # a row with a visible key has a sum of about 1 or more


def run_stages(units: list) -> None:
    """Three units at a time, one in each stage, block by block: every engine finds work."""
    count = len(units)
    for unit in units[0 : min(AHEAD, count)]:
        prepare(unit)
    for step in range(count + 2):
        scoring: Any = units[step] if step < count else None
        softmax: Any = units[step - 1] if 1 <= step <= count else None
        valuing: Any = units[step - 2] if step >= 2 else None
        if step + AHEAD < count:
            prepare(units[step + AHEAD])
        if softmax is not None:
            start_softmax(softmax)
        for block in range(max(blocks_of(scoring), blocks_of(softmax), blocks_of(valuing))):
            if block < blocks_of(scoring):
                score_block(scoring, block)
            if block < blocks_of(softmax):
                exponentiate_block(softmax, block)
            if block < blocks_of(valuing):
                value_block(valuing, block)
        if valuing is not None:
            finish_unit(valuing)


def blocks_of(unit: PrefillUnit | None) -> int:
    return 0 if unit is None else len(unit.blocks)


# ---- operands ------------------------------------------------------------------------------------


def prepare(unit: PrefillUnit) -> None:
    """Load what the unit needs and an earlier one has not loaded yet."""
    group, call = unit.row.group, unit.row.group.call
    if call.sink is not None and call.neg_sinks is None:
        call.neg_sinks = negated_sinks(call)
    if group.q is None:
        start_group(group)
    if unit.section.k is None and call.pages is not None:
        call.pages.load(unit.section)
    if unit.section.k is None:
        load_section(unit.section, call.tp_k)
    if call.bias is not None:
        unit.bias = load_bias(unit)


def start_group(group: Group) -> None:
    """Queries, the keys they see, and room for their results."""
    call = group.call
    group.q = nl.ndarray((call.head_dim, group.rows), call.q.dtype, buffer=nl.sbuf)
    load_transposed(group.q, call.q[group.head], group.start, group.rows, call.tp_q)
    if call.k_scale is not None:
        nisa.tensor_scalar(group.q, group.q, nl.multiply, call.k_scale)
    positions = query_positions(group)
    used = broadcast_number(call.mask.prior_used)
    group.active = visible_keys(group, positions, used, False)
    if used is not None:
        group.prior = visible_keys(group, positions, used, True)
    shape = (call.head_dim, group.rows) if call.tp_out else (PMAX, group.tiles, call.head_dim)
    group.out = nl.ndarray(shape, call.out.dtype, buffer=nl.sbuf)
    if call.neg_max is not None:
        group.neg_max = nl.ndarray((PMAX, group.tiles), call.neg_max.dtype, buffer=nl.sbuf)
        group.sums = nl.ndarray((PMAX, group.tiles), call.sums.dtype, buffer=nl.sbuf)


def load_section(section: PrefillSection, tp_k: bool) -> None:
    """Keys as [d, keys]; values by rows of 128 keys, with the column of ones that makes the sums."""
    head_dim = section.v_hbm.shape[1]
    tiles = div_ceil(section.size, PMAX)
    section.k = nl.ndarray((head_dim, section.size), section.k_hbm.dtype, buffer=nl.sbuf)
    section.v = nl.ndarray((PMAX, tiles, head_dim + 1), section.v_hbm.dtype, buffer=nl.sbuf)
    nisa.memset(section.v[:, :, head_dim : head_dim + 1], 1.0, engine=nisa.gpsimd_engine)
    for part in TiledRange(section.size, LOAD_KEYS):
        start, tile = section.start + part.start_offset, part.start_offset // PMAX
        load_transposed(
            section.k[:, part.start_offset : part.end_offset], section.k_hbm, start, part.size, tp_k
        )
        move_rows(section.v[:, tile:tiles, 0:head_dim], section.v_hbm, start, part.size, False)


def load_bias(unit: PrefillUnit) -> Tensor:
    """position_bias of the unit's queries and keys."""
    group, bias = unit.row.group, unit.row.group.call.bias
    row = group.start + unit.row.index * PMAX
    column = unit.section.start + unit.begin
    tile = nl.ndarray((unit.row.size, unit.size), bias.dtype, buffer=nl.sbuf)
    head = group.head if bias.shape[0] > 1 else 0
    nisa.dma_copy(tile, bias[head, row : row + unit.row.size, column : column + unit.size])
    return tile


def negated_sinks(call: PrefillCall) -> Tensor:
    """-sink of every head, the same in all partitions."""
    tile = nl.ndarray((PMAX, call.heads), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(tile, call.sink.ap([[0, PMAX], [1, call.heads]]))
    nisa.tensor_scalar(tile, tile, nl.multiply, -1.0)
    return tile


# ---- stage 1: scores -----------------------------------------------------------------------------


def score_block(unit: PrefillUnit, block: int) -> None:
    """q k^T of up to 512 keys: out of PSUM, masked, with the maximum of each row."""
    row, section, tile = unit.row, unit.section, unit.blocks[block]
    call = row.group.call
    if block == 0:
        unit.scores = nl.ndarray((row.size, unit.size), call.scores_dtype, buffer=nl.sbuf)
        unit.maximum = new_column(row.size)
    first = unit.begin + tile.start_offset
    scores = nl.ndarray((row.size, tile.size), nl.float32, buffer=nl.psum)
    queries = row.group.q[:, row.index * PMAX : row.index * PMAX + row.size]
    nisa.nc_matmul(scores, queries, section.k[:, first : first + tile.size])
    if unit.bias is not None:
        scores = add_bias(scores, call.scale, unit.bias[:, tile.start_offset : tile.end_offset])
    interval = row.group.prior if section.is_prior else row.group.active
    nisa.range_select(
        unit.scores[:, tile.start_offset : tile.end_offset],
        scores,
        nl.greater_equal,
        nl.less,
        interval.lower[0 : row.size, row.index : row.index + 1],
        interval.upper[0 : row.size, row.index : row.index + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce if block == 0 else nisa.reduce_cmd.reduce,
        reduce_res=unit.maximum if block == len(unit.blocks) - 1 else None,
        range_start=section.start + first,
    )


def add_bias(scores: Tensor, scale: float, bias: Tensor) -> Tensor:
    """scale * scores + bias, in SBUF."""
    biased = nl.ndarray(scores.shape, nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(biased, scores, nl.multiply, scale, nl.add, bias)
    return biased


def score_scale(unit: PrefillUnit) -> float:
    """What the stored scores still have to be multiplied by."""
    return 1.0 if unit.bias is not None else unit.row.group.call.scale


# ---- stage 2: softmax ----------------------------------------------------------------------------


def start_softmax(unit: PrefillUnit) -> None:
    """The maximum of the row so far, and what the results of earlier sections are to be scaled by."""
    row, call = unit.row, unit.row.group.call
    before = row.neg_max
    unit.neg_max = new_column(row.size)
    ceiling = before
    if before is None:
        ceiling = NO_MAXIMUM
        if call.sink is not None:
            ceiling = call.neg_sinks[0 : row.size, row.group.head : row.group.head + 1]
    nisa.tensor_scalar(
        unit.neg_max, unit.maximum, nl.multiply, -score_scale(unit), op1=nl.minimum, operand1=ceiling
    )
    if before is not None:
        unit.rescale = new_column(row.size)
        nisa.activation(unit.rescale, nl.exp, before, bias=unit.neg_max, scale=-1.0)
    row.neg_max = unit.neg_max
    unit.probabilities = nl.ndarray((row.size, unit.size), call.q.dtype, buffer=nl.sbuf)


def exponentiate_block(unit: PrefillUnit, block: int) -> None:
    tile = unit.blocks[block]
    nisa.activation(
        unit.probabilities[:, tile.start_offset : tile.end_offset],
        nl.exp,
        unit.scores[:, tile.start_offset : tile.end_offset],
        bias=unit.neg_max,
        scale=score_scale(unit),
    )


# ---- stage 3: values -----------------------------------------------------------------------------


def value_block(unit: PrefillUnit, block: int) -> None:
    """Add probabilities times values of some tiles of keys to the unit's product in PSUM."""
    row, section = unit.row, unit.section
    if block == 0:
        unit.product = nl.ndarray((row.size, section.v.shape[2]), nl.float32, buffer=nl.psum)
        unit.tiles = tiles_of(unit)
    last = len(unit.tiles) if block == len(unit.blocks) - 1 else (block + 1) * BLOCK_TILES
    for part in TiledRange(last - block * BLOCK_TILES, BLOCK_TILES):
        first = block * BLOCK_TILES + part.start_offset
        transposed = transpose_probabilities(unit, first, part.size, block)
        for i in range(part.size):
            tile = unit.tiles[first + i]
            nisa.nc_matmul(
                unit.product,
                transposed[0 : tile.rows, i, :],
                section.v[0 : tile.rows, tile.index, :],
                accumulate=first + i > 0,
            )


class Tile(nl.NKIObject):
    """Keys that stand in the partitions of one tile of values, as columns of the unit's probabilities."""

    def __init__(self, index: int, rows: int, first: int, step: int):
        self.index = index  # among the tiles of the section
        self.rows = rows
        self.columns = slice(first, first + (rows - 1) * step + 1, step)


def tiles_of(unit: PrefillUnit) -> list:
    tiles: list = []
    known = unit.section.value_tiles()
    for index in range(len(known)):
        rows, first, step = known[index]
        if unit.begin <= first < unit.begin + unit.size:
            rows = min(rows, div_ceil(unit.begin + unit.size - first, step))
            tiles.append(Tile(index, rows, first - unit.begin, step))
    return tiles


def transpose_probabilities(unit: PrefillUnit, first: int, count: int, block: int) -> Tensor:
    """The probabilities of some tiles with the keys in the partitions: [128, tiles, queries]."""
    rows, probabilities = unit.row.size, unit.probabilities
    psum = nl.ndarray((PMAX, count, rows), probabilities.dtype, buffer=nl.psum)
    transposed = nl.ndarray((PMAX, count, rows), probabilities.dtype, buffer=nl.sbuf)
    whole = 0  # full tiles, which come first
    for i in range(count):
        tile = unit.tiles[first + i]
        nisa.nc_transpose(
            psum[0 : tile.rows, i, :], probabilities[:, tile.columns], engine=nisa.tensor_engine
        )
        whole += 1 if tile.rows == PMAX else 0
    drain = nisa.scalar_engine if (unit.row.index + block) % 2 == 0 else nisa.vector_engine  # equally busy
    if whole > 0:
        nisa.tensor_copy(transposed[:, 0:whole, :], psum[:, 0:whole, :], engine=drain)
    if whole < count:
        rest = unit.tiles[first + whole].rows
        nisa.tensor_copy(transposed[0:rest, whole:count, :], psum[0:rest, whole:count, :], engine=drain)
    return transposed


def finish_unit(unit: PrefillUnit) -> None:
    """Join the unit's product with that of earlier sections; after the last one, write the result."""
    row = unit.row
    if row.units == 1:
        finish_row(row, unit.product)
    elif unit.index == 0:
        row.product = nl.ndarray(unit.product.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(row.product, unit.product)
    else:
        nisa.scalar_tensor_tensor(row.product, row.product, nl.multiply, unit.rescale, nl.add, unit.product)
        if unit.index == row.units - 1:
            finish_row(row, row.product)


def finish_row(row: QueryRow, product: Tensor) -> None:
    """The result of a query tile, and its softmax statistics if the caller wants them."""
    group, call = row.group, row.group.call
    total, reciprocal = softmax_sum(row, product[:, call.head_dim : call.head_dim + 1])
    write_row(row, product[:, 0 : call.head_dim], reciprocal if call.normalize else 1.0)
    if call.neg_max is not None:
        nisa.tensor_scalar(
            group.neg_max[:, row.index : row.index + 1], row.neg_max, nl.multiply, call.max_sign
        )
        nisa.tensor_copy(group.sums[:, row.index : row.index + 1], reciprocal if call.normalize else total)
    group.unfinished -= 1
    if group.unfinished == 0:
        store_group(group)


def write_row(row: QueryRow, product: Tensor, factor: Tensor) -> None:
    """product * factor (* v_scale) to the group's results, transposed if the caller wants it."""
    call, out, head_dim, start = row.group.call, row.group.out, product.shape[1], row.index * PMAX
    tile: Any = out if call.tp_out else out[0 : row.size, row.index, :]
    if call.tp_out:
        tile = nl.ndarray((row.size, head_dim), out.dtype, buffer=nl.sbuf)
    if call.v_scale is not None:
        scales = call.v_scale[0 : row.size]
        nisa.scalar_tensor_tensor(tile, product, nl.multiply, factor, nl.multiply, scales)
    else:
        nisa.activation(tile, nl.copy, product, scale=factor)
    if call.tp_out:
        psum = nl.ndarray((head_dim, row.size), out.dtype, buffer=nl.psum)
        nisa.nc_transpose(psum, tile, engine=nisa.tensor_engine)
        nisa.tensor_copy(out[:, start : start + row.size], psum)


def softmax_sum(row: QueryRow, summed: Tensor) -> tuple[Any, Any]:
    """The sum of a row's probabilities, the sink included, and its reciprocal."""
    call = row.group.call
    total = new_column(row.size)
    if call.sink is None and not call.mask.can_hide_all:
        total = summed
    elif call.sink is None:
        nisa.tensor_scalar(total, summed, nl.maximum, SMALLEST_SUM)
    else:
        neg_sink = call.neg_sinks[0 : row.size, row.group.head : row.group.head + 1]
        nisa.activation(total, nl.exp, neg_sink, bias=row.neg_max, scale=-1.0)
        nisa.tensor_tensor(total, total, summed, nl.add)
    reciprocal = new_column(row.size)
    nisa.reciprocal(reciprocal, total)
    return total, reciprocal


def store_group(group: Group) -> None:
    call = group.call
    if call.tp_out:
        nisa.dma_copy(call.out[group.head, :, group.start : group.start + group.rows], group.out)
    else:
        move_rows(group.out, call.out[group.head], group.start, group.rows, True)
    if call.neg_max is not None:
        columns = group.first + group.tiles
        nisa.dma_copy(call.neg_max[group.head, :, group.first : columns], group.neg_max)
        nisa.dma_copy(call.sums[group.head, :, group.first : columns], group.sums)
