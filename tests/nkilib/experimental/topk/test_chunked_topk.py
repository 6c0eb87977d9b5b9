"""chunked_topk against a stable sort; equal values may come in any order of columns."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, invalid, random, run

from nkilib.core.utils.kernel_assert import NotBuilt
from nkilib.experimental.topk import chunked_topk, create_chunked_topk_config


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(chunked_topk)


def compare(x, k, lnc=1, on="trn2", **options):
    config = create_chunked_topk_config(x.shape, x.dtype, k, num_programs=lnc, **options)
    values, columns = run(chunked_topk, x, config, lnc=lnc, on=on)
    assert values.dtype == ml_dtypes.bfloat16 and columns.dtype == np.int32
    for row, found, places in zip(x.astype(np.float64), values.astype(np.float64), columns, strict=True):
        wanted = sorted(row, reverse=True)[:k]
        np.testing.assert_array_equal(found if config.sorted else sorted(found, reverse=True), wanted)
        np.testing.assert_array_equal(row[places], found)
        assert len(set(places)) == k


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    ("rows", "columns", "k", "chunks"),
    [
        (1, 70001, 5, None),
        (3, 131071, 12, None),
        (2, 300, 20, 3),
        (9, 1001, 8, 4),
        (130, 64, 3, 2),
        (5, 100, 60, 4),
        (2, 1024, 1, 5),
        (4, 200, 17, 1),
        (3, 25, 25, 3),
        (2, 16, 2, 2),
        (17, 513, 9, 2),
    ],
)
def test_the_largest_of_wide_rows(rows, columns, k, chunks, lnc):
    compare(random((rows, columns), "bfloat16"), k, lnc, chunks=chunks)


def test_equal_values_are_found_once_each():
    compare(np.ones((3, 400), ml_dtypes.bfloat16), 30, chunks=3)


def test_negative_rows():
    compare(-np.abs(random((3, 400), "bfloat16")), 9, chunks=4)


def test_without_order_and_on_trn3():
    compare(random((3, 400), "bfloat16"), 9, chunks=2, sorted=False)
    compare(random((3, 400), "bfloat16"), 9, chunks=1, sorted=False)
    compare(random((3, 400), "bfloat16"), 9, on="trn3", chunks=2)


def test_shapes_of_three_dimensions_count_rows():
    assert create_chunked_topk_config((2, 3, 70000), None, 4).rows == 6


@pytest.mark.parametrize(
    ("argument", "shape", "k", "options"),
    [
        ("inp_shape", (70000,), 4, {}),
        ("chunks", (2, 70000), 4, {"chunks": 1}),
        ("chunks", (2, 64), 4, {"chunks": 9}),
        ("k", (2, 70000), 8193, {}),
        ("k", (2, 20), 21, {"chunks": 2}),
        ("num_programs", (2, 70000), 4, {"num_programs": 3}),
    ],
)
def test_wrong_configurations_are_refused(argument, shape, k, options):
    with invalid(argument):
        create_chunked_topk_config(shape, None, k, **options)


def test_wrong_calls_are_refused():
    x = random((2, 400), "bfloat16")
    config = create_chunked_topk_config(x.shape, x.dtype, 4, chunks=2, num_programs=1)
    for wrong in (x[:, :399], x.astype(np.float32)):
        with invalid("inp"):
            run(chunked_topk, wrong.copy(), config)
    with invalid("config"):
        run(chunked_topk, x, config, lnc=2)
    slabs = dataclasses.replace(config, interleaved_batch_groups=2)
    with pytest.raises(NotBuilt, match="interleaved_batch_groups"):
        run(chunked_topk, x, slabs)
