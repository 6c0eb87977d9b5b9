"""Queries and new keys of attention_tkg: to [d, columns] in SBUF, rotated if asked; results back to HBM."""

from __future__ import annotations

import math
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.tiled_range import TiledRange
from .attention_tkg_plan import DecodeCall, key_dtype

TURN = 2 * math.pi
TURN_HIGH = 6.28125  # of 2 pi: so few bits that multiples of it are exact in float32
TURN_LOW = TURN - TURN_HIGH


def queries_of(call: DecodeCall, rope: FusedRope | None) -> Any:
    """q as [d, B * H * s] in a dtype that meets the keys'."""
    q = call.q
    if not call.cfg.qk_in_sb:
        q = load_columns(call, call.q, call.cfg.q_head)
    if rope is not None:
        q = rope.rotate(call, q, call.cfg.q_head, 1.0 / math.sqrt(call.cfg.d_head), None)
    if q.dtype != key_dtype(call) and nl.float32 in (q.dtype, key_dtype(call)):
        cast = call.tile(q.shape, key_dtype(call))
        nisa.tensor_copy(cast, q)
        return cast
    return q


def new_keys_of(call: DecodeCall, rope: FusedRope | None, k_out: Tensor) -> Any:
    """k_active as [d, B * s]; rotated, it is also written to k_out."""
    keys = call.k_active
    if not call.cfg.qk_in_sb:
        keys = load_columns(call, call.k_active, 1)
    if rope is not None:
        keys = rope.rotate(call, keys, 1, 1.0, k_out if call.cfg.k_out_in_sb else None)
        if k_out is not None and not call.cfg.k_out_in_sb and call.core == 0:
            rows = call.tile((min(PMAX, call.cfg.bs), call.cfg.d_head, call.cfg.s_active), k_out.dtype)
            store_columns(call, k_out, keys, 1, 0, call.cfg.bs, [rows, rows])
    return keys


