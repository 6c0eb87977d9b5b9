"""How attention_tkg does it: scores, softmax and values of a unit, with keys in the partitions.

What belongs to a query is a column. Its maximum and its sum go over partitions too: maxima are transposed,
reduced and spread again by TensorE, sums are spread by a matmul with ones. Both then stand in every
partition, next to the results [d, columns].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.tiled_range import TiledRange
from ..utils.tiles import manual
from .attention_tkg_loads import BlockTable, Slot, key_tile, load_keys, load_values
from .attention_tkg_masks import Masks
from .attention_tkg_new_values import NewValues, values_on_chip
from .attention_tkg_plan import (
    BANK,
    SLOTS,
    VALUE_SLOTS,
    DecodeCall,
    DecodeUnit,
    Sizes,
    plan_sections,
    value_dtype,
)
from .attention_tkg_queries import store_columns

if TYPE_CHECKING:
    from nkilib.core.attention.attention_tkg_loads import BlockTable
    from nkilib.core.attention.attention_tkg_new_values import NewValues

KEYS_AHEAD = 2  # units whose keys have come before the values of one
MASKED = -3.0e38  # the score of a key that is not seen
LEAST_MAXIMUM = -1.0e30  # of a query that sees nothing: far above MASKED, so that all its probabilities are 0
SMALLEST_SUM = 1.0e-30  # a query that sees a key has a sum of about 1 or more


class DecodeState(nl.NKIObject):
    """The softmax over the keys seen so far, for this core's query columns."""

    def __init__(self, call: DecodeCall):
        columns, head_dim = call.batches * call.columns, call.cfg.d_head
        self.maximum = call.tile((PMAX, columns), nl.float32)
        self.sums = call.tile((PMAX, columns), nl.float32)
        self.out = call.tile((head_dim, columns), nl.float32)
        some = min(columns, BANK)
        self.factor: list = []  # 1 / sum, of some columns
        self.rows: list = []  # results on their way to HBM
        for _ in range(2):
            self.factor.append(call.tile((head_dim, some), nl.float32))
            if not call.cfg.out_in_sb:
                rows = min(PMAX, call.batches * call.cfg.q_head)
                self.rows.append(call.tile((rows, head_dim, call.cfg.s_active), call.out.dtype))
        self.result = call.out
        if not call.cfg.out_in_sb:
            self.result = call.tile((head_dim, call.cfg.bs * call.columns), call.out.dtype)
        self.identity = call.tile((PMAX, PMAX), nl.float32)
        self.ones = call.tile((PMAX, PMAX), nl.float32)
        nisa.memset(self.ones, 1.0)
        nisa.affine_select(self.identity, [[-1, PMAX]], 1, self.ones, 0.0, cmp_op=nl.equal)
        self.sinks: Any = None  # [128, heads]
        if call.sink is None:
            nisa.memset(self.maximum, LEAST_MAXIMUM)
        else:
            self.sinks = call.tile((PMAX, call.cfg.q_head), nl.float32)
            nisa.dma_copy(self.sinks, call.sink.ap([[0, PMAX], [1, call.cfg.q_head]]))
            by_head = self.maximum.reshape_dim(1, (call.batches, call.cfg.q_head, call.cfg.s_active))
            nisa.tensor_copy(by_head, self.every_column(call, call.batches))

    def every_column(self, call: DecodeCall, batches: int) -> Any:
        """The sinks, repeated for some batches and every new token."""
        by_head = self.sinks.expand_dim(1).broadcast(1, batches)
        return by_head.expand_dim(3).broadcast(3, call.cfg.s_active)


