"""One expert's MLP of some tokens, its weights streaming from HBM once.

Weights are stationary, so everything has features in the partitions: x as x[t, J p + j] at [p, j, t] (J is
H / 128 of each part of H), the middle as m[t, n b + p] at [p, b, t] with n partitions filled, the result like
x. A partition's weights then lie together in HBM, and what belongs to a feature is a number a partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.gate_up import activate, clamp_block
from nkilib.core.moe.moe_tkg.parameters import MoEParameters, matmul_dtype, quantized
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import BANK_COLUMNS, ProductBlock, bytes_of
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

if TYPE_CHECKING:
    from nkilib.core.mlp.mlp_parameters import Linear

CHUNK_BYTES = 32 * 1024  # of weights in each partition: 4 MiB for one transfer of gate and up, half for down
SPAN_BANKS = 2  # of PSUM for the gates of one span, and as many for the ups
MIN_PARTITIONS = 64  # that blocks of the middle fill, if I can be cut so


@dataclass
class Tokens(nl.NKIObject):
    """x in SBUF, [128, H / 128, T]; `parts` runs of H are spread over the partitions each on its own.

    As many `cores` share the work; each has its part of H of the result.
    """

    tile: Any
    parts: int
    cores: int
    mx: Any = None  # with MX weights: the same in FP8, see mx_tokens


@dataclass
class Item(nl.NKIObject):
    """A piece of work: columns first ... first + count of the middle of an expert, for some tokens."""

    expert: Tensor  # a number, or a tile [1, 1] that holds it
    first: int
    count: int
    token: int
    tokens: int
    weight: Tensor = None  # affinities [128, tokens], the same in all partitions; None: 1

    def chosen(self) -> bool:
        """It was selected for a single token."""
        return not isinstance(self.expert, int)


@dataclass
class Middle(nl.NKIObject):
    """m of an item, [partitions, blocks, tokens]; its first row in the down projection."""

    tile: Any
    row: int


def middles_of(p: MoEParameters, x: Tokens, item: Item) -> list[Middle]:
    """act(gate) * up of an item."""
    middles = []
    blocks, partitions = cut(item.count)
    rest = item.count - blocks * partitions
    middles.append(middle(p, x, item, item.first, blocks, partitions))
    if rest > 0:
        middles.append(middle(p, x, item, item.first + blocks * partitions, 1, rest))
    return middles


def add_expert(p: MoEParameters, total: Tensor, x: Tokens, item: Item, middles: list, part: int) -> None:
    """total[128, J, T] += weight * down(middles) of one part of H, in float32."""
    for m in middles:
        add_down(p, total, x, item, m, part)
    if p.down_bias is not None:
        add_down_bias(p, total, x, item, part)


def cut(count: int) -> tuple[int, int]:
    """(blocks, partitions) of the middle: equal blocks where that fills most partitions, else full ones."""
    blocks = div_ceil(count, PMAX)
    while count % blocks != 0 and count // blocks >= MIN_PARTITIONS:
        blocks += 1
    if count % blocks == 0:
        return blocks, count // blocks
    return count // PMAX, PMAX


# ---- gate and up ---------------------------------------------------------------------------------


def middle(p: MoEParameters, x: Tokens, item: Item, first: int, blocks: int, partitions: int) -> Middle:
    """act(gate) * up of some columns, as the down projection contracts them, with the affinity in it."""
    tile = nl.ndarray((partitions, blocks, item.tokens), matmul_dtype(p), buffer=nl.sbuf)
    room = max(1, BANK_COLUMNS // item.tokens)
    for span in TiledRange(blocks, SPAN_BANKS * room):
        column = first + span.start_offset * partitions
        gates = new_banks(partitions, span.size, item.tokens)
        ups = new_banks(partitions, span.size, item.tokens)
        stream_gate_up(p, x, item, column, [gates, ups], span.size, partitions)
        terms = [
            DecodeTerms(p, item, 0, column, span.size, partitions),
            DecodeTerms(p, item, 1, column, span.size, partitions),
        ]
        for i in range(len(gates)):
            gate = finished(gates[i], terms[0], i * room, p.gate)
            up = finished(ups[i], terms[1], i * room, p.up)
            place = span.start_offset + i * room
            combine(p, tile[:, place : place + gates[i].shape[1], :], gate, up, item)
    return Middle(tile, first)


def new_banks(partitions: int, blocks: int, tokens: int) -> list:
    """[partitions, blocks, tokens] in PSUM, as many blocks to a bank as there is room for."""
    banks = []
    for bank in TiledRange(blocks, max(1, BANK_COLUMNS // tokens)):
        banks.append(nl.ndarray((partitions, bank.size, tokens), nl.float32, buffer=nl.psum))
    return banks


def stream_gate_up(
    p: MoEParameters, x: Tokens, item: Item, column: int, sums: list, blocks: int, partitions: int
) -> None:
    """sums[gate, up] = x W of `blocks` blocks from `column` on; plain biases are added by a matmul."""
    columns = blocks * partitions
    size = x.tile.shape[1] // x.parts
    rows = p.gate_up.reshape_dim(1, (x.parts, PMAX, size))[:, :, :, :, :, column : column + columns]
    moving = x.tile[:, :, item.token : item.token + item.tokens]
    for part in range(x.parts):
        for chunk in TiledRange(size, max(1, CHUNK_BYTES // (2 * columns * bytes_of(p.gate_up)))):
            weights = nl.ndarray((PMAX, chunk.size, 2, columns), p.gate_up.dtype, buffer=nl.sbuf)
            source = rows[:, part, :, chunk.start_offset : chunk.end_offset]
            nisa.dma_copy(weights, of_expert(source, item))
            for j in range(chunk.size):
                tokens = moving[:, part * size + chunk.start_offset + j, :]
                for half in range(2):
                    add_products(sums[half], weights[:, j, half, :], tokens, partitions)
    if p.gate_up_bias is not None and not quantized(p):
        bias = load_row(p.gate_up_bias[:, :, column : column + columns], item)
        ones = constant_row(item.tokens, bias.dtype)
        for half in range(2):
            add_products(sums[half], bias[:, half * columns : (half + 1) * columns], ones, partitions)


def add_products(banks: list, stationary: Tensor, moving: Tensor, partitions: int) -> None:
    """Each block of columns of the stationary operand, times the moving one."""
    block = 0
    for bank in banks:
        for i in range(bank.shape[1]):
            columns = stationary[:, block * partitions : (block + 1) * partitions]
            nisa.nc_matmul(bank[:, i, :], columns, moving)
            block += 1


def of_expert(weights: Tensor, item: Item) -> Any:
    """The slice of an item's expert."""
    return weights.select(0, item.expert)


