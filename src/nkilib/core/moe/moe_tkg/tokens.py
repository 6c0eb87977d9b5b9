"""Tokens on their way to the experts, and results on their way out."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
from nkilib.core.moe.moe_tkg.affinities import token_numbers
from nkilib.core.moe.moe_tkg.experts import Tokens
from nkilib.core.moe.moe_tkg.mx_tokens import mx_spread_tokens, mx_tokens
from nkilib.core.moe.moe_tkg.parameters import (
    TOKEN_COLUMNS,
    MoEParameters,
    hidden_size,
    input_in_sbuf,
    is_mx,
    leaves_packed,
    matmul_dtype,
    result_dtype,
    shares_input,
    token_count,
)
from nkilib.core.utils.common_types import MoEBlockIOLayout
from nkilib.core.utils.kernel_helpers import interleave_copy
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import rows_from_spread, spread_rows, spread_rows_into
from nkilib.core.utils.types import Tensor

SMALL_SWAP = 1024  # elements of a partition up to which GpSimdE's own DMA exchanges them
GPSIMD_ELEMENTS = 256  # that it takes at once
FINISH_TILES = 8  # of H / 128 that are rounded together


def load_tokens(p: MoEParameters, cores: int, first: int, count: int) -> Tokens:
    """Tokens first ... first + count, [128, H / 128, tokens] in the dtype of the matmul."""
    tiles = hidden_size(p) // PMAX
    tile = nl.ndarray((PMAX, tiles, count), matmul_dtype(p), buffer=nl.sbuf)
    if input_in_sbuf(p):
        parts = 1
        if shares_input(p):
            parts = cores
            copy_parts(tile, p.hidden[:, first : first + count, :].permute((0, 2, 1)))
        else:
            nisa.tensor_copy(tile, p.hidden[:, first : first + count, :].permute((0, 2, 1)))
        x = Tokens(tile, parts, cores)
        return mx_spread_tokens(p, x) if is_mx(p) else x
    rows = []
    for token in TiledRange(count, PMAX):
        start = first + token.start_offset
        view = p.hidden[start : start + token.size, 0 : hidden_size(p)]
        rows.append(castable(load(view), matmul_dtype(p)))
    if is_mx(p):
        return mx_tokens(p, rows, cores)
    spread_rows_into(tile, rows)
    return Tokens(tile, 1, cores)


def copy_parts(tile: Tensor, columns: Tensor) -> None:
    """From SBUF, where each core has its part alone."""
    core = nl.program_id(0)
    step = columns.shape[1]
    own = nl.ndarray(columns.shape, tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(own, columns)
    nisa.tensor_copy(tile[:, core * step : (core + 1) * step, :], own)
    nisa.tensor_copy(tile[:, (1 - core) * step : (2 - core) * step, :], exchange(own, core))


def new_total(p: MoEParameters, x: Tokens, core: int, first: int, addend: Tensor | None) -> Tensor:
    """Where this core's part of H is summed, [128, J, T]: 0, or tokens first ... of addend [T, H] in HBM."""
    width, tokens = hidden_size(p) // x.cores, x.tile.shape[2]
    total = nl.ndarray((PMAX, width // PMAX, tokens), nl.float32, buffer=nl.sbuf)
    if addend is None:
        nisa.memset(total, 0.0)
        return total
    rows = []
    for token in TiledRange(tokens, PMAX):
        start = first + token.start_offset
        columns = addend[start : start + token.size, core * width : (core + 1) * width]
        rows.append(load(columns, nl.float32))
    spread_rows_into(total, rows)
    return total


def exchange(sent: Tensor, core: int) -> Tensor:
    """What the other core sends for a tile: by GpSimdE's DMA if it is small, else by the queues."""
    received = nl.ndarray(sent.shape, sent.dtype, buffer=nl.sbuf)
    columns = sent.size // sent.shape[0]
    give, take = sent.reshape((sent.shape[0], columns)), received.reshape((sent.shape[0], columns))
    small = columns <= SMALL_SWAP
    engine = nisa.dma_engine.gpsimd_dma if small else nisa.dma_engine.dma
    for part in TiledRange(columns, GPSIMD_ELEMENTS if small else columns):
        start, end = part.start_offset, part.end_offset
        nisa.sendrecv(give[:, start:end], take[:, start:end], 1 - core, 1 - core, 0, dma_engine=engine)
    return received


# ---- out -----------------------------------------------------------------------------------------


def new_output(p: MoEParameters, n_prgs: int) -> Any:
    """The result in HBM, or None if it stays in SBUF."""
    if p.output_in_sbuf or p.output is not None:
        return p.output
    tokens, size = token_count(p), hidden_size(p)
    shape: tuple = (tokens, size + TOKEN_COLUMNS if leaves_packed(p) else size)
    if p.layout == MoEBlockIOLayout._128_Nprgs_Hfree_T:
        shape = (PMAX, n_prgs, size // PMAX // n_prgs, tokens)
    return nl.ndarray(shape, result_dtype(p), buffer=nl.shared_hbm)


def store_result(p: MoEParameters, out: Tensor, total: Tensor, x: Tokens, core: int, first: int) -> None:
    """The sums [128, J, T] of tokens first ... and this core's part of H into the result."""
    own = rounded(p, total)
    tokens = own.shape[2]
    if p.layout == MoEBlockIOLayout._128_Nprgs_Hfree_T:
        nisa.dma_copy(out[:, core, :, first : first + tokens], own)
        return
    width = hidden_size(p) // x.cores
    for token in TiledRange(tokens, PMAX):
        rows = nl.ndarray((token.size, width), own.dtype, buffer=nl.sbuf)
        rows_from_spread(rows, own[:, :, token.start_offset : token.end_offset])
        start = first + token.start_offset
        nisa.dma_copy(out[start : start + token.size, core * width : (core + 1) * width], rows)
        if leaves_packed(p) and core == 0:
            numbers = token_numbers(p, start, token.size, first_number=1).view(out.dtype)
            nisa.dma_copy(out[start : start + token.size, hidden_size(p) :], numbers)


def rounded(p: MoEParameters, total: Tensor) -> Tensor:
    """The sums in the dtype of the result, some at a time, so that what follows begins early."""
    result = nl.ndarray(total.shape, result_dtype(p), buffer=nl.sbuf)
    for group in TiledRange(total.shape[1], FINISH_TILES):
        place = result[:, group.start_offset : group.end_offset, :]
        interleave_copy(place, total[:, group.start_offset : group.end_offset, :], group.index)
    return result


def result_in_sbuf(p: MoEParameters, total: Tensor, x: Tokens, core: int) -> Tensor:
    """[128, T, H / 128] as hidden is laid out in SBUF: all of it in every core, or its part alone."""
    size, tokens = total.shape[1], total.shape[2]
    own = rounded(p, total)
    if shares_input(p):
        part = nl.ndarray((PMAX, tokens, size), own.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(part, own.permute((0, 2, 1)))
        return part
    if x.cores == 2:
        own = spread_rows([whole_rows(own, core)])
    tile = nl.ndarray((PMAX, tokens, own.shape[1]), own.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, own.permute((0, 2, 1)))
    return tile


def whole_rows(own: Tensor, core: int) -> Tensor:
    """Rows [T, H] of both cores' parts, [128, J, T] each."""
    width, tokens = own.shape[0] * own.shape[1], own.shape[2]
    half = nl.ndarray((tokens, width), own.dtype, buffer=nl.sbuf)
    rows_from_spread(half, own)
    rows = nl.ndarray((tokens, 2 * width), own.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(rows[:, core * width : (core + 1) * width], half)
    nisa.tensor_copy(rows[:, (1 - core) * width : (2 - core) * width], exchange(half, core))
    return rows