def run_units(call: DecodeCall, q: Tensor, k_active: Tensor) -> DecodeState:
    """All units of this core. Keys arrive ahead of values: softmax runs while values arrive."""
    state, sizes = DecodeState(call), Sizes(call)
    table = BlockTable(call) if call.block_len > 0 else None
    sections = plan_sections(call, sizes)
    masks = Masks(call, sizes, sections[len(sections) - 1])
    room = Room(call, sizes)
    new_values = NewValues(call, sections[len(sections) - 1]) if values_on_chip(call) else None
    waiting: list = []  # units that lack their values
    ahead = 1 if manual(call.sbm) else KEYS_AHEAD
    count = 0
    for section in sections:
        masks.begin_section(section)
        for group in TiledRange(call.batches, sizes.batches):
            unit = DecodeUnit(section, group.start_offset, group.size, room.slot(count))
            unit.values = room.values(count)
            unit.number = count
            load_keys(call, unit, table, k_active)
            unit.visible = masks.of_unit(unit)
            score(call, unit, q)
            soften(call, unit, state)
            waiting.append(unit)
            if len(waiting) > ahead:
                add_values(call, waiting.pop(0), state, table, False, new_values)
            count += 1
    for i in range(len(waiting)):
        add_values(call, waiting[i], state, table, i == len(waiting) - 1, new_values)
    return state


class Room(nl.NKIObject):
    """Tiles of units: new ones for each where the compiler places them, so that loads run as far ahead as
    SBUF has room; with a manual manager the same few in turn."""

    def __init__(self, call: DecodeCall, sizes: Sizes):
        self.call = call
        self.sizes = sizes
        self.slots: list = []
        self.value_tiles: list = []

    def slot(self, count: int) -> Slot:
        if not manual(self.call.sbm):
            return Slot(self.call, self.sizes)
        if len(self.slots) < SLOTS:
            self.slots.append(Slot(self.call, self.sizes))
        return self.slots[count % SLOTS]

    def values(self, count: int) -> Any:
        call, sizes = self.call, self.sizes
        shape = (call.rows, sizes.batches, sizes.tiles, call.cfg.d_head)
        if not manual(call.sbm):
            return call.tile(shape, value_dtype(call))
        if len(self.value_tiles) < VALUE_SLOTS:
            self.value_tiles.append(call.tile(shape, value_dtype(call)))
        return self.value_tiles[count % VALUE_SLOTS]


