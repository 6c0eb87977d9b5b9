"""Which keys a query of attention_tkg sees: the caller's mask, or one made of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from .attention_tkg_plan import DecodeCall, DecodeSection, DecodeUnit, spot

if TYPE_CHECKING:
    pass

PREDICATES = (nl.uint8, nl.int8, nl.uint16, nl.int16)  # dtypes that select as they are
BUFFERS = 2  # sections whose masks are in SBUF


class Masks(nl.NKIObject):
    """Makes the masks of units, [rows, batches, tiles, columns] of 0 and 1."""

    def __init__(self, call: DecodeCall, sizes: Any, last: DecodeSection):
        self.call = call
        self.limit = None  # keys from this number on, which is known at run time, do not count
        if call.max_context_len is not None:
            self.limit = call.tile((PMAX, 1), nl.float32)
            nisa.dma_copy(self.limit, call.max_context_len.reshape((1, 1)).ap([[0, PMAX], [1, 1]]))
        self.positions: Any = Positions(call) if call.cfg.use_pos_id else None
        self.numbers: list = []  # of keys, [rows, tiles] float32
        self.below: list = []  # 1 for keys below the limit
        self.given: list = []  # the caller's, [rows, tiles, columns of some batches]
        self.several = sizes.mask_batches  # those batches
        self.loads = 0
        for _ in range(BUFFERS):
            if call.cfg.use_pos_id or self.limit is not None:
                self.numbers.append(call.tile((call.rows, sizes.tiles), nl.float32))
            if self.limit is not None:
                self.below.append(call.tile((call.rows, sizes.tiles), nl.uint8))
            if not call.cfg.use_pos_id:
                dtype = call.mask.dtype if call.mask.dtype in PREDICATES else nl.uint8
                shape: tuple = (call.rows, sizes.tiles, sizes.mask_batches * call.columns)
                self.given.append(call.tile(shape, dtype))
        self.fresh: Any = NewTokens(call, last) if call.cfg.use_pos_id else None
        self.after: Any = None
        self.before: Any = None
        if call.start_pos_ids is not None:
            shape = (call.rows, sizes.batches, sizes.tiles, call.cfg.s_active)
            self.after = call.tile(shape, nl.float32)
            self.before = call.tile(shape, nl.float32)

    def begin_section(self, section: DecodeSection) -> None:
        """What all units of a section share."""
        buffer = section.index % BUFFERS
        if len(self.numbers) > 0:
            number_keys(self.numbers[buffer], section)
            if self.fresh is not None and len(section.runs) > 0:
                self.fresh.find_old(self.numbers[buffer])
        if self.limit is not None:
            below = self.below[buffer][:, 0 : section.tiles]
            limit = self.limit[0 : self.call.rows]
            nisa.tensor_scalar(below, self.numbers[buffer][:, 0 : section.tiles], nl.less, limit)

    def load_given(self, section: DecodeSection, batch: int) -> None:
        """A flat cache has its keys in order; of a cache of blocks tile f, partition p is row 128 f + p."""
        call, batches = self.call, min(self.several, self.call.batches - batch)
        first, columns = (call.first_batch + batch) * call.columns, batches * call.columns
        self.loads += 1
        place = self.given[self.loads % BUFFERS][:, 0 : section.tiles, 0:columns]
        mask = call.mask.reshape((call.cfg.curr_sprior, call.cfg.bs * call.columns))
        mask = mask[:, first : first + columns]
        for chunk in section.chunks:
            at = chunk.tile - section.tile
            rows = mask[chunk.token : chunk.token + chunk.tokens]
            if call.block_len > 0:
                rows = rows.reshape_dim(0, (chunk.width, call.rows)).permute((1, 0, 2))
            else:
                rows = rows.reshape_dim(0, (call.rows, chunk.width))
            nisa.dma_copy(place[:, at : at + chunk.width], rows)
        if self.limit is not None:
            below = self.below[section.index % BUFFERS][:, 0 : section.tiles]
            nisa.tensor_tensor(place, place, below.expand_dim(2).broadcast(2, columns), nl.multiply)
            tail = mask[call.cfg.curr_sprior - call.cfg.s_active :]
            for run in section.runs:
                nisa.dma_copy(spot(place, run), tail[run.active : run.active + run.count])

    def of_unit(self, unit: DecodeUnit) -> Any:
        call, section = self.call, unit.section
        buffer, first = section.index % BUFFERS, unit.first % self.several
        if len(self.given) > 0:
            if first == 0:
                self.load_given(section, unit.first)
            given = self.given[self.loads % BUFFERS][:, 0 : section.tiles]
            given = given.reshape_dim(2, (self.several, call.columns))
            return given[:, :, first : first + unit.batches, :].permute((0, 2, 1, 3))
        visible = unit.slot.visible[:, 0 : unit.batches, 0 : unit.tiles, :]
        numbers = self.numbers[buffer][:, 0 : section.tiles]
        if self.positions.start is None:
            self.before_end(visible, numbers, unit)
        else:
            self.in_window(visible, numbers, unit)
        if self.limit is not None:
            below = self.below[buffer][:, 0 : section.tiles].expand_dim(2).broadcast(2, call.columns)
            for batch in range(unit.batches):
                nisa.tensor_tensor(visible[:, batch], visible[:, batch], below, nl.multiply)
        if len(section.runs) > 0:
            self.fresh.replace(visible, unit)
        return visible

    def before_end(self, visible: Tensor, numbers: Tensor, unit: DecodeUnit) -> None:
        """Keys below the position of the first new token."""
        columns, rows = self.call.columns, self.call.rows
        keys = numbers.expand_dim(2).broadcast(2, columns)
        for batch in range(unit.batches):
            end = self.positions.end[0:rows, unit.first + batch, 0:1]
            nisa.tensor_scalar(visible[:, batch], keys, nl.less, end)

    def in_window(self, visible: Tensor, numbers: Tensor, unit: DecodeUnit) -> None:
        """Keys in [start, end) of each new token; where start > end, those from start on or before end."""
        call, positions, last = self.call, self.positions, unit.first + unit.batches
        tokens, tiles = call.cfg.s_active, unit.tiles
        after = self.after[:, 0 : unit.batches, 0:tiles, :]
        before = self.before[:, 0 : unit.batches, 0:tiles, :]
        keys = numbers.expand_dim(1).broadcast(1, unit.batches).expand_dim(3).broadcast(3, tokens)
        start = positions.start[0 : call.rows, unit.first : last].expand_dim(2).broadcast(2, tiles)
        end = positions.end[0 : call.rows, unit.first : last].expand_dim(2).broadcast(2, tiles)
        needed = positions.needed[0 : call.rows, unit.first : last].expand_dim(2).broadcast(2, tiles)
        nisa.tensor_tensor(after, keys, start, nl.greater_equal)
        nisa.tensor_tensor(before, keys, end, nl.less)
        nisa.tensor_tensor(after, after, before, nl.add)
        by_head = visible.reshape_dim(3, (call.cfg.q_head, tokens))
        for head in range(call.cfg.q_head):
            nisa.tensor_tensor(by_head[:, :, :, head], after, needed, nl.greater_equal)


class NewTokens(nl.NKIObject):
    """The caller's mask of the new tokens, [rows, tiles that have any, batches, columns]; 0 elsewhere.

    Loaded beforehand: a transfer that waits for the other mask would queue up behind those of the cache.
    """

    def __init__(self, call: DecodeCall, section: DecodeSection):
        self.call = call
        self.first = section.tiles  # of the tiles of the last section
        self.tile: Any = None
        self.old: Any = None
        if len(section.runs) == 0:
            return
        end = 0
        for run in section.runs:
            self.first = min(self.first, run.tile)
            end = max(end, run.tile + run.tiles)
        self.tile = call.tile((call.rows, end - self.first, call.batches, call.columns), nl.uint8)
        self.old = call.tile((call.rows, end - self.first), nl.uint8)
        nisa.memset(self.tile, 0)
        mask = call.mask.reshape((call.cfg.s_active, call.cfg.bs, call.columns))
        mask = mask[:, call.first_batch : call.first_batch + call.batches]
        for run in section.runs:
            rows = slice(run.partition, run.partition + run.partitions)
            tiles = slice(run.tile - self.first, run.tile - self.first + run.tiles)
            nisa.dma_copy(self.tile[rows, tiles], mask[run.active : run.active + run.count])

    def find_old(self, numbers: Tensor) -> None:
        """1 for keys of the cache, 0 for new tokens."""
        call, tiles = self.call, slice(self.first, self.first + self.tile.shape[1])
        least = float(call.cfg.curr_sprior - call.cfg.s_active)
        nisa.tensor_scalar(self.old, numbers[:, tiles], nl.less, least)

    def replace(self, visible: Tensor, unit: DecodeUnit) -> None:
        """In a unit that has the new tokens: their positions do not count."""
        call, tiles = self.call, slice(self.first, self.first + self.tile.shape[1])
        place = visible[:, :, tiles, :]
        old = self.old.expand_dim(1).broadcast(1, unit.batches).expand_dim(3).broadcast(3, call.columns)
        nisa.tensor_tensor(place, place, old, nl.multiply)
        new = self.tile[:, :, unit.first : unit.first + unit.batches, :].permute((0, 2, 1, 3))
        nisa.tensor_tensor(place, place, new, nl.add)


class Positions(nl.NKIObject):
    """The range of keys each new token sees: [128, batches, s] float32, the same in all partitions."""

    def __init__(self, call: DecodeCall):
        self.end = load_positions(call, call.rope_pos_ids)
        self.start = None
        self.needed = None  # of the conditions key >= start and key < end: both, or one if the range wraps
        if call.start_pos_ids is not None:
            self.start = load_positions(call, call.start_pos_ids)
            self.needed = call.tile(self.start.shape, nl.float32)
            nisa.tensor_tensor(self.needed, self.start, self.end, nl.less_equal)
            nisa.tensor_scalar(self.needed, self.needed, nl.add, 1.0)


def load_positions(call: DecodeCall, positions: Tensor) -> Any:
    """Positions [B, s] of this core's batches in every partition, as float32."""
    tokens = call.cfg.s_active
    tile = call.tile((PMAX, call.batches, tokens), nl.float32)
    source = positions.reshape((call.cfg.bs * tokens,))
    nisa.dma_copy(
        tile, source.ap([[0, PMAX], [tokens, call.batches], [1, tokens]], offset=call.first_batch * tokens)
    )
    return tile


def number_keys(numbers: Tensor, section: DecodeSection) -> None:
    """The number of each key of a section, at its partition and tile."""
    for chunk in section.chunks:
        at, width = chunk.tile - section.tile, chunk.width
        nisa.iota(numbers[:, at : at + width], [[1, width]], offset=chunk.token, channel_multiplier=width)
