"""Matrix product in MXFP8, of operands in any form."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MatmulMxfp8KernelConfig, check_config
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import MxOperand, describe, packed_dtype, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import Stored, multiply
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share


@nki.jit
def matmul_mxfp8(
    lhs: Tensor | tuple[Tensor, Tensor],
    rhs: Tensor | tuple[Tensor, Tensor],
    TILES_IN_BLOCK_M: int | None = None,
    TILES_IN_BLOCK_N: int | None = None,
    TILES_IN_BLOCK_K: int | None = None,
    TILES_IN_LOAD_M: int | None = None,
    TILES_IN_LOAD_N: int | None = None,
    lhs_matmul_tile_shape_logical: tuple | None = None,
    rhs_matmul_tile_shape_logical: tuple | None = None,
    block_loop_order: str = "mnk",
    tile_loop_order: str = "mnk",
    float8_dtype: str = "float8_e5m2",
    output_dtype: DTypeLike = nl.bfloat16,
    run_with_lnc2: bool = True,
    lnc_2_shard_rhs: bool | None = None,
    lhs_scales: Tensor | None = None,
    rhs_scales: Tensor | None = None,
    use_scale_packing: bool = False,
    spill_reload: bool = False,
    lhs_is_swizzled: bool = True,
    rhs_is_swizzled: bool = True,
    load_with_PE_swizzle: bool = False,
    lhs_is_f_by_k: bool = True,
    rhs_is_f_by_k: bool = True,
    fast_dma_transpose: bool = False,
    enable_psum_copy_in: bool | None = None,
    quant_scheme: str = "wrapX",
) -> Tensor:
    """out[m, n] = sum over k of mx(lhs)[m, k] mx(rhs)[n, k], summed in float32; mx() quantises blocks of 32.

    lhs [M, K] and rhs [N, K], each in one of these forms (F is M or N):
        bfloat16 [K/4, 4F], swizzled (the default); [F, K] with is_swizzled=False; [K, F] with is_f_by_k=False
        too; float16 as well.
        (data, scales), or data with *_scales, as quantize_block_mxfp8_kernel gives them: data [K/4, 4F] FP8
        or [K/4, F] four-packed (uint32 words are taken for float8_dtype); scales [K/4, F], or packed.

    Args:
        float8_dtype: what bfloat16 operands are quantised to, "float8_e4m3fn" or "float8_e5m2".
        output_dtype: of the result.
        run_with_lnc2, lnc_2_shard_rhs: on a grid of two cores, share N (True), M (False) or the larger one.
        use_scale_packing: scales must be packed; without it either layout is known by its shape.
        quant_scheme: which k share a block: "wrapX" 512 t + 128 q + p, or "1x32" 32 neighbours. Swizzled or
            quantised operands must have been made so.
        The rest are hints for the schedule, which this kernel chooses itself. Tilings are checked but have no
        effect, like spill_reload, load_with_PE_swizzle, fast_dma_transpose and enable_psum_copy_in. Operands
        are loaded by DMA transposes of four dimensions and quantised once where they fit SBUF.

    K is a multiple of 128 (best 512), M and N of 8. Returns [M, N].

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, y = np.ones((8, 512), ml_dtypes.bfloat16), np.full((16, 512), 0.5, ml_dtypes.bfloat16)
    >>> matmul_mxfp8(x, y, lhs_is_swizzled=False, rhs_is_swizzled=False)[0, :4]
    array([256, 256, 256, 256], dtype=bfloat16)
    """
    check_config(
        "",
        MatmulMxfp8KernelConfig(
            TILES_IN_BLOCK_M,
            TILES_IN_BLOCK_N,
            TILES_IN_BLOCK_K,
            TILES_IN_LOAD_M,
            TILES_IN_LOAD_N,
            lhs_matmul_tile_shape_logical,
            rhs_matmul_tile_shape_logical,
            block_loop_order,
            tile_loop_order,
        ),
    )
    check_output_dtype(output_dtype)
    dtype = packed_dtype("float8_dtype", float8_dtype)
    left = operand_of(
        "lhs", lhs, lhs_scales, lhs_is_swizzled, lhs_is_f_by_k, use_scale_packing, dtype, quant_scheme
    )
    right = operand_of(
        "rhs", rhs, rhs_scales, rhs_is_swizzled, rhs_is_f_by_k, use_scale_packing, dtype, quant_scheme
    )
    kernel_assert(
        left.contraction == right.contraction,
        f"lhs, rhs: got K = {left.contraction} and {right.contraction}, expected equal ones",
    )
    out = nl.ndarray((left.features, right.features), output_dtype, buffer=nl.shared_hbm)
    shard_rhs = right.features >= left.features if lnc_2_shard_rhs is None else lnc_2_shard_rhs
    store_product(out, left, right, shard_rhs, run_with_lnc2)
    return out


def check_output_dtype(dtype: DTypeLike) -> None:
    """Refuse a dtype that sums are not rounded to."""
    kernel_assert(
        dtype in (nl.bfloat16, nl.float16, nl.float32),
        f"output_dtype: got {dtype}, allowed are bfloat16, float16 and float32",
    )


def store_product(
    out: Tensor, left: MxOperand, right: MxOperand, shard_rhs: bool, run_with_lnc2: bool
) -> None:
    """Store left x right in out; two cores share the columns (shard_rhs) or the rows."""
    if shard_rhs:
        start, end = core_share(right.features, 8, run_with_lnc2)
        multiply(left, [part_of(right, start, end - start)], Stored(out, 0, start))
    else:
        start, end = core_share(left.features, 8, run_with_lnc2)
        multiply(part_of(left, start, end - start), [right], Stored(out, start, 0))


def operand_of(
    name: str,
    given: Tensor | tuple[Tensor, Tensor],
    scales: Tensor | None,
    swizzled: bool,
    f_by_k: bool,
    packing: bool,
    dtype: DTypeLike,
    scheme: str,
) -> MxOperand:
    """The operand of an argument: a tensor, or (data, scales)."""
    tensor = given
    if isinstance(given, (tuple, list)):
        kernel_assert(len(given) == 2, f"{name}: got {len(given)} tensors, expected (data, scales)")
        kernel_assert(scales is None, f"{name}_scales: given together with {name} = (data, scales)")
        tensor, scales = given[0], given[1]
    operand = describe(name, TensorDescriptor(tensor, scales, f_by_k, swizzled), dtype, scheme)
    if packing and scales is not None:
        kernel_assert(
            operand.packed_scales,
            f"{name}: got scales of shape {tuple(scales.shape)}, use_scale_packing wants packed ones",
        )
    return operand


def matmul_mxfp8_ref(
    lhs: np.ndarray, rhs: np.ndarray, float8_dtype: str = "float8_e5m2", quant_scheme: str = "wrapX"
) -> np.ndarray:
    """Multiply plain lhs [M, K] and rhs [N, K] in float64, with operands quantised on the host."""
    from nki import mx

    values = [
        mx.dequantize_operand(*mx.quantize_operand(x, float8_dtype, quant_scheme), quant_scheme)
        for x in (lhs, rhs)
    ]
    return values[0].astype(np.float64) @ values[1].astype(np.float64).T
