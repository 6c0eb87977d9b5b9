"""All-gather fused with a matmul: a rank multiplies the chunk it has received while sending it on.

Each rank transposes its rows once, so that the ring carries what TensorE takes: tiles [128 of K, rows].
The columns of rhs stay in SBUF where they fit. On two cores each has half of every chunk's rows.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor

from .fg_allgather import tile_rows
from .rings import check_degree, consecutive_groups, ring_buffers, send_on, slot_at, slot_numbers

BANK = 512  # float32 columns of a PSUM bank
BANKS = 4  # that one row tile's sums take, so that two are under way
RESIDENT_BYTES = 140 * 1024  # of a partition, for the columns of rhs
SBUF_BYTES = 176 * 1024  # of a partition, for rhs and both buffers


@nki.jit
def allgather_compute_matmul(
    lhs: Tensor, rhs: Tensor, tp_degree: int, num_groups: int, force_hbm_cc: bool = False
) -> Tensor:
    """out [tp_degree, m, N] = (lhs [m, K] of all ranks) rhs [K, N], sums in float32.

    The ranks form num_groups rings of tp_degree (4, 8, ..., 128) consecutive ranks. Buffers are in SBUF
    where they fit together with rhs, otherwise or with `force_hbm_cc` in HBM. The result has lhs's dtype.

    >>> from nki.ranks import run_ranks
    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((4, 8, 256)), rng.standard_normal((4, 256, 16))
    >>> x, w = x.astype(np.float32), w.astype(np.float32)
    >>> out = run_ranks(allgather_compute_matmul, 4, lambda rank: (x[rank], w[rank], 4, 1))
    >>> bool(np.allclose(out[1], allgather_compute_matmul_ref(list(x), list(w), 4, 1)[1], atol=1e-3))
    True
    """
    check_degree(tp_degree)
    check(lhs, rhs)
    job = GatherMatmul(lhs, rhs, tp_degree, num_groups)
    if force_hbm_cc or job.ring_bytes() * 2 + job.weight_bytes() > SBUF_BYTES:
        ring_in_hbm(job)
    else:
        ring_in_sbuf(job)
    return job.out


class GatherMatmul(nl.NKIObject):
    """Sizes, the group, the weights and the result of a call."""

    def __init__(self, lhs: Tensor, rhs: Tensor, tp_degree: int, num_groups: int):
        self.lhs = lhs
        self.rhs = rhs
        self.degree = tp_degree
        self.group = consecutive_groups(tp_degree, num_groups)
        self.numbers = slot_numbers(tp_degree, num_groups)
        self.core = nl.program_id(0)
        self.cores = nl.num_programs(0)
        self.rows = lhs.shape[0] // self.cores  # of a chunk, for this core
        self.first = self.core * self.rows
        self.tile = tile_rows(self.rows)
        self.depth = div_ceil(lhs.shape[1], PMAX)  # tiles of K
        shape = (tp_degree, lhs.shape[0], rhs.shape[1])
        self.out = nl.ndarray(shape, lhs.dtype, buffer=nl.shared_hbm, name="out")
        fits = self.weight_bytes() <= RESIDENT_BYTES
        self.weights = load_weights(self, 0, rhs.shape[1]) if fits else None

    def tiles(self) -> int:
        return self.rows // self.tile

    def ring_bytes(self) -> int:
        """Return the bytes of a chunk in each partition."""
        return self.depth * self.rows * sizeinbytes(self.lhs.dtype)

    def weight_bytes(self) -> int:
        return self.depth * self.rhs.shape[1] * sizeinbytes(self.rhs.dtype)


def load_weights(job: GatherMatmul, first: int, end: int) -> Tensor:
    """Load columns of rhs as [128, depth, columns]; rows beyond K are 0."""
    tile = nl.ndarray((PMAX, job.depth, end - first), job.rhs.dtype)
    clear_tail(tile, job.lhs.shape[1])
    for k in TiledRange(job.lhs.shape[1], PMAX):
        nisa.dma_copy(tile[0 : k.size, k.index, :], job.rhs[k.start_offset : k.end_offset, first:end])
    return tile


def clear_tail(tile: Tensor, contraction: int) -> None:
    if contraction % PMAX != 0:
        nisa.memset(tile[:, tile.shape[1] - 1, :], 0.0)


def transpose_row_tile(job: GatherMatmul, index: int, dst: Tensor) -> None:
    """Transpose a row tile of lhs into dst [128, depth, rows]."""
    first = job.first + index * job.tile
    clear_tail(dst, job.lhs.shape[1])
    transpose_rows(dst, 0, 0, load(job.lhs[first : first + job.tile]))


def ring_in_sbuf(job: GatherMatmul) -> None:
    """Run the ring in SBUF: TensorE reads the ring's buffers directly."""
    width = job.depth * job.tile
    shape = (PMAX, job.tiles() * width)
    buffers = [nl.ndarray(shape, job.lhs.dtype), nl.ndarray(shape, job.lhs.dtype)]
    chunk = by_tile(buffers[0], job)
    for i in range(job.tiles()):
        transpose_row_tile(job, i, chunk[:, i])
    channels = 2 if job.tiles() * width % 2 == 0 else 1
    for step in range(job.degree):
        if step < job.degree - 1:
            send_on(buffers, step, channels, job.group)
        slot = slot_at(step, job.group, job.numbers)
        chunk = by_tile(buffers[step % 2], job)
        for i in range(job.tiles()):
            multiply(job, chunk[:, i], slot, i)


