"""QKV projection of few tokens: bound by the weights, which stream from HBM once. Cores share the columns."""

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
from nkilib.core.utils.projection_results import new_rows, project_into
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange


def decode(p: QKVParameters, n_prgs: int, core: int, out: Any, add_out: Any, dtype: Any = None) -> list:
    """Columns of this core as tiles [tokens <= 128, columns]; stored when ready, if out is given.

    add_out receives the input with its residuals; `dtype` is that of the tiles, by default of the result.
    """
    parts = n_prgs if input_in_sbuf(p) else 1
    size, tokens = hidden_size(p), token_count(p)
    x = new_tokens(p, tokens)
    token_columns(p, ColumnSource(p, parts), x, 0, add_out)
    activations = []
    width = size // PMAX // parts
    for part in range(parts):
        tile = x[:, part * width : (part + 1) * width, :]
        activations.append(Activations(tile, size // parts, part * size // parts, spread=width))
    first, columns = own_columns(p, n_prgs, core)
    rows = new_rows(tokens, columns, result_dtype(p) if dtype is None else dtype)
    terms = load_terms(p, first, columns, PMAX)
    for span in TiledRange(columns, span_columns(activations[0], p.weight)):
        at, column = span.start_offset, first + span.start_offset
        project_into(rows, at, activations, p.weight, terms, column, span.size, dtype=weight_dtype(p))
        if out is not None:
            for i in range(len(rows)):
                store_result(p, out, rows[i][:, at : at + span.size], i * PMAX, column)
    return rows


def all_columns(p: QKVParameters, n_prgs: int, core: int, own: Any) -> Any:
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
