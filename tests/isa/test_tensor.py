"""TensorE against float64 products."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
import support
from nki.ir.layout import Shape
from nki.ir.view import View
from nki.isa.enums import TENSOR, VECTOR
from nki.machine import dtypes
from nki.machine.generations import find
from support import run_tiles

BF16, FP16 = ml_dtypes.bfloat16, np.float16
E4M3, E4M3FN, E5M2 = ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
F32 = nl.float32
RNG = np.random.default_rng(11)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(np.float32).astype(dtype)


def small_ints(*shape, dtype=np.float32):
    """Values whose products and sums are exact."""
    return RNG.integers(-4, 5, shape).astype(np.float32).astype(dtype)


def product(stationary, moving):
    return stationary.astype(np.float64).T @ moving.astype(np.float64)


def run(body, inputs, outputs, **how):
    """The outputs and the kinds of diagnostics said on the way."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = run_tiles(body, inputs, outputs, **how)
    return results, [w.category.kind for w in said if issubclass(w.category, nki.errors.NkiWarning)]


def matmul(stationary, moving, dst=F32, on="trn2", **options):
    """One nc_matmul into a fresh tile, quietly."""
    shape = (stationary[0].size, moving[0].size)
    if options.get("perf_mode") is nisa.matmul_perf_mode.double_row:
        shape = (shape[0] // 2, shape[1] // 2)
    (out,), kinds = run(
        lambda d, s, m: nisa.nc_matmul(d, s, m, **options),
        [stationary, moving],
        [(shape, dst)],
        on=on,
        out_psum=[0],
    )
    assert kinds == []
    return out


def refused(kind, body, inputs, outputs, on="trn2", out_psum=(0,), **how):
    return str(support.refused(kind, "", lambda: run(body, inputs, outputs, on=on, out_psum=out_psum, **how)))


def refused_matmul(kind, stationary, moving, shape, dst=F32, on="trn2", **options):
    return refused(
        kind, lambda d, s, m: nisa.nc_matmul(d, s, m, **options), [stationary, moving], [(shape, dst)], on
    )


def psum(shape, dtype=F32, **where):
    return nl.ndarray(shape, dtype, buffer=nl.psum, **where)


# ---- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nc_matmul", "nc_transpose"])
def test_signature_is_the_documented_one(name):
    path = Path(__file__).parents[1] / "data" / "documented_api.json"
    documented = json.loads(path.read_text())["nki.isa"]["functions"][name]
    found = inspect.signature(getattr(nisa, name)).parameters.values()
    assert [p.name for p in found] == [parameter for parameter, _ in documented]
    empty = inspect.Parameter.empty
    shown = [None if p.default is empty else str(p.default).removeprefix("nisa.") for p in found]
    assert shown == [default for _, default in documented]


# ---- nc_matmul: the product ----------------------------------------------------------------------


@pytest.mark.tiny
def test_matmul_is_the_product_of_the_transposed_stationary():
    stationary, moving = normal(128, 128), normal(128, 512)
    exact = product(stationary, moving)
    np.testing.assert_allclose(matmul(stationary, moving), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("k", "m", "n"), [(1, 1, 1), (1, 128, 3), (128, 1, 512), (127, 33, 129), (5, 7, 511)]
)
def test_ragged_sizes(k, m, n):
    stationary, moving = small_ints(k, m), small_ints(k, n)
    np.testing.assert_array_equal(matmul(stationary, moving), product(stationary, moving))


PAIRS = [(a, b) for group in ((BF16, FP16, E4M3, E5M2), (np.float32,)) for a in group for b in group]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_inputs_of_every_pair_of_dtypes_multiply_as_float32(left, right):
    stationary, moving = small_ints(32, 16, dtype=left), small_ints(32, 24, dtype=right)
    np.testing.assert_array_equal(matmul(stationary, moving), product(stationary, moving))


def test_ocp_fp8_multiplies_on_trn3():
    stationary, moving = small_ints(32, 16, dtype=E4M3FN), small_ints(32, 24, dtype=E5M2)
    np.testing.assert_array_equal(matmul(stationary, moving, on="trn3"), product(stationary, moving))


def test_tfloat32_is_used_as_stored():
    x, y = normal(16, 8), normal(16, 4)

    def body(d, s, m):
        short = nl.ndarray(s.shape, nl.tfloat32, buffer=nl.sbuf)
        nisa.tensor_copy(short, s)
        nisa.nc_matmul(d, short, m)

    (out,), kinds = run(body, [x, y], [((8, 4), F32)], out_psum=[0])
    short = dtypes.cast(x, nl.tfloat32)
    assert (short != x).any() and kinds == []
    np.testing.assert_allclose(out, product(short, y), rtol=1e-5, atol=1e-5)


def test_free_dimensions_of_any_rank_are_flattened():
    stationary, moving = small_ints(32, 4, 8), small_ints(32, 2, 3, 5)

    def body(d, s, m):
        nisa.nc_matmul(d, s, m.permute((0, 3, 1, 2)))

    (out,), _ = run(body, [stationary, moving], [((32, 6, 5), F32)], out_psum=[0])
    exact = product(stationary.reshape(32, 32), moving.transpose(0, 3, 1, 2).reshape(32, 30))
    np.testing.assert_array_equal(out.reshape(32, 30), exact)


def test_strided_operands_and_destination():
    stationary, moving = small_ints(64, 64), small_ints(64, 96)

    def body(d, s, m):
        nisa.memset(d, 7.0)
        nisa.nc_matmul(d[:, 0:96:2], s[:, 0:64:4], m[:, 0:96:2])

    (out,), _ = run(body, [stationary, moving], [((16, 96), F32)], out_psum=[0])
    np.testing.assert_array_equal(out[:, ::2], product(stationary[:, ::4], moving[:, ::2]))
    np.testing.assert_array_equal(out[:, 1::2], 7)


def test_nan_and_infinity_spread_through_the_product():
    stationary, moving = np.zeros((4, 3), np.float32), np.ones((4, 5), np.float32)
    moving[1, 2], moving[2, 4] = np.inf, np.nan
    out = matmul(stationary, moving)
    assert np.isnan(out[:, [2, 4]]).all() and (out[:, [0, 1, 3]] == 0).all()


def test_bfloat16_destination_rounds_every_step_on_trn3():
    stationary, moving = normal(128, 32), normal(128, 64)

    def body(d, s, m):
        nisa.nc_matmul(d, s[0:64], m[0:64])
        nisa.nc_matmul(d, s[64:128], m[64:128])

    (out,), kinds = run(body, [stationary, moving], [((32, 64), nl.bfloat16)], on="trn3", out_psum=[0])
    first = (stationary[:64].T @ moving[:64]).astype(BF16).astype(np.float32)
    both = (first + stationary[64:].T @ moving[64:]).astype(BF16).astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), both, rtol=2**-7, atol=2**-6)
    assert kinds == []


