"""Running a Program by itself: what its kernel would give."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.reference import random as random_state
from nki.ir.program import Program
from passes.dead_code import without_dead_code
from passes.renaming import renamed
from passes.reordering import reordered
from random_programs import outcome, rich_arguments, rich_kernel, traced
from support import target

X = np.arange(32, dtype=np.float32).reshape(4, 8)


@nki.jit
def add_up(x, y):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)

    def body(i):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)

    nl.fori_loop(0, nisa.register_alloc(3), body)
    nisa.dma_copy(y, tile)
    return {"sum": y, "first": y[0], "count": 3}


def test_a_program_returns_what_its_kernel_returns():
    program = add_up.trace(X, X)
    y, z = np.zeros_like(X), np.zeros_like(X)
    found, wanted = program.run(X, y), add_up(X, z)
    assert found["sum"] is y and found["count"] == 3
    np.testing.assert_array_equal(y, X + 3)
    np.testing.assert_array_equal(found["first"], wanted["first"])


@pytest.mark.parametrize("degree", [1, 2])
def test_a_program_with_all_features_returns_what_its_kernel_returns(degree):
    operations = (("random", 0), ("loop", 2, True, (("scale", 1, 0, (0, 16), 2.0),)), ("exchange", 2, 1))
    program, arrays = traced(operations, seed=1, degree=degree)
    kernel = rich_kernel[2] if degree == 2 else rich_kernel
    random_state.reset()
    with target("trn2"):
        wanted = kernel(*rich_arguments(1), operations, ("float32",) * 4, 4)
    random_state.reset()
    found = program.run(*arrays)
    for a, b in zip([wanted[0], *wanted[1][1]], [found[0], *found[1][1]], strict=True):
        assert a.tobytes() == b.tobytes()


def test_wrong_arrays_are_refused():
    program = add_up.trace(X, X)
    for arrays, text in (
        ((X,), "1 arrays for the parameters x, y"),
        ((X, X[:2]), r"'y' is float32\[2, 8\], the program was traced for float32\[4, 8\]"),
        ((X, X.astype(np.int32)), "'y' is int32"),
        ((X, [1, 2]), "'y' must be an array, got list"),
    ):
        with pytest.raises(nki.NkiError, match=text):
            program.run(*arrays)


@nki.jit
def unwritten(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out[0:2], x[0:2])
    nisa.dma_copy(x[0:1], x[1:2])
    return out


def test_diagnostics_warn_and_in_strict_mode_change_nothing(monkeypatch):
    x = X.copy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = unwritten.trace(x).run(x)
    assert ["never written" in str(w.message) for w in caught] == [True] and np.isnan(found[2:]).all()
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    x = X.copy()
    with pytest.raises(nki.NkiError) as problem:
        unwritten.trace(x).run(x)
    assert problem.value.kind == "uninitialised" and np.array_equal(x, X)


def test_passed_programs_are_written_and_read_back():
    operations = (("load", 1, (0, 16)), ("together", 0, 1), ("loop", 2, True, (("combine", 0, 1, 2, "add"),)))
    program, arrays = traced(operations)
    wanted = outcome(program, arrays)
    for other in (without_dead_code(program), renamed(program), reordered(renamed(program), 3)):
        again = Program.parse(str(other))
        assert again == other and outcome(again, arrays) == wanted


def test_an_unwritten_result_has_a_text():
    @nki.jit
    def kernel(x):
        return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), x

    program = kernel.trace(X)
    assert Program.parse(str(program)) == program
