"""Mistakes of new users: the error names the cause and how to fix it, and the next call works."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import refused

X = np.ones((4, 8), np.float32)


def zeros(shape=(4, 8), buffer=nl.sbuf):
    return nl.ndarray(shape, nl.float32, buffer=buffer)


ARRAY = np.array([1, 2])
WRONG = {
    "reverse0": lambda t: nisa.tensor_scalar(t, t, nl.add, 1.0, reverse0=ARRAY),
    "negate": lambda t: nisa.tensor_reduce(zeros((4, 1)), nl.add, t, axis=1, negate=ARRAY),
    "tile_position": lambda t: nisa.nc_matmul(
        zeros((8, 8), nl.psum), t, t, tile_position=ARRAY, tile_size=ARRAY
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_array_is_no_option(name):
    def kernel(x):
        tile = zeros()
        nisa.memset(tile, 0.0)
        WRONG[name](tile)

    refused("argument", f"{name} is an array of shape (2,)", lambda: nki.jit(kernel)(X))


def test_an_array_is_no_buffer():
    refused("buffer", "must be a memory region", lambda: nki.jit(lambda x: zeros(buffer=ARRAY))(X))


def test_the_return_value_of_an_instruction_is_not_a_tile():
    def kernel(x):
        tile = zeros()
        nisa.tensor_copy(tile, nisa.memset(tile, 0.0))

    problem = refused("argument", "src is what memset returned", lambda: nki.jit(kernel)(X))
    assert "the tile that it wrote" in problem.help


def test_an_argument_that_is_none_is_named_in_the_error():
    problem = refused(
        "argument",
        "src is missing: it is None",
        lambda: nki.jit(lambda x, w: nisa.dma_copy(zeros(), w))(X, None),
    )
    assert "if w is not None" in problem.help


@pytest.mark.parametrize("kind", ["generator", "async"])
def test_a_kernel_that_would_never_run(kind):
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    refused("argument", kind, lambda: nki.jit(generator if kind == "generator" else coroutine))


def test_options_of_other_types_are_other_options():
    """(True,), (1.0,) and (1,) are equal in Python, and the check of one says nothing of another."""

    def at(position):
        @nki.jit
        def kernel(x):
            tile, sums = zeros((32, 32)), zeros((32, 32), nl.psum)
            nisa.memset(tile, 0.0)
            nisa.nc_matmul(sums, tile, tile, tile_position=position, tile_size=(32, 32))

        kernel(X)

    at((0, 0))
    refused("shape", "must be pairs of ints", lambda: at((0.0, 0)))
    refused("shape", "must be pairs of ints", lambda: at((False, 0)))
    at((0, 0))


def test_two_warnings_of_one_line_are_repeated_at_every_trace():
    @nki.jit
    def kernel(x):
        a, b = zeros((8, 8)), nl.ndarray((8, 8), nl.float32)
        nisa.memset(a, 0.0), nisa.memset(b, 0.0)
        (
            nisa.tensor_copy(a[3:5], b[3:5]),
            nisa.tensor_scalar(a[0:4], a[0:4], nl.add, b[0:4, 0:1].view(nl.int32)),
        )

    def kinds():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sorted(d.kind for d in kernel.trace(X).diagnostics)

    first = kinds()
    assert len(first) == 2 and kinds() == first


def test_a_run_shows_itself_briefly():
    shown = repr(nki.jit(lambda x: 3).run(X))
    assert shown == "Run(result=3, diagnostics=[])"


def test_an_edited_profile_is_refused_by_name(tmp_path):
    path = tmp_path / "profile.json"
    nki.jit(lambda x: nisa.dma_copy(zeros(), x)).profile(X).save(path)
    assert nki.Profile.load(path).total_us > 0
    content = json.loads(path.read_text())
    del content["figures"]["engines"]
    path.write_text(json.dumps(content))
    refused("profile-file", "parts missing or changed", lambda: nki.Profile.load(path))
