"""The all-gathers, the fused matmul, and the thin kernels of collectives, on small worlds."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, each_lnc, invalid, random

from nki.ranks import run_ranks
from nkilib.experimental.collectives import collectives as thin
from nkilib.experimental.collectives.fg_allgather import fine_grained_allgather, fine_grained_allgather_ref
from nkilib.experimental.collectives.fgcc import allgather_compute_matmul
from nkilib.experimental.collectives.sb2sb_allgather import allgather_sb2sb, allgather_sb2sb_tiled
from support import target

BF16 = ml_dtypes.bfloat16
PAIRS = ((2, 0), (1, 3))


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def equal(results, references):
    assert len(results) == len(references)
    for result, reference in zip(results, references, strict=True):
        np.testing.assert_array_equal(result, reference)


# ---- thin kernels --------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_collective_kernels_match_their_references(name, lnc):
    x = random((4, 6, 5))
    kernel, reference = (getattr(thin, f"{name}_hbm_kernel{suffix}") for suffix in ("", "_ref"))
    more = (PAIRS, 2) if name in ("all_gather", "reduce_scatter") else (PAIRS,)
    equal(run_ranks(kernel, 4, lambda r: (x[r], *more), lnc=lnc), reference(list(x), PAIRS))


def test_a_rank_finds_its_slice():
    x, table = random((4, 5)), np.array([[3], [2], [0], [1]], np.int32)
    equal(run_ranks(thin.rank_id_kernel, 4, lambda r: (x,)), [x[r : r + 1] for r in range(4)])
    found = run_ranks(thin.dma_copy_rank_id_kernel, 4, lambda r: (x, table))
    equal(found, [x[table[r]] for r in range(4)])


def test_unequal_parts_raise():
    with invalid("input: got 5 rows"):
        run_ranks(thin.reduce_scatter_hbm_kernel, 2, lambda r: (random((5, 2)), ((0, 1),), 2))


# ---- all-gathers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, columns, ranks", [(128, 512, 2), (64, 33, 4), (7, 3, 8)])
def test_allgather_sb2sb_joins_columns_in_rank_order(rows, columns, ranks):
    x = random((ranks, rows, columns), BF16)
    group = (tuple(range(ranks)),)
    results = run_ranks(allgather_sb2sb, ranks, lambda r: (x[r], group, ranks))
    equal(results, [np.concatenate(x, axis=1)] * ranks)


@each_lnc
@pytest.mark.parametrize("rows, columns", [(64, 33), (1024, 16), (384, 8)])
def test_allgather_sb2sb_tiled_takes_any_number_of_tiles(rows, columns, lnc):
    x = random((4, rows, columns))
    results = run_ranks(allgather_sb2sb_tiled, 4, lambda r: (x[r], PAIRS, 2), lnc=lnc)
    pair = {2: (2, 0), 0: (2, 0), 1: (1, 3), 3: (1, 3)}
    equal(results, [np.concatenate([x[a] for a in pair[r]], axis=1) for r in range(4)])


def test_allgather_sb2sb_raises_on_wrong_arguments():
    for shape, degree, text in (
        ((200, 4), 2, "200 rows"),
        ((4, 4), 4, "tp_degree"),
        ((8, 90000), 2, "bytes"),
    ):
        with invalid(text):
            run_ranks(allgather_sb2sb, 2, lambda r: (random(shape), ((0, 1),), degree))  # noqa: B023


@each_lnc
@pytest.mark.parametrize("hbm", [False, True])
@pytest.mark.parametrize("degree, groups, rows, columns", [(4, 1, 64, 32), (4, 2, 6, 5), (8, 1, 256, 16)])
def test_the_ring_gathers_in_rank_order(degree, groups, rows, columns, hbm, lnc):
    x = random((degree * groups, rows, columns), BF16)
    results = run_ranks(
        fine_grained_allgather, degree * groups, lambda r: (x[r], degree, groups, hbm), lnc=lnc
    )
    equal(results, fine_grained_allgather_ref(list(x), degree, groups))


def test_undocumented_ring_sizes_raise():
    for degree in (2, 6, 256):
        with invalid("tp_degree"):
            run_ranks(fine_grained_allgather, 2, lambda r: (random((4, 4)), degree, 1))  # noqa: B023


# ---- all-gather and matmul -----------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("hbm", [False, True])
@pytest.mark.parametrize(
    "groups, rows, depth, columns", [(1, 64, 256, 96), (2, 6, 200, 5), (1, 256, 128, 640)]
)
def test_what_arrives_is_multiplied(groups, rows, depth, columns, hbm, lnc):
    ranks = 4 * groups
    x, w = random((ranks, rows, depth), BF16), random((ranks, depth, columns), BF16, seed=1)
    results = run_ranks(allgather_compute_matmul, ranks, lambda r: (x[r], w[r], 4, groups, hbm), lnc=lnc)
    for rank in range(ranks):
        first = rank // 4 * 4
        whole = x[first : first + 4].astype(np.float64).reshape(4 * rows, depth)
        reference = (whole @ w[rank].astype(np.float64)).reshape(4, rows, columns)
        assert results[rank].dtype == BF16
        limit = 1e-2 * np.abs(reference).max()
        np.testing.assert_allclose(results[rank].astype(np.float64), reference, rtol=1e-2, atol=limit)


def test_float32_matrices_keep_their_precision():
    x, w = random((4, 8, 256)), random((4, 256, 16), seed=1)
    results = run_ranks(allgather_compute_matmul, 4, lambda r: (x[r], w[r], 4, 1))
    close(results[2], x.astype(np.float64) @ w[2].astype(np.float64), terms=256)


def test_mismatched_matmul_operands_raise():
    with invalid("rhs: got 7 rows"):
        run_ranks(allgather_compute_matmul, 4, lambda r: (random((4, 8)), random((7, 4)), 4, 1))
    with invalid("lhs: got 5 rows"):
        run_ranks(allgather_compute_matmul[2], 4, lambda r: (random((5, 8)), random((8, 4)), 4, 1))