def score(call: DecodeCall, unit: DecodeUnit, q: Tensor) -> None:
    """Scores [rows, batches, tiles, columns] out of PSUM, those of unseen keys replaced."""
    columns, tiles = call.columns, unit.tiles
    width = min(tiles, BANK // columns)  # tiles of a bank
    deep = max(1, BANK // (tiles * columns))  # batches of a bank
    for group in TiledRange(unit.batches, deep):
        for part in TiledRange(tiles, width):
            bank = nl.ndarray((call.rows, group.size, part.size, columns), nl.float32, buffer=nl.psum)
            for i in range(group.size):
                batch = group.start_offset + i
                column = (call.first_batch + unit.first + batch) * columns
                queries = q[:, column : column + columns]
                for j in range(part.size):
                    keys = key_tile(call, unit, batch, part.start_offset + j)
                    nisa.nc_matmul(bank[:, i, j, :], keys, queries, accumulate=False)
            place = unit.slot.scores[
                :, group.start_offset : group.end_offset, part.start_offset : part.end_offset, :
            ]
            seen = unit.visible[
                :, group.start_offset : group.end_offset, part.start_offset : part.end_offset, :
            ]
            nisa.select_reduce(place, seen, bank, MASKED)


def soften(call: DecodeCall, unit: DecodeUnit, state: DecodeState) -> None:
    """Probabilities e^(score - maximum) and their sums; what earlier sections left is scaled."""
    slot, batches, tiles = unit.slot, unit.batches, unit.tiles
    first, count = unit.first * call.columns, unit.batches * call.columns
    scores = slot.scores[:, 0:batches, 0:tiles, :]
    maximum = state.maximum[:, first : first + count]
    fresh = slot.fresh[:, 0:count]
    per_column = slot.column_max[:, 0:count].reshape_dim(1, (batches, call.columns))
    nisa.tensor_reduce(per_column, nl.maximum, scores.permute((0, 1, 3, 2)), axis=3)
    spread_maximum(call, slot, count, state.identity)
    if unit.section.index > 0:
        rescale = slot.rescale[:, 0:count]
        nisa.tensor_tensor(rescale, maximum, fresh, nl.subtract)
        nisa.tensor_scalar(rescale, rescale, nl.minimum, 0.0)
        nisa.activation(rescale, nl.exp, rescale)
    nisa.tensor_tensor(maximum, maximum, fresh, nl.maximum)
    by_batch = maximum[0 : call.rows].reshape_dim(1, (batches, call.columns))
    nisa.tensor_tensor(scores, scores, by_batch.expand_dim(2).broadcast(2, tiles), nl.subtract)
    probabilities = slot.probabilities[:, 0:batches, 0:tiles, :]
    nisa.activation(probabilities, nl.exp, scores)
    sums = slot.sums[:, 0:count].reshape_dim(1, (batches, call.columns))
    nisa.tensor_reduce(sums, nl.add, probabilities.permute((0, 1, 3, 2)), axis=3)


def spread_maximum(call: DecodeCall, slot: Slot, count: int, identity: Tensor) -> None:
    """The maximum over partitions of each column, to every partition."""
    for part in TiledRange(count, PMAX):
        columns = slot.column_max[:, part.start_offset : part.end_offset]
        transposed = nl.ndarray((part.size, call.rows), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(transposed, columns, engine=nisa.tensor_engine)
        largest = slot.largest[0 : part.size, part.index : part.index + 1]
        nisa.tensor_reduce(largest, nl.maximum, transposed, axis=1)
        spread = nl.ndarray((PMAX, part.size), nl.float32, buffer=nl.psum)
        chosen = identity[0 : part.size, 0 : part.size]
        nisa.nc_matmul(spread, largest.broadcast(1, PMAX), chosen, is_moving_onezero=True)
        nisa.tensor_copy(slot.fresh[:, part.start_offset : part.end_offset], spread)


def add_values(
    call: DecodeCall,
    unit: DecodeUnit,
    state: DecodeState,
    table: BlockTable | None,
    last: bool,
    new_values: NewValues | None,
) -> None:
    """Values times probabilities, [d, columns], and the sums of the probabilities in every partition."""
    slot, columns = unit.slot, call.columns
    first, count = unit.first * columns, unit.batches * columns
    total = nl.ndarray((PMAX, count), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(total, state.ones[0 : call.rows], slot.sums[:, 0:count], is_stationary_onezero=True)
    join(state.sums[:, first : first + count], total, unit)
    factor = None
    finished = unit.section.is_last and not call.splits_keys and call.statistics is None
    if finished:
        factor = find_factor(call, state, unit.first, unit.batches, unit.number)
    load_values(call, unit, table, last, new_values)
    product = nl.ndarray((call.cfg.d_head, count), nl.float32, buffer=nl.psum)
    for batch in range(unit.batches):
        place = product[:, batch * columns : (batch + 1) * columns]
        for tile in range(unit.tiles):
            nisa.nc_matmul(
                place,
                unit.values[:, batch, tile, :],
                slot.probabilities[:, batch, tile, :],
                accumulate=tile > 0,
            )
    if finished and unit.section.index == 0:
        give(call, state, unit.first, unit.batches, product, factor)
        return
    join(state.out[:, first : first + count], product, unit)
    if finished:
        give(call, state, unit.first, unit.batches, state.out[:, first : first + count], factor)


def join(total: Tensor, new: Tensor, unit: DecodeUnit) -> None:
    """What a section adds to what earlier ones left."""
    if unit.section.index == 0:
        nisa.tensor_copy(total, new)
        return
    rows, columns = total.shape
    nisa.tensor_tensor(total, total, unit.slot.rescale[0:rows, 0:columns], nl.multiply)
    nisa.tensor_tensor(total, total, new, nl.add)


class Joined(nl.NKIObject):
    """Each core has processed half of the keys: exchange and merge, some columns at a time."""

    def __init__(self, call: DecodeCall):
        head_dim = call.cfg.d_head
        columns = min(call.batches, max(1, BANK // call.columns)) * call.columns
        self.mine = call.tile((head_dim, 3, columns), nl.float32)
        self.theirs = call.tile((head_dim, 3, columns), nl.float32)

    def join(self, call: DecodeCall, state: DecodeState, first: int, batches: int) -> None:
        rows, count = call.cfg.d_head, batches * call.columns
        span = slice(first * call.columns, first * call.columns + count)
        mine, theirs = self.mine[:, :, 0:count], self.theirs[:, :, 0:count]
        maximum, sums, out = state.maximum[0:rows, span], state.sums[0:rows, span], state.out[:, span]
        for i in range(3):
            nisa.tensor_copy(mine[:, i, :], (maximum, sums, out)[i])
            swap(call, mine[:, i, :], theirs[:, i, :])
        nisa.tensor_tensor(maximum, mine[:, 0, :], theirs[:, 0, :], nl.maximum)
        for part in (mine, theirs):
            nisa.tensor_tensor(part[:, 0, :], part[:, 0, :], maximum, nl.subtract)
            nisa.activation(part[:, 0, :], nl.exp, part[:, 0, :])
            nisa.tensor_tensor(part[:, 1, :], part[:, 1, :], part[:, 0, :], nl.multiply)
            nisa.tensor_tensor(part[:, 2, :], part[:, 2, :], part[:, 0, :], nl.multiply)
        nisa.tensor_tensor(sums, mine[:, 1, :], theirs[:, 1, :], nl.add)
        nisa.tensor_tensor(out, mine[:, 2, :], theirs[:, 2, :], nl.add)


GPSIMD_ELEMENTS = 256  # of each partition, that GpSimd sends in one go


def swap(call: DecodeCall, mine: Tensor, theirs: Tensor) -> None:
    """What each core has goes to the other."""
    other = 1 - call.core
    engine = nisa.dma_engine.gpsimd_dma if call.cfg.use_gpsimd_sb2sb else nisa.dma_engine.dma
    step = GPSIMD_ELEMENTS if call.cfg.use_gpsimd_sb2sb else mine.shape[1]
    for part in TiledRange(mine.shape[1], step):
        span = slice(part.start_offset, part.end_offset)
        nisa.sendrecv(mine[:, span], theirs[:, span], other, other, pipe_id=0, dma_engine=engine)


def find_factor(call: DecodeCall, state: DecodeState, first: int, batches: int, number: int) -> Any:
    """1 / sum for the columns of some batches; a sink, a logit without a value, joins the sums."""
    rows, count = call.cfg.d_head, batches * call.columns
    span = slice(first * call.columns, first * call.columns + count)
    factor, sums = state.factor[number % 2][:, 0:count], state.sums[0:rows, span]
    if call.sink is not None:
        shape = (batches, call.cfg.q_head, call.cfg.s_active)
        sinks, maximum = state.every_column(call, batches)[0:rows], state.maximum[0:rows, span]
        nisa.tensor_tensor(factor.reshape_dim(1, shape), sinks, maximum.reshape_dim(1, shape), nl.subtract)
        nisa.activation(factor, nl.exp, factor)
        nisa.tensor_tensor(sums, sums, factor, nl.add)
    nisa.tensor_scalar(factor, sums, nl.maximum, SMALLEST_SUM)
    nisa.reciprocal(factor, factor)
    return factor


def give(
    call: DecodeCall, state: DecodeState, first: int, batches: int, product: Tensor, factor: Tensor
) -> None:
    """The results of some batches: to SBUF, and from there to HBM if wanted. A query that saw nothing: 0."""
    start = (call.first_batch + first) * call.columns
    place = state.result[:, start : start + batches * call.columns]
    if call.statistics is None:
        nisa.tensor_tensor(place, product, factor, nl.multiply)
    else:
        nisa.tensor_copy(place, product)
    begin, end = max(first, call.first_stored), min(first + batches, call.last_stored)
    if not call.cfg.out_in_sb and begin < end:
        begin, count = call.first_batch + begin, end - begin
        store_columns(call, call.out, state.result, call.cfg.q_head, begin, count, state.rows)
