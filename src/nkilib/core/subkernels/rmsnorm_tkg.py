"""RMSNorm of decoded tokens into the layout that projections multiply."""

from __future__ import annotations

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.norms import column_scale, ones_matrix, over_tiles
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


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
    """Write x / sqrt(mean(x^2) + eps) * gamma to output [128, T, H / 128] in SBUF; every core does all of it.

    input is [B, S, H] in HBM, or laid out like output in SBUF; gamma is [1, H]. Element p H/128 + j of a
    token is at [p, t, j], on two cores so in each half of H; with `hidden_dim_tp`, element 128 j + p is. The
    other options have no effect on the result.
    """
    parts = 1 if single_core_forced else get_verified_program_sharding_info("rmsnorm_tkg", (0, 1), 2)[1]
    size = gamma.shape[-1]
    tiles = size // PMAX
    expected = (PMAX, output.shape[1], tiles)
    kernel_assert(
        tuple(output.shape) == expected, f"output: got shape {tuple(output.shape)}, expected {expected}"
    )
    values = input
    if input.buffer != nl.sbuf:
        values = nl.ndarray(expected, input.dtype, buffer=nl.sbuf)
        load(values, input.reshape((output.shape[1], size)), parts, hidden_dim_tp)
    weights = nl.ndarray((PMAX, 1, tiles), gamma.dtype, buffer=nl.sbuf)
    load(weights, gamma.reshape((1, size)), parts, hidden_dim_tp)
    scale = column_scale(values, size if hidden_actual is None else hidden_actual, eps, ones_matrix())
    scaled = nl.ndarray(expected, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(scaled, values, over_tiles(scale, values), op=nl.multiply)
    nisa.tensor_tensor(output, scaled, weights.broadcast(1, output.shape[1]), op=nl.multiply)
    return output


def load(tile: Tensor, rows: Tensor, parts: int, transposed: bool) -> None:
    """Load rows [T, H] into [128, T, H / 128]."""
    tiles = tile.shape[2]
    if transposed:
        nisa.dma_copy(tile, rows.reshape_dim(1, (tiles, PMAX)).permute((2, 0, 1)))
        return
    by_part = rows.reshape_dim(1, (parts, PMAX, tiles // parts)).permute((2, 0, 1, 3))
    nisa.dma_copy(tile.reshape_dim(2, (parts, tiles // parts)), by_part)


def rmsnorm_tkg_ref(
    input: np.ndarray, gamma: np.ndarray, eps: float = 1e-6, hidden_actual: int | None = None
) -> np.ndarray:
    """Return the normalised tokens [T, H], not laid out and not rounded."""
    x = np.asarray(input, np.float64).reshape(-1, np.shape(gamma)[-1])
    size = x.shape[1] if hidden_actual is None else hidden_actual
    return (
        x
        / np.sqrt(np.square(x).sum(1, keepdims=True) / size + eps)
        * np.asarray(gamma, np.float64).reshape(-1)
    )
