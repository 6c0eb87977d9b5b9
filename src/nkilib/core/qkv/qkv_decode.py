"""QKV projection of few tokens: bound by the weights, which stream from HBM once.

Two cores share the columns, or, where these are short, the hidden dimension.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.qkv.qkv_outputs import store_result
from nkilib.core.qkv.qkv_parameters import (
    QKVParameters,
    columns_of,
    hidden_size,
    input_in_sbuf,
    result_dtype,
    token_count,
    weight_dtype,
)
from nkilib.core.qkv.qkv_terms import load_terms
from nkilib.core.qkv.qkv_tokens import ColumnSource, new_tokens, token_columns
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import Activations, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, new_rows, project_into
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

# when cores share rows of the weights instead of columns:
LEAST_ROWS = 5120
LEAST_ROWS_OF_WHOLE = 2048  # where results are exchanged in either case
MOST_SHARED_COLUMNS = 2048  # half of them are a long run already
MOST_SHARED_TOKENS = 32  # which come in shorter runs, in halves


def decode(
    p: QKVParameters, n_prgs: int, core: int, out: Tensor, add_out: Tensor, dtype: DTypeLike | None = None
) -> list:
    """Columns of this core as tiles [tokens <= 128, columns]; stored when ready, if out is given.

    add_out receives the input with its residuals; `dtype` is that of the tiles, by default of the result.
    """
    tokens = token_count(p)
    first, columns = own_columns(p, n_prgs, core)
    rows = new_rows(tokens, columns, result_dtype(p) if dtype is None else dtype)
    terms = load_terms(p, first, columns, PMAX)
    if shares_rows(p, n_prgs, LEAST_ROWS):
        sums = half_sums(p, core, add_out)
        settle_sums(rows[0], sums[:, first : first + columns], received_sums(p, sums, core), terms)
        if out is not None:
            store_result(p, out, rows[0], 0, first)
        return rows
    activations = hidden_parts(p, n_prgs if input_in_sbuf(p) else 1, add_out)
    for span in TiledRange(columns, span_columns(activations[0], p.weight)):
        at, column = span.start_offset, first + span.start_offset
        project_into(rows, at, activations, p.weight, terms, column, span.size, dtype=weight_dtype(p))
        if out is not None:
            for i in range(len(rows)):
                store_result(p, out, rows[i][:, at : at + span.size], i * PMAX, column)
    return rows


def decode_whole(
    p: QKVParameters, n_prgs: int, core: int, add_out: Tensor, dtype: DTypeLike | None = None
) -> list:
    """All columns in every core, as tiles [tokens <= 128, I]."""
    if not shares_rows(p, n_prgs, LEAST_ROWS_OF_WHOLE):
        tiles = []
        for own in decode(p, n_prgs, core, None, add_out, dtype):
            tiles.append(all_columns(p, n_prgs, core, own))
        return tiles
    rows = new_rows(token_count(p), columns_of(p), result_dtype(p) if dtype is None else dtype)
    terms = load_terms(p, 0, columns_of(p), PMAX)
    sums = half_sums(p, core, add_out)
    settle_sums(rows[0], sums, swap(sums, core, 0), terms)
    return rows


def hidden_parts(p: QKVParameters, parts: int, add_out: Tensor) -> list:
    """The tokens as they are contracted, the hidden dimension in so many parts."""
    size, tokens = hidden_size(p), token_count(p)
    x = new_tokens(p, tokens)
    token_columns(p, ColumnSource(p, parts), x, 0, add_out)
    activations = []
    width = size // PMAX // parts
    for part in range(parts):
        tile = x[:, part * width : (part + 1) * width, :]
        activations.append(Activations(tile, size // parts, part * size // parts, spread=width))
    return activations


# ---- two cores that share the hidden dimension ---------------------------------------------------


def shares_rows(p: QKVParameters, n_prgs: int, least: int) -> bool:
    """True where each core contracts one half of the hidden dimension, with all columns.

    Rows of the weights then come whole and side by side, in long runs for DMA. With columns shared each row
    is a run of its own, which has a fixed cost: more than that of exchanging sums, if there are many.
    """
    short = columns_of(p) <= MOST_SHARED_COLUMNS and token_count(p) <= MOST_SHARED_TOKENS
    return n_prgs == 2 and short and hidden_size(p) >= least


def half_sums(p: QKVParameters, core: int, add_out: Tensor) -> Any:
    """What this core's half of the hidden dimension adds to every column, [tokens, I] in float32."""
    half = hidden_parts(p, 2, add_out)[core]
    rows = new_rows(token_count(p), columns_of(p), nl.float32)
    for span in TiledRange(columns_of(p), span_columns(half, p.weight)):
        at = span.start_offset
        project_into(rows, at, [half], p.weight, ColumnTerms(), at, span.size, dtype=weight_dtype(p))
    return rows[0]


