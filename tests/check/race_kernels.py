"""Two-core kernels for tests/check/test_races.py: wrong ones, which race, and right ones, which do not."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl

ROWS, COLUMNS = 8, 16
HALF_ROWS, HALF = ROWS // 2, COLUMNS // 2
BOTH = (0, 1)
WRONG: dict[str, nki.Kernel] = {}
RIGHT: dict[str, nki.Kernel] = {}


def wrong(function):
    WRONG[function.__name__] = nki.jit(function)
    return WRONG[function.__name__]


def right(function):
    RIGHT[function.__name__] = nki.jit(function)
    return RIGHT[function.__name__]


def shared(name="out", shape=(ROWS, COLUMNS), dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm, name=name)


def load(view):
    tile = nl.ndarray(view.shape, view.dtype)
    nisa.dma_copy(tile, view)
    return tile


def store(view, value):
    tile = nl.ndarray(view.shape, view.dtype)
    nisa.memset(tile, value)
    nisa.dma_copy(view, tile)


def me():
    return nl.program_id(0)


def meet(tensor):
    nisa.core_barrier(tensor, BOTH)


# ---- who writes what -----------------------------------------------------------------------------


@wrong
def both_store_everything(x):
    out = shared()
    store(out, me())
    return out


@right
def one_core_stores_everything(x):
    out = shared()
    if me() == 0:
        store(out, 1)
    return out


@wrong
def both_store_copies_of_x(x):
    out = shared()
    nisa.dma_copy(out, load(x))
    return out


@right
def each_core_copies_its_rows(x):
    out = shared()
    rows = slice(me() * HALF_ROWS, (me() + 1) * HALF_ROWS)
    nisa.dma_copy(out[rows], load(x[rows]))
    return out


@wrong
def rows_overlap_by_one(x):
    out = shared()
    rows = slice(me() * HALF_ROWS, me() * (HALF_ROWS - 1) + HALF_ROWS + 1)
    store(out[rows], 1)
    return out


@right
def each_core_copies_its_columns(x):
    out = shared()
    columns = slice(me() * HALF, (me() + 1) * HALF)
    nisa.dma_copy(out[:, columns], load(x[:, columns]))
    return out


@wrong
def columns_overlap_by_one(x):
    out = shared()
    columns = slice(me() * (HALF - 1), me() * (HALF - 1) + HALF)
    store(out[:, columns], 1)
    return out


@right
def even_and_odd_rows(x):
    out = shared()
    store(out[me() : ROWS : 2], me())
    return out


@wrong
def both_take_the_even_rows(x):
    out = shared()
    store(out[0:ROWS:2], me())
    return out


@right
def even_and_odd_columns(x):
    out = shared()
    store(out[:, me() : COLUMNS : 2], me())
    return out


@wrong
def every_second_meets_every_third(x):
    out = shared()
    step = 2 + me()
    store(out[:, 1:COLUMNS:step], me())
    return out


@wrong
def one_core_stores_all_the_other_an_element(x):
    out = shared()
    if me() == 0:
        store(out, 0)
    else:
        store(out[5:6, 3:4], 1)
    return out


@right
def elements_of_a_diagonal(x):
    out = shared()
    for row in range(me(), ROWS, 2):
        store(out[row : row + 1, row : row + 1], row)
    return out


@wrong
def strided_loop_without_the_step(x):
    out = shared()
    for row in range(me(), ROWS):
        store(out[row : row + 1], row)
    return out


@right
def strided_loop(x):
    out = shared()
    for row in range(me(), ROWS, 2):
        store(out[row : row + 1], row)
    return out


@wrong
def ragged_split_that_repeats_the_middle_row(x):
    out = shared(shape=(7, COLUMNS))
    begin = me() * 3
    store(out[begin : begin + 4], me())
    return out


@right
def ragged_split(x):
    out = shared(shape=(7, COLUMNS))
    store(out[0:4] if me() == 0 else out[4:7], me())
    return out


@wrong
def the_same_batch_of_three_dimensions(x):
    out = shared(shape=(2, HALF_ROWS, COLUMNS))
    store(out[0, :, me() * 4 : me() * 4 + 8], me())
    return out


@right
def a_batch_for_each_core(x):
    out = shared(shape=(2, HALF_ROWS, COLUMNS))
    store(out[me()], me())
    return out


@right
def a_head_for_each_core(x):
    out = shared(shape=(HALF_ROWS, 2, HALF))
    store(out[:, me(), :], me())
    return out


@wrong
def flat_views_of_one_tensor(x):
    out = shared()
    if me() == 0:
        store(out[0:2], 0)
    else:
        store(out.reshape((ROWS * 2, HALF))[3:6], 1)
    return out


@right
def flat_views_side_by_side(x):
    out = shared()
    if me() == 0:
        store(out[0:2], 0)
    else:
        store(out.reshape((ROWS * 2, HALF))[4:6], 1)
    return out


@wrong
def narrow_view_of_the_same_bytes(x):
    out = shared()
    if me() == 0:
        store(out[:, 0:4], 0)
    else:
        store(out.view(nl.int16)[:, 6:9], 1)
    return out


@right
def narrow_view_of_other_bytes(x):
    out = shared()
    if me() == 0:
        store(out[:, 0:4], 0)
    else:
        store(out.view(nl.int16)[:, 8:12], 1)
    return out


# ---- arguments -----------------------------------------------------------------------------------


@wrong
def both_update_an_argument(x):
    store(x[0:2], me())


@right
def each_core_updates_its_half_of_an_argument(x):
    store(x[me() * HALF_ROWS : (me() + 1) * HALF_ROWS], me())


@wrong
def one_updates_an_argument_that_the_other_reads(x):
    out = shared()
    if me() == 0:
        store(x, 0)
    else:
        nisa.dma_copy(out, load(x))
    return out


@right
def both_read_an_argument(x):
    out = shared()
    tile = load(x)
    nisa.dma_copy(out[me() * HALF_ROWS : (me() + 1) * HALF_ROWS], tile[0:HALF_ROWS])
    return out


# ---- meetings ------------------------------------------------------------------------------------


def other_half(x, before, after):
    """Each core writes half of a scratch tensor and reads the other's."""
    out, scratch = shared(), shared("scratch")
    mine = slice(me() * HALF_ROWS, (me() + 1) * HALF_ROWS)
    theirs = slice((1 - me()) * HALF_ROWS, (2 - me()) * HALF_ROWS)
    if before:
        meet(scratch)
    nisa.dma_copy(scratch[mine], load(x[mine]))
    if after:
        meet(scratch)
    nisa.dma_copy(out[mine], load(scratch[theirs]))
    return out


