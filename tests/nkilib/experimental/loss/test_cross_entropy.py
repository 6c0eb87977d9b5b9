import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run

import nki
import nki.language as nl
from nkilib.experimental.loss import (
    cross_entropy_backward,
    cross_entropy_backward_ref,
    cross_entropy_forward,
    cross_entropy_forward_ref,
)

DTYPES = {"bfloat16": nl.bfloat16, "float32": nl.float32}
TOLERANCE = {"bfloat16": 3e-2, "float32": 1e-4}  # of loss and lse, absolute


def inputs(n, v, dtype="float32", scale=3.0):
    some = random((min(n, 300), v), dtype, scale=scale)
    return np.resize(some, (n, v)), np.random.default_rng(1).integers(0, v, n).astype(np.int32)


def blocks(n):
    """Return blocks of rows whose float64 reference fits into memory."""
    return [slice(start, start + 64) for start in range(0, n, 64)]


def check_forward(logits, targets, out_dtype, lnc=1, **options):
    results = run(cross_entropy_forward, logits, targets, dtype=DTYPES[out_dtype], lnc=lnc, **options)
    assert all(r.dtype == np.dtype(out_dtype) and r.shape == targets.shape for r in results)
    for rows in blocks(len(targets)):
        wanted = cross_entropy_forward_ref(logits[rows], targets[rows])
        for got, exact in zip(results, wanted, strict=True):
            exact = exact.astype(got.dtype).astype(np.float64)
            np.testing.assert_allclose(got[rows].astype(np.float64), exact, rtol=0, atol=TOLERANCE[out_dtype])


def check_backward(logits, targets, lnc=1, reduction="mean", **options):
    n = len(targets)
    lse = [cross_entropy_forward_ref(logits[rows], targets[rows])[1] for rows in blocks(n)]
    lse = np.concatenate(lse).astype(np.float32)
    got = run(cross_entropy_backward, logits, targets, lse, reduction, lnc=lnc, inplace=False, **options)
    assert got.dtype == logits.dtype and got.shape == logits.shape
    factor = 1 / n if reduction == "mean" else 1.0
    tolerance = 1e-2 if logits.dtype == ml_dtypes.bfloat16 else 1e-4
    for rows in blocks(n):
        wanted = factor * cross_entropy_backward_ref(logits[rows], targets[rows], lse[rows], "sum")
        np.testing.assert_allclose(got[rows].astype(np.float64), wanted, rtol=0, atol=tolerance * factor)


SHAPES = [  # N, V, chunk_size, positions_per_batch
    (7, 2048, 2048, 8),
    (130, 517, 100, 16),
    (64, 3001, 1024, 32),
    (257, 300, 300, 128),
    (130, 5000, 2100, 1),
]


@each_lnc
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("n, v, chunk_size, positions", SHAPES)
def test_forward_matches_the_reference(n, v, chunk_size, positions, dtype, lnc):
    logits, targets = inputs(n, v, dtype)
    options = {"chunk_size": chunk_size, "positions_per_batch": positions}
    check_forward(logits, targets, dtype, lnc, **options)


@each_lnc
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("n, v, chunk_size, positions", SHAPES)
def test_backward_matches_the_reference(n, v, chunk_size, positions, dtype, lnc):
    logits, targets = inputs(n, v, dtype)
    check_backward(logits, targets, lnc, chunk_size=chunk_size, positions_per_batch=positions)


PUBLISHED = [
    (256, 32000, 32000, 32, "bfloat16"),
    (1024, 128256, 32768, 64, "bfloat16"),
    (2048, 151936, 40960, 32, "bfloat16"),
    (96, 50257, 16384, 128, "bfloat16"),
    (64, 32064, 16384, 32, "float32"),
]


@pytest.mark.slow
@pytest.mark.parametrize("n, v, chunk_size, positions, dtype", PUBLISHED)
def test_published_sizes_match_the_reference(n, v, chunk_size, positions, dtype):
    logits, targets = inputs(n, v, dtype, scale=1.0)
    options = {"chunk_size": chunk_size, "positions_per_batch": positions}
    check_forward(logits, targets, dtype, **options)
    check_backward(logits, targets, **options)


@pytest.mark.tiny
def test_one_position_on_two_cores():
    logits, targets = inputs(1, 64)
    check_forward(logits, targets, "float32", lnc=2, chunk_size=64)
    check_backward(logits, targets, lnc=2, chunk_size=64)


def test_the_output_dtype_may_differ_from_that_of_the_logits():
    logits, targets = inputs(5, 200, "bfloat16")
    check_forward(logits, targets, "float32", chunk_size=200)
    logits, targets = inputs(5, 200, "float32")
    check_forward(logits, targets, "bfloat16", chunk_size=64)


