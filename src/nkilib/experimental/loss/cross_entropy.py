"""Cross entropy of logits [N, V] with target indices [N], and its gradient, in chunks of the vocabulary.

Positions are in the partitions, a chunk of the vocabulary in the free dimension. Each chunk has its own
maximum and its own sum of exponentials, combined after the last chunk, so that no chunk waits for the one
before. One indirect DMA of single elements reads the target logits of positions, or writes their gradients:
no mask over the vocabulary is needed.

On trn2 in bf16 the exponentials on ScalarE take the longest in the forward kernel (memory in the backward
one). The maximum alone would take VectorE even longer, so GpSimdE first reduces a part of each chunk to half.
"""

from __future__ import annotations

import math

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

MAX_TILE_BYTES = 32 * 1024  # of a chunk in each partition: several chunks are in flight
MIN_CHUNK = 2048  # columns: DMA needs long rows
MAX_BATCH_BYTES = 24 * 1024 * 1024
MAX_CHUNK = 65535
HALVED_EIGHTHS = 6  # of a chunk: VectorE and GpSimdE then take equally long, and less than ScalarE
LOWEST = -3.4028234663852886e38  # a maximum that prevents NaN in chunks of nothing but -inf
LN_2 = 0.6931471805599453


@nki.jit
def cross_entropy_forward(
    logits_hbm: Tensor,
    targets_hbm: Tensor,
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: DTypeLike = nl.bfloat16,
) -> tuple[Tensor, Tensor]:
    """loss = lse - x_target and lse = log(sum_j exp(x_j)) of every position x.

    Args:
        logits_hbm: [N, V], bfloat16 or float32.
        targets_hbm: [N] int32 in [0, V).
        positions_per_batch, chunk_size: how many logits are processed at a time, at most 128 and at most
            V and 65535. They are spread over all partitions: 128 positions and proportionally fewer columns
            than chunk_size, though not below 2048.
        dtype: of loss and lse, bfloat16 or float32. Sums and maxima are float32 in any case.

    Returns:
        loss [N], lse [N].

    On two cores each takes every second position.

    >>> logits, targets = np.zeros((4, 32), np.float32), np.arange(4, dtype=np.int32)
    >>> loss, lse = cross_entropy_forward(logits, targets, chunk_size=32, dtype=nl.float32)
    >>> bool(np.allclose(loss, np.log(32.0)))
    True
    """
    check_arguments(logits_hbm, targets_hbm, positions_per_batch, chunk_size, dtype)
    loss = nl.ndarray(targets_hbm.shape, dtype, buffer=nl.shared_hbm)
    lse = nl.ndarray(targets_hbm.shape, dtype, buffer=nl.shared_hbm)
    shard = Shard(logits_hbm, positions_per_batch, chunk_size)
    if shard.positions > 0:
        target_logits = gather_targets(shard, target_addresses(shard, targets_hbm))
        sums, negative_maxima = shard.column_tile(1.0), shard.column_tile(0.0)
        for rows in TiledRange(shard.positions, PMAX):
            sum_exponentials(shard.column(sums, rows), shard.column(negative_maxima, rows), shard, rows)
        store_losses(shard, loss, lse, sums, negative_maxima, target_logits)
    return loss, lse


