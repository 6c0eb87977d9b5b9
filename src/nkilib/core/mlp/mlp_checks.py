"""What `mlp` demands of its arguments."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.mlp.mlp_parameters import (
    FLOATS,
    NORMS,
    QUANTIZATIONS,
    Linear,
    MLPParameters,
    arrives_quantized,
    hidden_size,
    input_in_sbuf,
    intermediate_size,
    is_prefill,
    quantizes_activations,
    row_widths,
    token_count,
)
from nkilib.core.utils.clamping import check_limits
from nkilib.core.utils.common_types import (
    NormType,
    QuantizationType,
)
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    kernel_assert,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import (
    is_hbm_buffer,
    normalization_uses_weights,
    resolve_fp8_dtype,
)
from nkilib.core.utils.projection import BANK_COLUMNS, FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


def check(p: MLPParameters, n_prgs: int) -> None:
    """Everything that is demanded of the arguments."""
    check_options(p)
    check_weights(p)
    check_hidden(p, n_prgs)
    check_norm(p)
    check_scales(p)
    if is_prefill(p):
        check_prefill(p)
    else:
        check_decode(p, n_prgs)


def check_options(p: MLPParameters) -> None:
    kernel_assert(
        p.norm in NORMS,
        f"normalization_type: got {p.norm}, allowed are NO_NORM, RMS_NORM, LAYER_NORM, RMS_NORM_SKIP_GAMMA",
    )
    kernel_assert(
        p.quantization in QUANTIZATIONS,
        f"quantization_type: got {p.quantization}, allowed are NONE, STATIC, ROW, MX, STATIC_MX and ROW_MX",
    )
    kernel_assert(
        p.clipping_bound == 0.0 or p.quantization.is_logical_row(),
        f"quant_clipping_bound: got {p.clipping_bound} with {p.quantization}, only ROW and ROW_MX clip",
    )
    kernel_assert(
        p.output_dtype is None or p.output_dtype in FLOATS,
        f"output_dtype: got {p.output_dtype}, allowed are None and {FLOATS}",
    )
    check_limits((p.gate.upper, p.gate.lower), (p.up.upper, p.up.lower))
    kernel_assert(p.clipping_bound >= 0.0, f"quant_clipping_bound: got {p.clipping_bound}, allowed is >= 0")
    kernel_assert(
        not p.store_add or p.fused_add is not None,
        "store_fused_add_result: got True without fused_add_tensor, allowed only with it",
    )


def check_hidden(p: MLPParameters, n_prgs: int) -> None:
    size = hidden_size(p)
    kernel_assert(size % PMAX == 0, f"hidden_tensor: got H = {size}, allowed are multiples of 128")
    shape, tiles = tuple(p.hidden.shape), size // PMAX
    if p.transposed_in:
        kernel_assert(not input_in_sbuf(p), "transposed_in: got hidden_tensor in SBUF, allowed is HBM")
        wanted = (PMAX, n_prgs, tiles // n_prgs)
        kernel_assert(
            len(shape) == 4 and shape[:3] == wanted,
            f"hidden_tensor: got shape {shape}, expected {wanted} and the tokens with transposed_in",
        )
    elif input_in_sbuf(p):
        kernel_assert(
            len(shape) == 3 and (shape[0], shape[2]) == (PMAX, tiles),
            f"hidden_tensor: got shape {shape} in SBUF, expected (128, T, {tiles})",
        )
    else:
        widths = row_widths(p)
        columns = f"{widths[0]}"
        for width in widths[1:]:
            columns = f"{columns} or {width}"
        kernel_assert(
            len(shape) == 3 and shape[2] in widths,
            f"hidden_tensor: got shape {shape}, expected (B, S, {columns})",
        )
    check_residual(p)


def check_residual(p: MLPParameters) -> None:
    if p.fused_add is not None:
        assert_shape(p.fused_add, p.hidden.shape, "fused_add_tensor")
        kernel_assert(not p.transposed_in, "fused_add_tensor: got one with transposed_in, allowed is None")
        kernel_assert(
            is_hbm_buffer(p.fused_add) == is_hbm_buffer(p.hidden),
            f"fused_add_tensor: got buffer {p.fused_add.buffer}, expected that of hidden_tensor",
        )
    if arrives_quantized(p):
        by_rows = (QuantizationType.ROW, QuantizationType.ROW_MX, QuantizationType.MX)
        kernel_assert(
            p.quantization in by_rows and p.norm == NormType.NO_NORM and p.fused_add is None,
            f"hidden_tensor: got {p.hidden.dtype}, allowed only with ROW, ROW_MX or MX, NO_NORM and no "
            "fused_add_tensor",
        )
        kernel_assert(
            not p.transposed_in and not input_in_sbuf(p),
            f"hidden_tensor: got {p.hidden.dtype}, allowed only as [B, S, H + 4] in HBM",
        )
        fp8 = resolve_fp8_dtype(p.dtype_mode) if p.mx_map is None else nl.float8_e4m3fn
        kernel_assert(p.hidden.dtype == fp8, f"hidden_tensor: got {p.hidden.dtype}, expected {fp8}")
    else:
        kernel_assert(p.hidden.dtype in FLOATS, f"hidden_tensor: got {p.hidden.dtype}, allowed are {FLOATS}")


def check_weights(p: MLPParameters) -> None:
    check_matrices(p)
    size, columns = p.up.weight.shape
    check_linear("up_proj", p.up, size, columns, p)
    check_linear("down_proj", p.down, columns, size, p)
    if not p.skip_gate:
        check_linear("gate_proj", p.gate, size, columns, p)


def check_matrices(p: MLPParameters) -> None:
    """Weights are matrices; if gate and down agree, up is the one that is wrong."""
    up, down = tuple(p.up.weight.shape), tuple(p.down.weight.shape)
    kernel_assert(len(up) == 2, f"up_proj_weights_tensor: got shape {up}, expected (H, I)")
    kernel_assert(len(down) == 2, f"down_proj_weights_tensor: got shape {down}, expected (I, H)")
    if p.skip_gate:
        warn_without_effect(
            False,
            "skip_gate_proj=False",
            (
                ("gate_proj_bias_tensor", p.gate.bias),
                ("gate_clamp_upper_limit", p.gate.upper),
                ("gate_clamp_lower_limit", p.gate.lower),
            ),
        )
    elif tuple(p.gate.weight.shape) == (down[1], down[0]):
        assert_shape(p.up.weight, p.gate.weight.shape, "up_proj_weights_tensor")


def check_linear(name: str, linear: Linear, rows: int, columns: int, p: MLPParameters) -> None:
    dtype = linear.weight.dtype
    assert_shape(linear.weight, (rows, columns), f"{name}_weights_tensor")
    if linear.bias is not None:
        assert_shape(linear.bias, (1, columns), f"{name}_bias_tensor")
    if p.quantization == QuantizationType.NONE:
        allowed = FLOATS + FP8
        kernel_assert(dtype in allowed, f"{name}_weights_tensor: got {dtype}, allowed are {allowed}")
        same = p.up.weight.dtype
        kernel_assert(dtype == same, f"{name}_weights_tensor: got {dtype}, expected {same} as up_proj has")
    else:
        fp8 = resolve_fp8_dtype(p.dtype_mode)
        kernel_assert(
            dtype == fp8,
            f"{name}_weights_tensor: got {dtype}, expected {fp8} with {p.quantization} and {p.dtype_mode}",
        )


def check_norm(p: MLPParameters) -> None:
    size = hidden_size(p)
    if normalization_uses_weights(p.norm):
        kernel_assert(p.gamma is not None, f"normalization_weights_tensor: got None, needed by {p.norm}")
        assert_shape(p.gamma, (1, size), "normalization_weights_tensor")
    else:
        warn_without_effect(
            False,
            "a normalization_type that has weights",
            (("normalization_weights_tensor", p.gamma),),
        )
    if p.beta is not None:
        kernel_assert(
            p.norm == NormType.LAYER_NORM,
            f"normalization_bias_tensor: got one with {p.norm}, allowed only with LAYER_NORM",
        )
        assert_shape(p.beta, (1, size), "normalization_bias_tensor")


def check_scales(p: MLPParameters) -> None:
    inner, size = intermediate_size(p), hidden_size(p)
    if p.quantization == QuantizationType.NONE:
        warn_without_effect(
            False,
            "a quantization_type",
            (
                ("gate_w_scale", p.gate.scale),
                ("up_w_scale", p.up.scale),
                ("down_w_scale", p.down.scale),
                ("gate_up_in_scale", p.gate_up_in_scale),
                ("down_in_scale", p.down_in_scale),
            ),
        )
        return
    if not p.skip_gate:
        check_scale("gate_w_scale", p.gate.scale, inner, p)
    check_scale("up_w_scale", p.up.scale, inner, p)
    check_scale("down_w_scale", p.down.scale, size, p)
    if p.quantization == QuantizationType.STATIC and quantizes_activations(p):
        check_scale("gate_up_in_scale", p.gate_up_in_scale, 1, p)
        check_scale("down_in_scale", p.down_in_scale, 1, p)


def check_scale(name: str, scale: Tensor | None, columns: int, p: MLPParameters) -> None:
    kernel_assert(scale is not None, f"{name}: got None, needed by {p.quantization}")
    if p.quantization.is_logical_static():
        columns = 1
    assert_shape(scale, (PMAX, columns), name)


def check_prefill(p: MLPParameters) -> None:
    for_decode = "allowed only in decode"
    kernel_assert(not input_in_sbuf(p), f"hidden_tensor: got buffer {p.hidden.buffer}, {for_decode}")
    kernel_assert(not p.output_in_sbuf, f"store_output_in_sbuf: got True in prefill, {for_decode}")
    kernel_assert(not p.transposed_in, f"transposed_in: got True in prefill, {for_decode}")
    kernel_assert(not p.transposed_out, f"transposed_out: got True in prefill, {for_decode}")
    kernel_assert(
        not p.down_optimized_layout,
        f"use_tkg_down_proj_optimized_layout: got True in prefill, {for_decode}",
    )


def check_decode(p: MLPParameters, n_prgs: int) -> None:
    tokens, size = token_count(p), hidden_size(p)
    most = PMAX if p.output_in_sbuf else BANK_COLUMNS
    kernel_assert(tokens <= most, f"hidden_tensor: got {tokens} tokens in decode, allowed are at most {most}")
    kernel_assert(
        not (p.down_optimized_layout and p.down_column_tiling),
        "use_tkg_down_proj_optimized_layout: got True, allowed only without use_tkg_down_proj_column_tiling",
    )
    kernel_assert(
        not (p.transposed_out and p.down_column_tiling),
        "transposed_out: got True, allowed only with use_tkg_down_proj_column_tiling=False",
    )
    kernel_assert(
        not (p.transposed_out and p.output_in_sbuf),
        "transposed_out: got True, allowed only with store_output_in_sbuf=False",
    )
    multiple = n_prgs * PMAX
    kernel_assert(
        size % multiple == 0,
        f"hidden_tensor: got H = {size}, decode on {n_prgs} cores takes multiples of {multiple}",
    )
    kernel_assert(
        intermediate_size(p) >= n_prgs,
        f"up_proj_weights_tensor: got I = {intermediate_size(p)}, allowed is at least {n_prgs}",
    )
