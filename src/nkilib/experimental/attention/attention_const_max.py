"""Attention with a softmax maximum that the caller knows: no pass over the scores is needed to find it.

TensorE multiplies 128 keys by up to 512 queries, ScalarE computes e^(scale s - max) out of PSUM, and TensorE
adds the products with v in PSUM over all keys. A column of ones behind v makes the sums of the softmax.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_members, assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor

QUERIES = 512  # float32 scores in a PSUM bank
MAX_KEYS = 16384  # of a head that are in SBUF
FLOATS = (nl.bfloat16, nl.float16, nl.float32)


class AttentionLayout(Enum):
    """Where the head dimension of q and k is: [N, d, S] or [N, S, d]."""

    HEAD_MAJOR = 0
    SEQUENCE_MAJOR = 1


@nki.jit
def attention_const_max(
    q_hbm: Tensor,
    k_hbm: Tensor,
    v_hbm: Tensor,
    softmax_max: float | Tensor,
    softmax_scale: float | None = None,
    q_layout: AttentionLayout = AttentionLayout.HEAD_MAJOR,
    k_layout: AttentionLayout = AttentionLayout.HEAD_MAJOR,
) -> Tensor:
    """Return softmax(scale q k^T - softmax_max) v for every head, [N, Sq, d], without a mask.

    q and k are [N, d, S] (HEAD_MAJOR) or [N, S, d] (SEQUENCE_MAJOR), v is [N, Sk, d], all in one dtype:
    bfloat16 as documented, or float16 or float32; d is at most 128, Sk at most 16384. softmax_max is a bound
    of the scaled scores, a number or [128, 1] float32 with the same number in every row: it does not change
    the result, but exp must neither overflow nor vanish. softmax_scale is 1 / sqrt(d) by default. Two cores
    share heads and blocks of 512 queries. Read of the page: signature, shapes, softmax_max; the names of the
    layouts, the default scale and the layout of the result are ours.

    >>> q, k, v = (np.zeros(shape, np.float32) for shape in ((1, 4, 2), (1, 4, 2), (1, 2, 4)))
    >>> v[0, 0] = 4.0
    >>> attention_const_max(q, k, v, 0.0)[0, 0].tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    get_verified_program_sharding_info("attention_const_max", (0, 1), 2)
    check(q_hbm, k_hbm, v_hbm, softmax_max, q_layout, k_layout)
    heads, keys, size = v_hbm.shape
    queries = q_hbm.shape[2 if q_layout == AttentionLayout.HEAD_MAJOR else 1]
    scale = 1.0 / math.sqrt(size) if softmax_scale is None else softmax_scale
    out = nl.ndarray((heads, queries, size), q_hbm.dtype, buffer=nl.shared_hbm)
    bias = new_column(PMAX)
    if isinstance(softmax_max, (int, float)):
        nisa.memset(bias, -1.0 * softmax_max)
    else:
        nisa.tensor_scalar(bias, load(softmax_max), nl.multiply, -1.0)
    blocks = TiledRange(queries, QUERIES)
    first, end = program_share(heads * len(blocks))
    loaded = -1
    stationary, values = None, None
    for job in range(first, end):
        head, block = job // len(blocks), blocks[job % len(blocks)]
        if head != loaded:
            stationary = columns(k_hbm[head], k_layout, 0, keys)
            values = with_ones(v_hbm[head])
            loaded = head
        q = columns(q_hbm[head], q_layout, block.start_offset, block.end_offset)
        attend(out[head, block.start_offset : block.end_offset], q, stationary, values, bias, scale)
    return out


def columns(rows: Tensor, layout: AttentionLayout, start: int, end: int) -> Tensor:
    """[d, end - start] of a head."""
    if layout == AttentionLayout.HEAD_MAJOR:
        return load(rows[:, start:end])
    tile = nl.ndarray((rows.shape[1], end - start), rows.dtype, buffer=nl.sbuf)
    for part in TiledRange(end - start, PMAX):
        some = load(rows[start + part.start_offset : start + part.end_offset])
        bank = nl.ndarray((rows.shape[1], part.size), rows.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, some, engine=nisa.tensor_engine)
        nisa.tensor_copy(tile[:, part.start_offset : part.end_offset], bank)
    return tile


