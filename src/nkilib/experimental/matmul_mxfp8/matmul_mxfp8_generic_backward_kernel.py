"""Gradients of a linear layer in MXFP8: two products of the same operands as the forward one."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert, not_built
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MatmulMxfp8KernelConfig, check_config
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel import (
    check_output_dtype,
    operand_of,
    store_product,
)
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import packed_dtype


@nki.jit
def matmul_mxfp8_backward(
    output_grad: Tensor,
    weights: Tensor | tuple[Tensor, Tensor],
    input_activation: Tensor | tuple[Tensor, Tensor],
    input_grad_config: MatmulMxfp8KernelConfig | None = None,
    weight_grad_config: MatmulMxfp8KernelConfig | None = None,
    tile_loop_order: str = "mnk",
    float8_dtype: str = "float8_e5m2",
    output_dtype: DTypeLike = nl.bfloat16,
    run_with_lnc2: bool = True,
    lnc_2_shard_rhs: bool = True,
    output_grad_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
    input_scales: Tensor | None = None,
    use_scale_packing: bool = False,
    spill_reload: bool = False,
    output_grad_is_swizzled: bool = False,
    weights_is_swizzled: bool = False,
    input_is_swizzled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return (dX, dW) of Y = X W^T: dX = mx(dY) mx(W) and dW = mx(dY)^T mx(X), summed in float32.

    mx() quantises blocks of 32 along the contraction: N for dX, M for dW. So dY is quantised twice.

    Args:
        output_grad: dY [M, N] bfloat16 or float16.
        weights: W [N, K]; swizzled [N/4, 4K]; or elements with scales, [N/4, 4K] FP8 or [N/4, K] four-packed.
        input_activation: X [M, K]; swizzled [M/4, 4K]; or elements with scales, as of the weights.
        weight_scales, input_scales: of quantised elements, [N/4, K] and [M/4, K] or packed.
        float8_dtype: what 16-bit operands are quantised to, "float8_e4m3fn" or "float8_e5m2".
        output_dtype: of both gradients.
        run_with_lnc2, lnc_2_shard_rhs: on a grid of two cores, share K (True) or the rows of each (False).
        use_scale_packing: scales must be packed.
        output_grad_scales, output_grad_is_swizzled: refused, as no layout of blocks serves both products.
        input_grad_config, weight_grad_config, tile_loop_order, spill_reload: hints for the schedule, which
            this kernel chooses itself. They are checked and have no effect.

    M and N are multiples of 128 (best 512), K of 8. Returns dX [M, K] and dW [N, K].

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> dy, w, x = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((128, 256), (256, 8), (128, 8)))
    >>> [gradient[0, 0] for gradient in matmul_mxfp8_backward(dy, w, x)]
    [256, 128]
    """
    check_config("input_grad_config.", input_grad_config)
    check_config("weight_grad_config.", weight_grad_config)
    check_config("", MatmulMxfp8KernelConfig(tile_loop_order=tile_loop_order))
    check_output_dtype(output_dtype)
    if output_grad_scales is not None:
        not_built("output_grad_scales", "dX and dW contract different dimensions of it, blocks have one")
    if output_grad_is_swizzled:
        not_built("output_grad_is_swizzled", "dX and dW contract different dimensions of it")
    dtype = packed_dtype("float8_dtype", float8_dtype)
    of_rows = operand_of("output_grad", output_grad, None, False, True, False, dtype, "wrapX")
    of_columns = operand_of("output_grad", output_grad, None, False, False, False, dtype, "wrapX")
    w = operand_of(
        "weights", weights, weight_scales, weights_is_swizzled, False, use_scale_packing, dtype, "wrapX"
    )
    x = operand_of(
        "input_activation",
        input_activation,
        input_scales,
        input_is_swizzled,
        False,
        use_scale_packing,
        dtype,
        "wrapX",
    )
    m, n, k = of_rows.features, of_rows.contraction, w.features
    kernel_assert(w.contraction == n, f"weights: is [{w.contraction}, {k}], expected [{n}, K]")
    kernel_assert(
        x.contraction == m and x.features == k,
        f"input_activation: is [{x.contraction}, {x.features}], expected [{m}, {k}]",
    )
    input_grad = nl.ndarray((m, k), output_dtype, buffer=nl.shared_hbm)
    weight_grad = nl.ndarray((n, k), output_dtype, buffer=nl.shared_hbm)
    store_product(input_grad, of_rows, w, lnc_2_shard_rhs, run_with_lnc2)
    store_product(weight_grad, of_columns, x, lnc_2_shard_rhs, run_with_lnc2)
    return input_grad, weight_grad


def matmul_mxfp8_backward_ref(
    output_grad: np.ndarray, weights: np.ndarray, input_activation: np.ndarray, fp8: str = "float8_e5m2"
) -> tuple[np.ndarray, np.ndarray]:
    """Compute both gradients in float64, with operands quantised on the host."""
    from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel import matmul_mxfp8_ref

    return (
        matmul_mxfp8_ref(output_grad, weights.T, fp8),
        matmul_mxfp8_ref(output_grad.T, input_activation.T, fp8),
    )
