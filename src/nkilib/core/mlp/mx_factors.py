"""Tokens of the MX path that are FP8 with a factor each (ROW_MX, rows with a scale), or MXFP8 already."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import (
    MLPParameters,
    arrives_quantized,
    hidden_size,
    matmul_dtype,
    token_count,
)
from nkilib.core.mlp.rows import castable
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.fp8 import largest_of, quantize_rows, reciprocal_of, row_maximum, row_scale
from nkilib.core.utils.mx_layout import ONE, TILE, as_words
from nkilib.core.utils.mx_projection import LARGEST_FP8, MxTokens
from nkilib.core.utils.mx_weight_loads import SHARING
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, close_scope, new_tile, open_scope
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor


def has_factors(p: MLPParameters) -> bool:
    return p.quantization == QuantizationType.ROW_MX or arrives_quantized(p)


def new_factors(p: MLPParameters, tokens: int) -> Any:
    """[128, tokens], the same in all partitions; zero where nothing will be put."""
    factors = new_tile(p.tiles, (PMAX, tokens), nl.float32)
    nisa.memset(factors, 0.0)
    return factors


def narrow_rows(p: MLPParameters, rows: Tensor, factors: Tensor, token: int) -> Any:
    """Rows in 16 bits that FP8 holds, given so or made so; what undoes it goes into `factors`."""
    if arrives_quantized(p):
        size = hidden_size(p)
        spread_tokens(factors, token, rows[:, size:].view(nl.float32))
        return castable(rows[:, 0:size], matmul_dtype(p), p.tiles)
    narrow = new_tile(p.tiles, rows.shape, nl.bfloat16)
    maximum = row_maximum(rows, p.tiles)
    spread_tokens(
        factors, token, quantize_rows(narrow, rows, maximum, LARGEST_FP8, p.clipping_bound, p.tiles)
    )
    return castable(narrow, matmul_dtype(p), p.tiles)


def spread_tokens(dst: Tensor, token: int, column: Tensor) -> None:
    """dst[:, token ...] = a column [tokens, 1], transposed into every partition."""
    count = column.shape[0]
    bank = nl.ndarray((dst.shape[0], count), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(bank, column.broadcast(1, dst.shape[0]))
    nisa.tensor_copy(dst[:, token : token + count], bank)


def scaled_middle(p: MLPParameters, m: Tensor) -> tuple:
    """m [rows, blocks, tokens] in numbers that FP8 holds, and what undoes it, [tokens <= 128, 1] each."""
    rows, blocks, tokens = m.shape
    inverse = new_tile(p.tiles, (rows, tokens), nl.float32)
    scaled = new_tile(p.tiles, m.shape, m.dtype)
    factors = []
    for token in TiledRange(tokens, PMAX):
        factors.append(new_tile(p.tiles, (token.size, 1), nl.float32))
    open_scope(p.tiles)
    magnitude = new_tile(p.tiles, m.shape, m.dtype)
    nisa.tensor_scalar(magnitude, m, nl.abs, None)
    maxima = new_tile(p.tiles, (rows, tokens), nl.float32)
    nisa.tensor_reduce(maxima, nl.maximum, magnitude.permute((0, 2, 1)), 2)
    for token in TiledRange(tokens, PMAX):
        bank = nl.ndarray((token.size, rows), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(bank, maxima[:, token.start_offset : token.end_offset])
        row_scale(factors[token.index], largest_of(bank, p.tiles), LARGEST_FP8, p.clipping_bound, p.tiles)
        spread_tokens(inverse, token.start_offset, reciprocal_of(factors[token.index], p.tiles))
    value = m
    if p.clipping_bound > 0.0:
        value = magnitude
        bound = p.clipping_bound
        nisa.tensor_scalar(value, m, op0=nl.minimum, operand0=bound, op1=nl.maximum, operand1=-bound)
    by_token = inverse.reshape((rows, 1, tokens)).broadcast(1, blocks)
    nisa.tensor_tensor(scaled, value, by_token, op=nl.multiply)
    close_scope(p.tiles)
    return scaled, factors


def column_factors(scale: Tensor, first: int, columns: int, tiles: Tiles | None) -> Any:
    """Columns first ... of scales [128, H / 128], column 128 j + p at [p, j], in every partition."""
    row = new_tile(tiles, (PMAX, columns), nl.float32)
    open_scope(tiles)
    given = new_tile(tiles, (PMAX, columns // PMAX), nl.float32)
    nisa.dma_copy(given, scale[:, first // PMAX : (first + columns) // PMAX])
    for span in TiledRange(columns, BANK_COLUMNS):
        bank = nl.ndarray((PMAX, span.size), nl.float32, buffer=nl.psum)
        for part in TiledRange(span.size, PMAX):
            j = span.start_offset // PMAX + part.index
            place = bank[:, part.start_offset : part.end_offset]
            nisa.nc_transpose(place, given[:, j : j + 1].broadcast(1, PMAX))
        nisa.tensor_copy(row[:, span.start_offset : span.end_offset], bank)
    close_scope(tiles)
    return row


def packed_tokens(p: MLPParameters, first: int, count: int, ones: Tensor) -> MxTokens:
    """Tokens of rows [H | scales], which have word 128 t + p in partition p of tile t, an even number.

    Of scales there are 128 bytes for each tile, as instructions want them in the partitions; or for four
    tiles, each four partitions after the one before.
    """
    size, width, even = hidden_size(p), p.hidden.shape[2], count + count % 2
    blocks = (width - size) // PMAX
    words = new_tile(p.tiles, (PMAX, size // TILE, 4 * even), p.hidden.dtype)
    scales = new_tile(p.tiles, (PMAX, blocks, even), nl.uint8)
    if even > count:
        nisa.memset(words.view(nl.float32)[:, :, count:even], 0.0)
        nisa.memset(scales[:, :, count:even], ONE)
    by_row = p.hidden.reshape((token_count(p), width))
    for token in TiledRange(count, PMAX):
        open_scope(p.tiles)
        rows = new_tile(p.tiles, (token.size, width), p.hidden.dtype)
        nisa.dma_copy(rows, by_row[first + token.start_offset : first + token.end_offset])
        transpose_rows(words.view(nl.float32), 0, token.start_offset, rows[:, 0:size].view(nl.float32))
        codes = castable(rows[:, size:].view(nl.uint8), nl.bfloat16, p.tiles)  # which holds 0 to 255
        transpose_rows(scales, 0, token.start_offset, codes)
        close_scope(p.tiles)
    sharing = 1 if blocks * TILE == size else SHARING
    return MxTokens(as_words("hidden_tensor", words), scales, ones, p.tiles, sharing=sharing)
