"""Gated MLP: y = (act(norm(x) Wg) * (norm(x) Wu)) Wd, for prefill and decode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import nki
import nki.language as nl
from nkilib.core.mlp.decode import mlp_decode, result_tile
from nkilib.core.mlp.mlp_checks import (
    check,
)
from nkilib.core.mlp.mlp_parameters import (
    TKG_BS_SEQLEN_THRESHOLD,
    Linear,
    MLPParameters,
    hidden_size,
    output_shape,
    result_dtype,
    shares_columns,
    token_count,
)
from nkilib.core.mlp.mx import mlp_mx
from nkilib.core.mlp.mx_parameters import as_mx, check_mx, refuse_mx_options
from nkilib.core.mlp.prefill import mlp_prefill
from nkilib.core.utils.common_types import (
    ActFnType,
    ComputationMode,
    DtypeMode,
    MLPGateUpWeightLayout,
    NormType,
    QuantizationType,
)
from nkilib.core.utils.kernel_assert import assert_members, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import Tiles, close_scope, manual
from nkilib.core.utils.types import DTypeLike, Tensor

if TYPE_CHECKING:
    from nkilib.core.utils.allocator import BufferManager


@nki.jit
def mlp(
    hidden_tensor: Tensor,
    gate_proj_weights_tensor: Tensor,
    up_proj_weights_tensor: Tensor,
    down_proj_weights_tensor: Tensor,
    normalization_weights_tensor: Tensor | None = None,
    gate_proj_bias_tensor: Tensor | None = None,
    up_proj_bias_tensor: Tensor | None = None,
    down_proj_bias_tensor: Tensor | None = None,
    normalization_bias_tensor: Tensor | None = None,
    fused_add_tensor: Tensor | None = None,
    store_fused_add_result: bool = False,
    activation_fn: ActFnType = ActFnType.SiLU,
    normalization_type: NormType = NormType.NO_NORM,
    quantization_type: QuantizationType = QuantizationType.NONE,
    gate_w_scale: Tensor | None = None,
    up_w_scale: Tensor | None = None,
    down_w_scale: Tensor | None = None,
    gate_up_in_scale: Tensor | None = None,
    down_in_scale: Tensor | None = None,
    quant_clipping_bound: float = 0.0,
    output_dtype: DTypeLike | None = None,
    store_output_in_sbuf: bool = False,
    eps: float = 1e-6,
    skip_gate_proj: bool = False,
    use_tkg_gate_up_proj_column_tiling: bool = True,
    use_tkg_down_proj_column_tiling: bool = True,
    use_tkg_down_proj_optimized_layout: bool = False,
    use_contiguous_x4_gate_up: bool = False,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    force_cte_mode: bool = False,
    mode: ComputationMode = ComputationMode.AUTO,
    sbm: BufferManager | None = None,
    mx_dummy_scale_hbm: Tensor | None = None,
    transposed_in: bool = False,
    transposed_out: bool = False,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    gate_up_w_layout: MLPGateUpWeightLayout = MLPGateUpWeightLayout.CONTIGUOUS,
) -> list:
    """Gated MLP, y = (act(x Wg) * (x Wu)) Wd, of normalised tokens. Returns a list: [y].

        x = norm(hidden + fused_add)
        m = act(clamp(x Wg + bg)) * clamp(x Wu + bu)      # skip_gate_proj: act(clamp(x Wu + bu))
        y = m Wd + bd

    hidden [B, S, H], Wg and Wu [H, I], Wd [I, H]; biases [1, I] and [1, H], norm weights [1, H]; y [B, S, H].
    bfloat16, float16 or float32; activations are rounded to the weights' dtype before each matmul. H is a
    multiple of 128. With store_fused_add_result the list is [y, hidden + fused_add].

    `mode` AUTO is decode up to 96 tokens, prefill above; decode takes up to 512. Two cores share the tokens
    of prefills of more than 256, and the columns of the weights otherwise.

    FP8 weights (`dtype_mode`): ROW has scales [128, I], [128, H] of the columns (row 0 counts). Prefill
    quantises every token of x and m by its largest element; decode, as published tests have it, leaves them
    in 16 bits unless quant_clipping_bound is given. Either takes hidden as [B, S, H + 4], FP8 and a scale,
    and then quantises m. STATIC has scales [128, 1]; prefill also quantises x and m by
    gate_up_in_scale and down_in_scale. Under NONE, FP8 weights are used as they are; scales, which published
    tests pass all the same, have no effect and are warned about.

    MX weights (trn3) are four-packed FP8 or FP4, gate and up [128, H / 512, I], down [I_p, ceil(I / 512), H]
    with I_p = min(128, I / 4), a scale for 8 rows of words; or FP8 with the lanes as an axis, [128, H / 512,
    I / 512, 4, 128, 4] and [128, I / 512, H, 4]. Row h stands in tile t, word p, lane q:
    h = q H / 4 + 128 t + p of MX with three axes, 512 t + 4 p + q (H_X4_INNERMOST, six axes,
    use_contiguous_x4_gate_up) or 512 t + 128 q + p (H_X4_MIDDLE, STATIC_MX). Column 512 k + 128 q + p of gate
    and up is row [p, k], lane q, of down (of a last tile of n < 512 columns, 512 k + n / 4 q + p, as in
    published tests); their biases are [I_p, ceil(I / 512), 4] in that order. x and m
    become MXFP8; with STATIC_MX, FP8 by the scales [128, 1]; with ROW_MX, FP8 up to 448 by the largest
    element of each token, and weights have a scale for each column: [128, 4 ceil(I / 512)] as the biases, of
    down [128, H / 128], column 128 j + p at [p, j]. mx_dummy_scale_hbm is not read: its 127s are set on chip.

    Tokens may arrive as FP8 with a scale, [B, S, H + 4] (ROW_MX, MX); or, with MX weights whose lanes hold
    neighbours (H_X4_INNERMOST), as rmsnorm_mx_prefill packs them: [B, S, H + R], R = 128 bytes of scales for
    a tile of 512 or, packed, for four.

    Decode only: hidden in SBUF as [128, T, H / 128], or, on n cores, in HBM as [128, n, H / (128 n), T]
    (transposed_in); the result like the latter (transposed_out), or in SBUF, [T, H], without down column
    tiling [128, H / 128, T]. Column tiling is the operand order: tokens stationary, or for gate and up the
    weights (ROW: always tokens).

    With a manual `sbm` all tiles are on its stack and freed at the end, except for a result in SBUF; prefill
    takes as many tokens at a time as there is room for.

    >>> shapes = [(1, 4, 128), (128, 64), (128, 64), (64, 128)]
    >>> mlp(*(np.full(shape, 0.01, np.float32) for shape in shapes))[0].shape
    (1, 4, 128)
    """
    assert_tensors(
        (
            ("hidden_tensor", hidden_tensor),
            ("up_proj_weights_tensor", up_proj_weights_tensor),
            ("down_proj_weights_tensor", down_proj_weights_tensor),
        ),
        (("gate_proj_weights_tensor", gate_proj_weights_tensor),),
    )
    assert_members(
        ("activation_fn", activation_fn, ActFnType),
        ("normalization_type", normalization_type, NormType),
        ("quantization_type", quantization_type, QuantizationType),
        ("mode", mode, ComputationMode),
        ("dtype_mode", dtype_mode, DtypeMode),
        ("gate_up_w_layout", gate_up_w_layout, MLPGateUpWeightLayout),
    )
    kernel_assert(
        skip_gate_proj or gate_proj_weights_tensor is not None,
        "gate_proj_weights_tensor: got None, allowed only with skip_gate_proj",
    )
    p = MLPParameters(
        hidden=hidden_tensor,
        gate=Linear(
            gate_proj_weights_tensor,
            gate_proj_bias_tensor,
            gate_w_scale,
            gate_clamp_upper_limit,
            gate_clamp_lower_limit,
        ),
        up=Linear(
            up_proj_weights_tensor,
            up_proj_bias_tensor,
            up_w_scale,
            up_clamp_upper_limit,
            up_clamp_lower_limit,
        ),
        down=Linear(down_proj_weights_tensor, down_proj_bias_tensor, down_w_scale),
        fused_add=fused_add_tensor,
        store_add=store_fused_add_result,
        norm=normalization_type,
        gamma=normalization_weights_tensor,
        beta=normalization_bias_tensor,
        eps=eps,
        act_fn=activation_fn,
        skip_gate=skip_gate_proj,
        quantization=quantization_type,
        gate_up_in_scale=gate_up_in_scale,
        down_in_scale=down_in_scale,
        clipping_bound=quant_clipping_bound,
        dtype_mode=dtype_mode,
        output_dtype=output_dtype,
        mode=chosen_mode(mode, force_cte_mode),
        output_in_sbuf=store_output_in_sbuf,
        gate_up_column_tiling=use_tkg_gate_up_proj_column_tiling,
        down_column_tiling=use_tkg_down_proj_column_tiling,
        down_optimized_layout=use_tkg_down_proj_optimized_layout,
        transposed_in=transposed_in,
        transposed_out=transposed_out,
    )
    if quantization_type.is_mx():
        as_mx(p, use_contiguous_x4_gate_up, gate_up_w_layout)
    else:
        refuse_mx_options(use_contiguous_x4_gate_up, gate_up_w_layout)
    return run(p, sbm if manual(sbm) else None)


mlp_kernel = mlp  # its name before


def chosen_mode(mode: ComputationMode, force_cte_mode: bool) -> ComputationMode:
    kernel_assert(
        not force_cte_mode or mode != ComputationMode.DECODE,
        "mode: got DECODE with force_cte_mode=True, allowed are AUTO and PREFILL",
    )
    return ComputationMode.PREFILL if force_cte_mode else mode


def run(p: MLPParameters, sbm: BufferManager | None = None) -> list:
    """Check, allocate the results, and compute them."""
    sharding = get_verified_program_sharding_info("mlp", (0, 1), 2)
    n_prgs, core = sharding[1], sharding[2]
    if p.mx_map is None:
        check(p, n_prgs)
    else:
        check_mx(p, n_prgs)
    tokens, size = token_count(p), hidden_size(p)
    add_out = None
    if p.store_add:
        add_out = nl.ndarray(output_shape(p), p.hidden.dtype, buffer=nl.shared_hbm)
    add_rows = None if add_out is None else add_out.reshape((tokens, size))
    result = result_tile(p, sbm) if p.output_in_sbuf else None
    if sbm is not None:
        sbm.open_scope(name="mlp")
        p.tiles = Tiles(sbm)
    if p.output_in_sbuf:
        out = place = result
    elif p.transposed_out:
        shape = (PMAX, n_prgs, size // (PMAX * n_prgs), tokens)
        out = place = nl.ndarray(shape, result_dtype(p), buffer=nl.shared_hbm)
    else:
        out = nl.ndarray(output_shape(p), result_dtype(p), buffer=nl.shared_hbm)
        place = out.reshape((tokens, size))
    if p.mx_map is not None:
        mlp_mx(p, n_prgs, core, place, add_rows)
    elif shares_columns(p, n_prgs):
        mlp_decode(p, n_prgs, core, place, add_rows)
    else:
        mlp_prefill(p, place, add_rows)
    close_scope(p.tiles)
    return [out] if add_out is None else [out, add_out]


@nki.jit
def fused_mlp_isa_kernel(
    hidden: Tensor,
    gate_w: Tensor,
    up_w: Tensor,
    down_w: Tensor,
    norm_w: Tensor | None = None,
    attn_output: Tensor | None = None,
    norm_type: NormType = NormType.NO_NORM,
    dtype: DTypeLike | None = None,
    act_fn: ActFnType = ActFnType.SiLU,
    norm_b: Tensor | None = None,
    gate_b: Tensor | None = None,
    up_b: Tensor | None = None,
    down_b: Tensor | None = None,
    store_add: bool = False,
    eps: float = 1e-6,
) -> Any:
    """`mlp` under the names of the tutorial: y [B, S, H], or (y, hidden + attn_output) with store_add."""
    results = mlp(
        hidden,
        gate_w,
        up_w,
        down_w,
        normalization_weights_tensor=norm_w,
        gate_proj_bias_tensor=gate_b,
        up_proj_bias_tensor=up_b,
        down_proj_bias_tensor=down_b,
        normalization_bias_tensor=norm_b,
        fused_add_tensor=attn_output,
        store_fused_add_result=store_add,
        activation_fn=act_fn,
        normalization_type=norm_type,
        output_dtype=dtype,
        eps=eps,
    )
    return (results[0], results[1]) if len(results) == 2 else results[0]


# ---- reference -----------------------------------------------------------------------------------


def mlp_ref(
    hidden: np.ndarray, gate_w: np.ndarray, up_w: np.ndarray, down_w: np.ndarray, **options: Any
) -> list:
    """[y, hidden + fused_add] in float64, of hidden [B, S, H] or [B, S, H + 4] and the keywords of `mlp`."""
    x = np.asarray(hidden[..., : up_w.shape[0]], np.float64)
    given = None if x.shape == hidden.shape else hidden[..., -4:].copy().view(np.float32).astype(np.float64)
    if options.get("fused_add_tensor") is not None:
        x = x + np.asarray(options["fused_add_tensor"], np.float64)
    added = x
    x = norm_ref(
        x,
        options.get("normalization_type", NormType.NO_NORM),
        options.get("normalization_weights_tensor"),
        options.get("normalization_bias_tensor"),
        options.get("eps", 1e-6),
    )
    by_token = given is not None or prefills(x, options) or options.get("quant_clipping_bound", 0.0) > 0.0
    x = (x * given) if given is not None else quantized_ref(x, options, "gate_up_in_scale", by_token)
    up = linear_ref(x, up_w, "up", options)
    if options.get("skip_gate_proj"):
        m = act_ref(up, options.get("activation_fn", ActFnType.SiLU))
    else:
        m = act_ref(linear_ref(x, gate_w, "gate", options), options.get("activation_fn", ActFnType.SiLU)) * up
    return [linear_ref(quantized_ref(m, options, "down_in_scale", by_token), down_w, "down", options), added]


def norm_ref(
    x: np.ndarray, norm: NormType, gamma: np.ndarray | None, beta: np.ndarray | None, eps: float
) -> np.ndarray:
    if norm == NormType.NO_NORM:
        return x
    if norm == NormType.LAYER_NORM:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)
    if norm != NormType.RMS_NORM_SKIP_GAMMA:
        x = x * np.asarray(gamma, np.float64)
    return x if beta is None else x + np.asarray(beta, np.float64)


def linear_ref(x: np.ndarray, weight: np.ndarray, name: str, options: dict) -> np.ndarray:
    """x W * scale + bias, clamped."""
    scale, bias = options.get(f"{name}_w_scale"), options.get(f"{name}_proj_bias_tensor")
    y = x @ np.asarray(weight, np.float64)
    if scale is not None and options.get("quantization_type", QuantizationType.NONE) != QuantizationType.NONE:
        y = y * np.asarray(scale, np.float64)[0]
    y = y if bias is None else y + np.asarray(bias, np.float64)
    upper, lower = options.get(f"{name}_clamp_upper_limit"), options.get(f"{name}_clamp_lower_limit")
    y = y if upper is None else np.minimum(y, upper)
    return y if lower is None else np.maximum(y, lower)


def act_ref(x: np.ndarray, act_fn: ActFnType) -> np.ndarray:
    cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return {
        ActFnType.SiLU: lambda: x / (1 + np.exp(-x)),
        ActFnType.GELU: lambda: x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
        ActFnType.GELU_Tanh_Approx: lambda: 0.5 * x * (1 + np.tanh(cubic)),
        ActFnType.Swish: lambda: x / (1 + np.exp(-1.702 * x)),
        ActFnType.ReLU: lambda: np.maximum(x, 0),
        ActFnType.SquaredReLU: lambda: np.maximum(x, 0) ** 2,
    }[act_fn]()


def prefills(x: np.ndarray, options: dict) -> bool:
    """What `mode` and force_cte_mode mean for so many tokens."""
    mode = chosen_mode(options.get("mode", ComputationMode.AUTO), options.get("force_cte_mode", False))
    many = math.prod(x.shape[:-1]) > TKG_BS_SEQLEN_THRESHOLD
    return many if mode == ComputationMode.AUTO else mode == ComputationMode.PREFILL


def quantized_ref(x: np.ndarray, options: dict, static_scale: str, by_token: bool) -> np.ndarray:
    """x rounded to FP8 and back, where the kernel does so: by tokens for ROW, in prefill for STATIC."""
    quantization = options.get("quantization_type", QuantizationType.NONE)
    ocp = options.get("dtype_mode", DtypeMode.NON_OCP) == DtypeMode.OCP
    dtype, largest = (ml_dtypes.float8_e4m3fn, 448.0) if ocp else (ml_dtypes.float8_e4m3, 240.0)
    if quantization == QuantizationType.ROW and not by_token:
        return x
    if quantization == QuantizationType.ROW:
        bound = options.get("quant_clipping_bound", 0.0) or np.inf
        x = np.clip(x, -bound, bound)
        scale = np.maximum(np.abs(x).max(-1, keepdims=True) / largest, 1e-5)
    elif quantization == QuantizationType.STATIC and options.get(static_scale) is not None:
        scale = np.float64(options[static_scale][0, 0])
    else:
        return x
    return np.clip(x / scale, -largest, largest).astype(np.float32).astype(dtype).astype(np.float64) * scale
