"""RMSNorm and LayerNorm of rows, and their gradients.

With n = (x - mean) r, r = 1 / sqrt(variance + eps), and g = dy gamma, dx = r (g - mean(g) - n mean(g n));
RMSNorm is the same without both means. The gradients of gamma and beta are sums over the rows: each
partition adds up its rows, TensorE adds up the partitions, and the first core adds what both cores have.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.norms import row_moments, row_scale
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

MAX_COLUMNS = 4096
FLOATS = (nl.float32, nl.bfloat16, nl.float16)


@nki.jit
def rms_norm(x: Tensor, gamma: Tensor, eps: float = 1e-6) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) gamma for the rows of x [N, H], H <= 4096, in the dtype of x.

    gamma is [H]. Computed in float32. Two cores share the rows. The gradients are `rms_norm_bwd`. The
    documented library has no such kernel.

    >>> import numpy as np
    >>> rms_norm(np.array([[3.0, -3.0]], np.float32), np.array([1.0, 2.0], np.float32), 0.0).tolist()
    [[1.0, -2.0]]
    """
    return normalize("rms_norm", x, gamma, None, eps)


@nki.jit
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) gamma + beta for the rows of x [N, H], in the dtype of x.

    gamma and beta are [H], H <= 4096. Computed in float32. Two cores share the rows. The gradients are
    `layer_norm_bwd`. The documented library has no such kernel.

    >>> import numpy as np
    >>> one = np.ones(2, np.float32)
    >>> layer_norm(np.array([[1.0, 3.0]], np.float32), one, one, 0.0).tolist()
    [[0.0, 2.0]]
    """
    kernel_assert(beta is not None, "beta: got None, expected a tensor")
    return normalize("layer_norm", x, gamma, beta, eps)


@nki.jit
def rms_norm_bwd(grad_output: Tensor, x: Tensor, gamma: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return the gradients of rms_norm: of x [N, H], in its dtype, and of gamma [H], in its dtype.

    Computed in float32. Two cores share the rows. The documented library has no such kernel.

    >>> import numpy as np
    >>> one = np.ones((1, 2), np.float32)
    >>> rms_norm_bwd(one, one, one[0], 0.0)[1].tolist()
    [1.0, 1.0]
    """
    found = differentiate("rms_norm_bwd", grad_output, x, gamma, False, eps)
    return found[0], found[1]


