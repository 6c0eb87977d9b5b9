"""Microscaling (MX) weights of experts: their forms, and tokens in MXFP8 as they contract them.

Words of gate and up are [E_L, 128, 2, H / 512, I], of down [E_L, I_p, I / 512, H], each with one scale for 8
rows. Partition p and lane q of tile t hold element q H / 4 + 128 t + p of the hidden dimension.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_tkg.experts import Tokens
from nkilib.core.moe.moe_tkg.parameters import (
    FLOATS,
    MoEParameters,
    hidden_size,
    intermediate_size,
    local_experts,
    matmul_dtype,
)
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.mx_projection import (
    GROUP,
    LANES,
    SCALE_DTYPES,
    TILE,
    as_words,
    ones_tile,
    quantize_tokens,
)
from nkilib.core.utils.projection import BANK_COLUMNS, FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import rows_from_spread, transpose_rows

WORD_AXES = (5, 4)  # of gate and up, of down; FP8 has its four lanes as one more


def as_mx(p: MoEParameters) -> None:
    """If weights of experts are MX: check them, and give p words."""
    if len(p.gate_up.shape) < WORD_AXES[0]:
        return
    kernel_assert(
        nisa.get_nc_version() >= nisa.nc_version.gen4,
        f"expert_gate_up_weights: got MX weights of shape {tuple(p.gate_up.shape)}, allowed from trn3 on",
    )
    p.gate_up = words_of("expert_gate_up_weights", p.gate_up, WORD_AXES[0])
    p.down = words_of("expert_down_weights", p.down, WORD_AXES[1])
    experts, size, inner = local_experts(p), hidden_size(p), intermediate_size(p)
    rows, tiles = middle_rows(p), div_ceil(inner, TILE)
    kernel_assert(
        inner % (LANES * GROUP) == 0,
        f"expert_gate_up_weights: got I = {inner}, allowed with MX are multiples of {LANES * GROUP}",
    )
    shape = (experts, PMAX, 2, size // TILE, inner)
    assert_shape(p.gate_up, shape, "expert_gate_up_weights (as words)")
    assert_shape(p.down, (experts, rows, tiles, size), "expert_down_weights (as words)")
    scales = (experts, PMAX // GROUP, 2, size // TILE, inner)
    check_scale("expert_gate_up_weights_scale", p.gate_up_scale, scales)
    check_scale("expert_down_weights_scale", p.down_scale, (experts, rows // GROUP, tiles, size))
    if p.gate_up_bias is not None:
        assert_shape(p.gate_up_bias, (experts, rows, 2, tiles, LANES), "expert_gate_up_bias")
    if p.down_bias is not None:
        assert_shape(p.down_bias, (experts, size), "expert_down_bias")
    kernel_assert(p.hidden.dtype in FLOATS, f"hidden_input: got {p.hidden.dtype}, allowed are {FLOATS}")


def words_of(name: str, weight: Any, axes: int) -> Any:
    """Four-packed weights of so many axes; FP8 may have the lanes as its last one."""
    words = as_words(name, weight)
    if weight.dtype in FP8 and len(words.shape) == axes + 1:
        words = words.reshape(tuple(words.shape)[0:axes])
    kernel_assert(len(words.shape) == axes, f"{name}: got shape {tuple(weight.shape)}, expected {axes} axes")
    return words


def check_scale(name: str, scale: Any, shape: tuple) -> None:
    kernel_assert(scale is not None, f"{name}: got None, needed by MX weights")
    assert_shape(scale, shape, name)
    kernel_assert(
        scale.dtype in SCALE_DTYPES, f"{name}: got {scale.dtype}, allowed are uint8 and float8_e8m0fnu"
    )


def middle_rows(p: MoEParameters) -> int:
    """I_p: partitions that the contraction of the down projection fills."""
    inner = intermediate_size(p)
    return inner // LANES if inner <= TILE else PMAX


# ---- tokens --------------------------------------------------------------------------------------


def mx_tokens(p: MoEParameters, rows: list, cores: int) -> Tokens:
    """Rows [tokens <= 128, H] in 16 bits as MXFP8."""
    count = 0
    for tile in rows:
        count = count + tile.shape[0]
    turned = nl.ndarray((PMAX, hidden_size(p) // PMAX, count), matmul_dtype(p), buffer=nl.sbuf)
    for i in range(len(rows)):
        transpose_rows(turned, 0, i * PMAX, rows[i])
    lanes = turned.reshape((PMAX, LANES, hidden_size(p) // TILE, count)).permute((0, 2, 3, 1))
    return Tokens(turned, 1, cores, quantize_tokens(lanes, ones_tile(BANK_COLUMNS)))


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
