"""FlashAttention-2: the online softmax of attention_cte, without a mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import nki
import nki.language as nl
from nkilib.core.attention.attention_cte import attention_cte
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.types import Tensor
from nkilib.experimental.attention.attention_const_max import attention_const_max_ref


@dataclass(frozen=True)
class FlashAttentionConfig(nl.NKIObject):
    """Tuning of flash_attention_2; it never changes the result, and has no effect here."""

    sq_tiles_per_blk: int = 1  # tiles of 128 queries that share a pass over the keys


@nki.jit
def flash_attention_2(
    q: Tensor, k: Tensor, v: Tensor, scale: float, config: FlashAttentionConfig | None = None
) -> Tensor:
    """Return softmax(scale q k^T) v for every head, [B, Sq, D]: every query sees all keys.

    q is [B, Sq, D] in a dtype of two bytes, k [Bkv, D, Sk], v [Bkv, Sk, D]; query head b uses key head
    b // (B / Bkv). config is documented as tuning alone; of its fields only sq_tiles_per_blk could be read.
    The page names trn3; trn2 works too. Two cores share the heads, and of an odd number the last by queries.

    >>> import ml_dtypes
    >>> q, k, v = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((1, 3, 8), (1, 8, 5), (1, 5, 8)))
    >>> flash_attention_2(q, k, v, 0.5)[0, :, 0].tolist()
    [1.0, 1.0, 1.0]
    """
    assert_tensors((("q", q), ("k", k), ("v", v)))
    kernel_assert(sizeinbytes(q.dtype) == 2, f"q: got {q.dtype}, allowed are bfloat16 and float16")
    return attention_cte(q, k, v, scale, causal_mask=False)


def flash_attention_2_ref(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """In float64."""
    each = len(q) // len(v)
    keys, values = np.repeat(np.swapaxes(k, 1, 2), each, 0), np.repeat(v, each, 0)
    return attention_const_max_ref(q, keys, values, scale)
