"""rotational_topk, cascaded_max and gpsimd_topk against numpy's sort."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, on_both, refusals

from nkilib.core.max import cascaded_max
from nkilib.core.topk import (
    cleanup_rotational_constants,
    create_rotational_topk_config,
    create_topk_config,
    prepare_rotational_constants,
    rotational_topk,
)
from nkilib.experimental.topk import create_gpsimd_topk_config, gpsimd_topk


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [rotational_topk, cascaded_max, gpsimd_topk])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def whole(shape, low, high, dtype="float32"):
    return np.random.default_rng(0).integers(low, high, shape).astype(np.dtype(dtype))


def sorted_rows(inp, k):
    """Values and columns of the k largest, by a sort of pairs in Python."""
    order = [sorted(range(len(row)), key=lambda c, row=row: (-float(row[c]), c))[:k] for row in inp]
    return [np.take_along_axis(inp, np.array(order), 1), np.array(order)]


MATRICES = {
    "basic": random((5, 40)),
    "one-row": random((1, 9)),
    "few-columns": random((3, 4)),
    "130-rows": random((130, 12)),
    "ties": whole((6, 50), 0, 4),
    "spread": random((2, 3001)),
    "wide": random((1, 17001)),
    "bfloat16": random((7, 33), "bfloat16"),
    "float16": random((7, 33), "float16"),
    "negative": -np.abs(random((4, 21))) - 1,
}


@each(on_both([Option(name, {"inp": x}) for name, x in MATRICES.items()]) + [Option("trn3", on="trn3")])
@pytest.mark.parametrize("k", [1, 3, 8, 17])
def test_rotational_topk(option, k):
    inp = option.changes.get("inp", MATRICES["basic"])
    k = min(k, inp.shape[1])
    config = create_rotational_topk_config(inp.shape, inp.dtype, k)
    got = run(rotational_topk, inp, config, lnc=option.lnc, on=option.on)
    for one, expected in zip(got, sorted_rows(inp, k), strict=True):
        np.testing.assert_array_equal(one, expected)
    assert got[0].dtype == inp.dtype and got[1].dtype == np.int32


@pytest.mark.parametrize("sorts", [True, False])
def test_a_batch_of_sequences_is_a_matrix(sorts):
    x = random((2, 3, 20))
    config = create_rotational_topk_config(x.shape, x.dtype, 4, sorted=sorts)
    values, _ = run(rotational_topk, x.reshape(6, 20), config)
    np.testing.assert_array_equal(values, -np.sort(-x.reshape(6, 20))[:, :4])


@pytest.mark.parametrize(("columns", "k"), [(25_600, 2048), (65_537, 900), (50_001, 2500), (300, 300)])
def test_many_of_wide_rows_are_merged_in_steps(columns, k):
    x = np.random.default_rng(1).permutation(2 * columns).astype(np.float32).reshape(2, columns)
    problem = create_topk_config((1, 2, columns), np.float32, k, num_programs=1)
    config = prepare_rotational_constants(create_rotational_topk_config(x.shape, topk_config=problem))
    config.log_strategy()
    values, index = run(rotational_topk, x, config)
    cleanup_rotational_constants()
    np.testing.assert_array_equal(values, -np.sort(-x)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(x, index, 1), values)


def test_the_problem_has_the_shape_of_the_input():
    problem = create_topk_config((2, 3, 20), np.float32, 4)
    assert create_rotational_topk_config((6, 20), topk_config=problem).topk_config is problem
    with pytest.raises(AssertionError, match="inp_shape: got 5 rows"):
        create_rotational_topk_config((5, 20), topk_config=problem)


@pytest.mark.parametrize("k", [0, 41, 5000])
def test_rotational_topk_refuses_k(k):
    with pytest.raises(AssertionError, match="config: got k"):
        run(rotational_topk, MATRICES["basic"], create_rotational_topk_config((5, 40), np.float32, k))


def largest(input_tensor):
    """By a loop over the columns."""
    value, place = np.full(input_tensor.shape[:-1], -np.inf), np.zeros(input_tensor.shape[:-1], int)
    for c in range(input_tensor.shape[-1]):
        better = input_tensor[..., c].astype(np.float64) > value
        value, place = np.where(better, input_tensor[..., c], value), np.where(better, c, place)
    return [value[..., None], place[..., None]]


MAXIMA = [Option(name, {"input_tensor": x}) for name, x in MATRICES.items()]
MAXIMA = on_both([*MAXIMA, Option("three-axes", {"input_tensor": random((2, 3, 700))})]) + [
    Option("trn3", on="trn3")
]
MAXIMA += refusals(
    input_tensor=None, input_tensor__rank=random(5), input_tensor__dtype=np.ones((2, 9), np.int32)
)


@each(MAXIMA)
def test_cascaded_max(option):
    check(option, cascaded_max, {"input_tensor": MATRICES["basic"]}, largest, 0.0)


GPSIMD = {
    "basic": random((5, 40), "bfloat16"),
    "one-row": random((1, 16), "bfloat16"),
    "8-columns": random((9, 8), "bfloat16"),
    "odd-columns": random((3, 101), "bfloat16"),
    "130-rows": random((130, 17), "bfloat16"),
    "ties": whole((6, 50), 0, 4, "bfloat16"),
    "wide": random((2, 5003), "bfloat16"),
}


@pytest.mark.parametrize("sorts", [True, False])
@pytest.mark.parametrize("k", [1, 8, 13])
@each(on_both([Option(name, {"inp": x}) for name, x in GPSIMD.items()]) + [Option("trn3", on="trn3")])
def test_gpsimd_topk(option, k, sorts):
    inp = option.changes.get("inp", GPSIMD["basic"])
    k = min(k, inp.shape[1])
    config = create_gpsimd_topk_config(inp.shape, inp.dtype, k, sorts, num_programs=option.lnc)
    values, index = run(gpsimd_topk, inp, config, lnc=option.lnc, on=option.on)
    np.testing.assert_array_equal(np.take_along_axis(inp, index, 1), values)
    assert all(len(set(row)) == k for row in index.tolist())
    shown = values if sorts else -np.sort(-values.astype(np.float32))
    np.testing.assert_array_equal(shown.astype(np.float64), sorted_rows(inp, k)[0].astype(np.float64))


def test_gpsimd_topk_refuses():
    for shape, k, cores, name in (
        ((5,), 1, 1, "inp_shape"),
        ((5, 7), 1, 1, "inp_shape"),
        ((5, 70000), 1, 1, "inp_shape"),
    ):
        with pytest.raises(AssertionError, match=f"{name}: got"):
            create_gpsimd_topk_config(shape, None, k, num_programs=cores)
    for k, cores, name in ((0, 1, "k"), (41, 1, "k"), (3, 4, "num_programs")):
        with pytest.raises(AssertionError, match=f"{name}: got"):
            create_gpsimd_topk_config((5, 40), None, k, num_programs=cores)
    with pytest.raises(AssertionError, match="config: got num_programs"):
        run(gpsimd_topk, GPSIMD["basic"], create_gpsimd_topk_config((5, 40), None, 3))
    with pytest.raises(AssertionError, match="inp: got float32"):
        run(gpsimd_topk, random((5, 40)), create_gpsimd_topk_config((5, 40), None, 3, num_programs=1))