def with_ones(v: Tensor) -> Tensor:
    """v of a head as [128, key tiles, d + 1], the last column 1."""
    keys, size = v.shape
    tile = nl.ndarray((PMAX, div_ceil(keys, PMAX), size + 1), v.dtype, buffer=nl.sbuf)
    nisa.memset(tile[:, :, size : size + 1], 1.0)
    full, rest = keys // PMAX, keys % PMAX
    if full > 0:
        whole = v[0 : full * PMAX].reshape_dim(0, (full, PMAX)).permute((1, 0, 2))
        nisa.dma_copy(tile[:, 0:full, 0:size], whole)
    if rest > 0:
        nisa.dma_copy(tile[0:rest, full, 0:size], v[full * PMAX :])
    return tile


def attend(out: Tensor, q: Tensor, k: Any, v: Any, bias: Tensor, scale: float) -> None:
    """Attention of up to 512 queries [d, n] to all keys of a head."""
    size, keys = k.shape
    tiles, sums = TiledRange(q.shape[1], PMAX), []
    for tile in tiles:
        sums.append(nl.ndarray((tile.size, size + 1), nl.float32, buffer=nl.psum))
    for part in TiledRange(keys, PMAX):
        scores = nl.ndarray((part.size, q.shape[1]), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(scores, k[:, part.start_offset : part.end_offset], q)
        powers = nl.ndarray(scores.shape, q.dtype, buffer=nl.sbuf)
        nisa.activation(powers, nl.exp, scores, bias=bias[0 : part.size], scale=scale)
        for tile in tiles:
            some = powers[:, tile.start_offset : tile.end_offset]
            nisa.nc_matmul(sums[tile.index], some, v[0 : part.size, part.index, :])
    for tile in tiles:
        total = sums[tile.index]
        factor = new_column(tile.size)
        nisa.reciprocal(factor, total[:, size : size + 1])
        ready = nl.ndarray((tile.size, size), out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(ready, total[:, 0:size], nl.multiply, factor)
        nisa.dma_copy(out[tile.start_offset : tile.end_offset], ready)


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bound: float | Tensor,
    q_layout: AttentionLayout,
    k_layout: AttentionLayout,
) -> None:
    assert_tensors((("q_hbm", q), ("k_hbm", k), ("v_hbm", v)))
    assert_members(("q_layout", q_layout, AttentionLayout), ("k_layout", k_layout, AttentionLayout))
    kernel_assert(
        len(v.shape) == 3 and v.shape[2] <= PMAX and v.shape[1] <= MAX_KEYS,
        f"v_hbm: got shape {tuple(v.shape)}, expected (N, Sk, d), Sk <= {MAX_KEYS}, d <= {PMAX}",
    )
    heads, keys, size = v.shape
    head_major = AttentionLayout.HEAD_MAJOR
    assert_shape(k, (heads, size, keys) if k_layout == head_major else (heads, keys, size), "k_hbm")
    place = 1 if q_layout == head_major else 2
    kernel_assert(
        len(q.shape) == 3 and q.shape[0] == heads and q.shape[place] == size,
        f"q_hbm: got shape {tuple(q.shape)}, expected {heads} heads, and d = {size} at axis {place}",
    )
    kernel_assert(v.dtype in FLOATS, f"v_hbm: got {v.dtype}, allowed are bfloat16, float16 and float32")
    for pair in (("q_hbm", q), ("k_hbm", k)):
        kernel_assert(
            pair[1].dtype == v.dtype, f"{pair[0]}: got {pair[1].dtype}, expected {v.dtype} like v_hbm"
        )
    if not isinstance(bound, (int, float)):
        assert_tensors((("softmax_max", bound),))
        assert_shape(bound, (PMAX, 1), "softmax_max")


def attention_const_max_ref(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """q [N, Sq, d], k and v [N, Sk, d] in float64."""
    scores = scale * np.einsum("nqd,nkd->nqk", *(np.asarray(x, np.float64) for x in (q, k)))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)) @ np.asarray(v, np.float64)