@nki.jit
def cross_entropy_backward(
    logits_hbm: Tensor,
    targets_hbm: Tensor,
    lse_state_hbm: Tensor,
    reduction: str = "mean",
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: DTypeLike = nl.bfloat16,
    inplace: bool = True,
) -> Tensor:
    """grad = g (exp(x - lse) - 1[j = target]), with g = 1 / N for "mean" and 1 for "sum".

    Args:
        logits_hbm: [N, V], bfloat16 or float32.
        targets_hbm: [N] int32 in [0, V).
        lse_state_hbm: [N], from cross_entropy_forward.
        reduction: "mean" or "sum".
        positions_per_batch, chunk_size: as in cross_entropy_forward.
        dtype: that of the forward kernel. Tiles here keep the dtype of the logits and float32.
        inplace: write the gradient over logits_hbm; else into a new tensor.

    Returns:
        grad [N, V] in the dtype of the logits: logits_hbm itself if inplace.

    >>> logits, targets = np.zeros((4, 32), np.float32), np.arange(4, dtype=np.int32)
    >>> _, lse = cross_entropy_forward(logits, targets, chunk_size=32, dtype=nl.float32)
    >>> grad = cross_entropy_backward(logits, targets, lse, chunk_size=32, dtype=nl.float32, inplace=False)
    >>> bool(np.allclose(grad.sum(axis=1), 0.0, atol=1e-6))
    True
    """
    check_arguments(logits_hbm, targets_hbm, positions_per_batch, chunk_size, dtype)
    assert_tensors((("lse_state_hbm", lse_state_hbm),))
    assert_shape(lse_state_hbm, targets_hbm.shape, "lse_state_hbm")
    kernel_assert(reduction in ("mean", "sum"), f"reduction: got {reduction}, allowed are mean and sum")
    grad = logits_hbm
    if not inplace:
        grad = nl.ndarray(logits_hbm.shape, logits_hbm.dtype, buffer=nl.shared_hbm)
    log_factor = -math.log2(logits_hbm.shape[0]) * LN_2 if reduction == "mean" else 0.0
    shard = Shard(logits_hbm, positions_per_batch, chunk_size)
    if shard.positions > 0:
        addresses = target_addresses(shard, targets_hbm)
        exponents = load_exponents(shard, lse_state_hbm, log_factor)
        at_targets = target_gradients(shard, gather_targets(shard, addresses), exponents, log_factor)
        for rows in TiledRange(shard.positions, PMAX):
            scale_exponentials(grad, shard, rows, exponents)
        # after all rows, as the elements at the targets are written twice
        for rows in TiledRange(shard.positions, PMAX):
            nisa.dma_copy(shard.targets_of(grad, addresses, rows), shard.column(at_targets, rows))
    return grad