@given(
    k=st.integers(1, 128),
    m=st.integers(1, 128),
    n=st.integers(1, 200),
    left=st.sampled_from([BF16, FP16, E4M3, E5M2]),
    right=st.sampled_from([BF16, FP16, E4M3, E5M2]),
    steps=st.integers(1, 3),
    flags=st.sampled_from(["none", "explicit"]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_accumulated_products_are_the_product_of_the_whole(k, m, n, left, right, steps, flags, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(-3, 4, (steps, k, m)).astype(np.float32).astype(left)
    b = rng.integers(-3, 4, (steps, k, n)).astype(np.float32).astype(right)

    def body(d, *tiles):
        for i in range(steps):
            accumulate = None if flags == "none" else i > 0
            nisa.nc_matmul(d, tiles[i], tiles[steps + i], accumulate=accumulate)

    (out,), kinds = run(body, [*a, *b], [((m, n), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, product(a.reshape(-1, m), b.reshape(-1, n)))
    assert kinds == []


# ---- nc_matmul: accumulation ---------------------------------------------------------------------


def ones(k, m, n):
    """Operands whose product is k everywhere."""
    return np.ones((k, m), np.float32), np.ones((k, n), np.float32)


def test_none_overwrites_first_and_then_accumulates():
    def body(d, s, m):
        for _ in range(3):
            nisa.nc_matmul(d, s, m)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 8), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, 6)
    assert kinds == []


def test_false_overwrites_and_true_adds():
    def body(d, s, m):
        nisa.nc_matmul(d, s, m)
        nisa.nc_matmul(d, s, m, accumulate=True)
        nisa.nc_matmul(d, s, m, accumulate=False)
        nisa.nc_matmul(d, s, m, accumulate=True)
        nisa.nc_matmul(d, s, m)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 8), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, 6)
    assert kinds == []


@pytest.mark.parametrize("flag", [np.bool_, int, bool])
def test_flags_of_any_boolean_kind(flag):
    def body(d, s, m):
        for i in range(3):
            nisa.nc_matmul(d, s, m, accumulate=flag(i > 0))

    (out,), _ = run(body, ones(2, 4, 8), [((4, 8), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, 6)


def test_partly_overlapping_destinations_accumulate_on_the_overlap_alone():
    """A convolution row by row: window i writes columns i..i+4 of one output row."""

    def body(d, s, m):
        nisa.nc_matmul(d[:, 0:4], s, m)
        nisa.nc_matmul(d[:, 2:6], s, m)
        nisa.nc_matmul(d[:, 4:8], s, m)

    (out,), kinds = run(body, ones(3, 2, 4), [((2, 8), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, [[3, 3, 6, 6, 6, 6, 3, 3]] * 2)
    assert kinds == ["psum-mixed", "psum-mixed"]


def test_overlap_in_partitions_accumulates_too():
    def body(d, s, m):
        nisa.nc_matmul(d[0:4], s[:, 0:4], m)
        nisa.nc_matmul(d, s, m)

    (out,), kinds = run(body, ones(3, 8, 4), [((8, 4), F32)], out_psum=[0])
    np.testing.assert_array_equal(out[:4], 6)
    np.testing.assert_array_equal(out[4:], 3)
    assert kinds == ["psum-mixed"]


def test_disjoint_regions_of_a_tile_start_on_their_own():
    def body(d, s, m):
        for _ in range(2):
            for i in range(4):
                nisa.nc_matmul(d[:, 4 * i : 4 * i + 4], s, m)

    (out,), kinds = run(body, ones(3, 2, 4), [((2, 16), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, 6)
    assert kinds == []


def test_a_fresh_tile_at_the_same_address_starts_afresh():
    def body(d, s, m):
        for i in range(3):
            acc = psum((4, 8), address=(0, 0))
            nisa.nc_matmul(acc, s, m)
            nisa.nc_matmul(acc, s, m)
            nisa.tensor_copy(d[:, 8 * i : 8 * i + 8], acc)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 24), F32)])
    np.testing.assert_array_equal(out, 4)
    assert kinds == []


def test_a_fresh_tile_without_address_starts_afresh():
    def body(d, s, m):
        for i in range(3):
            acc = psum((4, 8))
            nisa.nc_matmul(acc, s, m)
            nisa.tensor_copy(d[:, 8 * i : 8 * i + 8], acc)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 24), F32)])
    np.testing.assert_array_equal(out, 2)
    assert kinds == []


def test_reading_never_ends_an_accumulation():
    def body(d, s, m):
        acc = psum((4, 8))
        for i in range(3):
            nisa.nc_matmul(acc, s, m)
            nisa.tensor_copy(d[:, 8 * i : 8 * i + 8], acc)

    (out,), _ = run(body, ones(2, 4, 8), [((4, 24), F32)])
    np.testing.assert_array_equal(out[0], np.repeat([2, 4, 6], 8))


