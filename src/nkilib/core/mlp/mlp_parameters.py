"""The arguments of the MLP kernels in one object, and what is demanded of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.language as nl
from nkilib.core.utils import token_shapes
from nkilib.core.utils.common_types import (
    ActFnType,
    ComputationMode,
    DtypeMode,
    NormType,
    QuantizationType,
)
from nkilib.core.utils.kernel_helpers import (
    div_ceil,
    resolve_fp8_dtype,
)
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.token_shapes import is_in_sbuf, sixteen_bit_dtype
from nkilib.core.utils.types import DTypeLike, Tensor

TKG_BS_SEQLEN_THRESHOLD = 96  # tokens up to which AUTO is decode
FEW_TOKENS = 256  # up to which two cores share the columns of the weights in prefill too
QUANTIZED_DECODE = (256, 1, 8192, 3584)  # the one (B, S, H, I) whose activations STATIC quantises in decode
SCALE_BYTES = 4  # the float32 scale at the end of a row that is already quantised
FLOATS = (nl.bfloat16, nl.float16, nl.float32)
NORMS = (NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM, NormType.RMS_NORM_SKIP_GAMMA)
QUANTIZATIONS = (
    QuantizationType.NONE,
    QuantizationType.STATIC,
    QuantizationType.ROW,
    QuantizationType.MX,
    QuantizationType.STATIC_MX,
    QuantizationType.ROW_MX,
)
MX_TILE = 512  # of the hidden dimension: 128 rows of four-packed weights
PACKED_TILES = 4  # tiles whose scales are side by side in packed MXFP8 rows


@dataclass
class Linear(nl.NKIObject):
    """One projection: weights [rows, columns], bias [1, columns], FP8 scale, limits of the result."""

    weight: Any
    bias: Any = None
    scale: Any = None
    upper: Any = None
    lower: Any = None
    stream: Any = None  # MX: the weights, if they are in SBUF already
    stored: Tensor = None  # MX: where the results are stored, [columns, tokens] in HBM


@dataclass
class MLPParameters(nl.NKIObject):
    """What the caller asked for; names as in the manual, projections as objects."""

    hidden: Any
    gate: Linear
    up: Linear
    down: Linear
    fused_add: Any = None
    store_add: bool = False
    norm: NormType = NormType.NO_NORM
    gamma: Any = None
    beta: Any = None
    eps: float = 0.0
    act_fn: ActFnType = ActFnType.SiLU
    skip_gate: bool = False
    quantization: QuantizationType = QuantizationType.NONE
    gate_up_in_scale: Any = None
    down_in_scale: Any = None
    clipping_bound: float = 0.0
    dtype_mode: DtypeMode = DtypeMode.NON_OCP
    output_dtype: DTypeLike = None
    mode: ComputationMode = ComputationMode.DECODE
    output_in_sbuf: bool = False
    gate_up_column_tiling: bool = False
    down_column_tiling: bool = False
    down_optimized_layout: bool = False
    transposed_in: bool = False
    transposed_out: bool = False
    tiles: Any = None  # of a manual SBUF manager
    mx_map: Any = None  # MX weights: where each element of the hidden dimension stands
    mx_by_tile: bool = False  # their scales are a part of a tensor, in which rows do not follow each other


# ---- sizes and dtypes ----------------------------------------------------------------------------


def hidden_size(p: MLPParameters) -> int:
    return p.up.weight.shape[0] if p.mx_map is None else MX_TILE * p.up.weight.shape[1]


def intermediate_size(p: MLPParameters) -> int:
    return p.up.weight.shape[1] if p.mx_map is None else p.up.weight.shape[2]


def input_in_sbuf(p: MLPParameters) -> bool:
    return is_in_sbuf(p.hidden)


def token_count(p: MLPParameters) -> int:
    """B * S, whatever the layout of hidden."""
    return p.hidden.shape[3] if p.transposed_in else token_shapes.token_count(p.hidden)


def output_shape(p: MLPParameters) -> tuple[int, int, int]:
    """[B, S, H]; where hidden does not distinguish B and S, [1, T, H]."""
    if p.transposed_in or input_in_sbuf(p):
        return (1, token_count(p), hidden_size(p))
    return (p.hidden.shape[0], p.hidden.shape[1], hidden_size(p))


def is_prefill(p: MLPParameters) -> bool:
    if p.mode == ComputationMode.AUTO:
        return token_count(p) > TKG_BS_SEQLEN_THRESHOLD
    return p.mode == ComputationMode.PREFILL


def shares_columns(p: MLPParameters, n_prgs: int) -> bool:
    """True when cores share the columns of the weights, not the tokens: in decode, and if tokens are few."""
    few = token_count(p) <= FEW_TOKENS and intermediate_size(p) >= n_prgs
    return not is_prefill(p) or (n_prgs > 1 and few)


def arrives_quantized(p: MLPParameters) -> bool:
    """hidden is [B, S, H + 4], FP8 with the scale of each row behind it."""
    return p.hidden.dtype in FP8


def row_widths(p: MLPParameters) -> tuple:
    """How long a row of hidden may be. Packed MXFP8 has 128 bytes of scales for a tile, or for four."""
    size = hidden_size(p)
    if not arrives_quantized(p):
        return (size,)
    if p.quantization != QuantizationType.MX:
        return (size + SCALE_BYTES,)
    tiles = size // MX_TILE
    return (size + SCALE_BYTES, size + PMAX * div_ceil(tiles, PACKED_TILES), size + PMAX * tiles)


def arrives_packed(p: MLPParameters) -> bool:
    """hidden is MXFP8, [B, S, H + bytes of scales] as rmsnorm_mx_prefill packs it."""
    return arrives_quantized(p) and p.hidden.shape[2] > hidden_size(p) + SCALE_BYTES


def quantizes_activations(p: MLPParameters) -> bool:
    """True when the matmuls take FP8 activations."""
    if p.quantization == QuantizationType.STATIC:
        return is_prefill(p) or output_shape(p) + (intermediate_size(p),) == QUANTIZED_DECODE
    return quantizes_by_token(p)


def quantizes_by_token(p: MLPParameters) -> bool:
    """ROW, in prefill; in decode only what arrives quantised, or where a bound is given."""
    wanted = is_prefill(p) or arrives_quantized(p) or p.clipping_bound > 0.0
    return p.quantization == QuantizationType.ROW and wanted


def matmul_dtype(p: MLPParameters) -> Any:
    """What activations are rounded to for a matmul: the weights' dtype; 16 bits where those alone are FP8."""
    if p.quantization == QuantizationType.NONE and p.up.weight.dtype not in FP8:
        return p.up.weight.dtype
    if quantizes_activations(p):
        return resolve_fp8_dtype(p.dtype_mode)
    return sixteen_bit_dtype(p.hidden.dtype)


def result_dtype(p: MLPParameters) -> Any:
    if p.output_dtype is not None:
        return p.output_dtype
    return nl.bfloat16 if arrives_quantized(p) else p.hidden.dtype