class Shard(nl.NKIObject):
    """The positions of this core, and how they are divided into tiles.

    Position i of the shard is in partition i % 128 and column i // 128 of a tile with one value per position
    ("column tile").
    """

    def __init__(self, logits: Tensor, positions_per_batch: int, chunk_size: int):
        self.logits = logits
        self.cores = nl.num_programs(0)
        self.first = nl.program_id(0)
        self.vocabulary = logits.shape[1]
        self.positions = div_ceil(logits.shape[0] - self.first, self.cores)
        self.partitions = min(self.positions, PMAX)
        requested = positions_per_batch * chunk_size // max(self.partitions, 1)
        self.chunk = min(chunk_size, MAX_TILE_BYTES // sizeinbytes(logits.dtype), max(requested, MIN_CHUNK))

    def chunks(self) -> tuple[TiledRangeIterator, ...]:
        return TiledRange(self.vocabulary, self.chunk)

    def of(self, tensor: Tensor) -> Tensor:
        """Return this core's positions of a tensor [N] or [N, V]."""
        return tensor[self.first :: self.cores]

    def piece(self, tensor: Tensor, rows: TiledRangeIterator, columns: TiledRangeIterator) -> Tensor:
        """Return a tile's part of a tensor [N, V]."""
        mine = self.of(tensor)
        return mine[rows.start_offset : rows.end_offset, columns.start_offset : columns.end_offset]

    def column_tile(self, value: float) -> Tensor:
        """Allocate a float32 column tile; `value` fills the partitions that the last column does not use."""
        tile = nl.ndarray((self.partitions, div_ceil(self.positions, PMAX)), nl.float32, buffer=nl.sbuf)
        nisa.memset(tile, value)
        return tile

    def column(self, tile: Tensor, rows: TiledRangeIterator) -> Tensor:
        return tile[0 : rows.size, rows.index : rows.index + 1]

    def pairs(self, vector: Tensor, tile: Tensor) -> list:
        """Return parts of a vector [N] with their parts of a column tile: the full columns, then the last."""
        mine, full = self.of(vector), self.positions // PMAX
        first_of_rest, rest = full * PMAX, self.positions % PMAX
        pairs = []
        if full > 0:
            columns = mine[0:first_of_rest].reshape_dim(0, (full, PMAX))
            pairs.append((columns.permute((1, 0)), tile[:, 0:full]))
        if rest > 0:
            pairs.append((mine[first_of_rest : self.positions].expand_dim(1), tile[0:rest, full : full + 1]))
        return pairs

    def targets_of(self, tensor: Tensor, addresses: Tensor, rows: TiledRangeIterator) -> Tensor:
        """Return the elements of [N, V] at the targets of up to 128 positions, for an indirect DMA."""
        elements = tensor.shape[0] * self.vocabulary
        start = (self.first + rows.start_offset * self.cores) * self.vocabulary
        flat = tensor.reshape((elements, 1))
        return flat[start:elements].vector_select(0, self.column(addresses, rows))


def target_addresses(shard: Shard, targets: Tensor) -> Tensor:
    """Return a column tile: the addresses of the target elements, relative to the start of their column."""
    shape = (shard.partitions, div_ceil(shard.positions, PMAX))
    row_starts = nl.ndarray(shape, nl.int32, buffer=nl.sbuf)
    nisa.iota(row_starts, [[0, shape[1]]], channel_multiplier=shard.cores * shard.vocabulary)
    addresses = nl.ndarray(shape, nl.int32, buffer=nl.sbuf)
    nisa.memset(addresses, 0)
    load_columns(shard, addresses, targets)
    # GpSimdE adds integers exactly; VectorE would round them to 24 bits
    nisa.tensor_tensor(addresses, addresses, row_starts, op=nl.add, engine=nisa.engine.gpsimd)
    return addresses


def load_columns(shard: Shard, tile: Tensor, vector: Tensor) -> None:
    """Load a vector [N] into a column tile."""
    for pair in shard.pairs(vector, tile):
        nisa.dma_copy(pair[1], pair[0])


def store_columns(shard: Shard, vector: Tensor, tile: Tensor) -> None:
    """Store a column tile to a vector [N]."""
    for pair in shard.pairs(vector, tile):
        nisa.dma_copy(pair[0], pair[1])


def gather_targets(shard: Shard, addresses: Tensor) -> Tensor:
    """Return a column tile of the logits at the targets."""
    gathered = nl.ndarray(addresses.shape, shard.logits.dtype, buffer=nl.sbuf)
    nisa.memset(gathered, 0.0)
    for rows in TiledRange(shard.positions, PMAX):
        nisa.dma_copy(shard.column(gathered, rows), shard.targets_of(shard.logits, addresses, rows))
    return gathered


def load_chunk(shard: Shard, rows: TiledRangeIterator, columns: TiledRangeIterator) -> Tensor:
    chunk = nl.ndarray((rows.size, columns.size), shard.logits.dtype, buffer=nl.sbuf)
    nisa.dma_copy(chunk, shard.piece(shard.logits, rows, columns))
    return chunk


def sum_exponentials(total: Tensor, negative_maximum: Tensor, shard: Shard, rows: TiledRangeIterator) -> None:
    """total = sum_j exp(x_j + negative_maximum), negative_maximum = -max_j x_j, of up to 128 positions."""
    chunks = shard.chunks()
    shape = (rows.size, len(chunks))
    sums = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    negated = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    candidates = nl.ndarray((rows.size, len(chunks), 3), nl.float32, buffer=nl.sbuf)
    nisa.memset(candidates, LOWEST)
    for columns in chunks:
        x, i = load_chunk(shard, rows, columns), columns.index
        maxima_of_parts(candidates[:, i, :], x)
        nisa.tensor_reduce(negated[:, i : i + 1], nl.maximum, candidates[:, i, :], axis=1, negate=True)
        nisa.activation_reduce(
            x, nl.exp, x, reduce_op=nl.add, reduce_res=sums[:, i : i + 1], bias=negated[:, i : i + 1]
        )
    nisa.tensor_reduce(negative_maximum, nl.minimum, negated, axis=1)
    weights = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(weights, nl.exp, negated, bias=negative_maximum, scale=-1.0)
    nisa.tensor_tensor(sums, sums, weights, op=nl.multiply)
    nisa.tensor_reduce(total, nl.add, sums, axis=1)


def maxima_of_parts(candidates: Tensor, x: Tensor) -> None:
    """Set candidates[:, 0:2], whose maximum is that of x: VectorE and GpSimdE share the work."""
    width = x.shape[1]
    pairs = width * HALVED_EIGHTHS // 16
    nisa.tensor_reduce(candidates[:, 0:1], nl.maximum, x[:, 2 * pairs : width], axis=1)
    if pairs > 0:
        larger = nl.ndarray((x.shape[0], pairs), x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(
            larger, x[:, 0:pairs], x[:, pairs : 2 * pairs], op=nl.maximum, engine=nisa.engine.gpsimd
        )
        nisa.tensor_reduce(candidates[:, 1:2], nl.maximum, larger, axis=1)


def store_losses(
    shard: Shard, loss: Tensor, lse: Tensor, sums: Tensor, negative_maxima: Tensor, target_logits: Tensor
) -> None:
    """lse = log(sums) - negative_maxima, loss = lse - target_logits; all column tiles."""
    exact = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(exact, nl.log, sums)
    nisa.tensor_tensor(exact, exact, negative_maxima, op=nl.subtract)
    rounded = nl.ndarray(sums.shape, lse.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(rounded, exact)
    store_columns(shard, lse, rounded)
    difference = nl.ndarray(sums.shape, loss.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(difference, exact, target_logits, op=nl.subtract)
    store_columns(shard, loss, difference)


def load_exponents(shard: Shard, lse: Tensor, log_factor: float) -> Tensor:
    """Return a column tile of log(g) - lse; exp of a logit plus this is g times the probability."""
    loaded = nl.ndarray((shard.partitions, div_ceil(shard.positions, PMAX)), lse.dtype, buffer=nl.sbuf)
    nisa.memset(loaded, 0.0)
    load_columns(shard, loaded, lse)
    exponents = nl.ndarray(loaded.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(exponents, loaded, nl.multiply, -1.0, op1=nl.add, operand1=log_factor)
    return exponents


def target_gradients(shard: Shard, target_logits: Tensor, exponents: Tensor, log_factor: float) -> Tensor:
    """Return a column tile of g (exp(x_target - lse) - 1), in the dtype of the logits."""
    shape = exponents.shape
    exact = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(exact, target_logits, exponents, op=nl.add)
    nisa.activation(exact, nl.exp, exact)
    rounded = nl.ndarray(shape, shard.logits.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(rounded, exact, nl.subtract, math.pow(2.0, log_factor / LN_2))
    return rounded


def scale_exponentials(grad: Tensor, shard: Shard, rows: TiledRangeIterator, exponents: Tensor) -> None:
    """grad = exp(x + exponents) of up to 128 positions."""
    for columns in shard.chunks():
        x = load_chunk(shard, rows, columns)
        nisa.activation(x, nl.exp, x, bias=shard.column(exponents, rows))
        nisa.dma_copy(shard.piece(grad, rows, columns), x)


def check_arguments(
    logits: Tensor, targets: Tensor, positions_per_batch: int, chunk_size: int, dtype: DTypeLike
) -> None:
    assert_tensors((("logits_hbm", logits), ("targets_hbm", targets)))
    floats = (nl.bfloat16, nl.float32)
    kernel_assert(len(logits.shape) == 2, f"logits_hbm: got shape {logits.shape}, expected [N, V]")
    kernel_assert(
        logits.dtype in floats, f"logits_hbm: got dtype {logits.dtype}, allowed are bfloat16 and float32"
    )
    assert_shape(targets, (logits.shape[0],), "targets_hbm")
    kernel_assert(targets.dtype == nl.int32, f"targets_hbm: got dtype {targets.dtype}, allowed is int32")
    kernel_assert(dtype in floats, f"dtype: got {dtype}, allowed are bfloat16 and float32")
    kernel_assert(
        positions_per_batch > 0 and positions_per_batch <= PMAX,
        f"positions_per_batch: got {positions_per_batch}, allowed are 1 to {PMAX}",
    )
    check_chunk_size(logits, positions_per_batch, chunk_size)


def check_chunk_size(logits: Tensor, positions_per_batch: int, chunk_size: int) -> None:
    vocabulary = logits.shape[1]
    kernel_assert(chunk_size > 0, f"chunk_size: got {chunk_size}, must be positive")
    kernel_assert(
        chunk_size <= vocabulary,
        f"chunk_size: got {chunk_size}, must not exceed V = {vocabulary}; pass chunk_size={vocabulary}",
    )
    kernel_assert(chunk_size <= MAX_CHUNK, f"chunk_size: got {chunk_size}, must not exceed {MAX_CHUNK}")
    size = positions_per_batch * chunk_size * sizeinbytes(logits.dtype)
    kernel_assert(
        size <= MAX_BATCH_BYTES,
        f"positions_per_batch x chunk_size: got {positions_per_batch} x {chunk_size} logits of "
        f"{sizeinbytes(logits.dtype)} bytes = {size} bytes, allowed are at most {MAX_BATCH_BYTES}",
    )


def cross_entropy_forward_ref(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return loss and lse in float64, by numpy's pairwise logaddexp."""
    x = np.asarray(logits, np.float64)
    lse = np.logaddexp.reduce(x, axis=1)
    return lse - x[np.arange(len(x)), targets], lse


def cross_entropy_backward_ref(
    logits: np.ndarray, targets: np.ndarray, lse: np.ndarray, reduction: str = "mean"
) -> np.ndarray:
    """Return grad in float64."""
    x = np.asarray(logits, np.float64)
    one_hot = np.arange(x.shape[1]) == np.asarray(targets)[:, None]
    factor = 1.0 / len(x) if reduction == "mean" else 1.0
    return factor * (np.exp(x - np.asarray(lse, np.float64)[:, None]) - one_hot)