@pytest.mark.parametrize("writer", ["memset", "tensor_copy", "activation", "nc_transpose", "is_transpose"])
def test_a_write_by_another_instruction_ends_the_accumulation_where_it_wrote(writer):
    eye = np.eye(4, dtype=np.float32)

    def body(d, s, m, square, identity):
        nisa.nc_matmul(d, s, m)
        part = d[:, 0:4]
        {
            "memset": lambda: nisa.memset(part, 100.0),
            "tensor_copy": lambda: nisa.tensor_copy(part, square),
            "activation": lambda: nisa.activation(part, nl.copy, square),
            "nc_transpose": lambda: nisa.nc_transpose(part, square),
            "is_transpose": lambda: nisa.nc_matmul(part, square, identity, is_transpose=True),
        }[writer]()
        nisa.nc_matmul(d, s, m)

    hundred = np.full((4, 4), 100, np.float32)
    (out,), kinds = run(body, [*ones(2, 4, 8), hundred, eye], [((4, 8), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, [[2] * 4 + [4] * 4] * 4)
    assert kinds == ["psum-mixed"]


def test_memset_then_accumulate_gives_the_sum_and_a_warning_before_trn3():
    def body(d, s, m):
        nisa.memset(d, 0.0)
        for _ in range(3):
            nisa.nc_matmul(d, s, m, accumulate=True)

    for platform, expected in (("trn1", ["psum-uninit"]), ("trn2", ["psum-uninit"]), ("trn3", [])):
        (out,), kinds = run(body, ones(2, 4, 8), [((4, 8), F32)], on=platform, out_psum=[0])
        np.testing.assert_array_equal(out, 6)
        assert kinds == expected


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("address", [None, (0, 0)])
def test_accumulating_onto_nothing_gives_nan_and_a_warning(platform, address):
    def body(d, s, m):
        acc = psum((4, 8), address=address)
        nisa.nc_matmul(acc, s, m, accumulate=True)
        nisa.tensor_copy(d, acc)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 8), F32)], on=platform)
    assert np.isnan(out).all()
    assert kinds == ["psum-uninit"]


def test_overlapping_allocations_have_bits_of_their_own():
    """A matmul into one tile ends the accumulation of the other for the bytes it wrote."""

    def body(d, s, m):
        first = psum((4, 8), address=(0, 0))
        second = psum((4, 8), address=(0, 16))
        nisa.nc_matmul(first, s, m)
        nisa.nc_matmul(second, s, m)  # columns 4..8 of first
        nisa.nc_matmul(second, s, m)
        nisa.nc_matmul(first, s, m)  # 0..4 accumulate, 4..8 overwrite
        nisa.tensor_copy(d, first)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 8), F32)])
    np.testing.assert_array_equal(out, [[4] * 4 + [2] * 4] * 4)
    assert "psum-mixed" in kinds


def test_disjoint_allocations_do_not_disturb_each_other():
    def body(d, s, m):
        tiles = [psum((4, 8), address=(0, 2048 * bank)) for bank in range(3)]
        for _ in range(2):
            for tile in tiles:
                nisa.nc_matmul(tile, s, m)
        for i, tile in enumerate(tiles):
            nisa.tensor_copy(d[:, 8 * i : 8 * i + 8], tile)

    (out,), kinds = run(body, ones(2, 4, 8), [((4, 24), F32)])
    np.testing.assert_array_equal(out, 4)
    assert kinds == []


def test_accumulate_must_be_a_flag():
    assert "True, False or None" in refused_matmul("argument", *ones(2, 4, 8), (4, 8), accumulate="yes")


