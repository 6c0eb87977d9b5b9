"""Sizes of a tensor of tokens from its shape: [B, S, H] or [T, H] in HBM, [128, T, H / 128] in SBUF."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor


def is_in_sbuf(tokens: Tensor) -> bool:
    return not is_hbm_buffer(tokens)


def token_count(tokens: Tensor) -> int:
    """Return the number of tokens: B * S or T."""
    if is_in_sbuf(tokens):
        return tokens.shape[1]
    count = 1
    for size in tokens.shape[:-1]:
        count = count * size
    return count


def hidden_size(tokens: Tensor) -> int:
    """Return H, the number of elements of a token."""
    return tokens.shape[2] * PMAX if is_in_sbuf(tokens) else tokens.shape[-1]


def sixteen_bit_dtype(dtype: DTypeLike) -> nl.DType:
    """Return the 16-bit dtype that tokens are multiplied in: float16 stays, all others are bfloat16."""
    return nl.float16 if dtype == nl.float16 else nl.bfloat16
