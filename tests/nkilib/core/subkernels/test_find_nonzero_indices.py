from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, run

from nkilib.core.subkernels import find_nonzero_indices as exported
from nkilib.core.subkernels.find_nonzero_indices import find_nonzero_indices, find_nonzero_indices_ref
from nkilib.experimental.subkernels.find_nonzero_indices import find_nonzero_indices as older


def sparse(rows: int, columns: int, dtype: object = np.float32, share: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(rows + columns)
    values = rng.integers(1, 100, (rows, columns)) * (rng.random((rows, columns)) < share)
    return values.astype(dtype)


def check(x, lnc=1, **options):
    got = run(find_nonzero_indices, x, lnc=lnc, **options)
    indices, counts = find_nonzero_indices_ref(x, **options)
    np.testing.assert_array_equal(got[1], counts)
    np.testing.assert_array_equal(got[0], indices)


@each_lnc
@pytest.mark.parametrize("rows, columns", [(128, 2), (1024, 16), (384, 36), (256, 128)])
def test_rows_that_are_not_zero_are_listed_and_counted(rows, columns, lnc):
    check(sparse(rows, columns), lnc)


@each_lnc
def test_chunks_are_appended_to_one_another(lnc):
    check(sparse(1024, 20), lnc, chunk_size=256)


@each_lnc
def test_some_columns_from_one_that_is_known_at_run_time(lnc):
    check(sparse(256, 32), lnc, col_start_id=np.array([4], np.int32), n_cols=4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_empty_and_full_columns(share):
    check(sparse(256, 4, share=share))
    check(sparse(256, 4, share=share), chunk_size=128)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3])
def test_any_dtype(dtype):
    check(sparse(128, 4, dtype))


def test_what_counts_as_zero():
    x = np.zeros((128, 2), np.float32)
    x[5, 0], x[6, 0], x[7, 1] = -0.0, np.nan, 1e-30
    indices, counts = find_nonzero_indices(x)
    assert counts.tolist() == [1, 1] and indices[:, 0].tolist() == [6, 7]


def test_indices_in_another_dtype():
    indices, _ = find_nonzero_indices(sparse(128, 2), index_dtype=np.int16)
    assert indices.dtype == np.int16
    np.testing.assert_array_equal(indices, find_nonzero_indices_ref(sparse(128, 2))[0])


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((100, 2), {}, "input_tensor: got T = 100"),
        ((128, 130), {}, "input_tensor: got C = 130"),
        ((128, 2), {"chunk_size": 100}, "chunk_size: got 100"),
        ((256, 4), {"col_start_id": np.array([0], np.int32)}, "n_cols: got None"),
    ],
)
def test_wrong_arguments_raise(shape, options, message):
    with pytest.raises(AssertionError, match=message):
        find_nonzero_indices(np.ones(shape, np.float32), **options)


def test_two_cores_need_an_even_number_of_columns():
    with pytest.raises(AssertionError, match="got 3 columns"):
        run(find_nonzero_indices, sparse(128, 3), lnc=2)


def test_it_has_three_names():
    assert exported is find_nonzero_indices is older


def test_the_compiler_would_take_it_and_the_example_runs():
    compiles_and_example_runs(find_nonzero_indices)