@wrong
def no_barrier_before_the_other_half_is_read(x):
    return other_half(x, before=False, after=False)


@wrong
def barrier_before_the_write_instead_of_after(x):
    return other_half(x, before=True, after=False)


@right
def barrier_between_write_and_read(x):
    return other_half(x, before=False, after=True)


@right
def barriers_around_the_write(x):
    return other_half(x, before=True, after=True)


@wrong
def core_0_writes_core_1_reads(x):
    out, scratch = shared(), shared("scratch")
    if me() == 0:
        nisa.dma_copy(scratch, load(x))
    else:
        nisa.dma_copy(out, load(scratch))
    return out


@right
def core_0_writes_core_1_reads_after_a_barrier(x):
    out, scratch = shared(), shared("scratch")
    if me() == 0:
        nisa.dma_copy(scratch, load(x))
    meet(scratch)
    if me() == 1:
        nisa.dma_copy(out, load(scratch))
    return out


@wrong
def a_barrier_of_one_core_is_none(x):
    out = shared()
    store(out, me())
    nisa.core_barrier(out, (me(),))
    store(out, me())
    return out


def turns(x, second):
    """A slot that core 0 fills and core 1 empties, round after round."""
    out, slot = shared(), shared("slot", (1, COLUMNS))
    for row in range(3):
        if me() == 0:
            store(slot, row)
        meet(slot)
        if me() == 1:
            nisa.dma_copy(out[row : row + 1], load(slot))
        if second:
            meet(slot)
    return out


