"""The MLP with microscaling (MX) weights, for few tokens and for many.

Gate and up keep the weights stationary: their sums stand with the columns in the partitions, 128 columns a
block, and four blocks are the four lanes in which the down projection contracts them. No transpose between.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import put_in_sbuf, swap
from nkilib.core.mlp.gate_up import activate
from nkilib.core.mlp.mlp_parameters import (
    Linear,
    MLPParameters,
    arrives_packed,
    arrives_quantized,
    hidden_size,
    intermediate_size,
    matmul_dtype,
    result_dtype,
    shares_columns,
    token_count,
)
from nkilib.core.mlp.mx_factors import (
    column_factors,
    has_factors,
    narrow_rows,
    new_factors,
    packed_tokens,
    scaled_middle,
)
from nkilib.core.mlp.mx_few import load_pieces, loads_pieces, project_down_transposed, transposes_results
from nkilib.core.mlp.mx_parameters import INNERMOST, QUARTER, down_rows
from nkilib.core.mlp.rows import MLPRowSource, add_residual, castable, load_rows, normalize
from nkilib.core.utils.clamping import clamp, has_limits
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.fp8 import load_scalar, product_of, reciprocal_of
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.mx_layout import LANES, TILE, block_column, filled, lane_columns
from nkilib.core.utils.mx_projection import (
    MxTokens,
    narrow_tokens,
    ones_tile,
    project_features_mx,
    project_rows_mx,
    quantize_tokens,
    round_tokens,
    sums_of_features,
)
from nkilib.core.utils.mx_weight_loads import MxWeights, load_scales
from nkilib.core.utils.projection import BANK_COLUMNS, SUM_BANKS, token_major_blocks
from nkilib.core.utils.projection_results import ColumnTerms, broadcast_row, finish_into, new_rows, store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import close_scope, new_tile, open_scope
from nkilib.core.utils.transposes import spread_rows, transpose_rows
from nkilib.core.utils.types import Tensor

LAST_SPAN = 512  # columns of the down projection that come last: nothing hides what is done with them
DOWN_BANKS = 8  # of sums; those of gate and up are few when tokens are
MANAGED_TOKENS = 256  # of prefill at a time, where a manager gives the tiles their room
SCALE_COLUMNS = 8192  # of the down projection whose scales come at once


class MxScales(nl.NKIObject):
    """What undoes the quantisation of weights, in SBUF, and what x and m are multiplied by before theirs.

    STATIC_MX: [128, 1], with the scale of x or m in it. ROW_MX: of gate and up [128, blocks].
    """

    def __init__(self, p: MLPParameters, ones: Tensor | None = None):
        static, by_row = (
            p.quantization == QuantizationType.STATIC_MX,
            p.quantization == QuantizationType.ROW_MX,
        )
        x_scale = load_scalar(p.gate_up_in_scale, p.tiles) if static else None
        m_scale = load_scalar(p.down_in_scale, p.tiles) if static else None
        self.inverse_x = reciprocal_of(x_scale, p.tiles) if static else None
        self.inverse_m = reciprocal_of(m_scale, p.tiles) if static else None
        scaled = static or by_row
        gated = scaled and not p.skip_gate
        self.gate = product_of(x_scale, load_scalar(p.gate.scale, p.tiles), p.tiles) if gated else None
        self.up = product_of(x_scale, load_scalar(p.up.scale, p.tiles), p.tiles) if scaled else None
        self.down = product_of(m_scale, load_scalar(p.down.scale, p.tiles), p.tiles) if static else None
        self.ones = ones_tile(BANK_COLUMNS, p.tiles) if ones is None else ones


def mlp_mx(p: MLPParameters, n_prgs: int, core: int, out: Tensor, add_out: Tensor | None) -> None:
    """The MLP of all tokens into out: rows [T, H] in HBM, or what decode returns otherwise."""
    scales = MxScales(p)
    tokens = token_count(p)
    if shares_columns(p, n_prgs):
        source = MLPRowSource(p, n_prgs, add_out if core == 0 else None, None)
        columns = hidden_size(p) // n_prgs
        for block in TiledRange(tokens, BANK_COLUMNS):
            x = tokens_mx(p, source, scales, block.start_offset, block.size)
            m = shared_middle(p, scales, x, n_prgs, core)
            project_down(p, scales, m, out, block, core * columns, columns, n_prgs, core)
        return
    source = MLPRowSource(p, n_prgs, add_out, None)
    each = div_ceil(tokens, n_prgs)
    start, end = core * each, min(tokens, (core + 1) * each)
    for some in TiledRange(end - start, BANK_COLUMNS if p.tiles is None else MANAGED_TOKENS):
        block = TiledRangeIterator(some.size, some.index, start + some.start_offset, start + some.end_offset)
        open_scope(p.tiles)
        x = tokens_mx(p, source, scales, block.start_offset, block.size)
        m = quantize_middle(p, scales, middle(p, scales, x, 0, block_count(p)))
        project_down(p, scales, m, out, block, 0, hidden_size(p), 1, 0)
        close_scope(p.tiles)


# ---- tokens --------------------------------------------------------------------------------------


def tokens_mx(p: MLPParameters, source: MLPRowSource, scales: MxScales, first: int, count: int) -> MxTokens:
    """Tokens first ... first + count in FP8, an even number of them: a last one may be all zeros."""
    if arrives_packed(p):
        return packed_tokens(p, first, count, scales.ones)
    size = hidden_size(p)
    tiles, even = size // TILE, count + count % 2
    tile = new_tile(p.tiles, (PMAX, size // PMAX, even), matmul_dtype(p))
    if even > count:
        nisa.memset(tile[:, :, count:even], 0.0)
    factors = new_factors(p, even) if has_factors(p) else None
    pieces = loads_pieces(p)
    if pieces:
        load_pieces(p, tile[:, :, 0:count])
    open_scope(p.tiles)
    for token in TiledRange(0 if pieces else count, PMAX):
        rows = load_rows(p, source, p.hidden, first + token.start_offset, token.size)
        if not arrives_quantized(p):
            rows = add_residual(p, source, rows, first + token.start_offset)
            rows = castable(normalize(p, source, rows), matmul_dtype(p), p.tiles)
        if factors is not None:
            rows = narrow_rows(p, rows, factors, token.start_offset)
        transpose_rows(tile, 0, token.start_offset, rows, LANES if p.mx_map == INNERMOST else 1)
    close_scope(p.tiles)
    if p.mx_map == QUARTER:
        lanes = tile.reshape((PMAX, LANES, tiles, even)).permute((0, 2, 3, 1))
    else:
        lanes = tile.reshape((PMAX, tiles, LANES, even)).permute((0, 1, 3, 2))
    if factors is not None:
        x = narrow_tokens(lanes, scales.ones, p.tiles)
        x.factors = factors
        return x
    return in_fp8(p, lanes, scales.inverse_x, scales.ones)


def in_fp8(p: MLPParameters, lanes: Tensor, inverse: Tensor | None, ones: Tensor) -> MxTokens:
    if inverse is None:
        return quantize_tokens(lanes, ones, p.tiles)
    return round_tokens(lanes, inverse, ones, p.tiles)


# ---- the middle ----------------------------------------------------------------------------------


def block_count(p: MLPParameters) -> int:
    """Blocks of columns, each a lane of a tile of the down projection."""
    return LANES * div_ceil(intermediate_size(p), TILE)


def shared_middle(p: MLPParameters, scales: MxScales, x: MxTokens, n_prgs: int, core: int) -> MxTokens:
    """m of all blocks, of which two cores compute half each."""
    if n_prgs == 1:
        return quantize_middle(p, scales, middle(p, scales, x, 0, block_count(p)))
    half = block_count(p) // 2
    own = middle(p, scales, x, core * half, half)
    m = new_tile(p.tiles, (own.shape[0], 2 * half, own.shape[2]), own.dtype)
    nisa.tensor_copy(m[:, core * half : (core + 1) * half], own)
    nisa.tensor_copy(m[:, (1 - core) * half : (2 - core) * half], swap(own, core, 0, p.tiles))
    return quantize_middle(p, scales, m)


def quantize_middle(p: MLPParameters, scales: MxScales, m: Tensor) -> MxTokens:
    """m [rows, blocks, tokens] in FP8, four blocks to a tile."""
    rows, blocks, tokens = m.shape
    factors = None
    if p.quantization == QuantizationType.ROW_MX:
        m, factors = scaled_middle(p, m)
    lanes = m.reshape((rows, blocks // LANES, LANES, tokens)).permute((0, 1, 3, 2))
    if factors is not None:
        narrow = narrow_tokens(lanes, scales.ones, p.tiles)
        narrow.factors = factors
        return narrow
    return in_fp8(p, lanes, scales.inverse_m, scales.ones)


def middle(p: MLPParameters, scales: MxScales, x: MxTokens, first: int, count: int) -> Any:
    """m of blocks first ... first + count, [rows, blocks, tokens]; zero where there are no columns."""
    inner, tokens = intermediate_size(p), x.words.shape[2]
    m = new_tile(p.tiles, (filled(down_rows(p)), count, tokens), matmul_dtype(p))
    whole = min(count, max(0, inner // TILE * LANES - first))  # blocks of whole tiles; others are narrower
    if whole < count and LANES * m.shape[0] > inner - inner // TILE * TILE:
        nisa.memset(m, 0.0)
    if whole > 0:
        put_blocks(p, scales, x, m[:, 0:whole], first)
    if whole < count:
        put_blocks(p, scales, x, m[:, whole:count], first + whole)
    return m


def put_blocks(p: MLPParameters, scales: MxScales, x: MxTokens, dst: Tensor, first: int) -> None:
    """The same of blocks of one width, into dst [rows, blocks, tokens]; the last one may have less."""
    inner, count, tokens = intermediate_size(p), dst.shape[1], dst.shape[2]
    width, column = lane_columns(inner, first // LANES), block_column(inner, first)
    columns = max(0, min(count * width, inner - column))
    full, rest = columns // width, columns % width
    for span in TiledRange(full, max(1, SUM_BANKS // 2 * (BANK_COLUMNS // tokens))):
        part = dst[0:width, span.start_offset : span.end_offset, :]
        put_middle(p, scales, x, part, first + span.start_offset)
    if rest > 0:
        put_middle(p, scales, x, dst[0:rest, full : full + 1, :], first + full)


def put_middle(p: MLPParameters, scales: MxScales, x: MxTokens, dst: Tensor, first: int) -> None:
    """dst [rows, blocks, tokens] = act(gate) * up of blocks first ..., which are in PSUM at once."""
    open_scope(p.tiles)
    gates = None
    if not p.skip_gate:
        gates = project_blocks(p, x, p.gate, scales.gate, dst, first)
        for i in range(len(gates)):
            value = new_tile(p.tiles, gates[i].shape, matmul_dtype(p))
            activate(value, gates[i], p.act_fn, p.tiles)
            gates[i] = value
    ups = project_blocks(p, x, p.up, scales.up, dst, first)
    at = 0
    for i in range(len(ups)):
        place = dst[:, at : at + ups[i].shape[1], :]
        at = at + ups[i].shape[1]
        if gates is None:
            activate(place, ups[i], p.act_fn, p.tiles)
        else:
            nisa.tensor_tensor(place, gates[i], ups[i], op=nl.multiply)
    close_scope(p.tiles)


def project_blocks(
    p: MLPParameters, x: MxTokens, linear: Linear, scale: Tensor | None, like: Tensor, first: int
) -> list:
    """The finished values of one projection, [rows, some blocks, tokens] each."""
    rows, count, tokens = like.shape
    banks = sums_of_features(rows, count, tokens)
    sums = []
    for bank in banks:
        for i in range(bank.shape[1]):
            sums.append(bank[:, i, :])
    inner = intermediate_size(p)
    width, column = lane_columns(inner, first // LANES), block_column(inner, first)
    by_weight = linear.scale if p.quantization == QuantizationType.MX else None
    weights = MxWeights(linear.weight, by_weight, p.mx_by_tile)
    if linear.stream is not None:
        linear.stream.begin(column)
    project_features_mx(x, weights, sums, column, width, linear.stream)
    values, at = [], first
    for bank in banks:
        values.append(finished(p, linear, scale, bank, at, x.factors))
        keep_features(p, linear, values[len(values) - 1], block_column(inner, at))
        at = at + bank.shape[1]
    return values


def keep_features(p: MLPParameters, linear: Linear, value: Tensor, first: int) -> None:
    """Store columns first ... of a projection, [rows, blocks, tokens], if they are to be stored."""
    if linear.stored is None:
        return
    rows, blocks, tokens = value.shape
    tile = new_tile(p.tiles, value.shape, linear.stored.dtype)
    nisa.tensor_copy(tile, value)
    place = linear.stored[first : first + rows * blocks, :]
    nisa.dma_copy(place.reshape_dim(0, (blocks, rows)).permute((1, 0, 2)), tile)


def finished(
    p: MLPParameters,
    linear: Linear,
    scale: Tensor,
    sums: Tensor,
    first: int,
    factors: Tensor | None = None,
) -> Any:
    """Factors of tokens, scale, bias and limits of blocks first ..., in that order."""
    rows, blocks, tokens = sums.shape
    value = sums
    if factors is not None:
        value = new_tile(p.tiles, sums.shape, nl.float32)
        by_token = factors[0:rows].reshape((rows, 1, tokens)).broadcast(1, blocks)
        nisa.tensor_tensor(value, sums, by_token, op=nl.multiply)
    if p.quantization == QuantizationType.ROW_MX:
        by_column = scale[0:rows, first : first + blocks].reshape_dim(1, (blocks, 1)).broadcast(2, tokens)
        nisa.tensor_tensor(value, value, by_column, op=nl.multiply)
    elif scale is not None:
        value = new_tile(p.tiles, sums.shape, nl.float32)
        nisa.tensor_scalar(value, sums, nl.multiply, scale[0:rows])
    if linear.bias is not None:
        bias = new_tile(p.tiles, (rows, blocks), linear.bias.dtype)
        flat = linear.bias.reshape((linear.bias.shape[0], block_count(p)))
        nisa.dma_copy(bias, flat[0:rows, first : first + blocks])
        shifted = new_tile(p.tiles, sums.shape, nl.float32)
        spread = bias.reshape((rows, blocks, 1)).broadcast(2, tokens)
        nisa.tensor_tensor(shifted, value, spread, op=nl.add)
        value = shifted
    if not has_limits(linear.upper, linear.lower):
        return value
    clamped = new_tile(p.tiles, sums.shape, nl.float32)
    clamp(clamped, value, linear.upper, linear.lower)
    return clamped


# ---- down ----------------------------------------------------------------------------------------


def project_down(
    p: MLPParameters,
    scales: MxScales,
    m: MxTokens,
    out: Tensor,
    block: TiledRangeIterator,
    first: int,
    columns: int,
    n_prgs: int,
    core: int,
) -> None:
    """Columns first ... of one block of tokens, to where the caller wants them."""
    if transposes_results(p, m, columns):
        project_down_transposed(p, scales.down, m, out, block)
        return
    even = m.words.shape[2]
    plain = not p.output_in_sbuf and not p.transposed_out
    rows = new_rows(even, columns, result_dtype(p), p.tiles)
    given = given_rows(rows, block.size)
    by_weight = p.down.scale if p.quantization == QuantizationType.MX else None
    weights = MxWeights(p.down.weight, by_weight)
    terms = ColumnTerms(first, scales.down)
    if p.down.bias is not None:
        terms.bias = broadcast_row(p.down.bias, first, columns, min(even, PMAX), p.tiles)
    if p.quantization == QuantizationType.ROW_MX:
        terms.column_scale = column_factors(p.down.scale, first, columns, p.tiles)
    together = columns <= SCALE_COLUMNS
    loaded = load_scales(weights, first, columns, p.tiles) if together else None
    start = 0
    for size in down_spans(columns, even):
        open_scope(p.tiles)
        blocks = token_major_blocks(even, size, packed=False)
        for part in blocks:
            part.tiles = p.tiles
        project_rows_mx(m, weights, blocks, first + start, size, loaded)
        finish_into(rows, start, blocks, terms, first + start, m.factors)
        close_scope(p.tiles)
        if plain:
            store_rows(out, given, start, block.start_offset, first + start, size)
        start = start + size
    if p.transposed_out:
        nisa.dma_copy(out[:, core], spread_rows(given, p.tiles))
    if p.output_in_sbuf:
        put_in_sbuf(p, out, given, n_prgs, core)


def given_rows(rows: list, tokens: int) -> list:
    """Rows without the one that only makes their number even."""
    given = []
    for i in range(len(rows)):
        given.append(rows[i][0 : min(rows[i].shape[0], tokens - i * PMAX)])
    return given


def down_spans(columns: int, tokens: int) -> list:
    """How many columns are summed at once; the last ones are few."""
    token_tiles = div_ceil(tokens, PMAX)
    banks = DOWN_BANKS if token_tiles == 1 else SUM_BANKS
    sizes = []
    for span in TiledRange(columns, BANK_COLUMNS * max(1, banks // token_tiles)):
        sizes.append(span.size)
    last = sizes[len(sizes) - 1]
    if last > LAST_SPAN:
        sizes[len(sizes) - 1] = last - LAST_SPAN
        sizes.append(LAST_SPAN)
    return sizes
