"""quantize_mx and nc_matmul_mx."""

from __future__ import annotations

import functools
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import find
from support import refused_tiles, run_tiles, target

LANE = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}
LARGEST_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
FP8 = list(LARGEST_EXPONENT)
SOURCES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


refused = functools.partial(refused_tiles, on="trn3")


def row_of(k):
    """The scale row of a data partition, as the manual draws it."""
    return 32 * (k // 32) + (k % 32) // 8


# ---- quantize_mx ---------------------------------------------------------------------------------


def quantized(src, target):
    """Group by group in float64: lanes [P, F/4, 4] of the lane type, scale codes {(row, column): code}."""
    x = np.asarray(src).astype(np.float64).reshape(len(src), -1)
    lanes = np.zeros((len(x), x.shape[1] // 4, 4), LANE[target])
    codes = {}
    for p in range(0, len(x), 8):
        for c in range(x.shape[1] // 4):
            group = x[p : p + 8, 4 * c : 4 * c + 4]
            largest = np.abs(group).max()
            power = 128 if not np.isfinite(largest) else np.floor(np.log2(largest)) if largest else -999
            code = int(np.clip(power - (LARGEST_EXPONENT[target] - 1) + 127, 0, 254))
            lanes[p : p + 8, c] = (group / 2.0 ** (code - 127)).astype(np.float32)
            codes[row_of(p), c] = code
    return lanes, codes


def check_quantized(data, scale, src, target, untouched=None):
    lanes, codes = quantized(src, target)
    np.testing.assert_array_equal(
        data.reshape(len(lanes), -1).view(np.uint8), lanes.reshape(len(lanes), -1).view(np.uint8)
    )
    scale = scale.view(np.uint8).reshape(len(scale), -1)
    for (row, column), code in codes.items():
        assert scale[row, column] == code
    if untouched is not None:
        others = np.ones(scale.shape, bool)
        others[tuple(np.array(list(codes)).T)] = False
        np.testing.assert_array_equal(scale[others], untouched)


def quantize(src, target, scale=None):
    """(packed words, scale bytes), both in full tiles; the scale tile starts with 77 everywhere."""
    p, f = len(src), src[0].size
    scale = np.full((p, f // 4), 77, np.uint8) if scale is None else scale

    def body(data, scale, src):
        nisa.quantize_mx(data.view(target), src, scale)

    return run_tiles(body, [src], [((p, f // 4), nl.uint32), scale], on="trn3")


@pytest.mark.tiny
@pytest.mark.parametrize("p, f", [(32, 4), (64, 20), (128, 64)])
@pytest.mark.parametrize("target", FP8)
@pytest.mark.parametrize("source", SOURCES)
def test_quantize_scales_each_group_and_leaves_other_rows_alone(source, target, p, f):
    spread = 2.0 ** np.random.default_rng(1).integers(-12, 12, (p, f))
    src = (normal(p, f) * spread).astype(SOURCES[source])
    data, scale = quantize(src, target)
    check_quantized(data, scale, src, target, untouched=77)


@pytest.mark.parametrize("target", FP8)
def test_quantize_gives_an_all_zero_group_the_smallest_scale(target):
    src = np.zeros((32, 8), ml_dtypes.bfloat16)
    src[:, 4:] = 1
    data, scale = quantize(src, target)
    np.testing.assert_array_equal(scale[:4, 0], 0)
    np.testing.assert_array_equal(data[:, 0], 0)
    np.testing.assert_array_equal(scale[:4, 1], 127 - (LARGEST_EXPONENT[target] - 1))


@pytest.mark.parametrize("target", FP8)
@pytest.mark.parametrize("largest", [1.0, 1.9921875, 448.0, 447.0, 2.0**-126, 2.0**-133, 3.3895e38])
def test_quantize_puts_the_largest_element_one_binade_below_the_end(target, largest):
    src = np.zeros((32, 4), ml_dtypes.bfloat16)
    src[5, 2] = -largest
    data, scale = quantize(src, target)
    check_quantized(data, scale, src, target)
    code = int(scale[0, 0])
    lane = data.view(LANE[target])[5, 2].astype(np.float64)
    if code:
        assert 2.0 ** (LARGEST_EXPONENT[target] - 1) <= -lane <= 2.0 ** LARGEST_EXPONENT[target]
    np.testing.assert_allclose(lane * 2.0 ** (code - 127), np.float64(src[5, 2]), rtol=1 / 8)


@pytest.mark.parametrize("target", FP8)
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_quantize_takes_inf_and_nan_for_the_largest_exponent(target, odd):
    src = np.full((32, 4), 2.0**100, ml_dtypes.bfloat16)
    src[9, 1] = odd
    data, scale = quantize(src, target)
    assert scale[1, 0] == 128 - (LARGEST_EXPONENT[target] - 1) + 127
    check_quantized(data, scale, src, target)
    lane = data.view(LANE[target])[9, 1].astype(np.float64)
    assert np.isnan(lane) if target == "float8_e4m3fn_x4" or np.isnan(odd) else lane == odd


def test_quantize_reads_4d_views_and_writes_sliced_tiles_without_touching_neighbours():
    src = normal(128, 3, 2, 12).astype(ml_dtypes.bfloat16)

    def body(data, scale, src):
        view = src[:, 0:2, :, 4:12]  # 32 elements
        nisa.quantize_mx(data[:, :, 1:5].view(nl.float8_e4m3fn_x4), view, scale[:, :, 2:6])

    before, marks = np.full((128, 2, 6), 0xABCD, np.uint32), np.full((128, 2, 7), 9, np.uint8)
    data, scale = run_tiles(body, [src], [before, marks], on="trn3")
    part = src[:, 0:2, :, 4:12].reshape(128, 32)
    check_quantized(
        np.ascontiguousarray(data[:, :, 1:5]).reshape(128, 8),
        np.ascontiguousarray(scale[:, :, 2:6]),
        part,
        FP8[0],
        9,
    )
    np.testing.assert_array_equal(data[:, :, [0, 5]], 0xABCD)
    np.testing.assert_array_equal(scale[:, :, [0, 1, 6]], 9)


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
def test_quantize_packs_four_sets_of_scales_into_the_same_quadrants(offset):
    src = normal(96, 16).astype(np.float16)

    def body(data, scale, src):
        nisa.quantize_mx(data.view(nl.float8_e5m2_x4), src, scale[offset:])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        marks = np.full((96, 4), 3, np.uint8)
        data, scale = run_tiles(body, [src], [((96, 4), nl.uint32), marks], on="trn3")
    check_quantized(data, scale[offset:], src, "float8_e5m2_x4", untouched=3)
    np.testing.assert_array_equal(scale[:offset], 3)


def test_quantize_writes_the_scale_dtype_and_the_packed_dtype_of_the_manual():
    src = normal(64, 8).astype(ml_dtypes.bfloat16)

    @nki.jit
    def kernel(src):
        tile = nl.ndarray((64, 8), nl.bfloat16, buffer=nl.sbuf)
        data = nl.ndarray((64, 2), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scale = nl.ndarray((64, 2), nl.float8_e8m0fnu, buffer=nl.sbuf)
        out = nl.ndarray((4, 2), nl.float8_e8m0fnu, buffer=nl.shared_hbm)
        nisa.dma_copy(tile, src)
        nisa.quantize_mx(dst=data, src=tile, dst_scale=scale)
        nisa.dma_copy(out, scale[32:36])
        return out

    with warnings.catch_warnings(), target("trn3"):
        warnings.simplefilter("error")
        got = kernel(src)
    codes = quantized(src, "float8_e4m3fn_x4")[1]
    np.testing.assert_array_equal(got.view(np.uint8), [[codes[r, c] for c in (0, 1)] for r in range(32, 36)])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@settings(max_examples=200, deadline=None)
@given(
    quadrants=st.integers(1, 4),
    columns=st.integers(1, 5),
    target=st.sampled_from(FP8),
    source=st.sampled_from(list(SOURCES)),
    seed=st.integers(0, 2**31),
)
def test_quantize_agrees_with_the_definition_on_any_bits(quadrants, columns, target, source, seed):
    bits = np.random.default_rng(seed).integers(0, 2**16, (32 * quadrants, 4 * columns), dtype=np.uint16)
    src = bits.view(SOURCES[source])
    if seed % 2:  # half of the examples without inf and nan
        src = np.where(np.isfinite(src.astype(np.float32)), src, src.dtype.type(1))
    data, scale = quantize(src, target)
    wanted, codes = quantized(src, target)
    for (row, column), code in codes.items():
        assert scale[row, column] == code
    got = data.view(LANE[target]).reshape(wanted.shape).astype(np.float32)
    np.testing.assert_array_equal(got, wanted.astype(np.float32))


def test_quantize_refuses_wrong_generations_buffers_dtypes_and_sizes():
    x4, scales = nl.float8_e4m3fn_x4, nl.float8_e8m0fnu

    def body(dst, scale, src):
        nisa.quantize_mx(dst, src, scale)

    def half(*shape):
        return np.ones(shape, np.float16)

    good = [((32, 4), x4), ((4, 4), scales)]
    refused("generation", "needs trn3", body, [half(32, 16)], good, on="trn2")
    refused("buffer", "src must be in SBUF", body, [half(32, 16)], good, in_psum=[0])
    refused("buffer", "dst must be in SBUF", body, [half(32, 16)], good, out_psum=[0])
    refused("buffer", "dst_scale must be in SBUF", body, [half(32, 16)], good, out_psum=[1])
    refused("dtype", "src has dtype float32", body, [np.ones((32, 16), np.float32)], good)
    refused("dtype", "MXFP8 only", body, [half(32, 16)], [((32, 4), nl.float4_e2m1fn_x4), good[1]])
    refused("dtype", "dst_scale has dtype int8", body, [half(32, 16)], [good[0], ((4, 4), nl.int8)])
    refused("shape", "multiples of 32", body, [half(33, 16)], [((33, 4), x4), ((33, 4), scales)])
    refused("shape", "must be a multiple of 4", body, [half(32, 18)], good)
    refused("shape", "src has 64 partitions, dst has 32", body, [half(64, 16)], good)
    refused("shape", "a quarter of those of src", body, [half(32, 16)], [((32, 16), x4), good[1]])
    refused("shape", "the data needs 4", body, [half(32, 16)], [good[0], ((4, 3), scales)])
    refused("shape", "need 4", body, [half(32, 16)], [good[0], ((3, 4), scales)])
    refused("shape", "need 36", body, [half(64, 16)], [((64, 4), x4), ((35, 4), scales)])


def test_quantize_warns_of_scales_in_odd_places_and_of_extra_columns():
    src = np.ones((32, 8), np.float16)

    def body(data, scale, src):
        nisa.quantize_mx(data.view(nl.float8_e4m3fn_x4), src, scale[2:])

    with pytest.warns(UserWarning, match="dst_scale starts at partition 2"):
        run_tiles(body, [src], [((32, 2), nl.uint32), np.zeros((32, 2), np.uint8)], on="trn3")

    def wider(data, scale, src):
        nisa.quantize_mx(data.view(nl.float8_e4m3fn_x4), src, scale)

    with pytest.warns(UserWarning, match="5 elements per partition, 2 are written"):
        _, scale = run_tiles(wider, [src], [((32, 2), nl.uint32), np.full((32, 5), 8, np.uint8)], on="trn3")
    np.testing.assert_array_equal(scale[:4], [[120, 120, 8, 8, 8]] * 4)


# ---- nc_matmul_mx --------------------------------------------------------------------------------


def packed(k, n, dtype, seed=0):
    """Random lanes [K, N, 4] as float64, and the words that hold them."""
    g = np.random.default_rng(seed)
    if dtype == "float4_e2m1fn_x4":
        codes = g.integers(0, 16, (k, n, 4), dtype=np.uint8)
        words = sum(codes[..., q].astype(np.uint16) << 4 * q for q in range(4)).astype(np.uint16)
        return codes.view(LANE[dtype]).astype(np.float64), words
    lanes = g.standard_normal((k, n, 4)).astype(np.float32).astype(LANE[dtype])
    return lanes.astype(np.float64), lanes.view(np.uint32)[..., 0]


def scales(k, n, seed=0, low=120, high=134):
    """Random codes where the array reads them, 200 elsewhere, and the factor of each element."""
    codes = np.random.default_rng(seed).integers(low, high, (k // 8, n))
    tile = np.full((k, n), 200, np.uint8)
    for group in range(k // 8):
        tile[row_of(8 * group)] = codes[group]
    return np.repeat(2.0 ** (codes - 127.0), 8, axis=0), tile


def matmul(stationary, moving, k, m, n, out=nl.float32, seed=0, scale_views=(slice(None),) * 2, **options):
    """(the product of the machine, the product in float64)"""
    s, s_words = packed(k, m, stationary, seed)
    v, v_words = packed(k, n, moving, seed + 1)
    s_factor, s_scale = scales(k, m, seed + 2)
    v_factor, v_scale = scales(k, n, seed + 3)

    def body(dst, s, v, s_scale, v_scale):
        s_scale, v_scale = s_scale[scale_views[0]], v_scale[scale_views[1]]
        nisa.nc_matmul_mx(dst, s.view(stationary), v.view(moving), s_scale, v_scale, **options)

    [got] = run_tiles(body, [s_words, v_words, s_scale, v_scale], [((m, n), out)], on="trn3", out_psum=[0])
    return got, np.einsum("kmq,km,knq,kn->mn", s, s_factor, v, v_factor, optimize=True)


def close(got, wanted):
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.tiny
@pytest.mark.parametrize("moving", LANE)
@pytest.mark.parametrize("stationary", LANE)
def test_matmul_contracts_partitions_and_lanes_of_any_two_formats(stationary, moving):
    close(*matmul(stationary, moving, 64, 10, 17))


@pytest.mark.parametrize("k, m, n", [(32, 2, 1), (96, 64, 33), (128, 128, 512), (128, 4, 4096)])
def test_matmul_takes_ragged_and_full_tiles(k, m, n):
    close(*matmul("float8_e4m3fn_x4", "float8_e5m2_x4", k, m, n))


def test_matmul_rounds_once_into_bfloat16():
    got, wanted = matmul("float8_e4m3fn_x4", "float4_e2m1fn_x4", 128, 16, 5, out=nl.bfloat16)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2**-8)


def test_matmul_reads_scales_of_one_quadrant_from_four_rows():
    close(*matmul("float8_e5m2_x4", "float8_e4m3fn_x4", 32, 8, 8, scale_views=(slice(0, 4), slice(0, 4))))


def test_matmul_ignores_extra_columns_and_missing_rows_at_the_end_of_a_scale_tile():
    close(*matmul("float8_e5m2_x4", "float8_e4m3fn_x4", 128, 8, 8, scale_views=(slice(0, 100), slice(None))))


@pytest.mark.parametrize("offset", [4, 12])
def test_matmul_reads_packed_scales_from_a_shorter_view(offset):
    k, m, n = 128, 6, 9
    s, s_words = packed(k, m, "float8_e4m3fn_x4")
    v, v_words = packed(k, n, "float8_e5m2_x4", 1)
    s_factor, s_scale = scales(k, m, 2)
    v_factor, v_scale = scales(k, n, 3)
    s_scale = np.roll(s_scale, offset, axis=0)

    def body(dst, s, v, s_scale, v_scale):
        nisa.nc_matmul_mx(
            dst, s.view(nl.float8_e4m3fn_x4), v.view(nl.float8_e5m2_x4), s_scale[offset:], v_scale
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [got] = run_tiles(
            body, [s_words, v_words, s_scale, v_scale], [((m, n), nl.float32)], on="trn3", out_psum=[0]
        )
    close(got, np.einsum("kmq,km,knq,kn->mn", s, s_factor, v, v_factor))


def test_matmul_reads_views_of_any_rank():
    k, m, n = 64, 6, 10
    s, s_words = packed(k, 2 * m, "float8_e4m3fn_x4")
    v, v_words = packed(k, n, "float4_e2m1fn_x4", 1)
    s_factor, s_scale = scales(k, 2 * m, 2)
    v_factor, v_scale = scales(k, n, 3)

    def body(dst, s, v, s_scale, v_scale):
        s = s.view(nl.float8_e4m3fn_x4)[:, ::2].reshape((k, 2, 3))
        v = v.view(nl.float4_e2m1fn_x4).reshape((k, 5, 2))
        nisa.nc_matmul_mx(dst, s, v, s_scale[:, ::2], v_scale.reshape((k, 2, 5)))

    [got] = run_tiles(
        body, [s_words, v_words, s_scale, v_scale], [((m, 2, 5), nl.float32)], on="trn3", out_psum=[0]
    )
    wanted = np.einsum("kmq,km,knq,kn->mn", s[:, ::2], s_factor[:, ::2], v, v_factor)
    close(got.reshape(m, n), wanted)


def ones(k, n):
    """Words of four 1.0 lanes, and scales of 1."""
    return np.full((k, n), 0x38383838, np.uint32), np.full((k, n), 127, np.uint8)


def ones_matmul(dst, s, v, s_scale, v_scale, **options):
    nisa.nc_matmul_mx(
        dst, s.view(nl.float8_e4m3fn_x4), v.view(nl.float8_e4m3fn_x4), s_scale, v_scale, **options
    )


def run_ones(body, k=32, m=2, n=3, out=nl.float32, on="trn3"):
    (s, s_scale), (v, v_scale) = ones(k, m), ones(k, n)
    return run_tiles(body, [s, v, s_scale, v_scale], [((m, n), out)], on=on, out_psum=[0])[0]


@pytest.mark.parametrize("out", [nl.float32, nl.bfloat16])
def test_matmul_accumulates_like_nc_matmul(out):
    def chain(*flags):
        def body(dst, *tiles):
            for flag in flags:
                ones_matmul(dst, *tiles, accumulate=flag)

        return body

    assert (run_ones(chain(None), out=out) == 128).all()
    assert (run_ones(chain(None, None, None), out=out) == 384).all()
    assert (run_ones(chain(None, False), out=out) == 128).all()
    assert (run_ones(chain(False, True, None), out=out) == 384).all()


def test_matmul_adds_onto_a_memset_tile():
    def body(dst, *tiles):
        nisa.memset(dst, 5.0)
        ones_matmul(dst, *tiles, accumulate=True)

    assert (run_ones(body) == 133).all()


def test_code_255_is_nan_for_its_group_alone():
    (s, s_scale), (v, v_scale) = ones(32, 2), ones(32, 3)
    s_scale[2, 1] = 255

    [got] = run_tiles(ones_matmul, [s, v, s_scale, v_scale], [((2, 3), nl.float32)], on="trn3", out_psum=[0])
    np.testing.assert_array_equal(got, [[128] * 3, [np.nan] * 3])


@pytest.mark.parametrize("code", [254, 247, 240, 100, 0])
def test_scales_that_cancel_lose_nothing(code):
    (s, s_scale), (v, v_scale) = ones(32, 2), ones(32, 3)
    s[:] = 0x77777777  # 240
    s_scale[:], v_scale[:] = code, 254 - code

    [got] = run_tiles(ones_matmul, [s, v, s_scale, v_scale], [((2, 3), nl.float32)], on="trn3", out_psum=[0])
    np.testing.assert_array_equal(got, 240 * 128)


def test_scales_may_be_float8_e8m0fnu_and_rows_between_them_unwritten():
    @nki.jit
    def kernel(a, b):
        tiles = []
        for x in (a, b):
            tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(tile, x)
            data = nl.ndarray((128, x.shape[1] // 4), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
            scale = nl.ndarray(data.shape, nl.float8_e8m0fnu, buffer=nl.sbuf)
            nisa.quantize_mx(data, tile, scale)
            tiles.append((data, scale))
        (s, s_scale), (v, v_scale) = tiles
        psum = nl.ndarray((s.shape[1], v.shape[1]), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(dst=psum, stationary=s, moving=v, stationary_scale=s_scale, moving_scale=v_scale)
        sbuf = nl.ndarray(psum.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(sbuf, psum)
        out = nl.ndarray(psum.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, sbuf)
        return out

    a, b = (normal(128, 4 * n, seed=n).astype(ml_dtypes.bfloat16) for n in (16, 24))
    with warnings.catch_warnings(), target("trn3"):
        warnings.simplefilter("error")
        got = kernel(a, b)
    wanted = np.einsum("kmq,knq->mn", *(x.astype(np.float64).reshape(128, -1, 4) for x in (a, b)))
    assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max() + 1.5


@pytest.mark.parametrize("size, position", [((128, 128), (0, 0)), ((64, 128), (64, 0)), ((32, 128), (96, 0))])
def test_row_tiles_do_not_change_values(size, position):
    k = min(32, size[0])
    got, wanted = matmul(
        "float8_e4m3fn_x4", "float8_e4m3fn_x4", k, 4, 8, tile_position=position, tile_size=list(size)
    )
    close(got, wanted)


@settings(max_examples=200, deadline=None)
@given(
    k=st.sampled_from([32, 64, 96, 128]),
    m=st.integers(1, 8).map(lambda half: 2 * half),
    n=st.integers(1, 40),
    stationary=st.sampled_from(list(LANE)),
    moving=st.sampled_from(list(LANE)),
    seed=st.integers(0, 2**31),
)
def test_matmul_agrees_with_float64(k, m, n, stationary, moving, seed):
    close(*matmul(stationary, moving, k, m, n, seed=seed))


def test_matmul_gathers_data_and_scales_by_one_index_tile():
    k, m, n = 64, 4, 6
    s, s_words = packed(k, m, "float8_e4m3fn_x4")
    v, v_words = packed(k, n, "float8_e5m2_x4", 1)
    s_factor, s_scale = scales(k, m, 2)
    v_factor, v_scale = scales(k, n, 3)
    index = np.zeros((k, 1), np.int32)
    columns = [5, 0, 0, 3, 2]
    for quadrant in (0, 32):
        index[quadrant : quadrant + 5, 0] = columns

    def body(dst, s, v, s_scale, v_scale, index):
        nisa.nc_matmul_mx(
            dst,
            s.view(nl.float8_e4m3fn_x4),
            v.view(nl.float8_e5m2_x4).indirect(index, 5),
            s_scale,
            v_scale.indirect(index, 5),
        )

    inputs = [s_words, v_words, s_scale, v_scale, index]
    [got] = run_tiles(body, inputs, [((m, 5), nl.float32)], on="trn3", out_psum=[0])
    wanted = np.einsum("kmq,km,knq,kn->mn", s, s_factor, v[:, columns], v_factor[:, columns])
    close(got, wanted)

    def only_data(dst, s, v, s_scale, v_scale, index):
        v = v.view(nl.float8_e5m2_x4).indirect(index, 5)
        nisa.nc_matmul_mx(dst, s.view(nl.float8_e4m3fn_x4), v, s_scale, v_scale)

    refused(
        "indirect-view", "moving and moving_scale", only_data, inputs, [((m, 5), nl.float32)], out_psum=[0]
    )

    def two_indices(dst, s, v, s_scale, v_scale, index):
        v = v.view(nl.float8_e5m2_x4).indirect(index, 5)
        other = nl.ndarray(index.shape, index.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(other, index)
        nisa.nc_matmul_mx(dst, s.view(nl.float8_e4m3fn_x4), v, s_scale, v_scale.indirect(other, 5))

    refused("indirect-view", "same index tile", two_indices, inputs, [((m, 5), nl.float32)], out_psum=[0])

    def tiled(dst, s, v, s_scale, v_scale, index):
        nisa.nc_matmul_mx(
            dst,
            s.view(nl.float8_e4m3fn_x4),
            v.view(nl.float8_e5m2_x4).indirect(index, 5),
            s_scale,
            v_scale.indirect(index, 5),
            tile_position=(64, 0),
            tile_size=(64, 128),
        )

    refused("indirect-view", "needs (0, 0)", tiled, inputs, [((m, 5), nl.float32)], out_psum=[0])


def test_matmul_scatters_and_accumulates_by_an_index_tile():
    (s, s_scale), (v, v_scale) = ones(32, 4), ones(32, 3)
    index = np.zeros((32, 1), np.int32)
    index[:3, 0] = [4, 0, 2]

    def body(dst, s, v, s_scale, v_scale, index):
        nisa.memset(dst, 7.0)
        for _ in range(2):
            ones_matmul(dst.indirect(index, 3), s, v, s_scale, v_scale)

    inputs = [s, v, s_scale, v_scale, index]
    [got] = run_tiles(body, inputs, [((4, 6), nl.float32)], on="trn3", out_psum=[0])
    np.testing.assert_array_equal(got, [[256, 7, 256, 7, 256, 7]] * 4)


def test_matmul_refuses_wrong_generations_buffers_dtypes_and_sizes():
    def tiles(k=32, m=2, n=3):
        (s, s_scale), (v, v_scale) = ones(k, m), ones(k, n)
        return [s, v, s_scale, v_scale]

    def no(kind, text, inputs, m=2, n=3, out=nl.float32, body=ones_matmul, where="psum", **options):
        refused(kind, text, body, inputs, [((m, n), out)], out_psum=[0] if where == "psum" else [], **options)

    no("generation", "needs trn3", tiles(), on="trn2")
    no("buffer", "dst must be in PSUM", tiles(), where="sbuf")
    no("buffer", "moving must be in SBUF", tiles(), in_psum=[1])
    no("buffer", "stationary_scale must be in SBUF", tiles(), in_psum=[2])
    no("dtype", "dst has dtype float16", tiles(), out=nl.float16)
    no(
        "dtype",
        "moving has dtype uint32",
        tiles(),
        body=lambda d, s, v, *r: nisa.nc_matmul_mx(d, s.view(nl.float8_e5m2_x4), v, *r),
    )
    no("dtype", "moving_scale has dtype int8", [*tiles()[:3], np.zeros((32, 3), np.int8)])
    no("shape", "stationary has 32 partitions, moving has 64", [tiles()[0], tiles(64)[1], *tiles()[2:]])
    no("shape", "multiples of 32", tiles(k=40))
    no("shape", "needs an even number", tiles(m=3), m=3)
    no("free-limit", "stationary has 130 columns", tiles(m=130), m=128)
    no("shape", "the product is [2, 3]", tiles(), m=4)
    no("shape", "need 36", [*tiles(64)[:2], np.zeros((35, 2), np.uint8), tiles(64)[3]])
    no("shape", "the data needs 3", [*tiles()[:3], np.zeros((4, 2), np.uint8)])
    no(
        "argument",
        "stationary_scale is missing",
        tiles(),
        body=lambda d, s, v, *r: ones_matmul(d, s, v, None, r[1]),
    )

    def tiled(position, size):
        return lambda *operands: ones_matmul(*operands, tile_position=position, tile_size=size)

    no("shape", "MX tiles rows only", tiles(), body=tiled((0, 0), (64, 64)))
    no("shape", "together, or neither", tiles(), body=tiled((0, 0), None))
    no("shape", "takes 128, 64, 32", tiles(), body=tiled((0, 0), (16, 128)))
    no("shape", "not a multiple of 64", tiles(), body=tiled((32, 0), (64, 128)))
    no("shape", "K is 64, the PE tile has 32 rows", tiles(64), body=tiled((0, 0), (32, 128)))


def test_matmul_warns_of_scales_in_odd_places():
    def body(dst, s, v, s_scale, v_scale):
        ones_matmul(dst, s, v, s_scale[3:], v_scale)

    with pytest.warns(UserWarning, match="stationary_scale starts at partition 3"):
        run_ones(body)


# ---- cost ----------------------------------------------------------------------------------------


def test_a_matmul_of_four_lanes_costs_what_a_bf16_one_does_and_quantize_four_elements_a_cycle():
    handles = []

    def body(dst, data, scale, s, v, s_scale, v_scale, src):
        handles.append(
            nisa.nc_matmul_mx(dst, s.view(nl.float8_e5m2_x4), v.view(nl.float8_e5m2_x4), s_scale, v_scale)
        )
        handles.append(nisa.quantize_mx(data.view(nl.float8_e5m2_x4), src, scale))

    (s, s_scale), (v, v_scale) = ones(32, 2), ones(32, 512)
    outputs = [((2, 512), nl.float32), ((32, 100), nl.uint32), ((32, 100), nl.uint8)]
    inputs = [s, v, s_scale, v_scale, np.ones((32, 400), np.float16)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_tiles(body, inputs, outputs, on="trn3", out_psum=[0])
    machine = find("trn3")
    assert [h.cost(machine).cycles for h in handles] == [512 + machine.matmul_gap_cycles, 100]
    assert [h.runs_on for h in handles] == [nisa.engine.tensor, nisa.engine.vector]
