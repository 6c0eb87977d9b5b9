"""Few tokens with MX weights: loads and results that keep all partitions, and so all DMA engines, busy."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import (
    FLOATS,
    MLPParameters,
    arrives_quantized,
    hidden_size,
    input_in_sbuf,
    matmul_dtype,
    result_dtype,
    token_count,
)
from nkilib.core.mlp.mx_parameters import INNERMOST
from nkilib.core.mlp.rows import castable
from nkilib.core.utils.common_types import NormType, QuantizationType
from nkilib.core.utils.mx_projection import MxTokens, project_features_mx, sums_of_features
from nkilib.core.utils.mx_weight_loads import MxWeights, WeightStream
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import close_scope, new_tile, open_scope
from nkilib.core.utils.types import Tensor

FEW_TOKENS = 16  # rows of 128 elements are then few enough to be transposed over one after the other


def loads_pieces(p: MLPParameters) -> bool:
    """Tokens need nothing that is known of a whole row."""
    plain = p.norm == NormType.NO_NORM and p.fused_add is None and p.quantization != QuantizationType.ROW_MX
    given = not (p.transposed_in or input_in_sbuf(p) or arrives_quantized(p))
    return plain and given and token_count(p) <= FEW_TOKENS and p.mx_map != INNERMOST


def load_pieces(p: MLPParameters, tile: Tensor) -> None:
    """tile[p, k, t] = hidden[t, 128 k + p]: 128 elements to a partition, transposed by TensorE.

    In a queue of their own: the weights need not wait.
    """
    tokens, blocks = token_count(p), hidden_size(p) // PMAX
    rows = p.hidden.reshape((tokens * blocks, PMAX))
    by_row = tile.permute((0, 2, 1))
    for token in TiledRange(tokens, max(1, PMAX // blocks)):
        for some in TiledRange(blocks, PMAX):
            open_scope(p.tiles)
            first, count = token.start_offset * blocks + some.start_offset, token.size * some.size
            piece = new_tile(p.tiles, (count, PMAX), p.hidden.dtype)
            nisa.dma_copy(piece, rows[first : first + count], dge_mode=hardware_queue())
            piece = castable(piece, matmul_dtype(p), p.tiles)
            bank = nl.ndarray((PMAX, token.size, some.size), piece.dtype, buffer=nl.psum)
            nisa.nc_transpose(bank.reshape((PMAX, count)), piece)
            place = by_row[:, token.start_offset : token.end_offset, some.start_offset : some.end_offset]
            nisa.tensor_copy(place, bank)
            close_scope(p.tiles)


def transposes_results(p: MLPParameters, m: MxTokens, columns: int) -> bool:
    """Results are rows in HBM, whole ones, of few tokens: their sums may stand with columns in partitions."""
    rows = not p.output_in_sbuf and not p.transposed_out and columns == hidden_size(p)
    few = m.words.shape[2] <= FEW_TOKENS and columns // PMAX <= PMAX
    return rows and few and p.quantization != QuantizationType.ROW_MX


def project_down_transposed(
    p: MLPParameters, scale: Tensor | None, m: MxTokens, out: Tensor, block: TiledRangeIterator
) -> None:
    """The down projection with the weights stationary, which few tokens pass sooner than the other way round.

    Sums have 128 columns in the partitions; TensorE transposes them to rows of 128 when they are complete.
    """
    even, blocks, size = m.words.shape[2], hidden_size(p) // PMAX, hidden_size(p)
    open_scope(p.tiles)
    banks = sums_of_features(PMAX, blocks, even)
    sums = []
    for bank in banks:
        for i in range(bank.shape[1]):
            sums.append(bank[:, i, :])
    weights = MxWeights(p.down.weight, p.down.scale if p.quantization == QuantizationType.MX else None)
    stream = WeightStream(weights, 0, size, p.tiles, taper=True)
    project_features_mx(m, weights, sums, 0, PMAX, stream)
    dtype = result_dtype(p) if p.down.bias is None and result_dtype(p) in FLOATS else nl.float32
    value = new_tile(p.tiles, (PMAX, even, blocks), dtype)
    at = 0
    for bank in banks:
        place = value[:, :, at : at + bank.shape[1]].permute((0, 2, 1))
        at = at + bank.shape[1]
        if scale is None:
            nisa.tensor_copy(place, bank)
        else:
            nisa.tensor_scalar(place, bank, nl.multiply, scale)
    rows = out[block.start_offset : block.end_offset].reshape((block.size * blocks, PMAX))
    flat = value.reshape((PMAX, even * blocks))
    for part in TiledRange(block.size * blocks, PMAX // blocks * blocks):
        transposed = nl.ndarray((part.size, PMAX), dtype, buffer=nl.psum)
        nisa.nc_transpose(transposed, flat[:, part.start_offset : part.end_offset])
        result = new_tile(p.tiles, (part.size, PMAX), result_dtype(p))
        if p.down.bias is None:
            nisa.tensor_copy(result, transposed)
        else:
            nisa.tensor_tensor(result, transposed, bias_rows(p, part.size // blocks), op=nl.add)
        nisa.dma_copy(rows[part.start_offset : part.end_offset], result, dge_mode=hardware_queue())
    close_scope(p.tiles)


def bias_rows(p: MLPParameters, tokens: int) -> Any:
    """The bias of the down projection for each of some tokens, 128 columns to a partition."""
    blocks = hidden_size(p) // PMAX
    tile = new_tile(p.tiles, (tokens * blocks, PMAX), p.down.bias.dtype)
    for token in range(tokens):
        nisa.dma_copy(tile[token * blocks : (token + 1) * blocks], p.down.bias.reshape((blocks, PMAX)))
    return tile
