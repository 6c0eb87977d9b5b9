"""LayerNorm of a few tokens, into the layout that decode kernels multiply from."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.mlp.rows import layer_norm
from nkilib.core.subkernels.norm_layouts import check_norm, normalized_tiles, put
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.types import Tensor

SHARDING_THRESHOLD = 18  # tokens above which the original shares them between cores; no effect here


@nki.jit
def layernorm_tkg(
    input: Tensor,
    gamma: Tensor,
    output: Tensor,
    beta: Tensor | None = None,
    eps: float = 1e-6,
    shard_on_h: bool = False,
    use_heap_memory: bool = False,
    sbm: BufferManager | None = None,
) -> Tensor:
    """output = (input - mean) / sqrt(variance + eps) * gamma + beta, each token spread over the partitions.

    input is [B, S, H] in HBM, H a multiple of 128, gamma and beta [1, H]; output [128, B S, H/128] in SBUF or
    HBM, in the layouts of rmsnorm_tkg. Every core computes all of output: shard_on_h, use_heap_memory and sbm
    choose how, never what, and have no effect. The original has no page; arguments and layouts are those that
    callers use.

    >>> x, out = np.arange(128, dtype=np.float32).reshape(1, 1, 128), np.zeros((128, 1, 1), np.float32)
    >>> abs(float(layernorm_tkg(x, np.ones((1, 128), np.float32), out).mean())) < 1e-6
    True
    """
    check_norm(input, gamma, output)
    size = input.shape[2]
    kernel_assert(input.buffer != nl.sbuf, "input: got a tile in SBUF, expected a tensor in HBM")
    rows = min(128, input.size // size)
    factors, shift = broadcast_row(gamma, 0, size, rows), None
    if beta is not None:
        assert_shape(beta, (1, size), "beta")
        shift = broadcast_row(beta, 0, size, rows)
    for tile in normalized_tiles(input, output):
        layer_norm(tile.result, tile.rows, factors, shift, eps)
        put(output, tile)
    return output


def layernorm_tkg_ref(
    input: np.ndarray, gamma: np.ndarray, beta: np.ndarray | None = None, eps: float = 1e-6
) -> np.ndarray:
    """Return the normalised tokens [T, H] in float64, not laid out and not rounded."""
    x = np.asarray(input, np.float64).reshape(-1, np.shape(gamma)[-1])
    n = (
        (x - x.mean(1, keepdims=True))
        / np.sqrt(x.var(1, keepdims=True) + eps)
        * np.asarray(gamma, np.float64)
    )
    return n if beta is None else n + np.asarray(beta, np.float64)
