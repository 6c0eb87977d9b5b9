"""RMSNorm of a few tokens with residual, into the layout that decode kernels multiply from, and MX of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.subkernels.norm_layouts import check_norm, normalized_tiles
from nkilib.core.subkernels.rmsnorm_tkg import rmsnorm_tkg_ref
from nkilib.core.utils.fp8 import quantize_rows, reciprocal_of, row_maximum
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, refuse_without_effect
from nkilib.core.utils.kernel_helpers import get_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.mx_layout import LANES, ONE, QUADRANT, TILE
from nkilib.core.utils.mx_rows import check_mx, element_dtype
from nkilib.core.utils.mx_weight_loads import SCALE_ROWS
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor


@nki.jit
def rmsnorm_mx_quantize_tkg(
    input: Tensor,
    gamma: Tensor,
    output: Tensor,
    output_quant: Tensor,
    output_scale: Tensor,
    residual: Tensor | None = None,
    output_residual: Tensor | None = None,
    eps: float = 1e-6,
    hidden_actual: int | None = None,
    is_static_mx: bool = False,
    output_row_dequant_scale: Tensor | None = None,
    gate_up_in_scale: Tensor | None = None,
) -> tuple:
    """output = RMSNorm(input + residual) * gamma, and the same numbers as MX in output_quant, output_scale.

    input and residual are [B, S, H] in HBM, T = B S, H a multiple of 512, gamma [1, H]. Column 128 j + p of
    token t is at [p, t, j] of output [128, T, H/128], in float16 or bfloat16. Word [p, i, t] of output_quant
    [128, H/512, T], four-packed FP8, holds the columns q H/4 + 128 i + p, q = 0 ... 3; its scale, for 8
    partitions, is at [32 g + r, i, t] of output_scale, uint8 of the same shape, r = 0 ... 3, other rows are
    left as they are. output_residual [T, H] receives the sum that is normalised. hidden_actual counts the
    columns that are not padding. Outputs are in SBUF, where every core has all of them, or in HBM.

    With is_static_mx words hold FP8(output / s), clipped, and all scales are 1 (127): s is the number in
    gate_up_in_scale, default 1. With output_row_dequant_scale, float32 [T, 1] in HBM, it receives a scale for
    each token, its largest magnitude over that of FP8; words hold FP8(output / scale), scales are 1 too.

    Returns (output, output_quant, output_scale), with a residual output_residual too. The original has no
    page; arguments and layouts are those that its published test uses. The release notes name the two
    options of scales; their shapes, and that the static one is an argument, are ours.

    >>> import os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, out = np.full((2, 1, 512), 3, np.float16), np.zeros((128, 2, 4), np.float16)
    >>> words = np.zeros((128, 1, 2), np.uint32).view(nki.mx.x4_dtype("mxfp8"))
    >>> gamma, scales = np.ones((1, 512), np.float16), np.zeros((128, 1, 2), np.uint8)
    >>> result = rmsnorm_mx_quantize_tkg(x, gamma, out, words, scales)
    >>> float(result[0].min()), result[2][:5, 0, 0].tolist()
    (1.0, [120, 120, 120, 120, 0])
    """
    check_mx("rmsnorm_mx_quantize_tkg")
    check_norm(input, gamma, output)
    check_words(input, output, output_quant, output_scale, residual, output_residual, hidden_actual)
    size, tokens = gamma.shape[1], output.shape[1]
    narrow = None
    if is_static_mx or output_row_dequant_scale is not None:
        narrow = NarrowTokens(output, output_quant, is_static_mx, gate_up_in_scale, output_row_dequant_scale)
    refuse_without_effect(is_static_mx, "is_static_mx", (("gate_up_in_scale", gate_up_in_scale),))
    factors = broadcast_row(gamma, 0, size, min(PMAX, tokens))
    columns = output
    if is_hbm_buffer(output):
        columns = nl.ndarray(output.shape, output.dtype, buffer=nl.sbuf)
    for tile in normalized_tiles(input, output):
        rows = tile.rows
        if residual is not None:
            rows = with_residual(rows, residual, output_residual, tile.start)
        rms_norm(tile.result, rows, factors, eps, hidden_actual)
        place = columns[:, tile.start : tile.start + rows.shape[0], :]
        transpose_rows(place.permute((0, 2, 1)), 0, 0, tile.result)
        if narrow is not None:
            narrow.add(tile.result, tile.start)
    if narrow is None:
        quantize_tokens_into(columns, output_quant, output_scale)
    else:
        narrow.put(output_quant, output_scale)
    if is_hbm_buffer(output) and is_first_core():
        nisa.dma_copy(output, columns)
    if residual is None:
        return output, output_quant, output_scale
    return output, output_quant, output_scale, output_residual


def is_first_core() -> bool:
    return get_program_sharding_info()[2] == 0


def check_words(
    input: Tensor,
    output: Tensor,
    words: Tensor,
    scales: Tensor,
    residual: Tensor | None,
    total: Tensor | None,
    actual: int | None,
) -> None:
    assert_tensors(
        (("output_quant", words), ("output_scale", scales)),
        (("residual", residual), ("output_residual", total)),
    )
    kernel_assert(is_hbm_buffer(input), "input: got a tile, expected a tensor [B, S, H] in HBM")
    size, tokens = input.shape[2], output.shape[1]
    kernel_assert(size % TILE == 0, f"input: got H = {size}, MX takes multiples of {TILE}")
    kernel_assert(
        output.dtype in (nl.float16, nl.bfloat16),
        f"output: got dtype {output.dtype}, expected float16 or bfloat16",
    )
    assert_shape(words, (PMAX, size // TILE, tokens), "output_quant")
    assert_shape(scales, (PMAX, size // TILE, tokens), "output_scale")
    kernel_assert(
        element_dtype(words.dtype) is not None,
        f"output_quant: got dtype {words.dtype}, allowed are float8_e4m3fn_x4 and float8_e5m2_x4",
    )
    kernel_assert(
        actual is None or 1 <= actual <= size, f"hidden_actual: got {actual}, allowed are 1 to H = {size}"
    )
    kernel_assert(
        (residual is None) == (total is None),
        "output_residual: expected together with residual, and not without it",
    )
    if residual is not None:
        assert_shape(residual, tuple(input.shape), "residual")
        assert_shape(total, (tokens, size), "output_residual")


def with_residual(rows: Tensor, residual: Tensor, out: Tensor, start: int) -> Tensor:
    """rows + residual in the dtype of out, stored there by the first core."""
    end = start + rows.shape[0]
    total = nl.ndarray(rows.shape, out.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(total, rows, load(residual.reshape(tuple(out.shape))[start:end]), nl.add)
    if is_first_core():
        nisa.dma_copy(out[start:end], total)
    return total


class NarrowTokens(nl.NKIObject):
    """Tokens over a scale, of all or of each, with columns in the partitions: FP8 without blocks."""

    def __init__(
        self, output: Tensor, words: Tensor, static: bool, scale: Tensor | None, by_row: Tensor | None
    ):
        kernel_assert(
            not static or by_row is None, "output_row_dequant_scale: got one, allowed without is_static_mx"
        )
        self.element = element_dtype(words.dtype)
        self.largest = 448.0 if self.element == nl.float8_e4m3fn else 57344.0
        self.by_row = by_row
        self.inverse: Any = None
        if by_row is not None:
            assert_shape(by_row, (output.shape[1], 1), "output_row_dequant_scale")
        elif scale is not None:
            kernel_assert(scale.size == 1, f"gate_up_in_scale: got {scale.size} elements, expected 1")
            given = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(given, scale.reshape((1, 1)).broadcast(0, PMAX))
            self.inverse = reciprocal_of(given)
        self.columns = nl.ndarray(output.shape, nl.float32, buffer=nl.sbuf)

    def add(self, rows: Tensor, start: int) -> None:
        """Scale some tokens, rows [tokens, H], the first of which is `start`."""
        count = rows.shape[0]
        scaled = nl.ndarray(rows.shape, nl.float32, buffer=nl.sbuf)
        if self.by_row is not None:
            scale = quantize_rows(scaled, rows, row_maximum(rows), self.largest)
            if is_first_core():
                nisa.dma_copy(self.by_row[start : start + count], scale)
        else:
            factor = 1.0 if self.inverse is None else self.inverse[0:count]
            nisa.tensor_scalar(scaled, rows, nl.multiply, factor, op1=nl.minimum, operand1=self.largest)
            nisa.tensor_scalar(scaled, scaled, nl.maximum, -self.largest)
        transpose_rows(self.columns[:, start : start + count, :].permute((0, 2, 1)), 0, 0, scaled)

    def put(self, words: Tensor, scales: Tensor) -> None:
        """Round all tokens; their scales are 1."""
        own = nl.ndarray(words.shape, words.dtype, buffer=nl.sbuf) if is_hbm_buffer(words) else words
        lanes = lanes_of(self.columns)
        nisa.tensor_copy(own.view(self.element).reshape(lanes.shape), lanes)
        if is_hbm_buffer(words) and is_first_core():
            nisa.dma_copy(words, own)
        ones = nl.ndarray((SCALE_ROWS, scales.shape[1], scales.shape[2]), nl.uint8, buffer=nl.sbuf)
        nisa.memset(ones, ONE)
        if is_first_core() or not is_hbm_buffer(scales):
            for quadrant in range(PMAX // QUADRANT):
                rows = slice(QUADRANT * quadrant, QUADRANT * quadrant + SCALE_ROWS)
                nisa.dma_copy(scales[rows], ones)


def lanes_of(columns: Tensor) -> Any:
    """Columns [128, T, H/128] as [128, H/512, T, 4], whose lanes are the quarters of H."""
    shape = (PMAX, columns.shape[1], LANES, columns.shape[2] // LANES)
    return columns.reshape(shape).permute((0, 3, 1, 2))


def quantize_tokens_into(columns: Tensor, words: Tensor, scales: Tensor) -> None:
    """MX of columns [128, T, H/128]."""
    own_words, own_scales = words, scales
    if is_hbm_buffer(words):
        own_words = nl.ndarray(words.shape, words.dtype, buffer=nl.sbuf)
    if is_hbm_buffer(scales):
        own_scales = nl.ndarray(scales.shape, nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(own_words, lanes_of(columns), own_scales)
    if is_hbm_buffer(words) and is_first_core():
        nisa.dma_copy(words, own_words)
    if is_hbm_buffer(scales) and is_first_core():
        for quadrant in range(PMAX // QUADRANT):
            rows = slice(QUADRANT * quadrant, QUADRANT * quadrant + SCALE_ROWS)
            nisa.dma_copy(scales[rows], own_scales[rows])


def rmsnorm_mx_quantize_tkg_ref(
    input: np.ndarray,
    gamma: np.ndarray,
    residual: np.ndarray | None = None,
    eps: float = 1e-6,
    hidden_actual: int | None = None,
) -> Any:
    """Return the normalised tokens [T, H] in float64, not laid out, rounded or quantised."""
    total = np.asarray(input, np.float64)
    if residual is not None:
        total = total + np.asarray(residual, np.float64)
    return rmsnorm_tkg_ref(total, gamma, eps, hidden_actual)
