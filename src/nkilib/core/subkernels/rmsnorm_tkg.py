"""RMSNorm of a few tokens, into the layout that decode kernels multiply from."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.subkernels.norm_layouts import NormTile, check_norm, normalized_tiles, put
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.norms import column_scale, ones_matrix, over_tiles
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor

SHARDING_THRESHOLD = 18  # tokens above which the original shares them between cores; no effect here


@nki.jit
def rmsnorm_tkg(
    input: Tensor,
    gamma: Tensor,
    output: Tensor,
    eps: float = 1e-6,
    hidden_actual: int | None = None,
    hidden_dim_tp: bool = False,
    single_core_forced: bool = False,
    shard_on_h: bool = False,
    use_heap_memory: bool = False,
    sbm: BufferManager | None = None,
) -> Tensor:
    """output = input / sqrt(mean of squares + eps) * gamma, each token spread over the partitions.

    input is [B, S, H] in HBM, or laid out like output in SBUF, H a multiple of 128, gamma [1, H]; output is
    [128, B S, H/128] in SBUF or HBM, in
    any float dtype. With J = H/128, column p J + j of token t is at [p, t, j] on one core; on two each half
    of H is spread like this, the first half in the first J/2 places; with hidden_dim_tp column 128 j + p is.
    hidden_actual counts the columns that are not padding. single_core_forced uses the layout of one core.
    Every core computes all of output: shard_on_h, use_heap_memory and sbm choose how, never what, and have no
    effect. The original has no page; arguments and layouts are those that callers use.

    >>> x, out = np.full((1, 2, 128), 3.0, np.float32), np.zeros((128, 2, 1), np.float32)
    >>> float(rmsnorm_tkg(x, np.ones((1, 128), np.float32), out, eps=0.0).min())
    1.0
    """
    check_norm(input, gamma, output)
    size = gamma.shape[1]
    kernel_assert(
        hidden_actual is None or 1 <= hidden_actual <= size,
        f"hidden_actual: got {hidden_actual}, allowed are 1 to H = {size}",
    )
    if input.buffer == nl.sbuf:
        weights = nl.ndarray((PMAX, 1, size // PMAX), gamma.dtype, buffer=nl.sbuf)
        put(weights, NormTile(None, load(gamma), 0), hidden_dim_tp, single_core_forced)
        normalize_columns(input, weights, output, eps, hidden_actual)
        return output
    factors = broadcast_row(gamma, 0, size, min(PMAX, input.size // size))
    for tile in normalized_tiles(input, output):
        rms_norm(tile.result, tile.rows, factors, eps, hidden_actual)
        put(output, tile, hidden_dim_tp, single_core_forced)
    return output


def normalize_columns(input: Tensor, gamma: Tensor, output: Tensor, eps: float, actual: int | None) -> None:
    """RMSNorm of a tile [128, T, H/128] in SBUF whose gamma [128, 1, H/128] is laid out like it."""
    size = PMAX * input.shape[2]
    scale = column_scale(input, size if actual is None else actual, eps, ones_matrix())
    scaled = like(input, nl.float32)
    nisa.tensor_tensor(scaled, input, over_tiles(scale, input), op=nl.multiply)
    nisa.tensor_tensor(output, scaled, gamma.broadcast(1, output.shape[1]), op=nl.multiply)


def rmsnorm_tkg_ref(
    input: np.ndarray, gamma: np.ndarray, eps: float = 1e-6, hidden_actual: int | None = None
) -> np.ndarray:
    """Return the normalised tokens [T, H] in float64, not laid out and not rounded."""
    x = np.asarray(input, np.float64).reshape(-1, np.shape(gamma)[-1])
    count = x.shape[1] if hidden_actual is None else hidden_actual
    return x / np.sqrt((x**2).sum(1, keepdims=True) / count + eps) * np.asarray(gamma, np.float64).reshape(-1)
