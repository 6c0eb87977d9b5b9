"""RMSNorm and LayerNorm of rows, and their gradients.

With r = 1 / sqrt(variance + eps), c = x - mean and g = dy gamma, dx = r (g - mean(g) - r^2 c mean(g c));
RMSNorm is the same without both means. The gradients of gamma and beta, sums of r dy c and of dy over the
rows, are products of TensorE with r and with 1; the first core adds what both cores have.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.norms import row_moments, row_scale
from nkilib.core.utils.tile_io import load
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
        rows = load_rows(x, tile)
        result, weights = like(rows), scale[0 : tile.size]
        if shift is None:
            factor = row_scale(rows, rows.shape[1], eps)
            nisa.scalar_tensor_tensor(result, rows, nl.multiply, factor, nl.multiply, weights)
        else:
            mean, factor = row_moments(rows, rows.shape[1], eps)
            weighted = like(rows, nl.float32)
            nisa.scalar_tensor_tensor(weighted, rows, nl.subtract, mean, nl.multiply, weights)
            nisa.activation(weighted, nl.copy, weighted, scale=factor)
            nisa.tensor_tensor(result, weighted, shift[0 : tile.size], nl.add, engine=nisa.gpsimd_engine)
        nisa.dma_copy(out[tile.start_offset : tile.end_offset], result)
    return out


def every_row(weights: Tensor) -> Tensor:
    """Weights [H] in every partition, float32."""
    return load(weights.expand_dim(0).broadcast(0, PMAX), nl.float32)


def own_rows(x: Tensor) -> tuple[TiledRangeIterator, ...]:
    """Tiles of this core's rows."""
    first, end = program_share(x.shape[0])
    return TiledRange(TiledRangeIterator(end - first, 0, first, end), PMAX)


def load_rows(x: Tensor, tile: TiledRangeIterator) -> Tensor:
    return load(x[tile.start_offset : tile.end_offset])


