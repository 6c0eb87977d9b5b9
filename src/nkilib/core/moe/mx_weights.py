"""Microscaling (MX) weights of experts: the forms that callers have, checks, and one expert as an MLP.

Words of gate and up are [E, 128, 2, H / 512, I], of down [E, I_p, I / 512, H], with one scale for 8 rows.
Partition p and lane q of tile t hold element q H / 4 + 128 t + p of the hidden dimension. `p` is what a
kernel was asked for, with the fields that these have in common: hidden, gate_up, down, scales, biases...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear, MLPParameters
from nkilib.core.mlp.mx_parameters import QUARTER
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.mx_layout import (
    GROUP,
    LANES,
    SCALE_DTYPES,
    TILE,
    as_words,
    block_column,
    contraction_rows,
    lane_columns,
)
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

WORD_AXES = (5, 4)  # of gate and up, of down; FP8 has its four lanes as one more


@dataclass
class MxNames(nl.NKIObject):
    """What a kernel calls them."""

    gate_up: str
    down: str
    gate_up_scale: str
    down_scale: str
    gate_up_bias: str
    down_bias: str


def has_words(gate_up: Tensor) -> bool:
    """Weights of gate and up are MX."""
    return len(gate_up.shape) >= WORD_AXES[0]


def mx_hidden_size(p: Any) -> int:
    return TILE * p.gate_up.shape[3]


def mx_intermediate_size(p: Any) -> int:
    return p.gate_up.shape[4]


def is_mx(p: Any) -> bool:
    return has_words(p.gate_up)


def hidden_size(p: Any) -> int:
    """Return H of expert weights, [E, H, 2, I] or words."""
    return mx_hidden_size(p) if is_mx(p) else p.gate_up.shape[1]


def intermediate_size(p: Any) -> int:
    """Return I of expert weights, [E, H, 2, I] or words."""
    return mx_intermediate_size(p) if is_mx(p) else p.gate_up.shape[3]


def middle_rows(p: Any) -> int:
    """I_p: partitions that the contraction of the down projection fills."""
    return contraction_rows(mx_intermediate_size(p))


def check_words(p: Any, names: MxNames) -> None:
    """Give p its weights as words, and check all that belongs to them."""
    kernel_assert(
        nisa.get_nc_version() >= nisa.nc_version.gen4,
        f"{names.gate_up}: got MX weights of shape {tuple(p.gate_up.shape)}, allowed from trn3 on",
    )
    p.gate_up = words_of(names.gate_up, p.gate_up, WORD_AXES[0])
    p.down = words_of(names.down, p.down, WORD_AXES[1])
    experts, size, inner = p.gate_up.shape[0], mx_hidden_size(p), mx_intermediate_size(p)
    rows, tiles = middle_rows(p), div_ceil(inner, TILE)
    kernel_assert(inner % 2 == 0, f"{names.gate_up}: got I = {inner}, allowed with MX are even ones")
    assert_shape(p.gate_up, (experts, PMAX, 2, size // TILE, inner), f"{names.gate_up} (as words)")
    assert_shape(p.down, (experts, rows, tiles, size), f"{names.down} (as words)")
    scales = (experts, PMAX // GROUP, 2, size // TILE, inner)
    check_scale(names.gate_up_scale, p.gate_up_scale, scales)
    check_scale(names.down_scale, p.down_scale, (experts, rows // GROUP, tiles, size))
    if p.gate_up_bias is not None and len(p.gate_up_bias.shape) == 3:
        assert_shape(p.gate_up_bias, (experts, 2, inner), names.gate_up_bias)
    elif p.gate_up_bias is not None:
        assert_shape(p.gate_up_bias, (experts, rows, 2, tiles, LANES), names.gate_up_bias)
    if p.down_bias is not None:
        assert_shape(p.down_bias, (experts, size), names.down_bias)


def words_of(name: str, weight: Tensor, axes: int) -> Any:
    """Four-packed weights of so many axes; FP8 may have the lanes as its last one."""
    words = as_words(name, weight)
    if weight.dtype in FP8 and len(words.shape) == axes + 1:
        words = words.reshape(tuple(words.shape)[0:axes])
    kernel_assert(len(words.shape) == axes, f"{name}: got shape {tuple(weight.shape)}, expected {axes} axes")
    return words


def check_scale(name: str, scale: Tensor, shape: tuple) -> None:
    kernel_assert(scale is not None, f"{name}: got None, needed by MX weights")
    assert_shape(scale, shape, name)
    kernel_assert(
        scale.dtype in SCALE_DTYPES, f"{name}: got {scale.dtype}, allowed are uint8 and float8_e8m0fnu"
    )


# ---- one expert ----------------------------------------------------------------------------------


def expert_mlp(
    p: Any,
    expert: Tensor | int,
    skip_gate: bool = False,
    streams: tuple | None = None,
) -> MLPParameters:
    """Gate and up of an expert, a number or a tile [1, 1] that holds it, as the MLP's MX path takes them.

    `streams`: of gate and up, if these are in SBUF already.
    """
    gate, up = (None, None) if streams is None else streams
    return MLPParameters(
        hidden=p.hidden,
        gate=Linear(None) if skip_gate else linear_of(p, expert, 0, p.gate, gate),
        up=linear_of(p, expert, 1, p.up, up),
        down=Linear(None),
        act_fn=p.act_fn,
        skip_gate=skip_gate,
        quantization=QuantizationType.MX,
        mx_map=QUARTER,
        mx_by_tile=True,
    )


def linear_of(
    p: Any,
    expert: Tensor,
    half: int,
    limits: Linear,
    stream: Any = None,
) -> Linear:
    """Gate (half 0) or up (1) of an expert: weights, bias, scales, limits."""
    return Linear(
        p.gate_up.select(0, expert)[:, half],
        None if p.gate_up_bias is None else bias_of(p, expert, half),
        p.gate_up_scale.select(0, expert)[:, half],
        limits.upper,
        limits.lower,
        stream,
    )


def bias_of(p: Any, expert: Tensor | int, half: int) -> Any:
    """[I_p, blocks], a column for each block of columns of the words. [E, 2, I] has it by columns."""
    rows, blocks = middle_rows(p), LANES * div_ceil(mx_intermediate_size(p), TILE)
    if len(p.gate_up_bias.shape) == 5:
        flat = p.gate_up_bias.reshape((p.gate_up_bias.shape[0], rows, 2, blocks))
        return flat.select(0, expert)[:, half, :]
    tile = nl.ndarray((rows, blocks), p.gate_up_bias.dtype, buffer=nl.sbuf)
    row = p.gate_up_bias.select(0, expert)[half, :]
    whole = row.shape[0] // TILE * LANES
    if whole > 0:
        load_blocks(tile[:, 0:whole], row[0 : whole * PMAX], PMAX)
    if whole < blocks:
        width = lane_columns(row.shape[0], whole // LANES)
        load_blocks(tile[:, whole:blocks], row[block_column(row.shape[0], whole) :], width)
    return tile


def load_blocks(tile: Tensor, row: Tensor, width: int) -> None:
    """So many elements of a row to each column of a tile; the last one may get fewer."""
    full, rest = row.shape[0] // width, row.shape[0] % width
    if full > 0:
        nisa.dma_copy(
            tile[0:width, 0:full], row[0 : full * width].reshape_dim(0, (full, width)).permute((1, 0))
        )
    if rest > 0:
        nisa.dma_copy(tile[0:rest, full : full + 1], row[full * width :].reshape_dim(0, (rest, 1)))