@given(
    regions=st.lists(
        st.tuples(st.integers(0, 15), st.integers(1, 16), st.sampled_from([None, False, "memset"])),
        min_size=1,
        max_size=8,
    ),
    placed=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_any_order_of_overlapping_writes_follows_the_shadow_bits(regions, placed):
    def body(d, s, m):
        acc = psum((2, 32), address=(0, 0) if placed else None)
        nisa.memset(acc, 0.5)
        for start, width, how in regions:
            part = acc[:, start : start + width]
            if how == "memset":
                nisa.memset(part, 0.25)
            else:
                nisa.nc_matmul(part, s, m[:, 0:width], accumulate=how)
        nisa.tensor_copy(d, acc)

    (out,), _ = run(body, ones(3, 2, 16), [((2, 32), F32)])
    values, bits = np.full(32, 0.5), np.zeros(32, bool)
    for start, width, how in regions:
        for column in range(start, start + width):
            if how == "memset":
                values[column], bits[column] = 0.25, False
            else:
                values[column] = values[column] + 3 if how is None and bits[column] else 3
                bits[column] = True
    np.testing.assert_array_equal(out, [values] * 2)


# ---- nc_matmul: double_row -----------------------------------------------------------------------

DOUBLE = nisa.matmul_perf_mode.double_row


@pytest.mark.parametrize(("k", "m", "n"), [(128, 128, 512), (128, 1, 3), (37, 5, 11)])
def test_double_row_contracts_both_halves(k, m, n):
    stationary, moving = small_ints(k, 2, m, dtype=E4M3), small_ints(k, 2, n, dtype=E5M2)
    out = matmul(stationary, moving, perf_mode=DOUBLE)
    exact = np.einsum("kjm,kjn->mn", stationary.astype(np.float64), moving.astype(np.float64))
    np.testing.assert_array_equal(out, exact)


def test_double_row_by_its_plain_value_is_an_old_form():
    stationary, moving = small_ints(8, 2, 4, dtype=E4M3), small_ints(8, 2, 6, dtype=E4M3)

    def body(d, s, m):
        for _ in range(2):  # the second has a cached validation
            nisa.nc_matmul(d, s, m, perf_mode="double_row", accumulate=False)

    (out,), kinds = run(body, [stationary, moving], [((4, 6), F32)], out_psum=[0])
    exact = np.einsum("kjm,kjn->mn", stationary.astype(np.float64), moving.astype(np.float64))
    np.testing.assert_array_equal(out, exact)
    assert kinds == ["legacy"]


def test_shape_alone_never_means_double_row():
    stationary, moving = small_ints(8, 2, 4, dtype=E4M3), small_ints(8, 2, 6, dtype=E4M3)
    out = matmul(stationary, moving)
    np.testing.assert_array_equal(out, product(stationary.reshape(8, 8), moving.reshape(8, 12)))


def test_unknown_perf_mode_is_refused():
    refused_matmul("enum", *ones(8, 4, 4), (4, 4), perf_mode="double_column")


@pytest.mark.parametrize(
    ("stationary", "moving", "options", "why"),
    [
        (((8, 2, 4), BF16), ((8, 2, 4), E4M3), {}, "fp8 inputs"),
        (((8, 8), E4M3), ((8, 2, 4), E4M3), {}, "[K, 2, ...]"),
        (((8, 2, 4), E4M3), ((8, 4, 2), E4M3), {}, "[K, 2, ...]"),
        (((8, 2, 4), E4M3), ((8, 2, 513), E4M3), {}, "at most 512 columns"),
        (((8, 2, 129), E4M3), ((8, 2, 4), E4M3), {}, "at most 128 columns"),
        (((8, 2, 4), E4M3), ((8, 2, 4), E4M3), {"tile_position": (0, 0), "tile_size": (128, 64)}, "columns"),
        (((8, 2, 4), E4M3), ((8, 2, 4), E4M3), {"on": "trn1"}, "trn2"),
    ],
)
def test_double_row_refuses_what_hardware_cannot(stationary, moving, options, why):
    a, b = (small_ints(*shape, dtype=dtype) for shape, dtype in (stationary, moving))
    shape = (min(a[0].size // 2, 128), b[0].size // 2)
    assert why in refused_matmul("perf-mode", a, b, shape, perf_mode=DOUBLE, **options)


def test_double_row_cannot_transpose():
    a = small_ints(8, 2, 4, dtype=E4M3)
    text = refused_matmul("perf-mode", a, a, (4, 4), dst=nl.float8_e4m3, perf_mode=DOUBLE, is_transpose=True)
    assert "is_transpose" in text


# ---- nc_matmul: tiles of the array ---------------------------------------------------------------


def test_column_tiles_write_their_slice_of_dst():
    stationary, moving = small_ints(128, 128), small_ints(128, 64)

    def body(d, s, m):
        for column in range(0, 128, 32):
            tile = slice(column, column + 32)
            nisa.nc_matmul(d[tile], s[:, tile], m, tile_position=(0, column), tile_size=(128, 32))

    (out,), kinds = run(body, [stationary, moving], [((128, 64), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, product(stationary, moving))
    assert kinds == []


def test_row_tiles_change_no_values():
    stationary, moving = small_ints(128, 16), small_ints(128, 64)

    def body(d, s, m):
        for row in (0, 64):
            half = slice(row, row + 64)
            nisa.nc_matmul(d, s[half], m[half], tile_position=[row, 0], tile_size=[64, 128])

    (out,), kinds = run(body, [stationary, moving], [((16, 64), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, product(stationary, moving))
    assert kinds == []


def test_operands_that_lie_elsewhere_than_the_tile_are_warned_about():
    def body(d, s, m):
        nisa.nc_matmul(d, s[32:64], m[32:64], tile_position=(0, 0), tile_size=(32, 32))

    _, kinds = run(body, ones(64, 8, 8), [((8, 8), F32)], out_psum=[0])
    assert set(kinds) == {"pe-tile"}


@pytest.mark.parametrize(
    ("options", "why", "on"),
    [
        ({"tile_position": (0, 0)}, "together", "trn2"),
        ({"tile_size": (128, 128)}, "together", "trn2"),
        ({"tile_position": (0, 0), "tile_size": (16, 128)}, "trn2 takes 128, 64, 32", "trn2"),
        ({"tile_position": (0, 0), "tile_size": (32, 128)}, "trn1 takes 128, 64", "trn1"),
        ({"tile_position": (16, 0), "tile_size": (32, 128)}, "multiple of 32", "trn2"),
        ({"tile_position": (0, 128), "tile_size": (128, 64)}, "below 128", "trn2"),
        ({"tile_position": (0,), "tile_size": (128,)}, "pairs", "trn2"),
        ({"tile_position": (0, 0.5), "tile_size": (128, 64)}, "pairs of ints", "trn2"),
        ({"tile_position": (0, 0), "tile_size": (32, 128)}, "K is 64", "trn2"),
    ],
)
def test_tiles_the_array_does_not_have_are_refused(options, why, on):
    assert why in refused_matmul("shape", *ones(64, 8, 8), (8, 8), on=on, **options)


def test_stationary_wider_than_the_column_tile_is_refused():
    options = {"tile_position": (0, 0), "tile_size": (128, 32)}
    text = refused_matmul("free-limit", *ones(64, 33, 8), (33, 8), **options)
    assert "the limit is 32" in text


# ---- nc_matmul: refusals -------------------------------------------------------------------------


def test_inputs_come_from_sbuf_and_results_go_to_psum():
    a, b = ones(4, 4, 4)
    body = lambda d, s, m: nisa.nc_matmul(d, s, m)  # noqa: E731
    assert "dst must be in PSUM" in refused("buffer", body, [a, b], [((4, 4), F32)], out_psum=())
    assert "stationary must be in SBUF" in refused("buffer", body, [a, b], [((4, 4), F32)], in_psum=[0])
    assert "moving must be in SBUF" in refused("buffer", body, [a, b], [((4, 4), F32)], in_psum=[1])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int8, np.uint16])
def test_integers_are_refused(dtype):
    a = np.ones((4, 4), dtype)
    assert "stationary has dtype" in refused_matmul("dtype", a, normal(4, 4), (4, 4))
    assert "moving has dtype" in refused_matmul("dtype", normal(4, 4), a, (4, 4))


def test_float32_pairs_only_with_float32():
    text = refused_matmul("dtype", normal(4, 4), normal(4, 4, dtype=BF16), (4, 4))
    assert "float32 pairs only with float32" in text
    refused_matmul("dtype", normal(4, 4, dtype=E5M2), normal(4, 4), (4, 4))


def test_the_two_kinds_of_e4m3_are_not_mixed():
    a, b = small_ints(4, 4, dtype=E4M3), small_ints(4, 4, dtype=E4M3FN)
    assert "cannot be mixed" in refused_matmul("dtype", a, b, (4, 4), on="trn3")


def test_ocp_fp8_needs_trn3():
    def body(d):
        tile = nl.ndarray((4, 4), nl.float8_e4m3fn, buffer=nl.sbuf)
        nisa.memset(tile, 1.0)
        nisa.nc_matmul(d, tile, tile)

    for on in ("trn1", "trn2"):
        assert "float8_e4m3fn needs trn3" in refused("dtype", body, [], [((4, 4), F32)], on)


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
def test_destination_dtype(on):
    a, b = ones(4, 4, 4)
    assert "accumulates in float32" in refused_matmul("dtype", a, b, (4, 4), dst=nl.float16, on=on)
    if on != "trn3":
        refused_matmul("dtype", a, b, (4, 4), dst=nl.bfloat16, on=on)


def test_shapes_must_fit_together():
    assert "moving has 3" in refused_matmul("shape", normal(4, 4), normal(3, 4), (4, 4))
    assert "the product is [4, 5]" in refused_matmul("shape", normal(4, 4), normal(4, 5), (4, 4))
    assert "the product is [5, 4]" in refused_matmul("shape", normal(4, 5), normal(4, 4), (4, 4))
    assert "the limit is 128" in refused_matmul("free-limit", normal(4, 129), normal(4, 4), (128, 4))


def test_more_than_128_partitions_are_refused():
    def body(d, s):
        tall = View(s.storage, 0, Shape((129, 4)), (4, 1), s.dtype)
        nisa.nc_matmul(d, tall, tall)

    refused("partition-limit", body, [normal(128, 4)], [((4, 4), F32)])


@pytest.mark.parametrize("on", ["trn1", "trn2"])
def test_513_columns_are_too_many_before_trn3(on):
    text = refused_matmul("free-limit", *ones(4, 4, 513), (4, 513), on=on)
    assert "moving has 513 columns, the limit is 512" in text and "gemm_moving_fmax" in text


def test_trn3_takes_the_whole_psum():
    stationary, moving = small_ints(4, 3), small_ints(4, 4096)
    np.testing.assert_array_equal(matmul(stationary, moving, on="trn3"), product(stationary, moving))
    wide = small_ints(4, 8192, dtype=BF16)
    out = matmul(stationary.astype(BF16), wide, dst=nl.bfloat16, on="trn3")
    np.testing.assert_array_equal(out.astype(np.float64), product(stationary, wide))


def test_a_destination_across_two_banks_is_refused_before_trn3():
    def body(d, s, m):
        nisa.nc_matmul(d[:, 256:768], s, m)

    def inside(d, s, m):
        nisa.nc_matmul(d[:, 512:1024], s, m)

    def placed(d, s, m):
        nisa.nc_matmul(psum((4, 512), address=(0, 1024)), s, m)

    operands, wide = ones(4, 4, 512), [((4, 1024), F32)]
    for on in ("trn1", "trn2"):
        assert "crosses a PSUM bank" in refused("psum-bank", body, operands, wide, on)
        refused("psum-bank", placed, operands, [((4, 4), F32)], on)
    (out,), _ = run(inside, operands, wide, on="trn2", out_psum=[0])
    np.testing.assert_array_equal(out[:, 512:], 4)
    (out,), _ = run(body, operands, wide, on="trn3", out_psum=[0])
    np.testing.assert_array_equal(out[:, 256:768], 4)


# ---- nc_matmul: hints and old keywords -----------------------------------------------------------


def test_onezero_hints_change_no_values_and_are_verified():
    eye, x = np.eye(8, dtype=np.float32), normal(8, 16)
    out = matmul(eye, x, is_stationary_onezero=True)
    np.testing.assert_array_equal(out, x)
    for hint, operands in (("stationary", (x[:, :8], eye)), ("moving", (eye, x))):
        (out,), kinds = run(
            lambda d, s, m, h=hint: nisa.nc_matmul(d, s, m, **{f"is_{h}_onezero": True}),
            operands,
            [((8, operands[1].shape[1]), F32)],
            out_psum=[0],
        )
        np.testing.assert_allclose(out, product(*operands), rtol=1e-6)
        assert kinds == ["onezero"]


def test_onezero_hints_of_narrow_operands_are_not_looked_at():
    matmul(normal(8, 8, dtype=BF16), normal(8, 8, dtype=BF16), is_moving_onezero=True)


def test_old_keywords_are_accepted_with_a_warning():
    def body(d, s, m):
        made = nisa.nc_matmul(d, s, m, is_moving_zero=True, psumAccumulateFlag=3)
        assert made.is_moving_onezero is True

    (out,), kinds = run(body, [normal(8, 8), np.eye(8, dtype=np.float32)], [((8, 8), F32)], out_psum=[0])
    assert kinds == ["legacy"] and out.shape == (8, 8)


# ---- nc_matmul: is_transpose ---------------------------------------------------------------------


def bit_patterns(shape, dtype):
    """Every kind of bits: NaN payloads, infinities, denormals."""
    size = np.dtype(dtype).itemsize
    return RNG.integers(0, 2 ** (8 * size), shape, dtype=np.uint64).astype(f"u{size}").view(dtype)


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("dtype", [np.float32, BF16, FP16, E4M3, E5M2])
@pytest.mark.parametrize(("k", "m"), [(128, 128), (128, 7), (1, 128), (33, 64)])
def test_is_transpose_moves_every_bit(dtype, k, m):
    x = bit_patterns((k, m), dtype)
    identity = np.eye(k, dtype=np.float32).astype(dtype)
    (out,), kinds = run(
        lambda d, s, i: nisa.nc_matmul(d, s, i, is_transpose=True),
        [x, identity],
        [((m, k), dtypes.resolve(np.dtype(dtype)))],
        out_psum=[0],
    )
    np.testing.assert_array_equal(bits(out), bits(x).T)
    assert kinds == []


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_is_transpose_of_16_bits_may_go_to_float32(dtype):
    x = normal(16, 8, dtype=dtype)
    out = matmul(x, np.eye(16, dtype=np.float32).astype(dtype), is_transpose=True)
    np.testing.assert_array_equal(out, x.astype(np.float32).T)


def test_is_transpose_with_an_identity_of_another_dtype_is_warned_about():
    x = bit_patterns((16, 8), np.float32)
    (out,), kinds = run(
        lambda d, s, i: nisa.nc_matmul(d, s, i, is_transpose=True),
        [x, np.eye(16).astype(BF16)],
        [((8, 16), F32)],
        out_psum=[0],
    )
    np.testing.assert_array_equal(bits(out), bits(x).T)
    assert kinds == ["dtype-differs"]


def test_is_transpose_accepts_an_identity_with_negative_zeros():
    identity = np.eye(8, dtype=np.float32)
    identity[0, 1] = -0.0
    x = normal(8, 4)
    np.testing.assert_array_equal(matmul(x, identity, is_transpose=True), x.T)


def test_is_transpose_of_something_else_is_the_product_with_a_warning():
    x, y = small_ints(8, 4), small_ints(8, 6)
    (out,), kinds = run(
        lambda d, s, m: nisa.nc_matmul(d, s, m, is_transpose=True), [x, y], [((4, 6), F32)], out_psum=[0]
    )
    np.testing.assert_array_equal(out, product(x, y))
    assert kinds == ["transpose-identity"]


def test_is_transpose_overwrites_always():
    def body(d, s, i):
        nisa.nc_matmul(d, s, i)
        nisa.nc_matmul(d, s, i, is_transpose=True)
        nisa.nc_matmul(d, s, i, is_transpose=True, accumulate=False)
        nisa.nc_matmul(d, s, i)

    x = normal(4, 4)
    (out,), kinds = run(body, [x, np.eye(4, dtype=np.float32)], [((4, 4), F32)], out_psum=[0])
    np.testing.assert_array_equal(out, x.T)
    assert kinds == []
    refused_matmul("op", x, x, (4, 4), is_transpose=True, accumulate=True)


def test_is_transpose_keeps_the_dtype():
    x = normal(4, 4, dtype=BF16)
    assert "bfloat16, float32" in refused_matmul("dtype", x, x, (4, 4), dst=nl.float16, is_transpose=True)
    refused_matmul("dtype", normal(4, 4), normal(4, 4), (4, 4), dst=nl.bfloat16, is_transpose=True)


def test_is_transpose_of_trn1_is_an_ordinary_product():
    x = normal(8, 4)
    np.testing.assert_array_equal(matmul(x, np.eye(8, dtype=np.float32), is_transpose=True, on="trn1"), x.T)
    refused_matmul(
        "dtype", x.astype(BF16), x.astype(BF16), (4, 4), dst=nl.bfloat16, is_transpose=True, on="trn1"
    )
    x[2, 1] = np.nan
    (out,), kinds = run(
        lambda d, s, i: nisa.nc_matmul(d, s, i, is_transpose=True),
        [x, np.eye(8, dtype=np.float32)],
        [((4, 8), F32)],
        on="trn1",
        out_psum=[0],
    )
    assert np.isnan(out[1]).all() and not np.isnan(out[[0, 2, 3]]).any()
    assert kinds == ["nan-transpose"]


# ---- nc_matmul: run-time addresses ---------------------------------------------------------------


def index_of(columns, group=32):
    index = np.zeros((group, -(-len(columns) // group)), np.int32)
    for i, column in enumerate(columns):
        index[i % group, i // group] = column
    return index


PICKED = [5, 60, 0, 17, 33, 2, 63, 9]


def test_an_index_tile_picks_columns_of_both_operands():
    stationary, moving = small_ints(32, 64, dtype=BF16), small_ints(32, 64, dtype=BF16)

    def body(d, s, m, index):
        nisa.nc_matmul(d, s.indirect(index, num_elem=8), m.indirect(index, num_elem=8))

    (out,), _ = run(body, [stationary, moving, index_of(PICKED)], [((8, 8), F32)], on="trn3", out_psum=[0])
    np.testing.assert_array_equal(out, product(stationary[:, PICKED], moving[:, PICKED]))


def test_an_index_tile_scatters_and_accumulates_columns_of_dst():
    stationary, moving = small_ints(32, 32, dtype=BF16), small_ints(32, 8, dtype=BF16)

    def body(d, s, m, index):
        nisa.memset(d, 7.0)
        for _ in range(2):
            nisa.nc_matmul(d.indirect(index, num_elem=8), s, m)

    (out,), _ = run(
        body, [stationary, moving, index_of(PICKED)], [((32, 64), nl.bfloat16)], on="trn3", out_psum=[0]
    )
    once = product(stationary, moving).astype(np.float32).astype(BF16).astype(np.float64)
    expected = np.full((32, 64), 7.0)
    expected[:, PICKED] = (2 * once).astype(np.float32).astype(BF16).astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2**-7)


def test_an_index_tile_needs_narrow_floats_and_the_whole_array():
    x, wide = small_ints(32, 64, dtype=BF16), small_ints(32, 64)
    call = lambda d, s, m, index, **o: nisa.nc_matmul(d, s.indirect(index, num_elem=8), m, **o)  # noqa: E731
    index = index_of(PICKED)
    text = refused("dtype", call, [wide, wide, index], [((8, 64), F32)], on="trn3")
    assert "16- and 8-bit floats only" in text
    tiled = lambda *a: call(*a, tile_position=(32, 0), tile_size=(32, 128))  # noqa: E731
    assert "tile_position" in refused("indirect-view", tiled, [x, x, index], [((8, 64), F32)], on="trn3")
    turned = lambda d, s, m, i: nisa.nc_matmul(d, s, m.indirect(i, num_elem=32), is_transpose=True)  # noqa: E731
    refused("indirect-view", turned, [x, x, index], [((64, 32), nl.bfloat16)], on="trn3")


def test_a_run_time_offset_moves_dst_and_its_accumulation():
    stationary, moving = ones(4, 2, 8)

    def body(d, s, m, offsets):
        for i in (0, 1, 1):
            nisa.nc_matmul(
                d.ap([[32, 2], [1, 8]], scalar_offset=offsets[0:1, i : i + 1], indirect_dim=1), s, m
            )

    start = np.zeros((2, 32), np.float32)
    (out,), kinds = run(body, [stationary, moving, np.array([[8, 16]], np.int32)], [start], out_psum=[0])
    np.testing.assert_array_equal(out, [[0] * 8 + [4] * 8 + [8] * 8 + [0] * 8] * 2)
    assert kinds == []


# ---- nc_matmul: cost -----------------------------------------------------------------------------


def cost_of(platform, stationary, moving, shape, dst=F32, **options):
    costs = []

    def body(d, s, m):
        costs.append(nisa.nc_matmul(d, s, m, **options).cost(find(platform)))

    run(body, [stationary, moving], [(shape, dst)], on=platform, out_psum=[0])
    return costs[0]


def test_cost_follows_the_manual():
    gap, old = (find(platform).matmul_gap_cycles for platform in ("trn2", "trn1"))
    a, b = ones(128, 128, 512)
    assert cost_of("trn2", a.astype(BF16), b.astype(BF16), (128, 512)).cycles == 512 + gap
    assert cost_of("trn2", a.astype(BF16), b[:, :8].astype(BF16), (128, 8)).cycles == 64 + gap
    assert cost_of("trn2", a, b, (128, 512)).cycles == 4 * 512 + 2 * gap  # two passes
    assert cost_of("trn2", a, b, (128, 512), is_moving_onezero=True).cycles == 2 * 512 + 2 * gap
    eye = np.eye(128, dtype=np.float32)
    assert cost_of("trn2", a, eye, (128, 128), is_transpose=True).cycles == 2 * 128 + 2 * gap
    hinted = cost_of("trn1", a, eye, (128, 128), is_transpose=True, is_moving_onezero=True)
    assert hinted.cycles == 2 * 128 + 2 * old
    fp8 = np.ones((128, 2, 128), np.float32).astype(E4M3)
    assert cost_of("trn2", fp8, fp8, (128, 128), perf_mode=DOUBLE).cycles == 128 + gap


# ---- nc_transpose --------------------------------------------------------------------------------

MOVABLE = [d for d in dtypes.ALL if d.itemsize > 1]


def transpose(x, dtype, on="trn2", engine=nisa.engine.unknown, in_psum=(), out_psum=(0,)):
    shape = (x[0].size, x.shape[0])
    return run(
        lambda d, t: nisa.nc_transpose(d, t, engine=engine),
        [x],
        [(shape, dtype)],
        on=on,
        in_psum=in_psum,
        out_psum=out_psum,
    )


@pytest.mark.tiny
@pytest.mark.parametrize("shape", [(128, 64), (1, 128), (128, 1), (37, 101), (128, 128)])
def test_tensor_engine_transposes_bits_of_bfloat16(shape):
    x = bit_patterns(shape, BF16)
    (out,), kinds = transpose(x, nl.bfloat16)
    np.testing.assert_array_equal(bits(out), bits(x).T)
    assert kinds == []


@pytest.mark.parametrize("dtype", MOVABLE)
@pytest.mark.parametrize("engine", [TENSOR, VECTOR])
def test_transposes_of_every_wide_dtype_move_bits(dtype, engine):
    x = bit_patterns((24, 32), dtype.bits)

    def body(d, t):
        out = nl.ndarray((32, 24), dtype, buffer=nl.psum)
        nisa.nc_transpose(out, t.view(dtype), engine=engine)
        nisa.tensor_copy(d, out.view(dtypes.resolve(dtype.bits)))

    (out,), _ = run(body, [x], [((32, 24), dtypes.resolve(dtype.bits))], on="trn3")
    np.testing.assert_array_equal(out, x.T)


def test_free_dimensions_are_taken_as_one():
    x = normal(8, 3, 4)

    def body(d, t):
        nisa.nc_transpose(d, t.permute((0, 2, 1)))

    (out,), _ = run(body, [x], [((12, 2, 4), F32)], out_psum=[0])
    np.testing.assert_array_equal(out.reshape(12, 8), x.transpose(0, 2, 1).reshape(8, 12).T)


def test_vector_engine_transposes_small_tiles_between_all_buffers():
    x = bit_patterns((32, 32), np.int32)
    for in_psum, out_psum in (((), ()), ((0,), ()), ((0,), (0,))):
        (out,), _ = transpose(x, nl.int32, in_psum=in_psum, out_psum=out_psum)
        np.testing.assert_array_equal(out, x.T)
    (out,), _ = transpose(x, nl.int32, engine=VECTOR)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, E4M3, E5M2, np.bool_])
def test_vector_engine_transposes_bytes(dtype):
    x = RNG.integers(0, 2, (5, 7)).astype(dtype)
    (out,), _ = transpose(x, dtypes.resolve(np.dtype(dtype)), out_psum=())
    np.testing.assert_array_equal(out, x.T)


def test_the_destination_buffer_chooses_the_engine():
    chosen = []

    def body(d, t):
        sbuf = nl.ndarray((8, 8), F32, buffer=nl.sbuf)
        chosen.append(nisa.nc_transpose(d, t).runs_on)
        chosen.append(nisa.nc_transpose(sbuf, t).runs_on)
        chosen.append(nisa.nc_transpose(sbuf, d).runs_on)
        chosen.append(nisa.nc_transpose(d, t, engine=VECTOR).runs_on)

    run(body, [normal(8, 8)], [((8, 8), F32)], out_psum=[0])
    assert chosen == [TENSOR, VECTOR, VECTOR, VECTOR]


def test_transposes_too_large_for_the_engine_are_refused():
    def vector(d, t):
        nisa.nc_transpose(d, t, engine=VECTOR)

    assert "at most [32, 32]" in refused("free-limit", vector, [normal(33, 4)], [((4, 33), F32)])
    assert "tile data by 32" in refused("free-limit", vector, [normal(4, 33)], [((33, 4), F32)], out_psum=())

    def auto(d, t):
        nisa.nc_transpose(d, t)

    refused("free-limit", auto, [normal(64, 64)], [((64, 64), F32)], out_psum=())


def test_transposed_shapes_must_fit():
    text = refused("shape", lambda d, t: nisa.nc_transpose(d, t), [normal(4, 6)], [((4, 6), F32)])
    assert "the transpose is [6, 4]" in text


def test_tensor_engine_reads_sbuf_and_writes_psum():
    def tensor(d, t):
        nisa.nc_transpose(d, t, engine=TENSOR)

    assert "dst must be in PSUM" in refused("buffer", tensor, [normal(4, 4)], [((4, 4), F32)], out_psum=())
    assert "data must be in SBUF" in refused("buffer", tensor, [normal(4, 4)], [((4, 4), F32)], in_psum=[0])


def test_engines_that_cannot_transpose_are_refused():
    body = lambda d, t: nisa.nc_transpose(d, t, engine=nisa.engine.scalar)  # noqa: E731
    refused("engine", body, [normal(4, 4)], [((4, 4), F32)])
    refused("enum", lambda d, t: nisa.nc_transpose(d, t, engine=5), [normal(4, 4)], [((4, 4), F32)])


def test_transposes_keep_the_dtype():
    body = lambda d, t: nisa.nc_transpose(d, t)  # noqa: E731
    refused("dtype", body, [normal(4, 4)], [((4, 4), nl.bfloat16)])
    refused("dtype", body, [normal(4, 4, dtype=BF16)], [((4, 4), nl.float16)])
    refused("dtype", body, [normal(4, 4, dtype=BF16)], [((4, 4), F32)], out_psum=())
    refused("dtype", body, [normal(4, 4).astype(np.int32)], [((4, 4), F32)])


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_16_bit_floats_may_be_transposed_into_float32(dtype):
    x = normal(16, 24, dtype=dtype)
    (out,), kinds = transpose(x, F32)
    np.testing.assert_array_equal(out, x.astype(np.float32).T)
    assert kinds == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, E4M3, E5M2])
def test_bytes_go_to_16_bit_slots_with_a_zero_upper_byte(dtype):
    x = bit_patterns((16, 24), dtype)
    for target in (nl.uint16, nl.int16):
        (out,), _ = transpose(x, target)
        np.testing.assert_array_equal(out, bits(x).T)
    own = dtypes.resolve(np.dtype(dtype))
    text = refused("dtype", lambda d, t: nisa.nc_transpose(d, t), [x], [((24, 16), own)])
    assert "cast to bf16 first" in text


def test_trn1_multiplies_by_the_identity():
    x = normal(16, 8)
    (out,), kinds = transpose(x, F32, on="trn1")
    np.testing.assert_array_equal(out, x.T)
    assert kinds == []
    (out,), _ = transpose(x.astype(BF16), F32, on="trn1")
    np.testing.assert_array_equal(out, x.astype(BF16).astype(np.float32).T)
    (out,), _ = transpose(x.astype(BF16), nl.bfloat16, on="trn1")
    np.testing.assert_array_equal(out, x.astype(BF16).T)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_trn1_spreads_nan_and_infinity_over_the_row(bad):
    x = normal(16, 8)
    x[3, 5] = bad
    (out,), kinds = transpose(x, F32, on="trn1")
    assert np.isnan(out[5]).all()
    np.testing.assert_array_equal(np.delete(out, 5, axis=0), np.delete(x.T, 5, axis=0))
    assert kinds == ["nan-transpose"]
    (out,), kinds = transpose(x, F32, on="trn2")
    np.testing.assert_array_equal(out, x.T)
    assert kinds == []


def test_trn1_transposes_integers_on_the_vector_engine_alone():
    x = bit_patterns((8, 8), np.int32)
    body = lambda d, t: nisa.nc_transpose(d, t)  # noqa: E731
    assert "cast to bf16 first" in refused("dtype", body, [x], [((8, 8), nl.int32)], on="trn1")
    (out,), _ = transpose(x, nl.int32, on="trn1", engine=VECTOR)
    np.testing.assert_array_equal(out, x.T)


def test_transpose_in_place_on_the_vector_engine():
    x = normal(32, 32)
    (out,), _ = run(lambda d: nisa.nc_transpose(d, d), [], [x])
    np.testing.assert_array_equal(out, x.T)


@given(
    p=st.integers(1, 128),
    f=st.integers(1, 128),
    dtype=st.sampled_from([np.float32, BF16, FP16, np.int32, np.uint16]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_any_transpose_moves_every_bit(p, f, dtype, seed):
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    x = rng.integers(0, 2 ** (8 * size), (p, f), dtype=np.uint64).astype(f"u{size}").view(dtype)
    small = p <= 32 and f <= 32
    (out,), kinds = transpose(x, dtypes.resolve(np.dtype(dtype)), out_psum=() if small else (0,))
    np.testing.assert_array_equal(bits(out), bits(x).T)
    assert kinds == []


def test_cost_of_transposes_follows_the_manual():
    costs = []

    def body(d, t, small):
        costs.append(nisa.nc_transpose(d, t).cost(find("trn2")))
        costs.append(nisa.nc_transpose(d[0:32, 0:32], small, engine=VECTOR).cost(find("trn2")))

    run(body, [normal(128, 128), normal(32, 32)], [((128, 128), F32)], out_psum=[0])
    assert costs[0].cycles == 2 * 128
    assert costs[1].cycles == pytest.approx(93 * find("trn2").vector_ghz)