def by_tile(buffer: Tensor, job: GatherMatmul) -> Tensor:
    return buffer.reshape((PMAX, job.tiles(), job.depth, job.tile))


def ring_in_hbm(job: GatherMatmul) -> None:
    """Run the ring in HBM: row tiles are loaded one by one, and the cores share the buffers."""
    width, mine = job.depth * job.tile, job.tiles() * PMAX
    shape = (job.cores * mine, width)
    buffers = ring_buffers(shape, job.lhs.dtype)
    for i in range(job.tiles()):
        tile = nl.ndarray((PMAX, job.depth, job.tile), job.lhs.dtype)
        transpose_row_tile(job, i, tile)
        nisa.dma_copy(rows_of(buffers[0], job, i), tile.reshape((PMAX, width)))
    channels = 2 if shape[0] % 2 == 0 else 1
    for step in range(job.degree):
        if step < job.degree - 1:
            send_on(buffers, step, channels, job.group)
        slot = slot_at(step, job.group, job.numbers)
        for i in range(job.tiles()):
            tile = load(rows_of(buffers[step % 2], job, i))
            multiply(job, tile.reshape((PMAX, job.depth, job.tile)), slot, i)


def rows_of(buffer: Tensor, job: GatherMatmul, index: int) -> Tensor:
    first = (job.core * job.tiles() + index) * PMAX
    return buffer[first : first + PMAX]


def multiply(job: GatherMatmul, tile: Tensor, slot: nisa.VirtualRegister, index: int) -> None:
    """Multiply row tile `index` of a rank's chunk by all columns of rhs."""
    first = job.first + index * job.tile
    for columns in TiledRange(job.rhs.shape[1], BANKS * BANK):
        weights = columns_of(job, columns)
        sums = nl.ndarray((job.tile, columns.size), nl.float32, buffer=nl.psum)
        for k in range(job.depth):
            for bank in TiledRange(columns.size, BANK):
                part = slice(bank.start_offset, bank.end_offset)
                nisa.nc_matmul(sums[:, part], tile[:, k, :], weights[:, k, part], accumulate=k > 0)
        rows = nl.ndarray((job.tile, columns.size), job.out.dtype)
        for bank in TiledRange(columns.size, BANK):
            part = slice(bank.start_offset, bank.end_offset)
            interleave_copy(rows[:, part], sums[:, part], bank.index)
        place = job.out[nl.ds(slot, 1), first : first + job.tile, columns.start_offset : columns.end_offset]
        nisa.dma_copy(place, rows)


def columns_of(job: GatherMatmul, columns: TiledRangeIterator) -> Tensor:
    if job.weights is None:
        return load_weights(job, columns.start_offset, columns.end_offset)
    return job.weights[:, :, columns.start_offset : columns.end_offset]


def check(lhs: Tensor, rhs: Tensor) -> None:
    assert_tensors((("lhs", lhs), ("rhs", rhs)))
    kernel_assert(
        len(lhs.shape) == 2 and len(rhs.shape) == 2,
        f"lhs, rhs: got {len(lhs.shape)} and {len(rhs.shape)} dimensions, allowed are 2",
    )
    kernel_assert(
        lhs.shape[1] == rhs.shape[0], f"rhs: got {rhs.shape[0]} rows, allowed are the {lhs.shape[1]} of K"
    )
    kernel_assert(lhs.dtype == rhs.dtype, f"rhs: got {rhs.dtype}, allowed is the dtype of lhs, {lhs.dtype}")
    cores = nl.num_programs(0)
    kernel_assert(
        lhs.shape[0] % cores == 0, f"lhs: got {lhs.shape[0]} rows, allowed are multiples of {cores}"
    )


def allgather_compute_matmul_ref(lhs: list, rhs: list, tp_degree: int, num_groups: int) -> list:
    """Return the results of all ranks for their operands."""
    found = []
    for rank in range(tp_degree * num_groups):
        first = rank // tp_degree * tp_degree
        rows = np.stack(lhs[first : first + tp_degree]).astype(np.float32)
        found.append((rows @ rhs[rank].astype(np.float32)).astype(lhs[0].dtype))
    return found
