"""The selective scan of Mamba: one linear recurrence for each channel and state."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_io import load, piece, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor

TIME_TILE = nl.tile_size.gemm_moving_fmax  # columns of a PSUM bank
SPREAD_BYTES = 32 * 1024  # of B, and of C, for all states in each partition
STATE_GROUP = 4  # states in one instruction


@nki.jit
def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t and y_t = sum_n C_t h_t (+ D x_t), in float32.

    Args:
        x, dt: [b, c, L]; dt as it is, without softplus.
        A: [c, n].
        B, C: [b, n, L].
        D: [c], or None.
        initial_state: [b, c, n], h before t = 0; 0 without it.

    Returns:
        y [b, c, L] in the dtype of x, final_state [b, c, n] float32.

    On two cores the tiles of 128 channels of all batches are divided.

    Channels are in the partitions, time in the free dimension. VectorE only scans, which takes the longest.
    ScalarE computes the decays and multiplies by C, GpSimdE multiplies by B (spread over all partitions), and
    TensorE sums over the states in PSUM.

    >>> x = dt = np.ones((1, 2, 3), np.float32)
    >>> A, B = np.zeros((2, 4), np.float32), np.ones((1, 4, 3), np.float32)
    >>> y, final_state = selective_scan(x, dt, A, B, B)
    >>> y[0, 0]
    array([ 4.,  8., 12.], dtype=float32)
    """
    check_arguments(x, dt, A, B, C, D, initial_state)
    batches, channels, states = x.shape[0], x.shape[1], A.shape[1]
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    final_state = nl.ndarray((batches, channels, states), nl.float32, buffer=nl.shared_hbm)
    identity = identity_tile()
    for batch in range(batches):
        tiles = []
        for rows in my_channel_tiles(batch, batches, channels):
            tiles.append(ChannelTile(batch, rows, A, D, initial_state))
        if len(tiles) > 0:
            scan_batch(y[batch], x[batch], dt[batch], B[batch], C[batch], tiles, identity)
        for tile in tiles:
            rows = tile.rows
            nisa.dma_copy(final_state[batch, rows.start_offset : rows.end_offset], tile.state)
    return y, final_state


class ChannelTile(nl.NKIObject):
    """Up to 128 channels of a batch: their A [rows, n], D [rows, 1] or None, and running state [rows, n]."""

    def __init__(
        self, batch: int, rows: TiledRangeIterator, A: Tensor, D: Tensor | None, initial_state: Tensor | None
    ):
        start, end = rows.start_offset, rows.end_offset
        self.rows = rows
        self.A = load(A[start:end], nl.float32)
        self.D = None if D is None else load(D[start:end].expand_dim(1), nl.float32)
        if initial_state is None:
            self.state = nl.ndarray((rows.size, A.shape[1]), nl.float32, buffer=nl.sbuf)
            nisa.memset(self.state, 0.0)
        else:
            self.state = load(initial_state[batch, start:end], nl.float32)


def my_channel_tiles(batch: int, batches: int, channels: int) -> list:
    """Return this core's tiles of 128 channels of a batch."""
    tiles = TiledRange(channels, PMAX)
    start, end = program_share(batches * len(tiles))
    mine = []
    for tile in tiles:
        number = batch * len(tiles) + tile.index
        if number >= start and number < end:
            mine.append(tile)
    return mine


def identity_tile() -> Tensor:
    identity = nl.ndarray((PMAX, PMAX), nl.float32, buffer=nl.sbuf)
    nisa.memset(identity, 1.0)
    nisa.affine_select(identity, [[-1, PMAX]], 1, identity, 0.0, cmp_op=nl.equal)
    return identity


def scan_batch(y: Tensor, x: Tensor, dt: Tensor, B: Tensor, C: Tensor, tiles: list, identity: Tensor) -> None:
    """Scan one batch: y, x, dt [c, L]; B, C [n, L]. A tile of B and C serves all tiles of channels."""
    states, length = B.shape
    for times in TiledRange(length, time_tile(states)):
        spread_B, columns_C = spread(B, times), columns_of(C, times)
        for tile in tiles:
            my_x, my_dt = load(piece(x, tile.rows, times)), load(piece(dt, tile.rows, times))
            total = scan_tile(tile, my_x, my_dt, spread_B, columns_C, identity)
            store(piece(y, tile.rows, times), total)