class DecodeTerms(nl.NKIObject):
    """FP8: what gate (half 0) or up (1) is multiplied by, and its bias: [partitions, blocks], or None."""

    def __init__(self, p: MoEParameters, item: Item, half: int, column: int, blocks: int, partitions: int):
        self.scale = None
        self.bias = None
        columns = blocks * partitions
        if quantized(p):
            scale = p.gate_up_scale[:, half, :]
            if scale.shape[1] > 1:
                scale = scale[:, column : column + columns]
            self.scale = blocks_of_row(load_row(scale, item), blocks, partitions)
            if p.gate_up_bias is not None:
                bias = load_row(p.gate_up_bias[:, half, column : column + columns], item)
                self.bias = blocks_of_row(bias, blocks, partitions)


def finished(bank: Tensor, terms: DecodeTerms, block: int, limits: Linear) -> Any:
    """sums * scale + bias, clamped: [partitions, blocks tokens]."""
    partitions, blocks, tokens = bank.shape
    value = bank
    if terms.scale is not None:
        value = nl.ndarray(bank.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(value, bank, along(terms.scale, block, blocks, tokens), op=nl.multiply)
        if terms.bias is not None:
            nisa.tensor_tensor(value, value, along(terms.bias, block, blocks, tokens), op=nl.add)
    clamped = ProductBlock(value.reshape((partitions, blocks * tokens)), 0, tokens, 0, partitions)
    clamp_block(limits, clamped)
    return clamped.sums


def along(columns: Tensor, block: int, blocks: int, tokens: int) -> Any:
    """Numbers of each feature, the same for all tokens; a single one is that of all features."""
    if columns.shape[1] == 1:
        return columns.expand_dim(2).broadcast(1, blocks).broadcast(2, tokens)
    return columns[:, block : block + blocks].expand_dim(2).broadcast(2, tokens)


def combine(p: MoEParameters, dst: Tensor, gate: Tensor, up: Tensor, item: Item) -> None:
    """dst = act(gate) * up, times the affinity of each token where it differs between tokens."""
    partitions, blocks, tokens = dst.shape
    active = nl.ndarray(gate.shape, nl.float32, buffer=nl.sbuf)
    activate(active, gate, p.act_fn)
    flat = (partitions, blocks * tokens)
    if item.weight is None or item.chosen():
        nisa.tensor_tensor(dst.reshape(flat), active, up, op=nl.multiply)
        return
    nisa.tensor_tensor(active, active, up, op=nl.multiply)
    weight = item.weight[0:partitions].expand_dim(1).broadcast(1, blocks)
    nisa.tensor_tensor(dst, active.reshape(dst.shape), weight, op=nl.multiply)


# ---- rows of parameters --------------------------------------------------------------------------


def load_row(rows: Tensor, item: Item) -> Tensor:
    """The row of an item's expert, [1, columns] in SBUF."""
    columns = rows.size // rows.shape[0]
    row = nl.ndarray((1, columns), rows.dtype, buffer=nl.sbuf)
    source = of_expert(rows, item)
    nisa.dma_copy(row if len(source.shape) == 1 else row.reshape_dim(1, source.shape), source)
    return row


def constant_row(columns: int, dtype: DTypeLike) -> Tensor:
    """[1, columns] of 1."""
    row = nl.ndarray((1, columns), dtype, buffer=nl.sbuf)
    nisa.memset(row, 1.0)
    return row


def blocks_of_row(row: Tensor, blocks: int, partitions: int) -> Any:
    """row[0, partitions b + p] at [p, b], float32; a single number goes everywhere."""
    if row.shape[1] == 1:
        return columns_of(row.broadcast(1, blocks * partitions).reshape_dim(1, (blocks, partitions)))
    return columns_of(row.reshape_dim(1, (blocks, partitions)))


def columns_of(row: Tensor) -> Tensor:
    """row[0, b, p] at [p, b], float32, by matmuls with 1: exact."""
    blocks, partitions = row.shape[1], row.shape[2]
    one = constant_row(1, row.dtype)
    sums = nl.ndarray((partitions, blocks), nl.float32, buffer=nl.psum)
    for b in range(blocks):
        nisa.nc_matmul(sums[:, b : b + 1], row[:, b, :], one)
    columns = nl.ndarray((partitions, blocks), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(columns, sums)
    return columns


# ---- down ----------------------------------------------------------------------------------------


def add_down(p: MoEParameters, total: Tensor, x: Tokens, item: Item, m: Middle, part: int) -> None:
    """total += m W of one part of H, some rows of W at a time."""
    partitions, blocks, tokens = m.tile.shape
    columns = p.down.shape[2] // x.cores
    size = columns // PMAX
    cells = p.down[:, :, part * columns : (part + 1) * columns]
    scale = part_columns(p.down_scale, item, part, x.cores) if quantized(p) else None
    for chunk in TiledRange(blocks, max(1, CHUNK_BYTES // 2 // (columns * bytes_of(p.down)))):
        first = m.row + chunk.start_offset * partitions
        rows = cells[:, first : first + chunk.size * partitions, :]
        rows = rows.reshape_dim(1, (chunk.size, partitions)).permute((0, 2, 1, 3))
        weights = nl.ndarray((partitions, chunk.size, columns), p.down.dtype, buffer=nl.sbuf)
        nisa.dma_copy(weights, of_expert(rows, item))
        spread = weights.reshape_dim(2, (PMAX, size))
        for group in TiledRange(size, max(1, BANK_COLUMNS // tokens)):
            bank = nl.ndarray((PMAX, group.size, tokens), nl.float32, buffer=nl.psum)
            for j in range(group.size):
                for b in range(chunk.size):
                    features = spread[:, b, :, group.start_offset + j]
                    nisa.nc_matmul(bank[:, j, :], features, m.tile[:, chunk.start_offset + b, :])
            drain(total_of(total, item, group), bank, item, scale, group)


def total_of(total: Tensor, item: Item, group: TiledRangeIterator) -> Any:
    """The place of a group of features and an item's tokens."""
    return total[:, group.start_offset : group.end_offset, item.token : item.token + item.tokens]


def drain(dst: Tensor, bank: Tensor, item: Item, scale: Tensor | None, group: TiledRangeIterator) -> None:
    """dst += bank, times the scale of each feature and the affinity of a single token."""
    value = bank
    if scale is not None:
        value = nl.ndarray(bank.shape, nl.float32, buffer=nl.sbuf)
        factors = along(scale, group.start_offset, group.size, bank.shape[2])
        nisa.tensor_tensor(value, bank, factors, op=nl.multiply)
    if item.weight is not None and item.chosen():
        nisa.scalar_tensor_tensor(dst, value, nl.multiply, item.weight, nl.add, dst)
    else:
        nisa.tensor_tensor(dst, value, dst, op=nl.add)


def part_columns(rows: Tensor, item: Item, part: int, parts: int) -> Any:
    """Numbers of one part of H as they are spread over the partitions, [128, J]; or one number for all."""
    if rows.shape[1] == 1:
        number = blocks_of_row(load_row(rows, item), 1, PMAX)
        return number
    return columns_of(spread_row(rows, item, part, parts))


def spread_row(rows: Tensor, item: Item, part: int, parts: int) -> Any:
    """A row's part of H, [1, J, 128]: feature J p + j at [0, j, p]."""
    columns = rows.shape[1] // parts
    row = load_row(rows[:, part * columns : (part + 1) * columns], item)
    return row.reshape_dim(1, (PMAX, columns // PMAX)).permute((0, 2, 1))


def add_down_bias(p: MoEParameters, total: Tensor, x: Tokens, item: Item, part: int) -> None:
    """total += bias times affinity: a matmul of the two rows."""
    row = spread_row(p.down_bias, item, part, x.cores)
    factors = constant_row(item.tokens, row.dtype)
    if item.weight is not None and not item.chosen():
        nisa.tensor_copy(factors, item.weight[0:1])
    for group in TiledRange(row.shape[1], max(1, BANK_COLUMNS // item.tokens)):
        bank = nl.ndarray((PMAX, group.size, item.tokens), nl.float32, buffer=nl.psum)
        for j in range(group.size):
            nisa.nc_matmul(bank[:, j, :], row[:, group.start_offset + j, :], factors)
        drain(total_of(total, item, group), bank, item, None, group)