def test_large_logits_do_not_overflow():
    logits, targets = inputs(6, 400, scale=1000.0)
    check_forward(logits, targets, "float32", chunk_size=50)
    check_backward(logits, targets, chunk_size=50)


def test_chunks_of_masked_logits_count_as_nothing():
    logits, targets = inputs(6, 400)
    logits[:, 100:] = -np.inf
    targets %= 100
    check_forward(logits, targets, "float32", chunk_size=50)
    check_backward(logits, targets, chunk_size=50)


def test_sum_leaves_the_gradient_unscaled():
    logits, targets = inputs(10, 96)
    check_backward(logits, targets, reduction="sum", chunk_size=96)


@pytest.mark.tiny
@pytest.mark.parametrize("lnc", [1, 2])
def test_in_place_writes_over_the_logits_and_returns_them(lnc):
    logits, targets = inputs(9, 150)
    lse = cross_entropy_forward_ref(logits, targets)[1].astype(np.float32)
    wanted = cross_entropy_backward_ref(logits, targets, lse)
    got = run(cross_entropy_backward, logits, targets, lse, chunk_size=60, lnc=lnc)
    assert got is logits
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4 / 9)


def test_a_bfloat16_lse_is_taken_as_it_is():
    logits, targets = inputs(9, 150, "bfloat16")
    _, lse = run(cross_entropy_forward, logits, targets, chunk_size=150)
    wanted = cross_entropy_backward_ref(logits, targets, lse)
    got = run(cross_entropy_backward, logits, targets, lse, chunk_size=150, inplace=False)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=1e-2 / 9)


WRONG = [
    ({"logits_hbm": np.zeros(64, np.float32)}, r"logits_hbm: got shape \(64,\), expected \[N, V\]"),
    ({"logits_hbm": np.zeros((4, 64), np.float16)}, "logits_hbm: got dtype float16, allowed are bfloat16"),
    ({"targets_hbm": np.zeros(5, np.int32)}, r"targets_hbm: got shape \(5,\), expected \(4,\)"),
    ({"targets_hbm": np.zeros(4, np.uint32)}, "targets_hbm: got dtype uint32, allowed is int32"),
    ({"dtype": nl.float16}, "dtype: got float16, allowed are bfloat16 and float32"),
    ({"positions_per_batch": 0}, "positions_per_batch: got 0, allowed are 1 to 128"),
    ({"positions_per_batch": 129}, "positions_per_batch: got 129, allowed are 1 to 128"),
    ({"chunk_size": 32768}, "chunk_size: got 32768, must not exceed V = 64; pass chunk_size=64"),
    ({"chunk_size": 0}, "chunk_size: got 0, must be positive"),
]


@pytest.mark.parametrize("kernel", [cross_entropy_forward, cross_entropy_backward])
@pytest.mark.parametrize("wrong, text", WRONG)
def test_wrong_arguments_are_named(kernel, wrong, text):
    arguments = {
        "logits_hbm": np.zeros((4, 64), np.float32),
        "targets_hbm": np.zeros(4, np.int32),
        "chunk_size": 64,
    }
    if kernel is cross_entropy_backward:
        arguments["lse_state_hbm"] = np.zeros(4, np.float32)
    with invalid(text):
        run(kernel, **{**arguments, **wrong})


def test_chunks_are_limited_in_columns_and_bytes():
    wide = nki.TensorSpec((4, 100_000), "float32"), nki.TensorSpec((4,), "int32")
    with pytest.raises(AssertionError, match="chunk_size: got 65536, must not exceed 65535"):
        nki.profile(cross_entropy_forward)(*wide, chunk_size=65536)
    with pytest.raises(AssertionError, match="128 x 65535 logits of 4 bytes = 33553920 bytes, allowed are"):
        nki.profile(cross_entropy_forward)(*wide, chunk_size=65535, positions_per_batch=128)


def test_the_backward_kernel_refuses_other_reductions_and_shapes():
    logits, targets = inputs(4, 64)
    lse = np.zeros(4, np.float32)
    with pytest.raises(AssertionError, match="reduction: got none, allowed are mean and sum"):
        run(cross_entropy_backward, logits, targets, lse, reduction="none", chunk_size=64)
    with pytest.raises(AssertionError, match=r"lse_state_hbm: got shape \(3,\), expected \(4,\)"):
        run(cross_entropy_backward, logits, targets, lse[:3], chunk_size=64)


@pytest.mark.parametrize("kernel", [cross_entropy_forward, cross_entropy_backward])
def test_the_compiler_accepts_the_kernel_and_its_example_runs(kernel):
    compiles_and_example_runs(kernel)
