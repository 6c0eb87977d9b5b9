"""Staged calls: what a kernel will do, known from shapes alone (spec/frameworks.md 1)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.kernel.cache
import nki.language as nl
from nki.ir.tree import leaves
from nki.ir.tree import replace_leaves as replaced
from nki.kernel.staged import Returned
from support import target, unseen

SPEC = nki.TensorSpec((4, 6), nl.float32)
X = np.arange(24, dtype=np.float32).reshape(4, 6)
RUNS = []  # how often the Python ran
ran = unseen(RUNS)


@pytest.fixture(autouse=True)
def empty_cache():
    nki.kernel.cache.clear()
    RUNS.clear()


@nki.jit
def double(x, dtype=None):
    ran("double")
    out = nl.ndarray(x.shape, dtype or x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype or x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def several(x, others):
    nisa.dma_copy(x, others["y"])
    return [x.reshape((24,)), (double(x), None, 3)], others["y"]


# ---- shapes --------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_eval_shape_tells_the_results_without_data():
    assert double.eval_shape(SPEC) == SPEC
    assert double.eval_shape(X, nl.bfloat16) == nki.TensorSpec((4, 6), nl.bfloat16)
    flat = nki.TensorSpec((24,), nl.float32)
    assert several.eval_shape(SPEC, {"y": SPEC}) == ([flat, (SPEC, None, 3)], SPEC)


def test_a_call_after_staging_does_not_run_the_python_again():
    double.eval_shape(SPEC)
    np.testing.assert_array_equal(double(X), 2 * X)
    double.eval_shape(SPEC)
    assert RUNS == ["double"]


@pytest.mark.parametrize("first", ["staged", "run"])
def test_the_outline_names_arguments_writes_and_returned_arguments(first):
    if first == "run":
        several(X.copy(), {"y": X})
    outline = several.stage(SPEC, {"y": SPEC}).outline
    assert outline.arguments == ("x", "others['y']") and outline.written == (0,)
    assert [r.argument for r in leaves(outline.result, Returned)] == [0, None, 1]
    assert not (outline.prints or outline.draws_random or outline.has_collectives or outline.constants)


def test_the_outline_names_effects_and_constants():
    @nki.jit
    def kernel(x):
        nl.device_print("x", x)
        nisa.rng(nl.ndarray((4, 4), nl.uint32))
        nl.shared_identity_matrix(4)

    outline = kernel.stage(SPEC).outline
    assert outline.prints and outline.draws_random and outline.result is None
    np.testing.assert_array_equal(outline.constants[0], np.eye(128))


@pytest.mark.parametrize("before", [False, True])
def test_e4m3fn_keeps_its_name_on_platforms_that_read_it_as_e4m3(before):
    @nki.jit
    def copy(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    for platform in ("trn2", "trn3"):
        with target(platform):
            if before:
                copy(X.astype(ml_dtypes.float8_e4m3fn))
            assert copy.eval_shape(nki.TensorSpec((4, 6), "float8_e4m3fn")).dtype == "float8_e4m3fn"
    with target("trn2"):
        assert copy.eval_shape(nki.TensorSpec((4, 6), "float8_e4m3")).dtype == "float8_e4m3"


def test_values_are_not_there():
    with pytest.raises(nki.NkiError) as caught:
        nki.jit(lambda x: np.asarray(x)).stage(SPEC)
    assert caught.value.kind == "abstract-value"


def test_checks_are_made_while_staging():
    with pytest.raises(nki.NkiError) as caught:
        nki.jit(lambda x: nl.ndarray((4, 4), nl.float32)).stage(SPEC)
    assert caught.value.kind == "output-buffer"


# ---- running -------------------------------------------------------------------------------------


def test_a_staged_call_runs_on_data_as_often_as_you_like():
    staged = double.stage(SPEC)
    for factor in range(3):
        np.testing.assert_array_equal(staged.run([X * factor]).result, 2 * X * factor)
    assert RUNS == ["double"]


def test_a_staged_call_writes_and_returns_arguments():
    x, y = np.zeros((4, 6), np.float32), X
    result, second = several.stage(SPEC, {"y": SPEC}).run([x, y]).result
    np.testing.assert_array_equal(x, X)
    assert second is y and np.shares_memory(result[0], x)
    np.testing.assert_array_equal(result[1][0], 2 * X)


def test_diagnostics_are_said_when_staging_and_not_again():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, 6), nl.float32, buffer=nl.hbm)
        nisa.dma_copy(out, x)
        return out

    with pytest.warns(nki.NkiWarning, match="private HBM"):
        staged = kernel.stage(SPEC)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staged.run([X])


@nki.jit
def grow(x, count):
    times = nisa.register_alloc(count[0:1])
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nl.fori_loop(0, times, lambda i: nisa.tensor_scalar(tile, tile, nl.add, 1.0) and None)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def test_loops_run_as_often_as_the_data_say():
    staged = grow.stage(SPEC, nki.TensorSpec((1,), nl.int32))
    assert staged.is_fixed and len(staged.program.loops) == 1
    for count in (0, 3, 2, 5, 5):
        np.testing.assert_array_equal(staged.run([X, np.array([count], np.int32)]).result, X + count)


def test_two_cores():
    with target("trn2"):
        staged = double[2].stage(SPEC)
        np.testing.assert_array_equal(staged.run([X]).result, 2 * X)


def test_a_kernel_that_prints_prints_when_it_is_staged(capsys):
    staged = nki.jit(lambda x: print("traced")).stage(SPEC)
    staged.run([X])
    assert capsys.readouterr().out == "traced\n"


def test_results_go_into_memory_that_is_offered():
    into = np.zeros((4, 6), np.float32)
    result = double.stage(SPEC).run([X], [into]).result
    assert result.ctypes.data == into.ctypes.data
    np.testing.assert_array_equal(into, 2 * X)


# ---- descriptions --------------------------------------------------------------------------------


def test_equal_programs_have_equal_descriptions():
    first = double.stage(SPEC)
    nki.kernel.cache.clear()
    second = double.stage(SPEC)
    assert first.describe() == second.describe() and first.is_same(second)
    assert "tensor_tensor" in first.describe()
    others = [double.stage(SPEC, nl.bfloat16), double.stage(nki.TensorSpec((4, 8), nl.float32)), several]
    others[2] = several.stage(SPEC, {"y": SPEC})
    with target("trn2"):
        others.append(double.stage(SPEC))
    assert len({first.describe(), *(other.describe() for other in others)}) == 5


@nki.jit
def looks(x):
    repr(x)
    return x


def test_programs_that_depend_on_values_are_the_same_only_when_their_calls_are():
    first, second = (looks.stage(SPEC) for _ in range(2))
    other = nki.jit(lambda x: looks(x)).stage(SPEC)
    assert not first.is_fixed and first.is_same(second) and not first.is_same(other)


@dataclass
class Record:
    inside: Any


def test_replaced_rebuilds_containers_and_records():
    given = {"a": [1, (2, "x")], "b": Record({"c": 3})}
    assert replaced(given, int, lambda n: n * 10) == {"a": [10, (20, "x")], "b": Record({"c": 30})}
    assert leaves(given, int) == [1, 2, 3] and given["b"].inside == {"c": 3}