@wrong
def a_slot_is_filled_again_before_it_was_emptied(x):
    return turns(x, second=False)


@right
def a_slot_is_emptied_before_it_is_filled_again(x):
    return turns(x, second=True)


@right
def two_slots_need_one_barrier_each(x):
    out, slots = shared(), shared("slots", (2, COLUMNS))
    for row in range(4):
        slot = slots[row % 2 : row % 2 + 1]
        if me() == 0:
            store(slot, row)
        meet(slots)
        if me() == 1:
            nisa.dma_copy(out[row : row + 1], load(slot))
    return out


@wrong
def two_slots_of_which_one_is_used_twice(x):
    out, slots = shared(), shared("slots", (2, COLUMNS))
    for row in range(4):
        slot = slots[0:1]
        if me() == 0:
            store(slot, row)
        meet(slots)
        if me() == 1:
            nisa.dma_copy(out[row : row + 1], load(slot))
    return out


@wrong
def shared_scratch_used_as_if_it_were_private(x):
    out, scratch = shared(), shared("scratch", (HALF_ROWS, COLUMNS))
    mine = slice(me() * HALF_ROWS, (me() + 1) * HALF_ROWS)
    nisa.dma_copy(scratch, load(x[mine]))
    nisa.dma_copy(out[mine], load(scratch))
    return out


@right
def private_scratch(x):
    out = shared()
    scratch = nl.ndarray((HALF_ROWS, COLUMNS), nl.float32, buffer=nl.private_hbm)
    mine = slice(me() * HALF_ROWS, (me() + 1) * HALF_ROWS)
    nisa.dma_copy(scratch, load(x[mine]))
    nisa.dma_copy(out[mine], load(scratch))
    return out


@wrong
def both_zero_then_each_stores_its_half(x):
    out = shared()
    store(out, 0)
    store(out[me() * HALF_ROWS : (me() + 1) * HALF_ROWS], 1)
    return out


@right
def one_zeroes_all_meet_each_stores_its_half(x):
    out = shared()
    if me() == 0:
        store(out, 0)
    meet(out)
    store(out[me() * HALF_ROWS : (me() + 1) * HALF_ROWS], 1)
    return out


@wrong
def a_total_that_both_add_to(x):
    out = shared(shape=(1, COLUMNS))
    total = load(out) if me() else load(x[0:1])
    nisa.dma_copy(out, total)
    return out


@right
def a_total_that_core_0_adds_up(x):
    out, parts = shared(shape=(1, COLUMNS)), shared("parts", (2, COLUMNS))
    nisa.dma_copy(parts[me() : me() + 1], load(x[me() : me() + 1]))
    meet(parts)
    if me() == 0:
        first, second = load(parts[0:1]), load(parts[1:2])
        nisa.tensor_tensor(first, first, second, nl.add)
        nisa.dma_copy(out, first)
    return out


def after_exchange(x, partner):
    """Core 0 writes, both exchange a tile, core 1 reads what was written."""
    out, scratch = shared(), shared("scratch")
    if me() == 0:
        nisa.dma_copy(scratch, load(x))
    sent = load(x)
    received = nl.ndarray(x.shape, x.dtype)
    nisa.sendrecv(sent, received, partner, partner, 0)
    if me() == 1:
        nisa.dma_copy(out, load(scratch))
    return out


@right
def an_exchange_is_a_meeting(x):
    return after_exchange(x, 1 - me())


@wrong
def an_exchange_with_oneself_is_none(x):
    return after_exchange(x, me())


@wrong
def both_store_after_an_exchange(x):
    out = shared()
    sent, received = load(x), nl.ndarray(x.shape, x.dtype)
    nisa.sendrecv(sent, received, 1 - me(), 1 - me(), 0)
    nisa.dma_copy(out, received)
    return out