@nki.jit
def layer_norm_bwd(
    grad_output: Tensor, x: Tensor, gamma: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of layer_norm: of x [N, H], gamma [H] and beta [H], in the dtypes of x and gamma.

    Computed in float32. Two cores share the rows. The documented library has no such kernel.

    >>> import numpy as np
    >>> dy, x = np.ones((1, 2), np.float32), np.array([[1.0, 3.0]], np.float32)
    >>> [g.ravel().tolist() for g in layer_norm_bwd(dy, x, dy[0], 0.0)]
    [[0.0, 0.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    return differentiate("layer_norm_bwd", grad_output, x, gamma, True, eps)


def normalize(name: str, x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> Tensor:
    """Norm of all rows; with beta it is LayerNorm."""
    get_verified_program_sharding_info(name, (0, 1), 2)
    check(x, gamma, (("beta", beta),))
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    scale, shift = every_row(gamma), None if beta is None else every_row(beta)
    for tile in own_rows(x):
        rows = normalized(load_rows(x, tile), beta is not None, eps)[0]
        nisa.tensor_tensor(rows, rows, scale[0 : tile.size], nl.multiply)
        if shift is not None:
            nisa.tensor_tensor(rows, rows, shift[0 : tile.size], nl.add, engine=nisa.gpsimd_engine)
        store(out[tile.start_offset : tile.end_offset], rows)
    return out


def every_row(weights: Tensor) -> Tensor:
    """Weights [H] in every partition, float32."""
    return load(weights.expand_dim(0).broadcast(0, PMAX), nl.float32)


def own_rows(x: Tensor) -> tuple[TiledRangeIterator, ...]:
    """Tiles of this core's rows."""
    first, end = program_share(x.shape[0])
    return TiledRange(TiledRangeIterator(end - first, 0, first, end), PMAX)


def load_rows(x: Tensor, tile: TiledRangeIterator) -> Tensor:
    return load(x[tile.start_offset : tile.end_offset], nl.float32)


def normalized(rows: Tensor, centered: bool, eps: float) -> tuple:
    """The rows without mean and scale, in place, and what they were multiplied by, [n, 1]."""
    if centered:
        mean, factor = row_moments(rows, rows.shape[1], eps)
        nisa.tensor_scalar(rows, rows, nl.subtract, mean, op1=nl.multiply, operand1=factor)
    else:
        factor = row_scale(rows, rows.shape[1], eps)
        nisa.tensor_scalar(rows, rows, nl.multiply, factor)
    return rows, factor


def differentiate(name: str, dy: Tensor, x: Tensor, gamma: Tensor, centered: bool, eps: float) -> Any:
    """The gradients of x and gamma, and of beta where the rows are centered."""
    cores = get_verified_program_sharding_info(name, (0, 1), 2)[1]
    check(x, gamma, ())
    assert_tensors((("grad_output", dy),))
    assert_shape(dy, x.shape, "grad_output")
    dx = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    scale, columns = every_row(gamma), x.shape[1]
    sums = []
    for _ in range(2 if centered else 1):
        total = nl.ndarray((PMAX, columns), nl.float32, buffer=nl.sbuf)
        nisa.memset(total, 0.0)
        sums.append(total)
    for tile in own_rows(x):
        rows, factor = normalized(load_rows(x, tile), centered, eps)
        given = load_rows(dy, tile)
        product = like(given)
        nisa.tensor_tensor(product, given, rows, nl.multiply)
        add_to(sums[0], product)
        if centered:
            add_to(sums[1], given)
        found = row_gradient(given, product, rows, scale, centered)
        ready = like(found, dx.dtype)
        nisa.activation(ready, nl.copy, found, scale=factor)
        nisa.dma_copy(dx[tile.start_offset : tile.end_offset], ready)
    return (dx,) + weight_gradients(sums, gamma, cores)


def add_to(total: Tensor, rows: Tensor) -> None:
    place = total[0 : rows.shape[0]]
    nisa.tensor_tensor(place, place, rows, nl.add, engine=nisa.gpsimd_engine)


def row_gradient(dy: Tensor, product: Tensor, rows: Tensor, scale: Tensor, centered: bool) -> Tensor:
    """dx / r of some rows, in place of dy; product is dy times the normalised rows."""
    count, columns = dy.shape
    nisa.tensor_tensor(product, product, scale[0:count], nl.multiply)
    along, mean = new_column(count), new_column(count)
    nisa.activation_reduce(product, nl.copy, product, nl.add, along)
    nisa.tensor_scalar(along, along, nl.multiply, -1.0 / columns)
    nisa.tensor_tensor(dy, dy, scale[0:count], nl.multiply, engine=nisa.gpsimd_engine)
    if centered:
        nisa.activation_reduce(product, nl.copy, dy, nl.add, mean)
        nisa.tensor_scalar(mean, mean, nl.multiply, 1.0 / columns)
        nisa.tensor_scalar(dy, dy, nl.subtract, mean)
    nisa.scalar_tensor_tensor(dy, rows, nl.multiply, along, nl.add, dy)
    return dy


def weight_gradients(sums: list, gamma: Tensor, cores: int) -> tuple:
    """Sums over all partitions and cores, [H] each."""
    columns = gamma.shape[0]
    parts = nl.ndarray((cores, len(sums), columns), nl.float32, buffer=nl.shared_hbm)
    ones = new_column(PMAX)
    nisa.memset(ones, 1.0)
    row = nl.ndarray((1, len(sums), columns), nl.float32, buffer=nl.sbuf)
    for i in range(len(sums)):
        for part in TiledRange(columns, BANK_COLUMNS):
            bank = nl.ndarray((1, part.size), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(bank, ones, sums[i][:, part.start_offset : part.end_offset])
            nisa.tensor_copy(row[:, i, part.start_offset : part.end_offset], bank)
    nisa.dma_copy(parts[nl.program_id(0) : nl.program_id(0) + 1], row)
    results = []
    for _ in range(len(sums)):
        results.append(nl.ndarray((columns,), gamma.dtype, buffer=nl.shared_hbm))
    if cores > 1:
        nisa.core_barrier(parts, (0, 1))
    if nl.program_id(0) == 0:
        if cores > 1:
            nisa.tensor_tensor(row, row, load(parts[1:2]), nl.add)
        for i in range(len(sums)):
            store(results[i].expand_dim(0), row[:, i, :])
    return tuple(results)


def check(x: Tensor, gamma: Tensor, optional: tuple) -> None:
    assert_tensors((("x", x), ("gamma", gamma)), optional)
    kernel_assert(
        len(x.shape) == 2 and x.shape[1] <= MAX_COLUMNS and x.dtype in FLOATS,
        f"x: got {x.dtype} of shape {tuple(x.shape)}, expected [N, H] in float32, bfloat16 or float16 with "
        f"H <= {MAX_COLUMNS}",
    )
    assert_shape(gamma, (x.shape[1],), "gamma")
    for pair in optional:
        if pair[1] is not None:
            assert_shape(pair[1], (x.shape[1],), pair[0])
