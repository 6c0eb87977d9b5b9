"""Attention of each query over the rows of a latent cache that an indexer has chosen for it, or over all.

The descriptors of a gather take longest, 14 ns for each row. Where more rows are gathered than the cache has,
latents and keys are first put side by side, so that each row is gathered once instead of twice.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
)
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.misc.indexed_rows import rows_at
from nkilib.experimental.mla.deepseek.dense_latent_attention import (
    DenseAttention,
    QueryRows,
    query_columns,
    turn_rows,
)

LATENT = TILE  # 512
MAX_ROWS = 2048  # that a query attends to: its scores fill half of PSUM


class MlaPrecision(enum.Enum):
    """The least precise products that a caller accepts."""

    MX = "mx"
    BF16 = "bf16"


@nki.jit
def mla_sparse_attention_cte_kernel(
    q_lift_hbm: Tensor,
    q_pe_hbm: Tensor,
    c_kv_hbm: Tensor,
    k_pe_hbm: Tensor,
    softmax_scale: float,
    topk_indices_hbm: Tensor | None = None,
    topk_tiled: bool = False,
    dense: bool = False,
    q_pos_offset_hbm: Tensor | None = None,
    precision: MlaPrecision = MlaPrecision.MX,
    use_sbuf_indirect: bool = False,
) -> Tensor:
    """Return bfloat16 [1, S, H 512]: softmax over chosen rows r of (q_lift c_r + q_pe k_r) scale, times c_r.

    q_lift is bfloat16 [1, S, H, 512], q_pe [1, S, H, R], c_kv [1, S_kv, 512] and k_pe [1, S_kv, R], R at most
    128; 128 heads at a time gather their rows. topk_indices is int32 [1, S, K], or with topk_tiled
    [ceil(S / 128), 16, 128, K / 16], in which query 128 i + 8 t + g has rows 16 g ... 16 g + 15 of [i, t]; K
    is a multiple of 128 up to 2048. Rows chosen twice count twice, negative indices are left out, which the
    page does not define. Latent 4 g + q of a head is in its column 128 q + g of the result:
    mla_vupmx_oproj_cte_kernel reads it so. Cores share the queries. Probabilities are rounded to bfloat16.

    With dense, which takes no indices, query s sees rows 0 ... q_pos_offset + s of at most 8192;
    q_pos_offset is an int32 of one element, None: 0. precision is the least that products have: they are
    bfloat16 for both members. use_sbuf_indirect changes where AWS gathers rows from, not the result; ours
    come from HBM. Of these four, of release 2.33, the page's names, order and defaults were read; what they
    do is ours.

    >>> import ml_dtypes
    >>> q, pe = np.zeros((1, 2, 4, 512), ml_dtypes.bfloat16), np.zeros((1, 2, 4, 64), ml_dtypes.bfloat16)
    >>> c = np.arange(300).reshape(1, 300, 1).repeat(512, 2).astype(ml_dtypes.bfloat16)
    >>> chosen = np.full((1, 2, 128), -1, np.int32)
    >>> chosen[0, :, :2] = [10, 20], [30, 32]
    >>> out = mla_sparse_attention_cte_kernel(q, pe, c, c[..., :64].copy(), 0.1, chosen)
    >>> out.shape, out[0, :, 0].tolist()
    ((1, 2, 2048), [15.0, 31.0])
    """
    get_verified_program_sharding_info("mla_sparse_attention_cte_kernel", (0, 1), 2)
    assert_members(("precision", precision, MlaPrecision))
    queries, heads, rotated, rows = check_operands(q_lift_hbm, q_pe_hbm, c_kv_hbm, k_pe_hbm)
    kernel_assert(softmax_scale > 0, f"softmax_scale: got {softmax_scale}, expected a positive number")
    out = nl.ndarray((queries, heads, LATENT), nl.bfloat16, buffer=nl.shared_hbm)
    caches: tuple = (c_kv_hbm.reshape((rows, LATENT)), k_pe_hbm.reshape((rows, rotated)))
    if dense:
        sparse = (("topk_indices_hbm", topk_indices_hbm), ("topk_tiled", topk_tiled))
        refuse_without_effect(False, "dense=False", sparse)
        attend_to_all(out, q_lift_hbm, q_pe_hbm, caches, softmax_scale, q_pos_offset_hbm)
        return out.reshape((1, queries, heads * LATENT))
    refuse_without_effect(False, "dense=True", (("q_pos_offset_hbm", q_pos_offset_hbm),))
    chosen = index_rows(topk_indices_hbm, queries, topk_tiled)
    if queries * chosen.shape[1] * chosen.shape[2] >= rows:
        caches = (side_by_side(caches[0], caches[1]),)
    attention = SparseAttention(caches, softmax_scale)
    first, end = program_share(queries)
    for query in range(first, end):
        for part in TiledRange(heads, PMAX):
            own = slice(part.start_offset, part.end_offset)
            result = attention.of(q_lift_hbm[0, query, own], q_pe_hbm[0, query, own], chosen[query])
            nisa.dma_copy(out[query, own], result)
    return out.reshape((1, queries, heads * LATENT))


def attend_to_all(
    out: Tensor, q_lift: Tensor, q_pe: Tensor, caches: tuple, scale: float, offset: Tensor | None
) -> None:
    """Fill out [S, H, 512] with causal attention over the whole cache."""
    queries, heads, _ = out.shape
    assert_tensors((), (("q_pos_offset_hbm", offset),))
    if offset is not None:
        kernel_assert(
            offset.size == 1 and offset.dtype == nl.int32,
            f"q_pos_offset_hbm: got {offset.dtype} of shape {tuple(offset.shape)}, expected one int32",
        )
    rows = QueryRows(queries, min(heads, PMAX), caches[0].shape[0], offset)
    attention = DenseAttention(caches[0], caches[1], scale)
    for group in rows.groups():
        query, count = group
        end, keys = rows.ends(query, count)
        some = slice(query, query + count)
        for part in TiledRange(heads, PMAX):  # more than one only of a single query
            own = slice(part.start_offset, part.end_offset)
            latent, position = q_lift[0, some, own].flatten_dims(0, 1), q_pe[0, some, own].flatten_dims(0, 1)
            total, weight = attention.of(latent, position, end[0 : count * part.size], keys)
            nisa.dma_copy(out[some, own].flatten_dims(0, 1), by_lanes(total, weight))


def check_operands(q: Tensor, q_pe: Tensor, c_kv: Tensor, k_pe: Tensor) -> tuple[int, int, int, int]:
    """Return (S, H, R, S_kv)."""
    assert_tensors((("q_lift_hbm", q), ("q_pe_hbm", q_pe), ("c_kv_hbm", c_kv), ("k_pe_hbm", k_pe)))
    shape, pe = tuple(q.shape), tuple(q_pe.shape)
    kernel_assert(
        len(shape) == 4 and shape[0] == 1 and shape[3] == LATENT,
        f"q_lift_hbm: got shape {shape}, expected (1, S, H, 512)",
    )
    kernel_assert(
        len(pe) == 4 and pe[0:3] == shape[0:3] and pe[3] <= PMAX,
        f"q_pe_hbm: got shape {pe}, expected {shape[0:3]} + (R,) with R <= 128",
    )
    kernel_assert(
        len(c_kv.shape) == 3 and c_kv.shape[0] == 1 and c_kv.shape[2] == LATENT,
        f"c_kv_hbm: got shape {tuple(c_kv.shape)}, expected (1, S_kv, 512)",
    )
    assert_shape(k_pe, (1, c_kv.shape[1], pe[3]), "k_pe_hbm")
    named = (("q_lift_hbm", q), ("q_pe_hbm", q_pe), ("c_kv_hbm", c_kv), ("k_pe_hbm", k_pe))
    for pair in named:
        kernel_assert(
            pair[1].dtype == nl.bfloat16, f"{pair[0]}: got dtype {pair[1].dtype}, expected bfloat16"
        )
    return shape[1], shape[2], pe[3], c_kv.shape[1]


def index_rows(chosen: Any, queries: int, tiled: bool) -> Any:
    """The indices as [queries or more, 128, K / 128]: in which order a query has its rows does not matter."""
    assert_tensors((("topk_indices_hbm", chosen),))
    shape = tuple(chosen.shape)
    kernel_assert(chosen.dtype == nl.int32, f"topk_indices_hbm: got dtype {chosen.dtype}, expected int32")
    if tiled:
        tiles = div_ceil(queries, PMAX)
        kernel_assert(
            len(shape) == 4 and shape[0:3] == (tiles, 16, PMAX),
            f"topk_indices_hbm: got shape {shape}, expected ({tiles}, 16, 128, K / 16)",
        )
        count, k = tiles * PMAX, 16 * shape[3]
    else:
        kernel_assert(
            len(shape) == 3 and shape[0:2] == (1, queries),
            f"topk_indices_hbm: got shape {shape}, expected (1, {queries}, K)",
        )
        count, k = queries, shape[2]
    kernel_assert(
        k % PMAX == 0 and 0 < k <= MAX_ROWS,
        f"topk_indices_hbm: got K = {k}, allowed are multiples of 128 up to {MAX_ROWS}",
    )
    return chosen.reshape((count, PMAX, k // PMAX))


def side_by_side(c_kv: Tensor, k_pe: Tensor) -> Tensor:
    """Rows of both caches as one, in HBM; cores share the rows."""
    rows, width = c_kv.shape[0], LATENT + k_pe.shape[1]
    both = nl.ndarray((rows, width), c_kv.dtype, buffer=nl.shared_hbm)
    first, end = program_share(rows)
    if first < end:
        nisa.dma_copy(both[first:end, 0:LATENT], c_kv[first:end])
        nisa.dma_copy(both[first:end, LATENT:], k_pe[first:end])
    if nl.num_programs(0) == 2:
        nisa.core_barrier(both, (0, 1))
    return both


class SparseAttention(nl.NKIObject):
    """The caches, latents then keys or both in one, and one query after the other."""

    def __init__(self, caches: tuple, scale: float):
        self.caches = caches
        self.scale = scale
        self.ones = nl.ndarray((PMAX, 1), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(self.ones, 1.0)

    def of(self, query: Tensor, query_pe: Tensor, chosen: Tensor) -> Tensor:
        """Attention of one query [H, 512], [H, R] over the rows chosen [128, K / 128]: [H, 512]."""
        heads, tiles = query.shape[0], chosen.shape[1]
        places = nl.ndarray((PMAX, tiles), nl.int32, buffer=nl.sbuf)
        valid = nl.ndarray((PMAX, tiles), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(places, chosen)
        nisa.tensor_scalar(valid, places, nl.greater_equal, 0.0)
        nisa.tensor_scalar(places, places, nl.maximum, 0.0)
        latent, position = query_columns(query, query_pe)
        scores = nl.ndarray((heads, tiles, PMAX), nl.float32, buffer=nl.psum)
        rows = []
        for tile in range(tiles):
            rows.append(
                self.add_scores(scores[:, tile, :], latent, position, places[:, tile : tile + 1], tile)
            )
        powers = self.exponentials(scores)
        total = nl.ndarray((heads, LATENT), nl.float32, buffer=nl.psum)
        weight = nl.ndarray((heads, 1), nl.float32, buffer=nl.psum)
        for tile in range(tiles):
            across = nl.ndarray((PMAX, heads), nl.bfloat16, buffer=nl.psum)
            nisa.nc_transpose(across, powers[:, tile, :])
            counted = nl.ndarray((PMAX, heads), nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_scalar(counted, across, nl.multiply, valid[:, tile : tile + 1])
            nisa.nc_matmul(total, counted, rows[tile][:, 0:LATENT])
            nisa.nc_matmul(weight, counted, self.ones)
        return by_lanes(total, weight)

    def add_scores(
        self, scores: Tensor, latent: Tensor, position: Tensor, places: Tensor, index: int
    ) -> Tensor:
        """Scores [H, 128] of the rows at these places; returns the rows [128, 512 + R]."""
        rotated = position.shape[0]
        rows, at = nl.ndarray((PMAX, LATENT + rotated), nl.bfloat16, buffer=nl.sbuf), 0
        for cache in self.caches:
            nisa.dma_copy(rows[:, at : at + cache.shape[1]], rows_at(cache, places))
            at += cache.shape[1]
        columns = nl.ndarray((PMAX, LANES, PMAX), nl.bfloat16, buffer=nl.sbuf)
        turned = nl.ndarray((rotated, PMAX), nl.bfloat16, buffer=nl.sbuf)
        turn_rows(columns, turned, rows[:, 0:LATENT], rows[:, LATENT:], index)
        for lane in range(LANES):
            nisa.nc_matmul(scores, latent[:, lane, :], columns[:, lane, :])
        nisa.nc_matmul(scores, position, turned)
        return rows

    def exponentials(self, scores: Tensor) -> Tensor:
        """exp((scores - their largest) * scale) in bfloat16, [H, K / 128, 128]."""
        heads, tiles = scores.shape[0], scores.shape[1]
        room = BANK_COLUMNS // PMAX
        largest = nl.ndarray((heads, div_ceil(tiles, room)), nl.float32, buffer=nl.sbuf)
        for some in TiledRange(tiles, room):
            part = scores[:, some.start_offset : some.end_offset, :]
            nisa.tensor_reduce(largest[:, some.index : some.index + 1], nl.maximum, part, (1, 2))
        shift = new_column(heads)
        nisa.tensor_reduce(shift, nl.maximum, largest, 1)
        nisa.tensor_scalar(shift, shift, nl.multiply, -self.scale)
        powers = nl.ndarray((heads, tiles, PMAX), nl.bfloat16, buffer=nl.sbuf)
        for some in TiledRange(tiles, room):
            span = slice(some.start_offset, some.end_offset)
            nisa.activation(powers[:, span, :], nl.exp, scores[:, span, :], bias=shift, scale=self.scale)
        return powers


def by_lanes(total: Tensor, weight: Tensor) -> Tensor:
    """total / weight in bfloat16, column 4 g + q at 128 q + g."""
    heads = total.shape[0]
    inverse = new_column(heads)
    nisa.reciprocal(inverse, weight)
    out = nl.ndarray((heads, LATENT), nl.bfloat16, buffer=nl.sbuf)
    place = out.reshape_dim(1, (LANES, PMAX)).permute((0, 2, 1))
    nisa.tensor_scalar(place, total.reshape_dim(1, (PMAX, LANES)), nl.multiply, inverse)
    return out


def mla_sparse_attention_cte_ref(
    q_lift: np.ndarray,
    q_pe: np.ndarray,
    c_kv: np.ndarray,
    k_pe: np.ndarray,
    softmax_scale: float,
    topk_indices: np.ndarray | None = None,
    q_pos_offset: int = 0,
) -> np.ndarray:
    """Return [1, S, H 512] in float64 of flat indices [1, S, K], or dense, laid out like the kernel's."""
    queries, heads = q_lift.shape[1:3]
    out = np.zeros((queries, heads, LATENT))
    for s in range(queries):
        rows = np.arange(q_pos_offset + s + 1)
        if topk_indices is not None:
            rows = topk_indices[0, s][topk_indices[0, s] >= 0]
        c, k = c_kv[0, rows].astype(np.float64), k_pe[0, rows].astype(np.float64)
        scores = softmax_scale * (q_lift[0, s].astype(np.float64) @ c.T + q_pe[0, s].astype(np.float64) @ k.T)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        out[s] = powers / powers.sum(1, keepdims=True) @ c
    return out.reshape(queries, heads, PMAX, LANES).swapaxes(2, 3).reshape(1, queries, heads * LATENT)