def time_tile(states: int) -> int:
    return max(1, min(TIME_TILE, SPREAD_BYTES // (4 * states)))


def spread(matrix: Tensor, times: TiledRangeIterator) -> Tensor:
    """Load columns of a matrix [n, L] into every partition: [128, n, columns]."""
    columns = matrix[:, times.start_offset : times.end_offset]
    tile = nl.ndarray((PMAX, matrix.shape[0], times.size), matrix.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, columns.expand_dim(0).broadcast(0, PMAX))
    return tile


def columns_of(C: Tensor, times: TiledRangeIterator) -> list:
    """Load C [n, L] with time in the partitions: a float32 tile [columns, n] for every 128 columns."""
    tiles = []
    for block in TiledRange(times, PMAX):
        tile = nl.ndarray((block.size, C.shape[0]), C.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(tile, C[:, block.start_offset : block.end_offset])
        exact = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(exact, tile)
        tiles.append(exact)
    return tiles


def scan_tile(
    tile: ChannelTile, x: Tensor, dt: Tensor, spread_B: Tensor, columns_C: list, identity: Tensor
) -> Tensor:
    """Return y of up to 128 channels and one tile of time, in PSUM, and advance the tile's state."""
    rows = x.shape[0]
    dtx = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dtx, dt, x, op=nl.multiply, engine=nisa.engine.gpsimd)
    y = nl.ndarray(x.shape, nl.float32, buffer=nl.psum)
    for group in TiledRange(tile.A.shape[1], STATE_GROUP):
        h = scan_states(tile, dt, dtx, spread_B[0:rows, group.start_offset : group.end_offset], group)
        for i in range(group.size):
            add_state(y, h[:, i, :], columns_C, group.start_offset + i, identity)
    if tile.D is not None:
        skipped = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
        nisa.activation(skipped, nl.copy, x, scale=tile.D)
        nisa.nc_matmul(y, identity[0:rows, 0:rows], skipped, is_stationary_onezero=True)
    return y


def add_state(y: Tensor, h: Tensor, columns_C: list, n: int, identity: Tensor) -> None:
    """Set y += C_n h, both [channels, time].

    C scales h where time is in the partitions: TensorE transposes h there and back, and the second product
    accumulates in PSUM.
    """
    channels, width = h.shape
    for times in TiledRange(width, PMAX):
        start, end = times.start_offset, times.end_offset
        transposed = nl.ndarray((times.size, channels), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(transposed, h[:, start:end])
        scaled = nl.ndarray((times.size, channels), nl.float32, buffer=nl.sbuf)
        nisa.activation(scaled, nl.copy, transposed, scale=columns_C[times.index][:, n : n + 1])
        nisa.nc_matmul(
            y[:, start:end], scaled, identity[0 : times.size, 0 : times.size], is_moving_onezero=True
        )


def scan_states(tile: ChannelTile, dt: Tensor, dtx: Tensor, B: Tensor, group: TiledRangeIterator) -> Tensor:
    """Return h [rows, states, time] of a group of states; B is [rows, states, time]."""
    rows, width = dt.shape
    decay = nl.ndarray((rows, group.size, width), nl.float32, buffer=nl.sbuf)
    h = nl.ndarray((rows, group.size, width), nl.float32, buffer=nl.sbuf)
    repeated = dtx.expand_dim(1).broadcast(1, group.size)
    nisa.tensor_tensor(h, repeated, B, op=nl.multiply, engine=nisa.engine.gpsimd)
    for i in range(group.size):
        n = group.start_offset + i
        state = tile.state[:, n : n + 1]
        nisa.activation(decay[:, i, :], nl.exp, dt, scale=tile.A[:, n : n + 1])
        nisa.tensor_tensor_scan(h[:, i, :], decay[:, i, :], h[:, i, :], state, op0=nl.multiply, op1=nl.add)
    nisa.tensor_copy(tile.state[:, group.start_offset : group.end_offset], h[:, :, width - 1])
    return h


def check_arguments(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_state: Tensor | None
) -> None:
    required = (("x", x), ("dt", dt), ("A", A), ("B", B), ("C", C))
    assert_tensors(required, (("D", D), ("initial_state", initial_state)))
    kernel_assert(len(x.shape) == 3, f"x: got shape {tuple(x.shape)}, expected [b, c, L]")
    batches, channels, length = x.shape
    assert_shape(dt, x.shape, "dt")
    kernel_assert(
        len(A.shape) == 2 and A.shape[0] == channels,
        f"A: got shape {tuple(A.shape)}, expected [c, n] with c = {channels}",
    )
    states = A.shape[1]
    assert_shape(B, (batches, states, length), "B")
    assert_shape(C, (batches, states, length), "C")
    if D is not None:
        assert_shape(D, (channels,), "D")
    if initial_state is not None:
        assert_shape(initial_state, (batches, channels, states), "initial_state")


def selective_scan_ref(
    x: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    D: np.ndarray | None = None,
    initial_state: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return y and final_state in float64, step by step."""
    x, dt, A, B, C = (np.asarray(value, np.float64) for value in (x, dt, A, B, C))
    shape = (x.shape[0], *A.shape)
    state = np.zeros(shape) if initial_state is None else np.asarray(initial_state, np.float64)
    y = np.empty_like(x)
    for t in range(x.shape[2]):
        now = dt[:, :, t, None]
        state = np.exp(now * A) * state + now * x[:, :, t, None] * B[:, None, :, t]
        y[:, :, t] = np.einsum("bcn,bn->bc", state, C[:, :, t])
    return y if D is None else y + np.asarray(D, np.float64)[:, None] * x, state