def differentiate(name: str, dy: Tensor, x: Tensor, gamma: Tensor, centered: bool, eps: float) -> Any:
    """The gradients of x and gamma, and of beta where the rows are centered."""
    cores = get_verified_program_sharding_info(name, (0, 1), 2)[1]
    check(x, gamma, ())
    assert_tensors((("grad_output", dy),))
    assert_shape(dy, x.shape, "grad_output")
    dx = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    scale, tiles = every_row(gamma), own_rows(x)
    sums = [ColumnSums(x.shape[1], len(tiles))]
    if centered:
        sums.append(ColumnSums(x.shape[1], len(tiles)))
    ones = nl.ndarray((PMAX, 1), dy.dtype, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    for tile in tiles:
        rows, given = load_rows(x, tile), load_rows(dy, tile)
        step = RowGradient(rows, given, scale[0 : tile.size], centered, eps)
        sums[0].add(step.product, step.factor)
        if centered:
            sums[1].add(given, ones[0 : tile.size])
        nisa.dma_copy(dx[tile.start_offset : tile.end_offset], step.result())
    return (dx,) + weight_gradients(sums, gamma, cores)


class ColumnSums(nl.NKIObject):
    """Sums over the rows of all tiles, each times a number: column 128 j + p at [p, j] in PSUM."""

    def __init__(self, columns: int, tiles: int):
        self.parts = TiledRange(columns, PMAX)
        self.bank = nl.ndarray((PMAX, len(self.parts)), nl.float32, buffer=nl.psum)
        self.added = 0
        self.empty = tiles == 0

    def add(self, rows: Tensor, factor: Tensor) -> None:
        for part in self.parts:
            place = self.bank[0 : part.size, part.index : part.index + 1]
            some = rows[:, part.start_offset : part.end_offset]
            nisa.nc_matmul(place, some, factor, accumulate=self.added > 0)
        self.added += 1

    def rows(self) -> Tensor:
        """[parts, 128] in SBUF, of which the last row may have fewer columns."""
        found = nl.ndarray(self.bank.shape, nl.float32, buffer=nl.sbuf)
        nisa.memset(found, 0.0)
        if not self.empty:
            last = self.parts[len(self.parts) - 1]
            if len(self.parts) > 1:
                nisa.tensor_copy(found[:, 0 : last.index], self.bank[:, 0 : last.index])
            place = (slice(0, last.size), slice(last.index, last.index + 1))
            nisa.tensor_copy(found[place], self.bank[place])
        across = nl.ndarray((len(self.parts), PMAX), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(across, found, engine=nisa.tensor_engine)
        result = like(across)
        nisa.tensor_copy(result, across)
        return result


class RowGradient(nl.NKIObject):
    """Some rows and their gradients: r of each row, and c dy in float32."""

    def __init__(self, rows: Tensor, dy: Tensor, scale: Tensor, centered: bool, eps: float):
        self.rows = rows
        self.dy = dy
        self.scale = scale
        self.mean: Any = None
        self.product = like(rows, nl.float32)
        if centered:
            mean, factor = row_moments(rows, rows.shape[1], eps)
            self.mean = mean
            nisa.scalar_tensor_tensor(self.product, rows, nl.subtract, self.mean, nl.multiply, dy)
        else:
            factor = row_scale(rows, rows.shape[1], eps)
            nisa.tensor_tensor(self.product, rows, dy, nl.multiply)
        self.factor = factor

    def result(self) -> Tensor:
        """dx = r (g + k x - k mean - mean(g)) with k = -r^2 mean(g c)"""
        count, columns = self.rows.shape
        weighted, slope, shift = like(self.product), new_column(count), new_column(count)
        # VectorE has the statistics of centered rows to compute as well
        engine = nisa.vector_engine if self.mean is None else nisa.gpsimd_engine
        nisa.tensor_tensor(weighted, self.product, self.scale, nl.multiply, engine=engine)
        nisa.activation_reduce(weighted, nl.copy, weighted, nl.add, slope)
        nisa.tensor_scalar(slope, slope, nl.multiply, self.factor, op1=nl.multiply, operand1=self.factor)
        nisa.tensor_scalar(slope, slope, nl.multiply, -1.0 / columns)
        gradient = like(weighted)
        nisa.tensor_tensor(gradient, self.dy, self.scale, nl.multiply, engine=nisa.gpsimd_engine)
        found, result = like(weighted), like(self.rows)
        nisa.scalar_tensor_tensor(found, self.rows, nl.multiply, slope, nl.add, gradient)
        if self.mean is None:
            nisa.activation(result, nl.copy, found, scale=self.factor)
            return result
        nisa.activation_reduce(weighted, nl.copy, gradient, nl.add, shift)
        nisa.tensor_tensor(slope, slope, self.mean, nl.multiply)
        nisa.scalar_tensor_tensor(shift, shift, nl.multiply, 1.0 / columns, nl.add, slope)
        nisa.tensor_scalar(shift, shift, nl.multiply, self.factor, op1=nl.multiply, operand1=-1.0)
        nisa.activation(result, nl.copy, found, scale=self.factor, bias=shift)
        return result


def weight_gradients(sums: list, gamma: Tensor, cores: int) -> tuple:
    """Sums over all partitions and cores, [H] each."""
    columns, parts = gamma.shape[0], sums[0].parts
    others = nl.ndarray((cores, len(sums), len(parts), PMAX), nl.float32, buffer=nl.shared_hbm)
    found, results = [], []
    for i in range(len(sums)):
        found.append(sums[i].rows())
        nisa.dma_copy(others[nl.program_id(0), i], found[i])
        results.append(nl.ndarray((columns,), gamma.dtype, buffer=nl.shared_hbm))
    if cores > 1:
        nisa.core_barrier(others, (0, 1))
    if nl.program_id(0) == 0:
        for i in range(len(sums)):
            if cores > 1:
                nisa.tensor_tensor(found[i], found[i], load(others[1, i]), nl.add)
            store_columns(results[i], found[i], columns)
    return tuple(results)


def store_columns(result: Tensor, rows: Tensor, columns: int) -> None:
    """Write [parts, 128], of which the last may have fewer columns, as one vector."""
    whole, ready = columns // PMAX, rows
    if rows.dtype != result.dtype:
        ready = like(rows, result.dtype)
        nisa.tensor_copy(ready, rows)
    if whole > 0:
        nisa.dma_copy(result[0 : whole * PMAX].reshape_dim(0, (whole, PMAX)), ready[0:whole])
    if columns % PMAX > 0:
        nisa.dma_copy(result[whole * PMAX :].expand_dim(0), ready[whole : whole + 1, 0 : columns % PMAX])


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
