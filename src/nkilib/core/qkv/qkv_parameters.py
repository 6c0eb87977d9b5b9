"""The arguments of the QKV kernels in one object, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import nki.language as nl
from nkilib.core.utils.common_types import DtypeMode, NormType, QKVOutputLayout, QuantizationType
from nkilib.core.utils.kernel_helpers import resolve_fp8_dtype
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.token_shapes import is_in_sbuf, sixteen_bit_dtype
from nkilib.core.utils.types import Tensor

SCALE_BYTES = 4  # the float32 scale at the end of a row that is already quantised
WORD = 4  # elements of H in a word of MX weights
Q, K, V = 0, 1, 2  # sections of the columns


@dataclass
class ArgumentNames(nl.NKIObject):
    """What the caller knows its arguments by: those of `qkv` unless given."""

    input: str = "input"
    weight: str = "fused_qkv_weights"
    bias: str = "bias"
    quantization: str = "quantization_type"
    w_scale: str = "qkv_w_scale"
    in_scale: str = "qkv_in_scale"
    residual: str = "fused_residual_add"
    residuals: tuple = ("mlp_prev", "attention_prev")
    norm: str = "fused_norm_type"
    gamma: str = "gamma_norm_weights"
    beta: str = "layer_norm_bias"
    eps: str = "norm_eps"
    hidden_actual: str = "hidden_actual"
    swizzled: str = "is_h_dim_4h_transposed"


@dataclass
class HeadNorm(nl.NKIObject):
    """A norm of every query and key head, before or after RoPE: (queries, keys) of each."""

    norms: tuple = (None, None)
    gammas: tuple = (None, None)  # [1, d] in HBM
    betas: tuple = (None, None)
    eps: float = 1e-6


@dataclass
class RopeTables(nl.NKIObject):
    """Tables [B, S, d] in HBM: (queries, keys) of each."""

    cos: tuple
    sin: tuple


@dataclass
class Cache(nl.NKIObject):
    """Where keys and values go: (keys, values) of each."""

    tensors: tuple
    scales: tuple = (None, None)
    largest: float = 0.0
    smallest: float = 0.0
    transposed: bool = False  # keys
    packed: bool = False  # two keys side by side in FP8
    block_size: Any = 0  # 0: a row for each position
    slots: Any = None


@dataclass
class QKVParameters(nl.NKIObject):
    """What the caller asked for."""

    input: Any
    weight: Any
    layout: QKVOutputLayout = QKVOutputLayout.BSD
    bias: Any = None
    quantization: QuantizationType = QuantizationType.NONE
    w_scale: Any = None
    in_scale: Any = None
    residuals: tuple = ()
    norm: NormType = NormType.NO_NORM
    gamma: Any = None
    beta: Any = None
    eps: float = 1e-6
    hidden_actual: Any = None
    d_head: Any = None
    q_heads: Any = None
    kv_heads: Any = None
    rope: Any = None
    before_rope: Any = None
    after_rope: Any = None
    cache: Any = None
    square_sums: tuple = (None, None, None)
    transposed_in: bool = False
    dma_transpose: bool = True
    output_in_sbuf: bool = False
    output_hbm: Any = None
    dtype_mode: DtypeMode = DtypeMode.NON_OCP
    in_float32: bool = False  # multiply float32 tokens and weights as they are
    mx_map: Tensor = None  # MX weights: words [H / 4, I], and where each element of H stands
    names: ArgumentNames = field(default_factory=ArgumentNames)


# ---- sizes ---------------------------------------------------------------------------------------


def hidden_size(p: QKVParameters) -> int:
    return p.weight.shape[0] if p.mx_map is None else WORD * p.weight.shape[0]


def columns_of(p: QKVParameters) -> int:
    return p.weight.shape[1]


def normalized_size(p: QKVParameters) -> int:
    """By how many elements a norm divides."""
    return hidden_size(p) if p.hidden_actual is None else p.hidden_actual


def input_in_sbuf(p: QKVParameters) -> bool:
    return is_in_sbuf(p.input)


def batch_shape(p: QKVParameters) -> tuple[int, int]:
    """(B, S); (1, T) where the input does not distinguish them."""
    if input_in_sbuf(p):
        return (1, p.input.shape[1])
    return (p.input.shape[0], p.input.shape[2] if p.transposed_in else p.input.shape[1])


def token_count(p: QKVParameters) -> int:
    batches, sequence = batch_shape(p)
    return batches * sequence


def knows_heads(p: QKVParameters) -> bool:
    return p.d_head is not None and p.q_heads is not None and p.kv_heads is not None


def output_columns(p: QKVParameters) -> int:
    """Those of the weights, or of the queries where keys and values go to the cache."""
    return columns_of(p) if p.cache is None else p.q_heads * p.d_head


def output_shape(p: QKVParameters) -> tuple:
    batches, sequence = batch_shape(p)
    if p.layout == QKVOutputLayout.BSD:
        return (batches, sequence, output_columns(p))
    heads = output_columns(p) // p.d_head
    if p.layout == QKVOutputLayout.NBSd:
        return (heads, batches, sequence, p.d_head)
    return (heads, batches, p.d_head, sequence)


@dataclass
class Piece(nl.NKIObject):
    """Some columns of one section: `column` counts from the first of the weights."""

    section: int
    column: int
    columns: int


def pieces(p: QKVParameters, column: int, columns: int) -> list:
    """The columns column ... column + columns by section; all are queries if heads are unknown."""
    if not knows_heads(p):
        return [Piece(Q, column, columns)]
    q_end = p.q_heads * p.d_head
    ends = (q_end, q_end + p.kv_heads * p.d_head, columns_of(p))
    found = []
    start = column
    for section in (Q, K, V):
        end = min(column + columns, ends[section])
        if start < end:
            found.append(Piece(section, start, end - start))
            start = end
    return found


# ---- dtypes --------------------------------------------------------------------------------------


def arrives_quantized(p: QKVParameters) -> bool:
    """input is [B, S, H + 4], FP8 with the scale of each row behind it."""
    return p.input.dtype in FP8


def quantizes(p: QKVParameters) -> bool:
    """STATIC quantises the tokens."""
    return p.quantization == QuantizationType.STATIC and not arrives_quantized(p)


def matmul_dtype(p: QKVParameters) -> Any:
    """What tokens are rounded to: 16 bits, or FP8 where the input is or STATIC makes them so."""
    if arrives_quantized(p):
        return p.input.dtype
    if quantizes(p):
        return p.weight.dtype if p.weight.dtype in FP8 else resolve_fp8_dtype(p.dtype_mode)
    return nl.float32 if p.in_float32 else sixteen_bit_dtype(p.input.dtype)


def weight_dtype(p: QKVParameters) -> Any:
    """What weights are rounded to on their way: None if they stay as they are."""
    return nl.bfloat16 if p.weight.dtype == nl.float32 and not p.in_float32 else None


def result_dtype(p: QKVParameters) -> Any:
    if p.output_hbm is not None:
        return p.output_hbm.dtype
    return nl.float32 if p.in_float32 else sixteen_bit_dtype(p.input.dtype)


# ---- what has to be done -------------------------------------------------------------------------


def norms_across_heads(p: QKVParameters) -> bool:
    """True when a norm needs all heads of a section at once."""
    across = NormType.RMS_NORM_ACROSS_HEADS
    return (p.before_rope is not None and across in p.before_rope.norms) or (
        p.after_rope is not None and across in p.after_rope.norms
    )


def touches_heads(p: QKVParameters) -> bool:
    """True when something follows the projection and its bias, so that its values stay in float32."""
    wants_sums = p.square_sums[Q] is not None or p.square_sums[K] is not None or p.square_sums[V] is not None
    changed = p.rope is not None or p.before_rope is not None or p.after_rope is not None
    return changed or wants_sums or p.cache is not None
