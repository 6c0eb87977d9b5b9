"""Masks of attention_cte: the interval of keys that each query sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_transfers import move_rows
from nkilib.core.attention.attention_units import Group
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor

UNBOUNDED = 1.0e9  # beyond every column index


@dataclass
class Interval(nl.NKIObject):
    """Key columns lower <= c < upper are visible; both [128, tiles], query 128 t + p at [p, t]."""

    lower: Tensor
    upper: Tensor


# ---- masks: the interval of keys each query sees -------------------------------------------------


def query_positions(group: Group) -> Tensor:
    """The position of query 128 t + p of a group at [p, t]."""
    mask = group.call.mask
    step = mask.query_step
    positions = nl.ndarray((PMAX, group.tiles), nl.float32, buffer=nl.sbuf)
    nisa.iota(positions, [[PMAX * step, group.tiles]], offset=group.start * step, channel_multiplier=step)
    offset = broadcast_number(mask.offset)
    if offset is not None:
        nisa.tensor_scalar(positions, positions, nl.add, offset)
    return positions


def broadcast_number(number: Tensor | None) -> Any:
    """A one-element HBM tensor in every partition, as float32; None stays None."""
    if number is None:
        return None
    tile = new_column(PMAX)
    nisa.dma_copy(tile, number.reshape((1, 1)).ap([[0, PMAX], [1, 1]]))
    return tile


def visible_keys(group: Group, positions: Tensor, used: Tensor | None, prior: bool) -> Interval:
    """Columns of the prior, or of the active keys, that each query sees.

    Active key c stands at position c and in column used + c of the bounds; prior key c at c - used, or in a
    prior window of W keys at c - W.
    """
    mask = group.call.mask
    if prior and mask.prior_window > 0:
        return window_keys(group, positions, used)
    lower, upper = filled(group.tiles, -1.0), filled(group.tiles, UNBOUNDED)
    if mask.causal and not prior:
        nisa.tensor_scalar(upper, positions, nl.add, 1.0)
    if mask.window > 0:
        nisa.tensor_scalar(lower, positions, nl.add, 1.0 - mask.window)
        if prior:
            nisa.tensor_scalar(lower, lower, nl.add, used)
    if prior:
        nisa.tensor_scalar(upper, upper, nl.minimum, used)
    if mask.bound_min is not None:
        shift = 0.0 if prior or used is None else used
        bound_min, bound_max = load_bounds(group, mask.bound_min), load_bounds(group, mask.bound_max)
        nisa.scalar_tensor_tensor(lower, bound_min, nl.subtract, shift, nl.maximum, lower)
        nisa.scalar_tensor_tensor(upper, bound_max, nl.subtract, shift, nl.minimum, upper)
    if mask.numbering is not None:
        mask.numbering.local(lower)
        mask.numbering.local(upper)
    if mask.always is not None:
        nisa.tensor_scalar(upper, upper, nl.maximum, broadcast_number(mask.always))
    return Interval(lower, upper)


def window_keys(group: Group, positions: Tensor, used: Tensor) -> Interval:
    """Columns of a prior window that each query sees: the last `used` ones that its own window reaches."""
    mask = group.call.mask
    lower, upper, first = filled(group.tiles, 0.0), filled(group.tiles, mask.prior_window), new_column(PMAX)
    nisa.tensor_scalar(first, used, nl.multiply, -1.0, op1=nl.add, operand1=float(mask.prior_window))
    reach = float(mask.prior_window - mask.window + 1)
    nisa.tensor_scalar(lower, positions, nl.add, reach, op1=nl.maximum, operand1=first)
    return Interval(lower, upper)


def filled(tiles: int, value: float) -> Tensor:
    tile = nl.ndarray((PMAX, tiles), nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, value)
    return tile


def load_bounds(group: Group, bounds: Tensor) -> Any:
    """The bounds of a group's queries as float32 [128, tiles]; 0 for the queries a short tile lacks."""
    tile = nl.ndarray((PMAX, group.tiles, 1), nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    queries = group.call.queries
    head = group.head if bounds.size > queries else 0
    rows = bounds.reshape((bounds.size // queries, queries, 1))[head]
    move_rows(tile, rows, group.start, group.rows, False)
    return tile.reshape((PMAX, group.tiles))
