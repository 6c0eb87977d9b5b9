"""The k largest of rows that are wider than GpSimd's instruction takes: of chunks, then of what they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.topk.largest import AT_ONCE, LOWEST, largest
from nkilib.core.topk.largest import MAX_COLUMNS as MAX_CANDIDATES
from nkilib.core.topk.rotational_topk import rotational_topk_ref
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.topk.gpsimd_topk import (
    MAX_COLUMNS,
    MAX_K,
    create_gpsimd_topk_config,
    gpsimd_topk,
    top_of_block,
)


@dataclass(frozen=True)
class ChunkedTopkConfig(nl.NKIObject):
    """A problem of chunked_topk: the matrix, how many of each row are found, and in how many chunks."""

    rows: int  # R
    columns: int  # V
    dtype: Any  # of the input
    k: int  # how many of each row
    chunks: int  # parts of a row; 1: as gpsimd_topk
    sorted: bool = True  # the largest comes first
    num_programs: int = 2  # cores, which share the rows
    interleaved_batch_groups: int = 1  # refused above 1


def create_chunked_topk_config(
    inp_shape: tuple,
    inp_dtype: DTypeLike,
    k: int,
    chunks: int | None = None,
    sorted: bool = True,
    num_programs: int = 2,
) -> ChunkedTopkConfig:
    """Return the configuration for an input [B S, V] or [B, S, V]; chunks None: as few as fit."""
    kernel_assert(len(inp_shape) in (2, 3), f"inp_shape: got {inp_shape}, expected (R, V) or (B, S, V)")
    rows, columns = 1, inp_shape[-1]
    for size in inp_shape[:-1]:
        rows *= size
    least = div_ceil(columns, MAX_COLUMNS)
    chunks = least if chunks is None else chunks
    kernel_assert(
        least <= chunks <= max(1, columns // AT_ONCE),
        f"chunks: got {chunks}, allowed are {least} to {max(1, columns // AT_ONCE)} for V = {columns}",
    )
    most = min(MAX_K, columns) if chunks == 1 else min(MAX_CANDIDATES // chunks, columns)
    kernel_assert(1 <= k <= most, f"k: got {k}, allowed are 1 to {most}")
    kernel_assert(num_programs in (1, 2), f"num_programs: got {num_programs}, allowed are 1 and 2")
    return ChunkedTopkConfig(rows, columns, inp_dtype, k, chunks, sorted, num_programs)


@nki.jit
def chunked_topk(inp: Tensor, config: ChunkedTopkConfig) -> tuple:
    """Return (values bfloat16 [R, k], columns int32 [R, k]) of the k largest of each row of inp [R, V].

    inp is bfloat16 in HBM, of values above -3e38; V may exceed 65535. GpSimdE finds the k largest of each of
    config.chunks parts of a row, VectorE the k largest of these, and sorts them. With chunks 1 this is
    gpsimd_topk. Cores share the rows; config.num_programs must be their number. Read of the page: the
    signature, the method, that chunks 1 delegates, and the names chunks and interleaved_batch_groups; above
    1 the latter is refused, as the layout of its slabs is not described. The other fields and
    create_chunked_topk_config are ours.

    >>> import ml_dtypes
    >>> x = np.zeros((1, 70000), ml_dtypes.bfloat16)
    >>> x[0, [5, 69999, 40000]] = 3, 2, 1
    >>> values, columns = chunked_topk(x, create_chunked_topk_config(x.shape, x.dtype, 3, num_programs=1))
    >>> values.tolist(), columns.tolist()
    ([[3.0, 2.0, 1.0]], [[5, 69999, 40000]])
    """
    cores = get_verified_program_sharding_info("chunked_topk", (0, 1), 2)[1]
    if config.interleaved_batch_groups != 1:
        not_built("interleaved_batch_groups", "the page does not describe the layout of the slabs")
    if config.chunks == 1:
        shape = (config.rows, config.columns)
        return gpsimd_topk(
            inp, create_gpsimd_topk_config(shape, config.dtype, config.k, config.sorted, config.num_programs)
        )
    assert_tensors((("inp", inp),))
    assert_shape(inp, (config.rows, config.columns), "inp")
    kernel_assert(inp.dtype == nl.bfloat16, f"inp: got {inp.dtype}, allowed is bfloat16")
    kernel_assert(
        config.num_programs == cores,
        f"config: got num_programs = {config.num_programs}, expected the {cores} cores of the launch",
    )
    values = nl.ndarray((config.rows, config.k), inp.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((config.rows, config.k), nl.int32, buffer=nl.shared_hbm)
    first, end = program_share(config.rows)
    for block in TiledRange(end - first, PMAX):
        rows = slice(first + block.start_offset, first + block.end_offset)
        found, places = top_of_chunks(inp[rows], config.chunks, config.k)
        store(values[rows], found[:, 0 : config.k])
        chosen = nl.ndarray((block.size, config.k), nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(chosen, places[:, 0 : config.k])
        nisa.dma_copy(index[rows], chosen)
    return values, index


def top_of_chunks(x: Tensor, chunks: int, k: int) -> tuple:
    """The k largest of up to 128 rows, largest first: float32 values and columns, k rounded up to 8."""
    rows, columns = x.shape
    parts = TiledRange(columns, div_ceil(columns, chunks))
    width = 0
    for part in parts:
        width += min(k, part.size)
    values = nl.ndarray((rows, max(AT_ONCE, width)), nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((rows, max(AT_ONCE, width)), nl.float32, buffer=nl.sbuf)
    if width < AT_ONCE:
        nisa.memset(values, LOWEST)
        nisa.memset(places, 0.0)
    at = 0
    for part in parts:
        each = min(k, part.size)
        found, inside = top_of_block(x[:, part.start_offset : part.end_offset], each)
        nisa.activation(values[:, at : at + each], nl.copy, found[:, 0:each])
        start = float(part.start_offset)
        nisa.tensor_scalar(places[:, at : at + each], inside[:, 0:each], nl.add, start)
        at += each
    best, order = largest(values, k)
    picked = nl.ndarray(order.shape, nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(picked, places, order)
    return best, picked


def chunked_topk_ref(inp: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort in numpy."""
    return rotational_topk_ref(inp, k)
