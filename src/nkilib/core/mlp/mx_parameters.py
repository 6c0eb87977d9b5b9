"""The MX forms of the MLP's weights seen as one: words [128, H/512, I] and [I_p, I/512, H]. And checks."""

from __future__ import annotations

import nki.isa as nisa
from nkilib.core.mlp.mlp_checks import (
    check_decode,
    check_hidden,
    check_norm,
    check_options,
    check_prefill,
    check_scale,
)
from nkilib.core.mlp.mlp_parameters import (
    Linear,
    MLPParameters,
    arrives_packed,
    hidden_size,
    intermediate_size,
    is_prefill,
)
from nkilib.core.utils.common_types import MLPGateUpWeightLayout, QuantizationType
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.mx_layout import (
    GROUP,
    LANES,
    SCALE_DTYPES,
    TILE,
    as_words,
    contraction_rows,
)
from nkilib.core.utils.tile_sizes import PMAX

QUARTER, WRAPPED, INNERMOST = "quarter", "wrapX", "innermost"  # which h stands in tile t, row p and lane q


def refuse_mx_options(contiguous_x4: bool, w_layout: MLPGateUpWeightLayout) -> None:
    """Raise for options of the layout of MX weights where there are none."""
    kernel_assert(
        not contiguous_x4, "use_contiguous_x4_gate_up: got True, allowed only with an MX quantization_type"
    )
    kernel_assert(
        w_layout == MLPGateUpWeightLayout.CONTIGUOUS,
        f"gate_up_w_layout: got {w_layout}, allowed only with an MX quantization_type",
    )


def as_mx(p: MLPParameters, contiguous_x4: bool, w_layout: MLPGateUpWeightLayout) -> None:
    """Give p its weights as words, their scales of the same shape, and the place of each h (`p.mx_map`)."""
    kernel_assert(
        nisa.get_nc_version() >= nisa.nc_version.gen4,
        f"quantization_type: got {p.quantization}, allowed from trn3 on",
    )
    p.mx_map = chosen_map(p, contiguous_x4, w_layout)
    if not p.skip_gate:
        p.gate = tiled(p, "gate_proj_weights_tensor", p.gate)
    p.up = tiled(p, "up_proj_weights_tensor", p.up)
    p.down = tiled(p, "down_proj_weights_tensor", p.down)


def chosen_map(p: MLPParameters, contiguous_x4: bool, w_layout: MLPGateUpWeightLayout) -> str:
    """MX weights of decode have quarters of H in the lanes; for others an option selects the layout."""
    if contiguous_x4 or w_layout == MLPGateUpWeightLayout.H_X4_INNERMOST:
        return INNERMOST
    if w_layout == MLPGateUpWeightLayout.H_X4_MIDDLE or p.quantization != QuantizationType.MX:
        return WRAPPED
    return QUARTER if len(p.up.weight.shape) == 3 else INNERMOST


def tiled(p: MLPParameters, name: str, linear: Linear) -> Linear:
    """The same projection with weights of three axes."""
    words = as_words(name, linear.weight)
    shape = tuple(words.shape)
    kernel_assert(len(shape) in (3, 4, 5, 6), f"{name}: got shape {shape}, expected MX weights of 3 axes")
    if len(shape) > 3:
        words = words.reshape((shape[0], shape[1], words.size // (shape[0] * shape[1])))
    scale = linear.scale
    if p.quantization == QuantizationType.ROW_MX and scale is not None and len(scale.shape) == 3:
        scale = scale.reshape((scale.shape[0], scale.size // scale.shape[0]))  # (partition, tile, lane)
    if p.quantization == QuantizationType.MX and scale is not None and len(scale.shape) > 3:
        rows, tiles = scale.shape[0], scale.shape[1]
        scale = scale.reshape((rows, tiles, scale.size // (rows * tiles)))
    return Linear(words, linear.bias, scale, linear.upper, linear.lower)


def down_rows(p: MLPParameters) -> int:
    """I_p: partitions that the contraction of the down projection fills."""
    return contraction_rows(intermediate_size(p))


def check_mx(p: MLPParameters, n_prgs: int) -> None:
    """Everything that is demanded of the arguments with MX weights."""
    check_options(p)
    kernel_assert(
        p.up.weight.shape[0] == PMAX,
        f"up_proj_weights_tensor: got {p.up.weight.shape[0]} rows of words, expected 128",
    )
    check_hidden(p, n_prgs)
    inner, size, tiles = intermediate_size(p), hidden_size(p), p.up.weight.shape[1]
    kernel_assert(inner % 2 == 0, f"up_proj_weights_tensor: got I = {inner}, allowed with MX are even ones")
    middle = (down_rows(p), div_ceil(inner, TILE))
    if not p.skip_gate:
        check_linear("gate", p, p.gate, (PMAX, tiles, inner), (middle[0], middle[1], LANES))
    check_linear("up", p, p.up, (PMAX, tiles, inner), (middle[0], middle[1], LANES))
    check_linear("down", p, p.down, (middle[0], middle[1], size), (1, size))
    kernel_assert(
        not arrives_packed(p) or p.mx_map == INNERMOST,
        "hidden_tensor: got packed MXFP8, allowed with H_X4_INNERMOST weights: lanes hold neighbours",
    )
    if p.quantization == QuantizationType.STATIC_MX:
        check_scale("gate_up_in_scale", p.gate_up_in_scale, 1, p)
        check_scale("down_in_scale", p.down_in_scale, 1, p)
    check_norm(p)
    if is_prefill(p):
        check_prefill(p)
    else:
        check_decode(p, n_prgs)
        kernel_assert(
            not p.down_optimized_layout,
            "use_tkg_down_proj_optimized_layout: got True with MX, allowed is False",
        )
        kernel_assert(not p.transposed_in, "transposed_in: got True with MX, allowed is False")


def check_linear(name: str, p: MLPParameters, linear: Linear, shape: tuple, bias: tuple) -> None:
    assert_shape(linear.weight, shape, f"{name}_proj_weights_tensor (as words)")
    if linear.bias is not None:
        assert_shape(linear.bias, bias, f"{name}_proj_bias_tensor")
    if p.quantization == QuantizationType.STATIC_MX:
        check_scale(f"{name}_w_scale", linear.scale, 1, p)
        return
    if p.quantization == QuantizationType.ROW_MX:
        blocks = shape[2] // PMAX if name == "down" else LANES * div_ceil(shape[2], TILE)
        check_scale(f"{name}_w_scale", linear.scale, blocks, p)
        return
    kernel_assert(linear.scale is not None, f"{name}_w_scale: got None, needed by {p.quantization}")
    assert_shape(linear.scale, (shape[0] // GROUP, shape[1], shape[2]), f"{name}_w_scale")
    kernel_assert(
        linear.scale.dtype in SCALE_DTYPES,
        f"{name}_w_scale: got {linear.scale.dtype}, allowed are uint8 and float8_e8m0fnu",
    )