def load_columns(call: DecodeCall, tensor: Tensor, heads: int) -> Any:
    """[B, d, H, s] or [B, H, s, d] in HBM to [d, B * H * s]."""
    cfg = call.cfg
    head_dim, count = cfg.d_head, cfg.bs * heads * cfg.s_active
    tile = call.tile((head_dim, count), tensor.dtype)
    by_columns = tuple(tensor.shape) in (
        (cfg.bs, head_dim, heads, cfg.s_active),
        (cfg.bs, head_dim, cfg.s_active),
    )
    if by_columns:
        source = tensor.reshape((cfg.bs, head_dim, count // cfg.bs))
        nisa.dma_copy(tile.reshape_dim(1, (cfg.bs, count // cfg.bs)), source.permute((1, 0, 2)))
        return tile
    rows = tensor.reshape((count, head_dim))
    whole = call.tile((min(count, PMAX), head_dim), tensor.dtype)
    for part in TiledRange(count, PMAX):
        block = whole[0 : part.size]
        nisa.dma_copy(block, rows[part.start_offset : part.end_offset])
        psum = nl.ndarray((head_dim, part.size), tensor.dtype, buffer=nl.psum)
        nisa.nc_transpose(psum, block, engine=nisa.tensor_engine)
        nisa.tensor_copy(tile[:, part.start_offset : part.end_offset], psum)
    return tile


def store_columns(
    call: DecodeCall, out: Tensor, tile: Tensor, heads: int, first: int, batches: int, turns: list
) -> None:
    """Columns of [d, B * H * s] to out [B, H, d, s]: batches first to first + batches - 1.

    Transposed before they leave, into one of two tiles: a row of out is then one run of memory.
    """
    cfg = call.cfg
    tokens, head_dim = cfg.s_active, cfg.d_head
    by_row = out.reshape((cfg.bs * heads, head_dim, tokens))
    by_token = tile.reshape_dim(1, (cfg.bs * heads, tokens))
    for part in TiledRange(batches * heads, PMAX):
        start = first * heads + part.start_offset
        rows = turns[(first + part.index) % 2][0 : part.size]
        for token in range(tokens):
            psum = nl.ndarray((part.size, head_dim), tile.dtype, buffer=nl.psum)
            nisa.nc_transpose(psum, by_token[:, start : start + part.size, token], engine=nisa.tensor_engine)
            nisa.tensor_copy(rows[:, :, token], psum)
        nisa.dma_copy(by_row[start : start + part.size], rows)


class FusedRope(nl.NKIObject):
    """Rotation of every pair (i, i + d / 2) by pos * inv_freq[i]: x cos + half_rotation(x) sin."""

    def __init__(self, call: DecodeCall):
        cfg = call.cfg
        head_dim, half, count = cfg.d_head, cfg.d_head // 2, cfg.bs * cfg.s_active
        frequencies = call.tile((head_dim, 1), nl.float32)
        nisa.dma_copy(frequencies[0:half], call.inv_freqs)
        nisa.dma_copy(frequencies[half:head_dim], call.inv_freqs)
        angles = call.tile((head_dim, count), nl.float32)
        positions = call.rope_pos_ids.reshape((count,))
        nisa.dma_copy(angles, positions.ap([[0, head_dim], [1, count]]))
        nisa.tensor_scalar(angles, angles, nl.multiply, frequencies)
        self.sin = call.tile((head_dim, count), nl.float32)
        self.cos = call.tile((head_dim, count), nl.float32)
        sine(call, self.sin, angles, 0.0)
        sine(call, self.cos, angles, 0.25)
        self.half_rotation = call.tile((head_dim, head_dim), call.q.dtype)
        make_half_rotation(call, self.half_rotation)

    def rotate(self, call: DecodeCall, x: Tensor, heads: int, scale: float, place: Tensor | None) -> Any:
        """scale * rotated x [d, B * heads * s], in its dtype; to `place` if given."""
        cfg = call.cfg
        head_dim, count = x.shape
        result = place if place is not None else call.tile((head_dim, count), x.dtype)
        rotated = call.tile((head_dim, count), nl.float32)
        straight = call.tile((head_dim, count), nl.float32)
        for part in TiledRange(count, nl.tile_size.gemm_moving_fmax):
            psum = nl.ndarray((head_dim, part.size), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum, self.half_rotation, x[:, part.start_offset : part.end_offset])
            nisa.tensor_copy(rotated[:, part.start_offset : part.end_offset], psum)
        shape = (cfg.bs, heads, cfg.s_active)
        for pair in ((rotated, rotated, self.sin), (straight, x, self.cos)):
            dst, src = pair[0].reshape_dim(1, shape), pair[1].reshape_dim(1, shape)
            factor = pair[2].reshape_dim(1, (cfg.bs, cfg.s_active))
            for head in range(heads):
                nisa.tensor_tensor(dst[:, :, head, :], src[:, :, head, :], factor, nl.multiply)
        nisa.tensor_tensor(straight, straight, rotated, nl.add)
        nisa.activation(result, nl.copy, straight, scale=scale)
        return result


def sine(call: DecodeCall, dst: Tensor, angles: Tensor, turns: float) -> None:
    """sin(angles + 2 pi turns), after whole turns are taken off: the Scalar engine knows [-pi, pi]."""
    whole = call.tile(angles.shape, nl.int32)
    number = call.tile(angles.shape, nl.float32)
    nisa.tensor_scalar(whole, angles, nl.multiply, 1.0 / TURN, op1=nl.add, operand1=turns)  # to the nearest
    nisa.tensor_copy(number, whole)
    nisa.scalar_tensor_tensor(dst, number, nl.multiply, -TURN_HIGH, nl.add, angles)
    nisa.scalar_tensor_tensor(dst, number, nl.multiply, -TURN_LOW, nl.add, dst)
    nisa.tensor_scalar(dst, dst, nl.add, TURN * turns, op1=nl.minimum, operand1=math.pi)
    nisa.tensor_scalar(dst, dst, nl.maximum, -math.pi)
    nisa.activation(dst, nl.sin, dst)


def make_half_rotation(call: DecodeCall, tile: Tensor) -> None:
    """The matrix that takes (x1, x2) to (-x2, x1), as the stationary operand of a matmul."""
    head_dim = tile.shape[0]
    half = head_dim // 2
    wide = call.tile((head_dim, head_dim), nl.float32)
    other = call.tile((head_dim, head_dim), nl.float32)
    nisa.memset(wide, -1.0)
    nisa.memset(other, 1.0)
    nisa.affine_select(wide, [[-1, head_dim]], 1, wide, 0.0, cmp_op=nl.equal, offset=-half)
    nisa.affine_select(other, [[-1, head_dim]], 1, other, 0.0, cmp_op=nl.equal, offset=half)
    nisa.tensor_tensor(tile, wide, other, nl.add)
