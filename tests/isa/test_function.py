"""The instruction behind nl functions that no engine has."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.context import current
from nki.isa.enums import VECTOR
from nki.isa.function import function
from support import run_tiles

X = np.linspace(-4, 4, 32, dtype=np.float32).reshape(4, 8) + np.float32(0.3)


@pytest.mark.tiny
def test_operands_are_tiles_columns_or_numbers():
    def body(out, x):
        function(out, nl.divide, x, x[:, 0:1])

    (result,) = run_tiles(body, [X], [((4, 8), nl.float32)])
    np.testing.assert_array_equal(result, X / X[:, :1])
    (result,) = run_tiles(lambda out, x: function(out, nl.divide, 1.0, x), [X], [((4, 8), nl.float32)])
    np.testing.assert_array_equal(result, np.float32(1) / X)


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.int8])
def test_ranks_may_differ_and_the_result_is_cast_once(dtype):
    def body(out, x):
        function(out, nl.floor, x)

    (result,) = run_tiles(body, [X], [((4, 2, 4), dtype)], out_psum=[0])
    np.testing.assert_array_equal(result.astype(np.float32), np.floor(X).reshape(4, 2, 4))


def test_dst_may_be_the_input():
    (result,) = run_tiles(lambda out: function(out, nl.trunc, out), [], [X.copy()])
    np.testing.assert_array_equal(result, np.trunc(X))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (lambda out, x: function(out, nl.divide, x, x[:, 0:5]), "shape"),
        (lambda out, x: function(out, nl.divide, x, x[0:2, 0:1]), "shape"),
        (lambda out, x: function(out, nl.divide, x, "y"), "argument"),
        (lambda out, x: function(3, nl.divide, x, x), "argument"),
        (lambda out, x: function(nl.ndarray((4, 8), nl.float8_e5m2_x4), nl.floor, x), "dtype"),
        (lambda out, x: function(nl.ndarray((4, 8), nl.float32, nl.shared_hbm), nl.floor, x), "buffer"),
    ],
)
def test_what_it_refuses(body, kind):
    with pytest.raises(nki.NkiError) as caught:
        run_tiles(body, [X], [((4, 8), nl.float32)])
    assert caught.value.kind == kind


def test_two_psum_operands_are_refused():
    with pytest.raises(nki.NkiError) as caught:
        run_tiles(
            lambda out, x, y: function(out, nl.divide, x, y),
            [X, X],
            [((4, 8), nl.float32)],
            in_psum=[0, 1],
        )
    assert caught.value.kind == "psum-both"


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
def test_it_costs_what_its_parts_would(on):
    costs = {}

    def body(out, x):
        for op in (nl.floor, nl.sin, nl.tan, nl.divide):
            issued = function(out, op, x, x if op is nl.divide else None)
            assert issued.runs_on is VECTOR and issued.public == op.name
            costs[op.name] = issued.cost(current().machine)

    wide = np.ones((4, 512), np.float32)
    run_tiles(body, [wide], [((4, 512), nl.float32)], on=on)
    assert costs["floor"].cycles == 1024 and costs["sin"].cycles == 1536
    assert costs["tan"].cycles > costs["divide"].cycles > costs["floor"].cycles
    assert costs["divide"].fix_ns > 0


def test_it_is_not_public():
    assert not hasattr(nisa, "Function")
