"""MX weights with a scale for 128 x 128 elements, as DeepSeek's checkpoints have them, and their products.

Words [K / 4, N]: row r holds elements 4 r ... 4 r + 3 of the contraction. Scales [K / 128, ceil(N / 128)].
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.mx_layout import LANES, SCALE_DTYPES, TILE, as_words
from nkilib.core.utils.mx_projection import MxTokens, project_rows_mx, token_scales
from nkilib.core.utils.mx_weight_loads import BLOCK, MxWeights, WeightStream, load_scales
from nkilib.core.utils.projection import BANK_COLUMNS, SUM_BANKS, token_major_blocks
from nkilib.core.utils.projection_results import ColumnTerms, finish_into, new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

SLAB_BYTES = 12 * 1024  # of scales in each partition that are in SBUF at a time


def block_weights(
    name: str,
    words: Tensor,
    scales: Tensor,
    size: int,
    columns: int,
    words_name: str = "",
    scale_name: str = "",
) -> MxWeights:
    """Check weights [size / 4, columns] and their scales `name`_scale_hbm; return them by tiles."""
    words_name, scale_name = words_name or f"{name}_hbm", scale_name or f"{name}_scale_hbm"
    kernel_assert(
        size % TILE == 0, f"{words_name}: got a contraction of {size}, MX takes multiples of {TILE}"
    )
    packed = as_words(words_name, words)
    assert_shape(packed, (size // LANES, columns), words_name)
    assert_shape(scales, (size // BLOCK, div_ceil(columns, BLOCK)), scale_name)
    kernel_assert(
        scales.dtype in SCALE_DTYPES,
        f"{scale_name}: got dtype {scales.dtype}, allowed are uint8 and float8_e8m0fnu",
    )
    tiles = size // TILE
    by_tile = packed.reshape_dim(0, (tiles, PMAX)).permute((1, 0, 2))
    return MxWeights(by_tile, scales.reshape_dim(0, (tiles, TILE // BLOCK)), compact=True)


def project_blocks(
    x: MxTokens, tokens: int, weights: MxWeights, column: int, columns: int, scales: Any
) -> list:
    """Token-major sums of some columns, up to half of PSUM, without a token that only pads."""
    blocks = token_major_blocks(x.words.shape[2], columns, packed=False)
    project_rows_mx(x, weights, blocks, column, columns, scales)
    for block in blocks:
        block.tokens = min(block.tokens, tokens - block.token)
        block.sums = block.sums[0 : block.tokens]
    return blocks


def project_all(x: MxTokens, tokens: int, weights: MxWeights, dtype: DTypeLike = nl.float32) -> list:
    """All columns of the products, in tiles [tokens <= 128, columns] in SBUF."""
    columns = weights.words.shape[2]
    rows = new_rows(tokens, columns, dtype)
    for slab in slabs(weights, columns, BANK_COLUMNS):
        scales = load_scales(weights, slab.start_offset, slab.size, None)
        for span in TiledRange(slab, span_columns(tokens)):
            first = span.start_offset
            blocks = project_blocks(x, tokens, weights, first, span.size, scales)
            finish_into(rows, first, blocks, ColumnTerms(first), first)
    return rows


def span_columns(tokens: int) -> int:
    """How many columns have their sums in half of PSUM."""
    return BANK_COLUMNS * max(1, SUM_BANKS // len(TiledRange(tokens, PMAX)))


def slabs(weights: MxWeights, columns: int, multiple: int) -> Any:
    """Parts of the columns, in multiples, whose scales fit into SBUF."""
    room = max(1, SLAB_BYTES // (weights.words.shape[1] * multiple))
    return TiledRange(columns, room * multiple)


def add_features(sums: Tensor, x: MxTokens, stream: WeightStream, tile: int, start: int, end: int) -> None:
    """Add products to sums [columns start ... end of the stream, tokens]: the weights are stationary."""
    tokens = sums.shape[1]
    nisa.nc_matmul_mx(
        sums,
        stream.words_of(tile, start, end),
        x.words[:, tile, 0:tokens],
        stream.scales_of(tile, start, end, x.ones),
        token_scales(x, tile, 0, tokens),
    )