@right
def each_stores_its_half_after_an_exchange(x):
    out = shared()
    mine = slice(me() * HALF_ROWS, (me() + 1) * HALF_ROWS)
    sent, received = load(x[mine]), nl.ndarray((HALF_ROWS, COLUMNS), x.dtype)
    nisa.sendrecv(sent, received, 1 - me(), 1 - me(), 0)
    nisa.dma_copy(out[mine], received)
    return out


# ---- loops, run-time addresses, inner kernels ----------------------------------------------------


@wrong
def a_dynamic_loop_over_the_same_rows(x):
    out = shared()
    nl.fori_loop(0, ROWS, lambda i: store(out[nl.ds(i, 1)], 1))
    return out


@right
def a_dynamic_loop_over_its_own_rows(x):
    out = shared()
    first = me() * HALF_ROWS
    nl.fori_loop(first, first + HALF_ROWS, lambda i: store(out[nl.ds(i, 1)], 1))
    return out


@right
def a_dynamic_loop_over_every_second_row(x):
    out = shared()
    for i in nl.dynamic_range(me(), ROWS, 2):
        store(out[nl.ds(i, 1)], 1)
    return out


@wrong
def dynamic_loops_that_meet_in_one_row(x):
    out = shared()
    first = me() * 3
    for i in nl.dynamic_range(first, first + 4):
        store(out[nl.ds(i, 1)], 1)
    return out


@wrong
def a_dynamic_loop_whose_next_round_comes_too_soon(x):
    out, slot = shared(), shared("slot", (1, COLUMNS))
    for i in nl.dynamic_range(0, 3):
        if me() == 0:
            store(slot, 1)
        meet(slot)
        if me() == 1:
            nisa.dma_copy(out[nl.ds(i, 1)], load(slot))
    return out


@right
def a_dynamic_loop_that_waits_for_its_next_round(x):
    out, slot = shared(), shared("slot", (1, COLUMNS))
    for i in nl.dynamic_range(0, 3):
        if me() == 0:
            store(slot, 1)
        meet(slot)
        if me() == 1:
            nisa.dma_copy(out[nl.ds(i, 1)], load(slot))
        meet(slot)
    return out


def scattered(x):
    """The rows of x at run-time places of a tensor."""
    target = shared("target")
    places = nl.ndarray((ROWS, 1), nl.int32)
    nisa.iota(places, [[0, 1]], channel_multiplier=1)
    if me() == 0:
        nisa.dma_copy(target.ap([[COLUMNS, ROWS], [1, COLUMNS]], vector_offset=places), load(x))
    return target


@wrong
def scattered_rows_that_the_other_core_reads(x):
    out, target = shared(), scattered(x)
    if me() == 1:
        nisa.dma_copy(out, load(target))
    return out


@right
def scattered_rows_read_after_a_barrier(x):
    out, target = shared(), scattered(x)
    meet(target)
    if me() == 1:
        nisa.dma_copy(out, load(target))
    return out


@nki.jit
def fill(view, value):
    store(view, value)


@wrong
def an_inner_kernel_on_both_cores(x):
    out = shared()
    fill(out, me())
    return out


@right
def an_inner_kernel_on_halves(x):
    out = shared()
    fill(out[me() * HALF_ROWS : (me() + 1) * HALF_ROWS], me())
    return out


@wrong
def a_third_phase_without_a_barrier(x):
    out = shared()
    mine = out[me() * HALF_ROWS : (me() + 1) * HALF_ROWS]
    store(mine, 1)
    meet(out)
    tile = load(out)
    nisa.dma_copy(mine, tile[0:HALF_ROWS])
    return out


@right
def a_third_phase_with_a_barrier(x):
    out = shared()
    mine = out[me() * HALF_ROWS : (me() + 1) * HALF_ROWS]
    store(mine, 1)
    meet(out)
    tile = load(out)
    meet(out)
    nisa.dma_copy(mine, tile[0:HALF_ROWS])
    return out


def argument():
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
