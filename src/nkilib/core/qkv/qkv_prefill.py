"""QKV projection of many tokens: bound by TensorE.

A block of tokens stays in SBUF while all weights pass by; meanwhile the next block is loaded, normalised and
transposed, some of it after each span of columns. If nothing but an RMSNorm comes first, DMA transposes
tokens, and the factor of the norm is left to the sums: the first matmul need not wait for statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_heads import Angles, HeadTables, change_heads, changes
from nkilib.core.qkv.qkv_mx import QKVMxProjection, new_mx_tokens, span_columns_mx, transpose_rows_mx
from nkilib.core.qkv.qkv_outputs import CacheWriter, store_result
from nkilib.core.qkv.qkv_parameters import (
    Piece,
    QKVParameters,
    V,
    columns_of,
    hidden_size,
    matmul_dtype,
    norms_across_heads,
    output_columns,
    pieces,
    result_dtype,
    token_count,
    touches_heads,
    weight_dtype,
)
from nkilib.core.qkv.qkv_terms import load_terms
from nkilib.core.qkv.qkv_tokens import (
    ColumnSource,
    QKVRowSource,
    gamma_columns,
    load_rows,
    new_tokens,
    token_columns,
    transpose_by_dma,
    transpose_tokens,
    transposes_by_dma,
)
from nkilib.core.utils.common_types import NormType
from nkilib.core.utils.kernel_helpers import div_ceil, program_share
from nkilib.core.utils.projection import (
    BANK_COLUMNS,
    FP8,
    Activations,
    doubles,
    load_weights,
    multiply,
    span_columns,
    token_major_blocks,
    weight_chunks,
)
from nkilib.core.utils.projection_results import finish_into, new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor

UNIT_TILES = 8  # of the contraction, that DMA transposes at once: 1 MiB for 512 tokens
DMA_TRANSPOSE_TOKENS = 16  # DMA transposes multiples of it fast
TOKEN_BYTES = 80 * 1024  # in each partition, of a block of tokens; the next one is prepared beside it


def prefill(p: QKVParameters, out: Tensor) -> None:
    """The projection of this core's tokens, into out and the caches. Cores share the tokens."""
    start, end = program_share(token_count(p))
    if start == end:
        return
    blocks = TiledRange(end - start, block_tokens(p, end - start))
    kernel = Prefill(p, out, transposes_by_dma(p) and (end - start) % DMA_TRANSPOSE_TOKENS == 0)
    block: Any = PrefillBlock(p, kernel, start, blocks[0].size)
    if not kernel.by_dma:
        block.prepare(block.units)
    for i in range(len(blocks)):
        upcoming = None
        if i + 1 < len(blocks):
            upcoming = PrefillBlock(p, kernel, start + blocks[i + 1].start_offset, blocks[i + 1].size)
        project_block(p, kernel, block, upcoming)
        block = upcoming


def block_tokens(p: QKVParameters, tokens: int) -> int:
    """How many tokens a pass over the weights serves; blocks are equal, in whole tiles."""
    width = 1 if matmul_dtype(p) in FP8 else 2
    if p.mx_map is not None:  # 16 bits, and what becomes of them
        width = 4
    if norms_across_heads(p):  # all columns of the tokens wait for each other
        return PMAX
    room = TOKEN_BYTES // (hidden_size(p) // PMAX * width) // PMAX * PMAX
    most = max(PMAX, min(BANK_COLUMNS, room))
    blocks = div_ceil(tokens, most)
    return div_ceil(div_ceil(tokens, blocks), PMAX) * PMAX


class Prefill(nl.NKIObject):
    """What all blocks share."""

    def __init__(self, p: QKVParameters, out: Tensor, by_dma: bool):
        self.out = out
        self.by_dma = by_dma
        self.gamma = gamma_columns(p) if by_dma and p.norm == NormType.RMS_NORM else None
        self.source: Any = None
        self.mx: Any = None if p.mx_map is None else QKVMxProjection(p)
        if p.transposed_in and p.mx_map is None:
            self.source = ColumnSource(p, 0)
        elif not by_dma:
            self.source = QKVRowSource(p)
        self.terms = load_terms(p, 0, columns_of(p), PMAX)
        self.tables = HeadTables(p)
        self.writer: Any = None if p.cache is None else CacheWriter(p)


