"""What both output projections demand of their operands, and how these are quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import nki.language as nl
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.fp8 import load_scalar, product_of, quantize_static, reciprocal_of
from nkilib.core.utils.kernel_assert import assert_members, assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_max_positive_value_for_dtype, resolve_fp8_dtype
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import Tiles
from nkilib.core.utils.types import Tensor

FLOATS = (nl.bfloat16, nl.float16, nl.float32)


@dataclass
class OperandNames(nl.NKIObject):
    """What the caller knows its arguments by."""

    input_scale: str
    weight_scale: str
    weight: str = "weight"
    bias: str = "bias"
    quantization: str = "quantization_type"


@dataclass
class Operands(nl.NKIObject):
    """The arguments of an output projection."""

    attention: Any
    weight: Any
    bias: Any
    quantization: QuantizationType
    input_scale: Any
    weight_scale: Any
    dtype_mode: DtypeMode
    names: OperandNames
    tiles: Any = None  # of a manual SBUF manager
    compact: bool = False  # MX: one scale for 128 x 128 weights


def check_kinds(p: Operands, shape: str) -> None:
    """Tensors are tensors, attention one of four dimensions, and options members of their enumerations."""
    n = p.names
    assert_tensors(
        (("attention", p.attention), (n.weight, p.weight)),
        ((n.bias, p.bias), (n.input_scale, p.input_scale), (n.weight_scale, p.weight_scale)),
    )
    assert_members(
        (n.quantization, p.quantization, QuantizationType), ("dtype_mode", p.dtype_mode, DtypeMode)
    )
    got = tuple(p.attention.shape)
    kernel_assert(len(got) == 4, f"attention: got shape {got}, expected {shape}")


def check_operands(p: Operands, rows: int, depth: int, n_prgs: int) -> None:
    """`rows` is N * D, `depth` is D."""
    name = p.names.weight
    kernel_assert(depth <= PMAX, f"attention: got D = {depth}, allowed are at most 128")
    kernel_assert(
        len(p.weight.shape) == 2 and p.weight.shape[0] == rows,
        f"{name}: got shape {tuple(p.weight.shape)}, expected ({rows}, H), N * D = {rows} rows",
    )
    columns = p.weight.shape[1]
    kernel_assert(
        columns % n_prgs == 0, f"{name}: got H = {columns}, {n_prgs} cores take multiples of {n_prgs}"
    )
    if p.bias is not None:
        assert_shape(p.bias, (1, columns), p.names.bias)
    check_dtypes(p)
    check_scales(p)


def check_dtypes(p: Operands) -> None:
    fp8, name = resolve_fp8_dtype(p.dtype_mode), p.names.weight
    if p.quantization == QuantizationType.NONE:
        kernel_assert(p.weight.dtype in FLOATS, f"{name}: got {p.weight.dtype}, allowed are {FLOATS}")
        kernel_assert(
            p.attention.dtype in FLOATS, f"attention: got {p.attention.dtype}, allowed are {FLOATS}"
        )
    else:
        kernel_assert(
            p.weight.dtype == fp8,
            f"{name}: got {p.weight.dtype}, expected {fp8} with {p.quantization} and {p.dtype_mode}",
        )
        kernel_assert(
            p.attention.dtype == fp8 or p.attention.dtype in FLOATS,
            f"attention: got {p.attention.dtype}, allowed are {fp8} and {FLOATS}",
        )


def check_scales(p: Operands) -> None:
    input_name, weight_name = p.names.input_scale, p.names.weight_scale
    if p.quantization == QuantizationType.NONE:
        kernel_assert(p.weight_scale is None, f"{weight_name}: got one with QuantizationType.NONE")
    else:
        kernel_assert(p.weight_scale is not None, f"{weight_name}: got None, needed by {p.quantization}")
        columns = p.weight.shape[1] if p.quantization == QuantizationType.ROW else 1
        assert_shape(p.weight_scale, (PMAX, columns), weight_name)
    if p.quantization == QuantizationType.STATIC:
        kernel_assert(p.input_scale is not None, f"{input_name}: got None, needed by {p.quantization}")
        assert_shape(p.input_scale, (PMAX, 1), input_name)
    else:
        kernel_assert(
            p.input_scale is None, f"{input_name}: got one with {p.quantization}, allowed only with STATIC"
        )


# ---- dtypes and scales ---------------------------------------------------------------------------


def result_dtype(p: Operands) -> Any:
    """That of attention; bfloat16 where that is FP8, packed or not."""
    return p.attention.dtype if p.attention.dtype in FLOATS else nl.bfloat16


def quantizes(p: Operands) -> bool:
    """STATIC quantises what is not FP8 yet."""
    return p.quantization == QuantizationType.STATIC and p.attention.dtype not in FP8


def matmul_dtype(p: Operands) -> Any:
    """What attention is rounded to: the weights' dtype, or 16 bits where only those are FP8 (ROW)."""
    if p.quantization == QuantizationType.NONE or quantizes(p):
        return p.weight.dtype
    return nl.bfloat16 if p.attention.dtype == nl.float32 else p.attention.dtype


def column_scale(p: Operands) -> Any:
    """The scale of each column that ROW weights have, in HBM."""
    return p.weight_scale if p.quantization == QuantizationType.ROW else None


class OutputStaticScales(nl.NKIObject):
    """STATIC: what the sums and what attention are multiplied by, [128, 1] in SBUF. Otherwise None."""

    def __init__(self, p: Operands):
        static = p.quantization == QuantizationType.STATIC
        scale = load_scalar(p.input_scale, p.tiles) if static else None
        self.inverse = reciprocal_of(scale, p.tiles) if quantizes(p) else None
        self.sums = product_of(scale, load_scalar(p.weight_scale, p.tiles), p.tiles) if static else None


def quantize(dst: Tensor, x: Tensor, scales: OutputStaticScales, tiles: Tiles | None = None) -> None:
    """dst = fp8(x / input scale)"""
    quantize_static(dst, x, scales.inverse, get_max_positive_value_for_dtype(dst.dtype), tiles)


# ---- reference -----------------------------------------------------------------------------------


def projected_ref(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    kind: QuantizationType,
    input_scale: Any,
    weight_scale: Any,
    mode: DtypeMode,
):
    """x [tokens, N D] times weight in float64, with what STATIC and ROW do."""
    fp8, largest = (
        (ml_dtypes.float8_e4m3fn, 448.0) if mode == DtypeMode.OCP else (ml_dtypes.float8_e4m3, 240.0)
    )
    wide, factor = np.asarray(x, np.float64), 1.0
    if kind == QuantizationType.STATIC:
        factor = np.float64(input_scale[0, 0])
        if x.dtype != fp8:
            wide = np.clip(wide / factor, -largest, largest).astype(fp8).astype(np.float64)
    y = wide @ np.asarray(weight, np.float64) * factor
    y = y if weight_scale is None else y * np.asarray(weight_scale, np.float64)[0]
    return y if bias is None else y + np.asarray(bias, np.float64)
