"""Every option of the collectives, in worlds of two to eight ranks."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import random
from options.common import near, refusal

from nki.ranks import run_ranks
from nkilib.experimental.collectives import collectives
from nkilib.experimental.collectives.fg_allgather import fine_grained_allgather
from nkilib.experimental.collectives.fgcc import allgather_compute_matmul
from nkilib.experimental.collectives.sb2sb_allgather import allgather_sb2sb, allgather_sb2sb_tiled

PAIRS = ((0, 1), (2, 3))
GROUPS = {"two": ((0, 1),), "four": ((0, 1, 2, 3),), "pairs": PAIRS, "far-pairs": ((0, 2), (1, 3))}
DTYPES = {"float32": 1e-6, "bfloat16": 2**-7}
SHAPES = [(4, 3), (8,), (4, 2, 5)]


def group_of(groups: tuple, rank: int) -> tuple:
    return next(group for group in groups if rank in group)


def ranks_of(groups: tuple) -> int:
    return sum(map(len, groups))


def data(groups: tuple, shape: tuple, dtype: str) -> list[np.ndarray]:
    return [random(shape, dtype, seed=rank) for rank in range(ranks_of(groups))]


each_form = pytest.mark.parametrize("dtype", DTYPES)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_group = pytest.mark.parametrize("groups", GROUPS.values(), ids=list(GROUPS))


@each_form
@each_shape
@each_group
def test_all_reduce(groups, shape, dtype):
    x = data(groups, shape, dtype)
    got = run_ranks(collectives.all_reduce_hbm_kernel, len(x), lambda rank: (x[rank], groups))
    for rank, out in enumerate(got):
        near(out, sum(x[r].astype(np.float64) for r in group_of(groups, rank)), DTYPES[dtype])


@each_form
@each_shape
@each_group
def test_all_gather(groups, shape, dtype):
    x = data(groups, shape, dtype)
    size = len(groups[0])
    got = run_ranks(collectives.all_gather_hbm_kernel, len(x), lambda rank: (x[rank], groups, size))
    for rank, out in enumerate(got):
        near(out, np.concatenate([x[r].astype(np.float64) for r in group_of(groups, rank)]), 0.0)


@each_form
@each_shape
@each_group
def test_reduce_scatter(groups, shape, dtype):
    x = data(groups, shape, dtype)
    size = len(groups[0])
    got = run_ranks(collectives.reduce_scatter_hbm_kernel, len(x), lambda rank: (x[rank], groups, size))
    for rank, out in enumerate(got):
        group = group_of(groups, rank)
        total = sum(x[r].astype(np.float64) for r in group)
        near(out, np.split(total, size)[group.index(rank)], DTYPES[dtype])


@each_form
@each_shape
@each_group
def test_all_to_all(groups, shape, dtype):
    x = data(groups, shape, dtype)
    size = len(groups[0])
    got = run_ranks(collectives.all_to_all_hbm_kernel, len(x), lambda rank: (x[rank], groups))
    for rank, out in enumerate(got):
        group = group_of(groups, rank)
        parts = [np.split(x[r].astype(np.float64), size)[group.index(rank)] for r in group]
        near(out, np.concatenate(parts), 0.0)


@each_shape
def test_rank_id(shape):
    table = random((4, *shape))
    for rank, out in enumerate(run_ranks(collectives.rank_id_kernel, 4, lambda rank: (table,))):
        near(out, table[rank : rank + 1], 0.0)
    order = np.array([2, 0, 3, 1], np.int32)
    got = run_ranks(collectives.dma_copy_rank_id_kernel, 4, lambda rank: (table, order))
    for rank, out in enumerate(got):
        near(out, table[order[rank]][None], 0.0)


@each_form
@pytest.mark.parametrize("kernel", [allgather_sb2sb, allgather_sb2sb_tiled], ids=["whole", "tiled"])
@pytest.mark.parametrize("shape", [(1, 3), (5, 4), (128, 2)], ids=str)
@each_group
def test_gather_of_columns(groups, shape, kernel, dtype):
    x = data(groups, shape, dtype)
    size = len(groups[0])
    got = run_ranks(kernel, len(x), lambda rank: (x[rank], groups, size))
    for rank, out in enumerate(got):
        near(out, np.concatenate([x[r].astype(np.float64) for r in group_of(groups, rank)], axis=1), 0.0)


@each_form
@pytest.mark.parametrize("in_hbm", [False, True])
@pytest.mark.parametrize("degree, count", [(4, 1), (4, 2), (8, 1)])
def test_ring_gather(degree, count, in_hbm, dtype):
    x = [random((6, 10), dtype, seed=rank) for rank in range(degree * count)]
    got = run_ranks(fine_grained_allgather, len(x), lambda rank: (x[rank], degree, count, in_hbm))
    for rank, out in enumerate(got):
        first = rank // degree * degree
        near(out, np.stack(x[first : first + degree]).astype(np.float64), 0.0)


@each_form
@pytest.mark.parametrize("in_hbm", [False, True])
@pytest.mark.parametrize("degree, count", [(4, 1), (4, 2)])
def test_ring_gather_and_product(degree, count, in_hbm, dtype):
    x = [random((8, 128), dtype, seed=rank) for rank in range(degree * count)]
    w = [random((128, 16), dtype, seed=100 + rank, scale=0.1) for rank in range(degree * count)]
    got = run_ranks(allgather_compute_matmul, len(x), lambda rank: (x[rank], w[rank], degree, count, in_hbm))
    for rank, out in enumerate(got):
        first = rank // degree * degree
        rows = np.stack(x[first : first + degree]).astype(np.float64)
        near(out, rows @ w[rank].astype(np.float64), 1e-5 if dtype == "float32" else 2**-7)


ROWS = random((4, 3))
TWO = ((0, 1),)
REFUSED = {
    "reduce-none": (collectives.all_reduce_hbm_kernel, (None, TWO), "input"),
    "gather-none": (collectives.all_gather_hbm_kernel, (None, TWO, 2), "input"),
    "gather-ranks": (collectives.all_gather_hbm_kernel, (ROWS, TWO, 3), "num_ranks"),
    "scatter-none": (collectives.reduce_scatter_hbm_kernel, (None, TWO, 2), "input"),
    "scatter-rows": (collectives.reduce_scatter_hbm_kernel, (random((3, 3)), TWO, 2), "input"),
    "scatter-ranks": (collectives.reduce_scatter_hbm_kernel, (ROWS, TWO, 4), "num_ranks"),
    "all-to-all-none": (collectives.all_to_all_hbm_kernel, (None, TWO), "input"),
    "all-to-all-rows": (collectives.all_to_all_hbm_kernel, (random((3, 3)), TWO), "input"),
    "rank-none": (collectives.rank_id_kernel, (None,), "in_tensor"),
    "lookup-none": (collectives.dma_copy_rank_id_kernel, (ROWS, None), "rank_id_lookup"),
    "columns-none": (allgather_sb2sb, (None, TWO, 2), "inp"),
    "columns-rank": (allgather_sb2sb, (random(4), TWO, 2), "inp"),
    "columns-rows": (allgather_sb2sb, (random((129, 2)), TWO, 2), "inp"),
    "columns-degree": (allgather_sb2sb, (ROWS, TWO, 3), "tp_degree"),
    "tiled-rows": (allgather_sb2sb_tiled, (random((130, 2)), TWO, 2), "inp"),
    "ring-none": (fine_grained_allgather, (None, 4, 1), "lhs"),
    "ring-degree": (fine_grained_allgather, (ROWS, 2, 1), "tp_degree"),
    "ring-rank": (fine_grained_allgather, (random(4), 4, 1), "lhs"),
    "product-none": (allgather_compute_matmul, (None, random((128, 16)), 4, 1), "lhs"),
    "product-rhs-none": (allgather_compute_matmul, (random((8, 128)), None, 4, 1), "rhs"),
    "product-rhs": (allgather_compute_matmul, (random((8, 128)), random((64, 16)), 4, 1), "rhs"),
    "product-degree": (allgather_compute_matmul, (random((8, 128)), random((128, 16)), 3, 1), "tp_degree"),
}


@pytest.mark.parametrize("kernel, arguments, name", REFUSED.values(), ids=list(REFUSED))
def test_refusals(kernel, arguments, name):
    with pytest.raises(AssertionError, match=refusal(name)):
        run_ranks(
            kernel,
            4 if kernel in (fine_grained_allgather, allgather_compute_matmul) else 2,
            lambda rank: arguments,
        )