@dataclass
class PrefillBlock(nl.NKIObject):
    """Tokens first ... first + count, prepared tile by tile."""

    p: QKVParameters
    kernel: Prefill
    first: int
    count: int

    def __post_init__(self) -> None:
        self.tiles = div_ceil(self.count, PMAX)
        self.by_dma = self.kernel.by_dma
        self.units = div_ceil(hidden_size(self.p) // PMAX, UNIT_TILES) if self.by_dma else self.tiles
        self.prepared = 0
        self.x = (
            new_tokens(self.p, self.count) if self.kernel.mx is None else new_mx_tokens(self.p, self.count)
        )
        self.scales: list = []
        self.angles: list = []

    def prepare(self, end: int) -> None:
        """Units up to `end`: of 128 tokens, or, where DMA transposes tokens, of tiles of the contraction."""
        for i in range(self.prepared, end):
            if self.by_dma:
                tile = i * UNIT_TILES
                place = self.x[:, tile : min(tile + UNIT_TILES, self.x.shape[1]), :]
                transpose_by_dma(self.p, place, self.first, tile, self.kernel.gamma)
            else:
                self.prepare_tile(i)
        self.prepared = max(self.prepared, end)

    def prepare_tile(self, i: int) -> None:
        at = i * PMAX
        count = min(PMAX, self.count - at)
        if self.p.transposed_in and self.kernel.mx is None:
            place = self.x[:, :, at : at + count]
            token_columns(self.p, self.kernel.source, place, self.first + at, None)
            return
        rows = load_rows(self.p, self.first + at, count)
        if rows.scale is not None:
            self.scales.append(rows.scale)
        transpose = transpose_tokens if self.kernel.mx is None else transpose_rows_mx
        transpose(self.p, self.kernel.source, self.x, at, rows)

    def prepare_rest(self) -> None:
        """What is needed only when sums are finished."""
        self.prepare(self.units)
        for i in range(self.tiles):
            first, count = self.first + i * PMAX, min(PMAX, self.count - i * PMAX)
            if self.by_dma and self.p.norm != NormType.NO_NORM:
                self.scales.append(load_rows(self.p, first, count).factor)
            self.angles.append(None if self.p.rope is None else Angles(self.p, first, count))


def project_block(p: QKVParameters, kernel: Prefill, block: PrefillBlock, upcoming: Any) -> None:
    """All columns of one block, and the tiles of the next one between them."""
    x = Activations(block.x, hidden_size(p)) if kernel.mx is None else kernel.mx.quantized(block.x)
    spans = TiledRange(columns_of(p), span_size(p, x, block.count))
    sums = SquareSums(p, block, len(spans))
    dtype = nl.float32 if touches_heads(p) else result_dtype(p)
    whole = new_rows(block.count, columns_of(p), dtype) if norms_across_heads(p) else None
    for span in spans:
        blocks = project_span(p, block, x, span)
        if span.index == 0:
            block.prepare_rest()
        if upcoming is not None:
            upcoming.prepare((span.index + 1) * upcoming.units // len(spans))
        scales = block.scales if len(block.scales) > 0 else None
        if whole is not None:
            finish_into(whole, span.start_offset, blocks, kernel.terms, span.start_offset, scales)
            continue
        rows = new_rows(block.count, span.size, dtype)
        finish_into(rows, 0, blocks, kernel.terms, span.start_offset, scales)
        put_tiles(p, kernel, block, rows, span, sums)
    if whole is not None:
        put_tiles(p, kernel, block, whole, TiledRange(columns_of(p), columns_of(p))[0], sums)
    sums.store(p, block)


def put_tiles(
    p: QKVParameters,
    kernel: Prefill,
    block: PrefillBlock,
    rows: list,
    span: TiledRangeIterator,
    sums: SquareSums,
) -> None:
    """Columns of a block, finished but for norms and RoPE, to where they go."""
    for i in range(len(rows)):
        put_tile(p, kernel, block, i, rows[i], span, sums)


def project_span(p: QKVParameters, block: PrefillBlock, x: Activations, span: TiledRangeIterator) -> list:
    """The sums of some columns. Tokens that DMA has yet to transpose come with the weights they meet."""
    if p.mx_map is not None:
        return block.kernel.mx.project(x, block.count, span.start_offset, span.size)
    blocks = token_major_blocks(block.count, span.size, packed=not doubles(x.tile, p.weight))
    for chunk in weight_chunks(x, span.size, p.weight):
        if block.by_dma:
            block.prepare(min(block.units, div_ceil(chunk.tile + chunk.tiles, UNIT_TILES)))
        tile = load_weights(p.weight, chunk, span.start_offset, span.size, dtype=weight_dtype(p))
        multiply(blocks, x.tile, tile, chunk.tile, feature_major=False)
    return blocks


def span_size(p: QKVParameters, x: Activations, tokens: int) -> int:
    """How many columns to work on at once: spans are equal, and of whole heads where these matter."""
    unit = 1 if p.d_head is None else p.d_head
    most = span_columns(x, p.weight) if p.mx_map is None else span_columns_mx(tokens)
    most = max(unit, most // unit * unit)
    spans = div_ceil(columns_of(p), most)
    return div_ceil(div_ceil(columns_of(p), spans), unit) * unit


def put_tile(
    p: QKVParameters,
    kernel: Prefill,
    block: PrefillBlock,
    i: int,
    rows: Tensor,
    span: TiledRangeIterator,
    sums: SquareSums,
) -> None:
    """Columns of 128 tokens, finished but for norms and RoPE, to where they go."""
    first = block.first + i * PMAX
    if not touches_heads(p):
        store_result(p, kernel.out, rows, first, span.start_offset)
        return
    count = rows.shape[0]
    width = min(span.end_offset, output_columns(p)) - span.start_offset
    results: Any = None
    if width > 0 and kernel.out is not None:
        results = nl.ndarray((count, width), result_dtype(p), buffer=nl.sbuf)
    for piece in pieces(p, span.start_offset, span.size):
        at = piece.column - span.start_offset
        part = rows[:, at : at + piece.columns]
        sums.add(i, piece.section, span.index, part)
        cached = p.cache is not None and piece.section != 0
        place = None if cached else results[:, at : at + piece.columns]
        put_piece(p, kernel, block.angles[i], piece, part, place, first)
    if results is not None:
        store_result(p, kernel.out, results, first, span.start_offset)


def put_piece(
    p: QKVParameters, kernel: Prefill, angles: Any, piece: Piece, part: Tensor, place: Tensor, first: int
) -> None:
    """One section of some columns: into its place among the results, or, if that is None, into the cache."""
    changed = changes(kernel.tables, angles, piece.section)
    if place is not None and not changed:
        nisa.activation(place, nl.copy, part)
        return
    value = part
    if changed:
        value = nl.ndarray(part.shape, nl.float32, buffer=nl.sbuf) if place is None else place
        change_heads(value, part, p.d_head, piece.section, kernel.tables, angles)
    if place is None:
        section_start = (p.q_heads + (piece.section - 1) * p.kv_heads) * p.d_head
        kernel.writer.write(p, value, piece.section, first, piece.column - section_start)


class SquareSums(nl.NKIObject):
    """Sums of squares of each token over the columns of a section, where they are asked for."""

    def __init__(self, p: QKVParameters, block: PrefillBlock, spans: int):
        self.wanted = []
        self.sums = []
        for section in range(V + 1):
            self.wanted.append(p.square_sums[section] is not None)
            rows = new_rows(block.count, spans, nl.float32) if self.wanted[section] else []
            for tile in rows:
                nisa.memset(tile, 0.0)
            self.sums.append(rows)

    def add(self, i: int, section: int, span: int, part: Tensor) -> None:
        """The columns that one span has of a section."""
        if self.wanted[section]:
            squares = nl.ndarray(part.shape, nl.bfloat16, buffer=nl.sbuf)
            place = self.sums[section][i][:, span : span + 1]
            nisa.activation_reduce(squares, nl.square, part, nl.add, place)

    def store(self, p: QKVParameters, block: PrefillBlock) -> None:
        for section in range(V + 1):
            for i in range(len(self.sums[section])):
                tile = self.sums[section][i]
                out = p.square_sums[section]
                total = nl.ndarray((tile.shape[0], 1), nl.float32, buffer=nl.sbuf)
                nisa.tensor_reduce(total, nl.add, tile, 1)
                ready = total
                if out.dtype != nl.float32:
                    ready = nl.ndarray(total.shape, out.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(ready, total)
                first = block.first + i * PMAX
                nisa.dma_copy(out.reshape((out.size, 1))[first : first + tile.shape[0]], ready)
