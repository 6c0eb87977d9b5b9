"""A tensor in HBM and its layout."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.utils.types import DTypeLike, Tensor


@dataclass
class TensorDescriptor(nl.NKIObject):
    """A matrix [F, K] in HBM that a product contracts over K, or one that a kernel writes.

    tensor: [F, K]; [K, F] without is_f_by_k; [K/4, 4F] with is_swizzled; with scales, elements [K/4, 4F] of
    FP8 or [K/4, F] four-packed. is_col_parallel_sharded: two cores share the work along F. fp8_x4_dtype: the
    dtype to quantise to where a function takes none; None means float8_e4m3fn_x4.
    """

    tensor: Tensor
    scales: Tensor = None
    is_f_by_k: bool = True
    is_swizzled: bool = False
    is_col_parallel_sharded: bool = False
    fp8_x4_dtype: DTypeLike | None = None
