"""RMSNorm and router of a mixture of experts together: rows are normalised, stored, transposed and routed."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.router_topk.router_operands import Bias, Router
from nkilib.core.router_topk.router_tokens import route
from nkilib.core.router_topk.router_topk import (
    XHBMLayout_T_H__1,
    XSBLayout__128_Hdiv128_T__3,
    router_topk_input_w_load,
)
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.mx_rows import new_operand, pack_rows, quantize_into, rows_to_columns, scale_columns
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import DTypeLike, Tensor

MAX_K = 8
MAX_EXPERTS = 512


def check_block(
    hidden: Tensor, gamma: Tensor, weights: Tensor, bias: Tensor | None, k: int, act_fn: RouterActFnType
) -> None:
    tensors = (("hidden_states", hidden), ("gamma", gamma), ("router_weights", weights))
    assert_tensors(tensors, (("router_bias", bias),))
    shape = tuple(hidden.shape)
    kernel_assert(
        len(shape) == 3 and shape[2] % PMAX == 0,
        f"hidden_states: got shape {shape}, expected (B, S, H) with H a multiple of 128",
    )
    assert_shape(gamma, (1, shape[2]), "gamma")
    kernel_assert(
        len(weights.shape) == 2 and weights.shape[0] == shape[2] and weights.shape[1] <= MAX_EXPERTS,
        f"router_weights: got shape {tuple(weights.shape)}, expected ({shape[2]}, E), E <= {MAX_EXPERTS}",
    )
    experts = weights.shape[1]
    if bias is not None:
        assert_shape(bias, (1, experts), "router_bias")
    most = min(MAX_K, experts)
    kernel_assert(1 <= k <= most, f"top_k: got {k}, allowed are 1 to {most}")
    kernel_assert(
        act_fn in (RouterActFnType.SIGMOID, RouterActFnType.SOFTMAX),
        f"router_act_fn: got {act_fn}, allowed are SIGMOID and SOFTMAX",
    )


def normalize_and_route(
    hidden: Tensor,
    gamma: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    eps: float,
    k: int,
    actual: int | None,
    act_fn: RouterActFnType,
    dtype: DTypeLike,
    packs: bool = False,
) -> tuple:
    """(normalised rows [T, H], or MX if packs, experts int32 [T, K], affinities bfloat16 [T, E])."""
    tokens, size = hidden.shape[0] * hidden.shape[1], hidden.shape[2]
    rows = hidden.reshape((tokens, size))
    normal = nl.ndarray((tokens, size), hidden.dtype, buffer=nl.shared_hbm)
    if packs:
        width = size + scale_columns(size, shared=False)
        normal = nl.ndarray((tokens, width), nl.float8_e4m3fn, buffer=nl.shared_hbm)
    router = Router(rows, weights, act_fn, k, XHBMLayout_T_H__1, XSBLayout__128_Hdiv128_T__3)
    router.set_rule(False, False)
    router.index = nl.ndarray((tokens, k), nl.int32, buffer=nl.shared_hbm)
    router.affinities = nl.ndarray((tokens, weights.shape[1]), nl.bfloat16, buffer=nl.shared_hbm)
    first, end = program_share(tokens)
    operand: Any = in_dtype(router_topk_input_w_load(weights, XSBLayout__128_Hdiv128_T__3), dtype)
    terms = Bias(bias, False)
    factors = broadcast_row(gamma, 0, size, min(PMAX, tokens))
    for tile in TiledRange(end - first, PMAX):
        start = first + tile.start_offset
        loaded = load(rows[start : start + tile.size])
        out = like(loaded)
        rms_norm(out, loaded, factors, eps, actual)
        nisa.dma_copy(normal[start : start + tile.size], packed_rows(out) if packs else out)
        columns = nl.ndarray((PMAX, size // PMAX, tile.size), dtype, buffer=nl.sbuf)
        transpose_rows(columns, 0, 0, out)
        route(router, columns, operand, terms, start)
    return normal, router.index, router.affinities


def packed_rows(rows: Tensor) -> Tensor:
    """Rows [n, H] as MXFP8: elements, then 128 columns of scales for each 512 of them."""
    count, size = rows.shape
    narrow = rows if rows.dtype != nl.float32 else in_dtype(rows, nl.bfloat16)
    quantized = new_operand(size, count, shared=False)
    quantize_into(quantized, 0, 0, rows_to_columns(narrow))
    packed = nl.ndarray((count, size + scale_columns(size, False)), nl.float8_e4m3fn, buffer=nl.sbuf)
    pack_rows(packed, quantized)
    return packed


def in_dtype(tile: Tensor, dtype: DTypeLike) -> Any:
    if tile.dtype == dtype:
        return tile
    copy = like(tile, dtype)
    nisa.tensor_copy(copy, tile)
    return copy
