"""MLP for few tokens: bound by the weights, which stream from HBM once.

Cores share the columns: of gate and up, then, with the middle exchanged, of down. Two cores do short prefills
so, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.gate_up import MLPStaticScales, contract_rows, down_terms, gate_up_features, gate_up_rows
from nkilib.core.mlp.mlp_parameters import (
    MLPParameters,
    hidden_size,
    intermediate_size,
    is_prefill,
    result_dtype,
    token_count,
)
from nkilib.core.mlp.rows import MLPRowSource, token_activations
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import Activations, span_columns
from nkilib.core.utils.projection_results import new_rows, project_into, store_rows, store_span
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import Tiles, close_scope, new_tile, open_scope
from nkilib.core.utils.transposes import spread_rows
from nkilib.core.utils.types import Tensor

if TYPE_CHECKING:
    from nkilib.core.utils.allocator import BufferManager

SWAP_ELEMENTS = 256  # in each partition, what GpSimdE's DMA takes of any dtype


def mlp_decode(p: MLPParameters, n_prgs: int, core: int, out: Tensor, add_out: Tensor | None) -> None:
    """The MLP of all tokens, into out, in HBM or, [T, H] or [128, H / 128, T], in SBUF."""
    tokens = token_count(p)
    scales = MLPStaticScales(p)
    source = MLPRowSource(p, n_prgs, add_out if core == 0 else None, scales.inverse_x)
    x = token_activations(p, source, 0, tokens, div_ceil(intermediate_size(p), n_prgs))
    parts = middle_parts(p, x, scales, n_prgs, core)
    columns = hidden_size(p) // n_prgs
    first = core * columns
    plain = not p.output_in_sbuf and not p.transposed_out
    spread = columns // PMAX if p.down_optimized_layout else 0
    terms = down_terms(p, scales, parts[0], first, columns)
    whole = p.output_in_sbuf and p.down_column_tiling and n_prgs == 1
    rows = [out] if whole else new_rows(tokens, columns, result_dtype(p), p.tiles)
    for span in TiledRange(columns, span_columns(parts[0], p.down.weight)):
        at, column = span.start_offset, first + span.start_offset
        taper = span.end_offset == columns
        open_scope(p.tiles)
        project_into(rows, at, parts, p.down.weight, terms, column, span.size, spread, taper=taper)
        close_scope(p.tiles)
        if plain and spread == 0:
            store_span(out, rows, at, column, span.size, taper)
    if plain and spread != 0:
        store_rows(out, rows, 0, 0, first, columns)
    if p.transposed_out:
        nisa.dma_copy(out[:, core], spread_rows(rows, p.tiles))
    if p.output_in_sbuf and not whole:
        put_in_sbuf(p, out, rows, n_prgs, core)


# ---- the middle ----------------------------------------------------------------------------------


def middle_parts(p: MLPParameters, x: Activations, scales: MLPStaticScales, n_prgs: int, core: int) -> list:
    """m in as many parts as there are cores; each core computes one and receives the other."""
    inner = intermediate_size(p)
    size = div_ceil(inner, n_prgs)
    first = core * size
    count = min(size, inner - first)
    tiled = p.gate_up_column_tiling and not is_prefill(p)
    if tiled or p.quantization == QuantizationType.ROW:
        rows, maxima = gate_up_rows(p, x, scales, first, count)
        if n_prgs == 2 and maxima is not None:
            share_maxima(p, maxima, core)
        own = contract_rows(p, scales, rows, first, maxima)
    else:
        own = gate_up_features(p, x, scales, first, count)
    if n_prgs == 1:
        return [own]
    other = exchanged(p, own, div_ceil(size, PMAX), core)
    other.row = (1 - core) * size
    other.size = inner - count
    return [own, other] if core == 0 else [other, own]


def exchanged(p: MLPParameters, own: Activations, tiles: int, core: int) -> Activations:
    """The other core's part. Parts may differ by a row; both sides send as many tiles."""
    shape = (PMAX, tiles, own.tile.shape[2])
    sent = new_tile(p.tiles, shape, own.tile.dtype)
    nisa.memset(sent, 0.0)
    for chunk_rows in TiledRange(own.size, PMAX):
        nisa.tensor_copy(
            sent[0 : chunk_rows.size, chunk_rows.index, :], own.tile[0 : chunk_rows.size, chunk_rows.index, :]
        )
    return Activations(swap(sent, core, 0, p.tiles), own.size, 0, own.scales, tiles=p.tiles)


def swap(sent: Tensor, core: int, pipe: int, tiles: Tiles | None = None) -> Any:
    """What the other core sends for this tile. GpSimdE's own DMA does it: queues are full of weights."""
    received = new_tile(tiles, sent.shape, sent.dtype)
    columns = sent.size // sent.shape[0]
    give, take = sent.reshape((sent.shape[0], columns)), received.reshape((sent.shape[0], columns))
    for part in TiledRange(columns, SWAP_ELEMENTS):
        nisa.sendrecv(
            give[:, part.start_offset : part.end_offset],
            take[:, part.start_offset : part.end_offset],
            send_to_rank=1 - core,
            recv_from_rank=1 - core,
            pipe_id=pipe,
            dma_engine=nisa.dma_engine.gpsimd_dma,
        )
    return received


def share_maxima(p: MLPParameters, maxima: list, core: int) -> None:
    """ROW: max|m| of every token over the columns of both cores."""
    for own in maxima:
        nisa.tensor_tensor(own, own, swap(own, core, 1, p.tiles), op=nl.maximum)


# ---- results that are not rows in HBM ------------------------------------------------------------


def result_tile(p: MLPParameters, sbm: BufferManager | None) -> Any:
    """All columns, in every core: [T, H], or [128, H / 128, T] without column tiling."""
    tokens, size = token_count(p), hidden_size(p)
    shape = (tokens, size) if p.down_column_tiling else (PMAX, size // PMAX, tokens)
    if sbm is not None:
        return sbm.alloc_stack(shape, result_dtype(p))
    return nl.ndarray(shape, result_dtype(p), buffer=nl.sbuf)


def put_in_sbuf(p: MLPParameters, out: Tensor, rows: list, n_prgs: int, core: int) -> None:
    """The columns of this core, and those of the other, into the result."""
    own = rows[0] if p.down_column_tiling else spread_rows(rows, p.tiles)
    width = own.shape[1]
    nisa.tensor_copy(out[:, core * width : (core + 1) * width], own)
    if n_prgs == 2:
        nisa.tensor_copy(out[:, (1 - core) * width : (2 - core) * width], swap(own, core, 2, p.tiles))
