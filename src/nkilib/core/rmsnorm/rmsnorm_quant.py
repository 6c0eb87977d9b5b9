"""RMSNorm and quantisation to FP8 in one pass over the rows.

The inverse RMS of a row is one number, so it never meets the row by itself: with y = x * gamma, the largest
|n| of a row is inv * max|y|, and q = y * (inv / scale). Three passes remain: the Scalar engine squares and
sums, the Vector engine multiplies by gamma and finds the largest, the Scalar engine scales and casts.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.quantization.fp8_quantize import MINIMUM_SCALE, fp8
from nkilib.core.rmsnorm.rmsnorm_quant_arguments import RmsNormQuantKernelArgs, check_arguments
from nkilib.core.rmsnorm.rmsnorm_quant_job import ROWS, QuantizeJob
from nkilib.core.rmsnorm.rmsnorm_quant_rows import finish, prepare
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_helpers import (
    get_max_positive_value_for_dtype,
    program_share,
    resolve_fp8_dtype,
)
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor


@nki.jit
def rmsnorm_quant_kernel(
    hidden: Tensor,
    ln_w: Tensor,
    kargs: RmsNormQuantKernelArgs,
    input_dequant_scale: Tensor | None = None,
    pre_norm_gamma: Tensor | None = None,
    residual: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    auto_resolve_fp8_dtype: bool | None = None,
):
    """RMSNorm of every row, quantised to FP8, the scale of the row in the last four bytes.

    x = hidden; with pre_norm_gamma x = RMSNorm(x) * pre_norm_gamma; with residual x = x + residual, and x is
    returned too. n = RMSNorm(x) * ln_w with RMSNorm(x) = x / sqrt(mean(x^2) + eps), or x for NO_NORM. F is
    the largest value of the FP8 dtype, c is kargs.lower_bound, which every caller gives and ROW alone uses.

    ROW:    s = max(min(max|n|, c) / F, 1e-5), q = fp8(clip(n, -c, c) / s); without c where it is 0
    STATIC: q = fp8(clip(n / input_dequant_scale, -F, F))

    Args:
        hidden: [..., H], at least 2-D, bfloat16, float16 or float32. H <= 16384; 3-D: [<= 32, <= 32768, H].
        ln_w: [H] or [1, H]; may be None for NO_NORM.
        kargs: RmsNormQuantKernelArgs.
        input_dequant_scale: its first element is the scale of STATIC.
        pre_norm_gamma: [H] or [1, H].
        residual: the shape of hidden.
        dtype_mode: float8_e4m3 (NON_OCP), float8_e4m3fn (OCP), or by the hardware (AUTO).
        auto_resolve_fp8_dtype: the same of release 2.30: True is AUTO, False NON_OCP.

    Returns:
        FP8 [..., H + 4] for ROW: columns H to H+3 are the bytes of the float32 s. [..., H] for STATIC.
        With residual: (that, x in the dtype of hidden).

    On two cores each takes half of the rows.

    >>> x = np.array([[3.0, -4.0, 0.0, 0.0]], np.float32)
    >>> packed = rmsnorm_quant_kernel(x, np.ones(4, np.float32), RmsNormQuantKernelArgs(lower_bound=0.0))
    >>> packed[:, :4].astype(float).tolist()  # n is x / 2.5; its largest becomes 240
    [[176.0, -240.0, 0.0, 0.0]]
    >>> round(float(packed[:, 4:].view(np.float32)[0, 0] * 240), 4)
    1.6
    """
    if auto_resolve_fp8_dtype is not None:
        dtype_mode = DtypeMode.AUTO if auto_resolve_fp8_dtype else DtypeMode.NON_OCP
    check_arguments(hidden, ln_w, kargs, input_dequant_scale, pre_norm_gamma, residual)
    job = QuantizeJob(hidden, kargs, resolve_fp8_dtype(dtype_mode), residual)
    job.plan(ln_w, pre_norm_gamma, input_dequant_scale)
    start, end = program_share(job.hidden.shape[0])
    waiting = []
    for rows in TiledRange(TiledRangeIterator(end - start, 0, start, end), ROWS):
        waiting.append(prepare(job, rows))
        if len(waiting) > job.ahead:
            finish(job, waiting.pop(0))
    for prepared in waiting:
        finish(job, prepared)
    return job.results()


# ---- reference


def rmsnorm_quant_kernel_ref(
    hidden: np.ndarray,
    ln_w: np.ndarray,
    kargs: RmsNormQuantKernelArgs,
    input_dequant_scale: np.ndarray | None = None,
    pre_norm_gamma: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    dtype: DTypeLike = nl.float8_e4m3,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """(q, s of each row or None, residual_out or None), in float64."""

    def rms_norm(x, gamma):
        root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + kargs.eps)
        return x / root * np.asarray(gamma, np.float64).reshape(-1)

    x = np.asarray(hidden, np.float64)
    if pre_norm_gamma is not None:
        x = rms_norm(x, pre_norm_gamma)
    if residual is not None:
        x = x + np.asarray(residual, np.float64)
    n = rms_norm(x, ln_w) if kargs.needs_rms_normalization() else x
    total = None if residual is None else x
    if kargs.quantization_type == QuantizationType.STATIC:
        return fp8(n / float(np.asarray(input_dequant_scale).flat[0]), dtype), None, total
    bound = kargs.lower_bound if kargs.has_lower_bound() else np.inf
    n = np.clip(n, -bound, bound)
    largest = np.abs(n).max(axis=-1, keepdims=True)
    scale = np.maximum(largest / get_max_positive_value_for_dtype(dtype), MINIMUM_SCALE)
    return fp8(n / scale, dtype), scale, total