def received_sums(p: QKVParameters, sums: Tensor, core: int) -> Any:
    """The other core's sums of this core's columns; each sends as many, the last ones may have no meaning."""
    first, columns = own_columns(p, 2, 1 - core)
    width = own_columns(p, 2, 0)[1]
    sent = sums[:, first : first + columns]
    if columns < width:
        sent = nl.ndarray((sums.shape[0], width), sums.dtype, buffer=nl.sbuf)
        nisa.memset(sent, 0.0)
        nisa.tensor_copy(sent[:, 0:columns], sums[:, first : first + columns])
    received = nl.ndarray(sent.shape, sent.dtype, buffer=nl.sbuf)
    other = 1 - core
    nisa.sendrecv(sent, received, other, other, pipe_id=0, dma_engine=nisa.dma_engine.dma)
    return received[:, 0 : own_columns(p, 2, core)[1]]


def settle_sums(dst: Tensor, own: Tensor, other: Tensor, terms: ColumnTerms) -> None:
    """dst = (own + other) * column_scale + bias, each [tokens, columns]; the last step rounds."""
    tokens = own.shape[0]
    plain = terms.column_scale is None and terms.bias is None
    total = dst if plain else nl.ndarray(own.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(total, own, other, op=nl.add)
    if terms.column_scale is not None:
        scaled = dst if terms.bias is None else total
        nisa.tensor_tensor(scaled, total, terms.column_scale[0:tokens], op=nl.multiply)
    if terms.bias is not None:
        nisa.tensor_tensor(dst, total, terms.bias[0:tokens], op=nl.add)


# ---- two cores that share the columns ------------------------------------------------------------


def all_columns(p: QKVParameters, n_prgs: int, core: int, own: Tensor) -> Any:
    """[tokens, I] in every core, of the columns that each has computed."""
    if n_prgs == 1:
        return own
    width = own_columns(p, n_prgs, 0)[1]
    sent = own
    if own.shape[1] != width:  # both send as much
        sent = nl.ndarray((own.shape[0], width), own.dtype, buffer=nl.sbuf)
        nisa.memset(sent, 0.0)
        nisa.tensor_copy(sent[:, 0 : own.shape[1]], own)
    other = swap(sent, core, 0)
    whole = nl.ndarray((own.shape[0], columns_of(p)), own.dtype, buffer=nl.sbuf)
    for source in range(n_prgs):
        first, columns = own_columns(p, n_prgs, source)
        tile = own if source == core else other
        nisa.tensor_copy(whole[:, first : first + columns], tile[:, 0:columns])
    return whole


def own_columns(p: QKVParameters, n_prgs: int, core: int) -> tuple[int, int]:
    """(first, columns) of this core: whole heads where there are enough of them."""
    total = columns_of(p)
    unit = 1
    if p.d_head is not None and total // p.d_head % n_prgs == 0:
        unit = p.d_head
    share = div_ceil(div_ceil(total, unit), n_prgs) * unit
    first = core * share
    return first, min(share, total - first)
