"""Tokens in MXFP8 as microscaling (MX) weights of experts contract them."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.moe.moe_tkg.experts import Tokens
from nkilib.core.moe.moe_tkg.parameters import MoEParameters, hidden_size, matmul_dtype
from nkilib.core.moe.mx_weights import MxNames, check_words, has_words
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_projection import ones_tile, quantize_tokens
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import rows_from_spread, transpose_rows

NAMES = MxNames(
    "expert_gate_up_weights",
    "expert_down_weights",
    "expert_gate_up_weights_scale",
    "expert_down_weights_scale",
    "expert_gate_up_bias",
    "expert_down_bias",
)


def as_mx(p: MoEParameters) -> None:
    """If weights of experts are MX: check them, and give p words."""
    if has_words(p.gate_up):
        check_words(p, NAMES)


def mx_tokens(p: MoEParameters, rows: list, cores: int) -> Tokens:
    """Rows [tokens <= 128, H] in 16 bits as MXFP8."""
    count = 0
    for tile in rows:
        count = count + tile.shape[0]
    transposed = nl.ndarray((PMAX, hidden_size(p) // PMAX, count), matmul_dtype(p), buffer=nl.sbuf)
    for i in range(len(rows)):
        transpose_rows(transposed, 0, i * PMAX, rows[i])
    lanes = transposed.reshape((PMAX, LANES, hidden_size(p) // TILE, count)).permute((0, 2, 3, 1))
    return Tokens(transposed, 1, cores, quantize_tokens(lanes, ones_tile(BANK_COLUMNS)))


def mx_spread_tokens(p: MoEParameters, x: Tokens) -> Tokens:
    """The same of tokens that are spread over the partitions already, in x.parts parts."""
    count, rows = x.tile.shape[2], []
    size, width = hidden_size(p) // x.parts, x.tile.shape[1] // x.parts
    for token in TiledRange(count, PMAX):
        tile = nl.ndarray((token.size, hidden_size(p)), x.tile.dtype, buffer=nl.sbuf)
        for part in range(x.parts):
            spread = x.tile[:, part * width : (part + 1) * width, token.start_offset : token.end_offset]
            rows_from_spread(tile[:, part * size : (part + 1) * size], spread)
        rows.append(tile)
    return mx_tokens(p, rows, x.cores)
