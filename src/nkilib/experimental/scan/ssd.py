"""The state-space duality scan of Mamba-2: chunks as matrix products, a state carried from chunk to chunk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

BANK = nl.tile_size.gemm_moving_fmax  # float32 columns of a PSUM bank
MAX_CHUNK, MAX_N, MAX_D = 128, 128, 512
BLOCK_COLUMNS = 4096  # heads x d of the state in SBUF at a time


@nki.jit
def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int = 128,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
    causal_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """state_t = exp(dt_t A) state_{t-1} + B_t (dt_t x_t)^T and y_t = C_t state_t (+ D x_t), for each head.

    Args:
        x: [b, h, S, d].
        dt: [b, h, S].
        A: [h].
        B, C: [b, S, n], shared by the heads.
        chunk_size: Q, at most 128, a divisor of S.
        D: [h], or None.
        initial_state: [b, h, n, d], the state before t = 0; 0 without it.
        causal_mask: [Q, Q] float32, ones on and below the diagonal; required.

    Returns:
        y [b, h, S, d] in the dtype of x, final_state [b, h, n, d] float32.

    With a = cumsum(dt A) inside a chunk, y_i = sum_j mask_ij (C_i . B_j) exp(a_i - a_j) dt_j x_j, plus
    exp(a_i) C_i . state. The exponent a_i - a_j is itself a sum over the steps between, by a matmul with
    triangular matrices: no large exponentials occur that would have to cancel. Matmul operands have the
    dtype of x where B and C share it, else float32. On two cores the heads are divided.

    >>> x, dt = np.ones((1, 1, 2, 1), np.float32), np.ones((1, 1, 2), np.float32)
    >>> A, B = np.zeros(1, np.float32), np.ones((1, 2, 3), np.float32)
    >>> mask = np.tri(2, dtype=np.float32)
    >>> y, final_state = ssd(x, dt, A, B, B, chunk_size=2, causal_mask=mask)
    >>> y[0, 0, :, 0]
    array([3., 6.], dtype=float32)
    """
    check_arguments(x, dt, A, B, C, chunk_size, D, initial_state, causal_mask)
    batches, all_heads, _, d = x.shape
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    final_state = nl.ndarray((batches, all_heads, B.shape[2], d), nl.float32, buffer=nl.shared_hbm)
    constants = Constants(causal_mask)
    start, end = program_share(all_heads)
    for batch in range(batches):
        mine = TiledRangeIterator(end - start, 0, start, end)
        for heads in TiledRange(mine, max(1, min(PMAX, BLOCK_COLUMNS // d))):
            block = HeadBlock(batch, heads, x, A, B, C, D, initial_state)
            for chunk in TiledRange(x.shape[2], chunk_size):
                scan_chunk(y, x, dt, B, C, block, chunk, constants)
            nisa.dma_copy(by_rows(final_state[batch], heads), block.state)
    return y, final_state


class Constants(nl.NKIObject):
    """Matrices of zeros and ones, and the mask with keys in the partitions."""

    def __init__(self, causal_mask: Tensor):
        size = causal_mask.shape[0]
        self.ones = nl.ndarray((size, PMAX), nl.float32, buffer=nl.sbuf)
        nisa.memset(self.ones, 1.0)
        square = self.ones[:, 0:size]
        self.not_after = compared(square, nl.less_equal)  # [k, i]: k <= i
        self.after = compared(square, nl.greater)  # [k, j]: k > j
        self.mask = transposed(load(causal_mask))


class HeadBlock(nl.NKIObject):
    """Heads of one batch: A and D in every partition [128, heads], and their running state [n, heads, d]."""

    def __init__(
        self,
        batch: int,
        heads: TiledRangeIterator,
        x: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        initial_state: Tensor | None,
    ):
        self.batch = batch
        self.heads = heads
        self.A = spread(A, heads)
        self.D = None if D is None else spread(D, heads)
        self.dtype = x.dtype if x.dtype == B.dtype and x.dtype == C.dtype else nl.float32
        if initial_state is None:
            self.state = nl.ndarray((B.shape[2], heads.size, x.shape[3]), nl.float32, buffer=nl.sbuf)
            nisa.memset(self.state, 0.0)
        else:
            self.state = load(by_rows(initial_state[batch], heads), nl.float32)


def by_rows(tensor: Tensor, heads: TiledRangeIterator) -> Tensor:
    """View [heads, rows, columns] of an HBM tensor with the rows first."""
    return tensor[heads.start_offset : heads.end_offset].permute((1, 0, 2))


def spread(vector: Tensor, heads: TiledRangeIterator) -> Tensor:
    """Load elements of a vector [h] into every partition, as float32."""
    row = vector[heads.start_offset : heads.end_offset].expand_dim(0)
    return load(row.broadcast(0, PMAX), nl.float32)


def compared(ones: Tensor, compare: Callable[..., Tensor]) -> Tensor:
    """Return [p, f]: 1 where compare(p, f) holds, else 0."""
    result = nl.ndarray(ones.shape, nl.float32, buffer=nl.sbuf)
    nisa.affine_select(result, [[-1, ones.shape[1]]], 1, ones, 0.0, cmp_op=compare)
    return result


def transposed(tile: Tensor) -> Tensor:
    """Return tile [p, f] as [f, p], in SBUF."""
    psum = nl.ndarray((tile.shape[1], tile.shape[0]), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(psum, tile)
    return drained(psum, tile.dtype)


def drained(psum: Tensor, dtype: DTypeLike) -> Tensor:
    tile = nl.ndarray(psum.shape, dtype, buffer=nl.sbuf)
    nisa.activation(tile, nl.copy, psum)
    return tile


def scan_chunk(
    y: Tensor,
    x: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    block: HeadBlock,
    chunk: TiledRangeIterator,
    constants: Constants,
) -> None:
    """Compute y of one chunk for a block of heads, and advance the block's state to the end of the chunk."""
    start, end, batch = chunk.start_offset, chunk.end_offset, block.batch
    keys = load(B[batch, start:end], block.dtype)
    keys_T, queries_T = transposed(keys), transposed(load(C[batch, start:end], block.dtype))
    scores = masked_scores(keys_T, queries_T, constants.mask)
    values = load(by_rows(x[batch], block.heads)[start:end], block.dtype)
    heads_dt = dt[batch, block.heads.start_offset : block.heads.end_offset, start:end]
    decays = Decays(transposed(load(heads_dt, nl.float32)), block, constants)
    state = block.state
    if block.dtype != nl.float32:
        state = drained(block.state, block.dtype)
    result = nl.ndarray(values.shape, y.dtype, buffer=nl.sbuf)
    for group in TiledRange(block.heads.size, max(1, min(BANK // chunk.size, BANK // x.shape[3]))):
        inside = attend(values, scores, decays, group, constants)
        carried = read_state(state, queries_T, decays, group)
        if block.D is not None:
            add_skipped(carried, values, block.D, group)
        first, last = group.start_offset, group.end_offset
        nisa.tensor_tensor(result[:, first:last], inside, carried, op=nl.add)
        advance_state(block.state, keys, values, decays, group)
    store(by_rows(y[batch], block.heads)[start:end], result)


def masked_scores(keys_T: Tensor, queries_T: Tensor, mask: Tensor) -> Tensor:
    """Return [j, i] = (C_i . B_j) mask_ij in float32, keys in the partitions."""
    size = keys_T.shape[1]
    psum = nl.ndarray((size, size), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, keys_T, queries_T)
    scores = nl.ndarray((size, size), nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(scores, psum, mask, op=nl.multiply)
    return scores


class Decays(nl.NKIObject):
    """One value for each position and head of a chunk, [Q, heads] float32, from dt in that layout.

    dt, and logs = dt A; from_start = exp(a_i); to_end = dt_j exp(a_last - a_j); and for the state's
    partitions whole = exp(a_last), [n, heads].
    """

    def __init__(self, dt: Tensor, block: HeadBlock, constants: Constants):
        size, heads = dt.shape
        states = block.state.shape[0]
        self.dt = dt
        self.logs = nl.ndarray(dt.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(self.logs, dt, block.A[0:size], op=nl.multiply)
        self.from_start = summed_decay(constants.not_after, self.logs)
        self.whole = summed_decay(constants.ones[:, 0:states], self.logs)
        self.to_end = summed_decay(constants.after, self.logs)
        nisa.tensor_tensor(self.to_end, self.to_end, dt, op=nl.multiply)


def summed_decay(selection: Tensor, logs: Tensor) -> Tensor:
    """Return exp of the sum over k of selection[k, m] logs[k, head], [m, heads]."""
    psum = nl.ndarray((selection.shape[1], logs.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, selection, logs, is_stationary_onezero=True)
    decay = nl.ndarray(psum.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(decay, nl.exp, psum)
    return decay


def attend(
    values: Tensor, scores: Tensor, decays: Decays, group: TiledRangeIterator, constants: Constants
) -> Tensor:
    """Return PSUM [i, heads, d]: sum_j scores[j, i] exp(a_i - a_j) dt_j x_j."""
    size = scores.shape[0]
    exponents = nl.ndarray((size, group.size, size), nl.float32, buffer=nl.psum)
    for i in range(group.size):
        head = group.start_offset + i
        steps = nl.ndarray((size, size), nl.float32, buffer=nl.sbuf)  # [k, j]: dt_k A if k > j
        nisa.tensor_scalar(steps, constants.after, nl.multiply, decays.logs[:, head : head + 1])
        nisa.nc_matmul(exponents[:, i, :], steps, constants.not_after, is_moving_onezero=True)
    between = nl.ndarray(exponents.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(between, nl.exp, exponents)
    result = nl.ndarray((size, group.size, values.shape[2]), nl.float32, buffer=nl.psum)
    for i in range(group.size):
        head = group.start_offset + i
        weights = nl.ndarray((size, size), values.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            weights, between[:, i, :], nl.multiply, decays.dt[:, head : head + 1], nl.multiply, scores
        )
        nisa.nc_matmul(result[:, i, :], weights, values[:, head, :])
    return result


def read_state(state: Tensor, queries_T: Tensor, decays: Decays, group: TiledRangeIterator) -> Tensor:
    """Return exp(a_i) C_i . state, [i, heads, d] float32."""
    shape = (queries_T.shape[1], group.size, state.shape[2])
    psum = nl.ndarray(shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, queries_T, state[:, group.start_offset : group.end_offset])
    carried = nl.ndarray(shape, nl.float32, buffer=nl.sbuf)
    for i in range(group.size):
        head = group.start_offset + i
        nisa.activation(carried[:, i, :], nl.copy, psum[:, i, :], scale=decays.from_start[:, head : head + 1])
    return carried


def add_skipped(carried: Tensor, values: Tensor, D: Tensor, group: TiledRangeIterator) -> None:
    """Set carried += D x, on GpSimdE, as VectorE and ScalarE are busier."""
    size, heads, d = carried.shape
    first, last = group.start_offset, group.end_offset
    factors = D[0:size, first:last].expand_dim(2).broadcast(2, d)
    skipped = nl.ndarray(carried.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(skipped, values[:, first:last], factors, op=nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(carried, carried, skipped, op=nl.add, engine=nisa.engine.gpsimd)


def advance_state(
    state: Tensor, keys: Tensor, values: Tensor, decays: Decays, group: TiledRangeIterator
) -> None:
    """state = exp(a_last) state + sum_j B_j (dt_j exp(a_last - a_j) x_j)^T."""
    weighted = nl.ndarray((values.shape[0], group.size, values.shape[2]), values.dtype, buffer=nl.sbuf)
    for i in range(group.size):
        head = group.start_offset + i
        nisa.activation(
            weighted[:, i, :], nl.copy, values[:, head, :], scale=decays.to_end[:, head : head + 1]
        )
    added = nl.ndarray((state.shape[0], group.size, state.shape[2]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(added, keys, weighted)
    for i in range(group.size):
        head = group.start_offset + i
        mine, factor = state[:, head, :], decays.whole[:, head : head + 1]
        nisa.scalar_tensor_tensor(mine, mine, nl.multiply, factor, nl.add, added[:, i, :])


def check_arguments(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None,
    initial_state: Tensor | None,
    causal_mask: Tensor,
) -> None:
    required = (("x", x), ("dt", dt), ("A", A), ("B", B), ("C", C))
    assert_tensors(required, (("D", D), ("initial_state", initial_state)))
    kernel_assert(len(x.shape) == 4, f"x: got shape {tuple(x.shape)}, expected [b, h, S, d]")
    batches, heads, length, d = x.shape
    assert_shape(dt, (batches, heads, length), "dt")
    assert_shape(A, (heads,), "A")
    kernel_assert(
        len(B.shape) == 3 and B.shape[0] == batches and B.shape[1] == length,
        f"B: got shape {tuple(B.shape)}, expected [b, S, n] with b = {batches}, S = {length}",
    )
    states = B.shape[2]
    assert_shape(C, B.shape, "C")
    if D is not None:
        assert_shape(D, (heads,), "D")
    if initial_state is not None:
        assert_shape(initial_state, (batches, heads, states, d), "initial_state")
    check_sizes(chunk_size, length, states, d, causal_mask)


def check_sizes(chunk_size: int, length: int, states: int, d: int, causal_mask: Tensor) -> None:
    kernel_assert(
        chunk_size > 0 and chunk_size <= MAX_CHUNK,
        f"chunk_size: got {chunk_size}, allowed are 1 to {MAX_CHUNK}",
    )
    kernel_assert(length % chunk_size == 0, f"chunk_size: got {chunk_size}, must divide S = {length}")
    kernel_assert(states <= MAX_N, f"B: got n = {states}, allowed are at most {MAX_N}")
    kernel_assert(d <= MAX_D, f"x: got d = {d}, allowed are at most {MAX_D}")
    kernel_assert(
        causal_mask is not None,
        f"causal_mask: got None, expected float32 [{chunk_size}, {chunk_size}] with a lower triangle of ones",
    )
    assert_shape(causal_mask, (chunk_size, chunk_size), "causal_mask")
    kernel_assert(
        causal_mask.dtype == nl.float32, f"causal_mask: got dtype {causal_mask.dtype}, allowed is float32"
    )


def ssd_ref(
    x: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    D: np.ndarray | None = None,
    initial_state: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return y and final_state in float64, step by step, without chunks."""
    x, dt, A, B, C = (np.asarray(value, np.float64) for value in (x, dt, A, B, C))
    b, h, length, d = x.shape
    state = (
        np.zeros((b, h, B.shape[2], d)) if initial_state is None else np.asarray(initial_state, np.float64)
    )
    y = np.empty_like(x)
    for t in range(length):
        now = dt[:, :, t]
        added = np.einsum("bn,bhd->bhnd", B[:, t], now[..., None] * x[:, :, t])
        state = np.exp(now * A)[..., None, None] * state + added
        y[:, :, t] = np.einsum("bn,bhnd->bhd", C[:, t], state)
    return y if D is None else y + np.asarray(D, np.float64)[:, None, None] * x, state
