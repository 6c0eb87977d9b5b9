"""Which token stands where: the ids, experts and affinities of all blocks, as the DMA engines need them.

A unit is what passes over an expert's weights together: up to 512 positions of a block. Position 128 c + p
of it has its token in column c of partition p. Everything is computed in float32, exact below 2^24.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


@dataclass
class RoutingSource(nl.NKIObject):
    """The HBM tensors of the routing, and the sizes that give them meaning."""

    position_to_id: Any
    block_to_expert: Any
    affinities: Any
    conditions: Any
    tokens: int
    experts: int
    block_size: int
    unit_size: int
    skip_token: bool
    condition_blocks: int = 1  # for how many blocks a condition stands
    high_low: bool = False  # these are one of each half of the blocks, else neighbours


@dataclass
class TokenUnit(nl.NKIObject):
    """One unit; tiles are [128, columns]. `block` is a number, or a register in a dynamic loop."""

    block: Any
    first: int  # position in the block
    size: int
    expert: Tensor  # [1, 1] int32, always one that exists
    ids: Any  # float32, as they came
    rows: Any  # int32, rows of hidden: those of padding too, or -1 where there is no such row
    valid_rows: Any  # int32, rows that can always be read: 0 for padding
    is_real: Any  # float32, 1 where a token is to be processed, else 0
    affinity_index: Any  # int32, into affinities; 0-based rows as valid_rows
    affinity: Any  # float32


class ExpertRouting(nl.NKIObject):
    """The units of all blocks. An id out of range fails here: affinities are probed before all else."""

    def __init__(self, source: RoutingSource):
        blocks = source.block_to_expert.size
        self.source = source
        self.blocks = blocks
        self.passes = source.block_size // source.unit_size
        self.columns = source.unit_size // PMAX
        self.shape = (PMAX, blocks, self.passes, self.columns)
        ids = load_ids(source.position_to_id)
        experts = load_row(source.block_to_expert, blocks)
        expert = float_tile(experts.shape)
        nisa.tensor_scalar(expert, experts, nl.minimum, float(source.experts - 1))
        self.expert = int_tile((1, blocks))
        nisa.tensor_copy(self.expert, expert[0:1, :])
        self.is_active = active_blocks(source, experts)
        padding = padding_of(source, ids)
        self.ids = ids
        self.is_real = float_tile(ids.shape)
        nisa.tensor_scalar(self.is_real, padding, nl.multiply, -1.0, op1=nl.add, operand1=1.0)
        self.valid_rows = int_tile(ids.shape)
        valid = float_tile(ids.shape)
        nisa.tensor_tensor(valid, ids, self.is_real, op=nl.multiply)
        nisa.tensor_copy(self.valid_rows, valid)
        self.rows = self.rows_of_hidden(padding)
        self.affinity_index = int_tile(ids.shape)
        index = float_tile(ids.shape)
        nisa.tensor_scalar(index, valid, nl.multiply, float(source.experts))
        nisa.tensor_tensor(
            by_block(self.affinity_index, blocks), by_block(index, blocks), spread(expert, ids), op=nl.add
        )
        probe_affinities(source.affinities, self.affinity_index)
        nisa.tensor_tensor(
            by_block(self.is_real, blocks),
            by_block(self.is_real, blocks),
            spread(self.is_active, ids),
            op=nl.multiply,
        )

    def rows_of_hidden(self, padding: Tensor) -> Any:
        """Padding has a row of its own, or none: then -1, which a gather skips."""
        rows = int_tile(self.ids.shape)
        if self.source.skip_token:
            nisa.tensor_tensor(rows, self.valid_rows, padding, op=nl.subtract)
        else:
            nisa.tensor_copy(rows, self.ids)
        return rows

    def unit(self, block: int, number: int) -> TokenUnit:
        """Unit `number` of a block that is known while tracing."""
        first = (block * self.passes + number) * self.columns
        return self.make(block, number, self.expert[0:1, block : block + 1], first)

    def make(self, block: int, number: int, expert: Tensor, first: int) -> TokenUnit:
        last = first + self.columns
        return TokenUnit(
            block,
            number * self.source.unit_size,
            self.source.unit_size,
            expert,
            self.ids[:, first:last],
            self.rows[:, first:last],
            self.valid_rows[:, first:last],
            self.is_real[:, first:last],
            self.affinity_index[:, first:last],
            gather_affinities(self.source.affinities, self.affinity_index[:, first:last]),
        )

    def unit_at(self, block: Any, number: int) -> TokenUnit:
        """The same of a block that a register names, in tiles of its own."""
        expert = int_tile((1, 1))
        nisa.tensor_copy(expert, self.expert[0:1, nl.ds(block, 1)])
        index = self.taken(self.affinity_index, block, number)
        return TokenUnit(
            block,
            number * self.source.unit_size,
            self.source.unit_size,
            expert,
            self.taken(self.ids, block, number),
            self.taken(self.rows, block, number),
            self.taken(self.valid_rows, block, number),
            self.taken(self.is_real, block, number),
            index,
            gather_affinities(self.source.affinities, index),
        )

    def taken(self, tile: Tensor, block: Any, number: int) -> Tensor:
        own = nl.ndarray((PMAX, self.columns), tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(own, tile.reshape(self.shape)[:, block, number, :])
        return own

    def active_end(self, first: int, last: int) -> Any:
        """A register: where the blocks first ... last - 1 come to one whose condition is 0, or `last`."""
        total = float_tile((1, 1))
        nisa.tensor_reduce(total, nl.add, started_blocks(self.source)[0:1, first:last], 1)
        end = int_tile((1, 1))
        nisa.tensor_scalar(end, total, nl.add, float(first))
        register = nisa.register_alloc()
        nisa.register_load(register, end)
        return register


# ---- tiles ---------------------------------------------------------------------------------------


def float_tile(shape: tuple) -> Tensor:
    return nl.ndarray(shape, nl.float32, buffer=nl.sbuf)


def int_tile(shape: tuple) -> Tensor:
    return nl.ndarray(shape, nl.int32, buffer=nl.sbuf)


def by_block(tile: Tensor, blocks: int) -> Any:
    """[128, blocks, columns of a block]"""
    return tile.reshape_dim(1, (blocks, tile.shape[1] // blocks))


def spread(per_block: Tensor, tile: Tensor) -> Any:
    """[128, blocks], the same for all columns of a block."""
    blocks = per_block.shape[1]
    return per_block.expand_dim(2).broadcast(2, tile.shape[1] // blocks)


def load_ids(position_to_id: Tensor) -> Any:
    """position 128 c + p at [p, c], float32."""
    columns = position_to_id.size // PMAX
    raw = int_tile((PMAX, columns))
    nisa.dma_transpose(raw, position_to_id.reshape((columns, PMAX)))
    ids = float_tile((PMAX, columns))
    nisa.tensor_copy(ids, raw)
    return ids


def load_row(vector: Tensor, count: int) -> Any:
    """The first elements of a vector, float32, in every partition."""
    raw = nl.ndarray((PMAX, count), vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(raw, vector.reshape((1, vector.size))[:, 0:count].broadcast(0, PMAX))
    row = float_tile((PMAX, count))
    nisa.tensor_copy(row, raw)
    return row


# ---- meaning -------------------------------------------------------------------------------------


def padding_of(source: RoutingSource, ids: Tensor) -> Any:
    """1 where no token stands: id T, with skip_token also -1."""
    padding = float_tile(ids.shape)
    nisa.tensor_scalar(padding, ids, nl.equal, float(source.tokens))
    if source.skip_token:
        missing = float_tile(ids.shape)
        nisa.tensor_scalar(missing, ids, nl.equal, -1.0)
        nisa.tensor_tensor(padding, padding, missing, op=nl.add)
    return padding


def active_blocks(source: RoutingSource, experts: Tensor) -> Any:
    """1 for blocks before the first condition that is 0, with an expert that exists: [128, blocks]."""
    exists = float_tile(experts.shape)
    nisa.tensor_scalar(exists, experts, nl.less, float(source.experts))
    if source.conditions is None:
        return exists
    active = float_tile(experts.shape)
    nisa.tensor_tensor(active, exists, started_blocks(source), op=nl.multiply)
    return active


def started_blocks(source: RoutingSource) -> Any:
    """1 for blocks before the first condition that is 0."""
    steps = div_ceil(source.block_to_expert.size, source.condition_blocks)
    conditions = load_row(source.conditions, steps)
    nonzero, zeros, started = (
        float_tile(conditions.shape),
        float_tile(conditions.shape),
        float_tile(conditions.shape),
    )
    nisa.tensor_scalar(nonzero, conditions, nl.not_equal, 0.0)
    nisa.memset(zeros, 0.0)
    nisa.tensor_tensor_scan(started, nonzero, zeros, initial=1.0, op0=nl.multiply, op1=nl.add)
    return started if source.condition_blocks == 1 else of_each_block(source, started)


def of_each_block(source: RoutingSource, steps: Tensor) -> Any:
    """What stands for two blocks, for each of them: [128, blocks]."""
    count, blocks = steps.shape[1], source.block_to_expert.size
    wide = float_tile((PMAX, 2 * count))
    for side in range(2):
        if source.high_low:
            nisa.tensor_copy(wide[:, side * count : (side + 1) * count], steps)
        else:
            nisa.tensor_copy(wide.reshape_dim(1, (count, 2))[:, :, side], steps)
    return wide[:, 0:blocks]


def probe_affinities(affinities: Tensor, index: Tensor) -> None:
    """Read the affinity of the smallest and of the largest index of each partition: an id that is no token's
    is an index out of bounds, and fails here."""
    for op in (nl.minimum, nl.maximum):
        extreme, token_id_times_experts_plus_expert = int_tile((PMAX, 1)), int_tile((PMAX, 1))
        nisa.tensor_reduce(extreme, op, index, 1)
        nisa.tensor_copy(token_id_times_experts_plus_expert, extreme)
        found = nl.ndarray((PMAX, 1), affinities.dtype, buffer=nl.sbuf)
        table = affinities.reshape((affinities.size, 1))
        nisa.dma_copy(found, table.vector_select(0, token_id_times_experts_plus_expert))


def gather_affinities(affinities: Tensor, index: Tensor) -> Any:
    """affinities[index], float32."""
    found = nl.ndarray(index.shape, affinities.dtype, buffer=nl.sbuf)
    table = affinities.reshape((affinities.size, 1))
    for c in range(index.shape[1]):
        nisa.dma_copy(found[:, c : c + 1], table.vector_select(0, index[:, c : c + 1]))
    wide = float_tile(index.shape)
    nisa.tensor_copy(wide, found)
    return wide


# ---- where results go ----------------------------------------------------------------------------


class Repeats(nl.NKIObject):
    """How often a unit has each token: a scatter writes a row once, so its first position does it."""

    def __init__(self, source: RoutingSource):
        self.source = source
        size = source.unit_size
        distance = float_tile((PMAX, size // PMAX, size))
        nisa.iota(distance, [[-PMAX, size // PMAX], [1, size]], 0, channel_multiplier=-1)
        self.is_earlier = nl.ndarray(distance.shape, nl.bfloat16, buffer=nl.sbuf)  # [p, c, j]: j < 128 c + p
        nisa.tensor_scalar(self.is_earlier, distance, nl.less, 0.0)

    def of(self, unit: TokenUnit) -> tuple:
        """(how often the token of a position is in the unit, rows to write to: -1 for all but the first)."""
        columns = unit.ids.shape[1]
        row = int_tile((PMAX, unit.size))
        block = self.source.position_to_id.reshape((self.source.block_to_expert.size, self.source.block_size))
        ids = block[unit.block].reshape((1, self.source.block_size))[:, unit.first : unit.first + unit.size]
        nisa.dma_copy(row, ids.broadcast(0, PMAX))
        counts, earlier = float_tile((PMAX, columns)), float_tile((PMAX, columns))
        for c in range(columns):
            same = nl.ndarray((PMAX, unit.size), nl.bfloat16, buffer=nl.sbuf)
            before = nl.ndarray((PMAX, unit.size), nl.bfloat16, buffer=nl.sbuf)
            own = unit.ids[:, c : c + 1]
            nisa.tensor_scalar_reduce(same, row, nl.equal, own, nl.add, reduce_res=counts[:, c : c + 1])
            nisa.tensor_tensor(before, same, self.is_earlier[:, c, :], op=nl.multiply)
            nisa.tensor_reduce(earlier[:, c : c + 1], nl.add, before, 1)
        return counts, rows_to_write(unit, earlier)


def rows_to_write(unit: TokenUnit, earlier: Tensor) -> Any:
    """The row of each position that is the first real one of its token, else -1."""
    chosen, rows = float_tile(earlier.shape), int_tile(earlier.shape)
    nisa.scalar_tensor_tensor(chosen, earlier, nl.equal, 0.0, nl.multiply, unit.is_real)
    shifted = float_tile(earlier.shape)
    nisa.scalar_tensor_tensor(shifted, unit.ids, nl.add, 1.0, nl.multiply, chosen)
    nisa.tensor_scalar(rows, shifted, nl.subtract, 1.0)
    return rows
