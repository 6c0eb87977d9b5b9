"""A column of a tile as a row in all partitions of another."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import Tensor


def tp_broadcast(src: Tensor, dst: Tensor, src_offset: int, psum_address: tuple | None = None) -> None:
    """dst[r, i] = src[i, src_offset] in every partition r of dst: TensorE transposes the repeated column."""
    kernel_assert(
        tuple(dst.shape[1:]) == (src.shape[0],),
        f"dst: got shape {tuple(dst.shape)}, expected {src.shape[0]} columns, one for each partition of src",
    )
    column = src[:, src_offset : src_offset + 1].broadcast(1, dst.shape[0])
    bank = nl.ndarray(tuple(dst.shape), src.dtype, buffer=nl.psum, address=psum_address)
    nisa.nc_transpose(bank, column)
    nisa.tensor_copy(dst, bank)
