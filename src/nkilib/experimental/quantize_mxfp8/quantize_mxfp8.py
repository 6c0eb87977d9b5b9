"""A bfloat16 matrix as the MXFP8 operand of matmul_mxfp8."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import (
    LANES,
    PACKED_TILES,
    TILE,
    MxBlock,
    MxOperand,
    describe,
    element_dtype,
    load_stage,
    packed_dtype,
    scale_view,
    tile_rows,
)
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share

FEATURES = 512  # that one step quantises


@nki.jit
def quantize_block_mxfp8_kernel(
    src_tensor: Tensor,
    return_fp8_dtype: DTypeLike,
    run_with_lnc2: bool = False,
    enable_scale_packing: bool = True,
) -> tuple[Tensor, Tensor]:
    """(data, scales) of src [F, K]: FP8 elements in the wrapX layout, a power of two for each 32 of them.

    data[128 t + p, 4 f + q] = src[f, 512 t + 128 q + p] / 2^(scale - 127), as nisa.quantize_mx does it:
    a block is 8 rows x 4 lanes, its largest element lands one binade below the end of the range.

    Args:
        src_tensor: [F, K] bfloat16 (float16 too); F a multiple of 8, K of 128, best of 512.
        return_fp8_dtype: "float8_e4m3fn" or "float8_e5m2"; a dtype of nki.language too.
        run_with_lnc2: on a grid of two cores, share F. Without it the first core does all.
        enable_scale_packing: four tiles of K share a block of scales.

    Returns:
        data [K/4, 4F] FP8; scales uint8, packed [128 ceil(K/2048), F], or as SBUF has them, [K/4, F]: row r
        of 8 partitions at 32 (r // 4) + r % 4. Rows without scales are 0. The page lists the two
        the other way round; their consumers take (data, scales).

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x = np.full((8, 512), 3.0, ml_dtypes.bfloat16)
    >>> data, scales = quantize_block_mxfp8_kernel(x, "float8_e4m3fn")
    >>> data.shape, data[0, 0], scales.shape, int(scales[0, 0])
    ((128, 32), 192, (128, 8), 121)
    """
    dtype = packed_dtype("return_fp8_dtype", return_fp8_dtype)
    operand = describe("src_tensor", TensorDescriptor(src_tensor), dtype)
    features, contraction = operand.features, operand.contraction
    rows = contraction // LANES
    if enable_scale_packing:
        rows = PMAX * div_ceil(div_ceil(contraction, TILE), PACKED_TILES)
    data = nl.ndarray((contraction // LANES, LANES * features), element_dtype(dtype), buffer=nl.shared_hbm)
    scales = nl.ndarray((rows, features), nl.uint8, buffer=nl.shared_hbm)
    start, end = core_share(features, 8, run_with_lnc2)
    for part in TiledRange(end - start, FEATURES):
        quantize_features(
            data.view(dtype), scales, operand, start + part.start_offset, part.size, enable_scale_packing
        )
    return data, scales


def quantize_features(
    data: Tensor, scales: Tensor, operand: MxOperand, start: int, features: int, packed: bool
) -> None:
    """Quantise all of K for some features, four tiles at a time: they share a block of packed scales."""
    tiles = div_ceil(operand.contraction, TILE)
    columns = slice(start, start + features)
    for group in TiledRange(tiles, PACKED_TILES):
        rest = min(operand.contraction - group.start_offset * TILE, group.size * TILE)
        elements = nl.ndarray((PMAX, group.size, features), operand.dtype, buffer=nl.sbuf)
        found = nl.ndarray((PMAX, 1 if packed else group.size, features), nl.uint8, buffer=nl.sbuf)
        nisa.memset(found, 0)
        block = MxBlock(elements, found, packed, start, features, rest)
        stage = load_stage(operand, start, features, group)
        for i in range(group.size):
            rows = tile_rows(block, i)
            nisa.quantize_mx(elements[0:rows, i, :], stage[0:rows, i], scale_view(block, i))
            row = (group.start_offset + i) * PMAX
            nisa.dma_copy(data[row : row + rows, columns], elements[0:rows, i, :])
            if not packed:
                nisa.dma_copy(scales[row : row + rows, columns], found[0:rows, i, :])
            elif should_store_packed_scales(group.start_offset + i, tiles):
                place = group.index * PMAX
                nisa.dma_copy(scales[place : place + PMAX, columns], found[:, 0, :])


def should_store_packed_scales(tile_k_idx: int, total_num_tiles: int) -> bool:
    """Return True where a block of packed scales is complete: at each fourth tile of K, and at the last.

    >>> [should_store_packed_scales(tile, 6) for tile in range(6)]
    [False, False, False, True, False, True]
    """
    kernel_assert(
        0 <= tile_k_idx < total_num_tiles, f"tile_k_idx: got {tile_k_idx}, there are {total_num_tiles} tiles"
    )
    return tile_k_idx % PACKED_TILES == PACKED_TILES - 1 or tile_k_idx == total_num_tiles - 1


def quantize_block_mxfp8_kernel_ref(
    src_tensor: np.ndarray, return_fp8_dtype: str, enable_scale_packing: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return (data, scales) computed on the host."""
    from nki import mx

    layout = "packed" if enable_scale_packing else "hardware"
    return mx.quantize_operand(src_tensor, return_fp8_dtype, "wrapX", layout)
