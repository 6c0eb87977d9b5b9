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
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import get_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.mx_layout import LANES, QUADRANT, TILE
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
) -> tuple:
    """output = RMSNorm(input + residual) * gamma, and the same numbers as MX in output_quant, output_scale.

    input and residual are [B, S, H] in HBM, T = B S, H a multiple of 512, gamma [1, H]. Column 128 j + p of
    token t is at [p, t, j] of output [128, T, H/128], in float16 or bfloat16. Word [p, i, t] of output_quant
    [128, H/512, T], four-packed FP8, holds the columns q H/4 + 128 i + p, q = 0 ... 3; its scale, for 8
    partitions, is at [32 g + r, i, t] of output_scale, uint8 of the same shape, r = 0 ... 3, other rows are
    left as they are. output_residual [T, H] receives the sum that is normalised. hidden_actual counts the
    columns that are not padding. Outputs are in SBUF, where every core has all of them, or in HBM.
    Returns (output, output_quant, output_scale), with a residual output_residual too. The original has no
    page; arguments and layouts are those that its published test uses. is_static_mx is named in the release
    notes alone, and refused.

    >>> import os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, out = np.full((2, 1, 512), 3, np.float16), np.zeros((128, 2, 4), np.float16)
    >>> words = np.zeros((128, 1, 2), np.uint32).view(nki.mx.x4_dtype("mxfp8"))
    >>> gamma, scales = np.ones((1, 512), np.float16), np.zeros((128, 1, 2), np.uint8)
    >>> result = rmsnorm_mx_quantize_tkg(x, gamma, out, words, scales)
    >>> float(result[0].min()), result[2][:5, 0, 0].tolist()
    (1.0, [120, 120, 120, 120, 0])
    """
    if is_static_mx:
        not_built("is_static_mx", "no public text describes static scales of this kernel")
    check_mx("rmsnorm_mx_quantize_tkg")
    check_norm(input, gamma, output)
    check_words(input, output, output_quant, output_scale, residual, output_residual, hidden_actual)
    size, tokens = gamma.shape[1], output.shape[1]
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
    quantize_tokens_into(columns, output_quant, output_scale)
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


def quantize_tokens_into(columns: Tensor, words: Tensor, scales: Tensor) -> None:
    """MX of columns [128, T, H/128], whose quarters are the lanes."""
    shape = (PMAX, columns.shape[1], LANES, columns.shape[2] // LANES)
    lanes = columns.reshape(shape).permute((0, 3, 1, 2))
    own_words, own_scales = words, scales
    if is_hbm_buffer(words):
        own_words = nl.ndarray(words.shape, words.dtype, buffer=nl.sbuf)
    if is_hbm_buffer(scales):
        own_scales = nl.ndarray(scales.shape, nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(own_words, lanes, own_scales)
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
