"""nki.mx: MX numbers and layouts on the host."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.isa as nisa
import nki.language as nl
from nki import mx
from support import run_tiles

EXPONENT = {"float8_e4m3fn": 8, "float8_e5m2": 15, "float4_e2m1fn": 2}
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float4_e2m1fn": 6.0}
formats = pytest.mark.parametrize("form", EXPONENT)
layouts = pytest.mark.parametrize(
    "layout", ["wrapX", "consecutive", "innermost", "1x32", "quarter", "interleaved"]
)


def spread(*shape, seed=0, low=-30, high=30):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(low, high, shape)).astype(np.float32)


def nearest(value, form):
    """The element next to a number, ties to even codes, by looking at every one of them."""
    codes = np.arange(256 if form.startswith("float8") else 16, dtype=np.uint8)
    grid = codes.view(getattr(ml_dtypes, form)).astype(np.float64)
    finite = np.isfinite(grid) & ~(np.signbit(grid) != np.signbit(value))
    codes, grid = codes[finite], grid[finite]
    distance = np.abs(grid - value)
    best = codes[distance == distance.min()]
    return min(best, key=lambda code: code & 1)


def block_by_block(block, form, steps):
    """Codes and scale of 32 numbers by the text of the specification, in float64."""
    largest = float(np.abs(block).max())
    power = int(np.floor(np.log2(largest))) - EXPONENT[form] + steps if largest else -127
    code = int(np.clip(power + 127, 0, 254))
    return [nearest(float(v) / 2.0 ** (code - 127), form) for v in block], code


@formats
@pytest.mark.parametrize("rule, steps", [("ocp", 0), ("hardware", 1)])
def test_quantize_is_the_specification_read_block_by_block(form, rule, steps):
    x = spread(4, 64, low=-4, high=4)
    x[1, :32] = 0
    x[2] *= 2.0**-120
    elements, scales = mx.quantize(x, form, rule=rule)
    assert elements.shape == x.shape and scales.shape == (4, 2) and scales.dtype == np.uint8
    for row, column in np.ndindex(4, 2):
        block = slice(32 * column, 32 * column + 32)
        codes, scale = block_by_block(x[row, block], form, steps)
        assert scales[row, column] == scale
        np.testing.assert_array_equal(elements[row, block].view(np.uint8), codes)


@formats
def test_blocks_lie_along_any_axis(form):
    x = spread(2, 64, 3)
    elements, scales = mx.quantize(x, form, axis=1)
    moved, codes = mx.quantize(np.moveaxis(x, 1, -1), form)
    np.testing.assert_array_equal(np.moveaxis(elements, 1, -1), moved)
    np.testing.assert_array_equal(np.moveaxis(scales, 1, -1), codes)
    np.testing.assert_array_equal(
        mx.dequantize(elements, scales, axis=1), np.moveaxis(mx.dequantize(moved, codes), -1, 1)
    )


@formats
def test_quantizing_twice_changes_nothing(form):
    x = spread(8, 128)
    once = mx.dequantize(*mx.quantize(x, form))
    np.testing.assert_array_equal(mx.dequantize(*mx.quantize(once, form)), once)


@given(st.integers(0, 2**32 - 1), st.sampled_from(list(EXPONENT)))
@settings(max_examples=30, deadline=None)
def test_the_error_is_at_most_half_a_step_of_the_largest_element(seed, form):
    x = spread(2, 32, seed=seed, low=-3, high=3)
    error = np.abs(mx.dequantize(*mx.quantize(x, form, rule="hardware")) - x)
    half_step = {"float8_e4m3fn": 1 / 16, "float8_e5m2": 1 / 8, "float4_e2m1fn": 1 / 4}[form]
    assert (error <= np.abs(x).max(axis=1, keepdims=True) * half_step).all()


def test_ocp_saturates_where_the_hardware_takes_a_larger_scale():
    x = np.full(32, 511.0, np.float32)
    assert mx.dequantize(*mx.quantize(x))[0] == 448
    assert mx.dequantize(*mx.quantize(x, rule="hardware"))[0] == 512


def test_a_nan_makes_its_block_nan_by_the_ocp_rule():
    x = np.ones(64, np.float32)
    x[3] = np.nan
    numbers = mx.dequantize(*mx.quantize(x))
    assert np.isnan(numbers[:32]).all() and (numbers[32:] == 1).all()


# ---- the hardware --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", [ml_dtypes.bfloat16, np.float16])
def test_quantize_lanes_is_the_instruction_bit_for_bit(form, source):
    x = spread(64, 48, low=-12, high=4).astype(source)
    x[8:16, 4:8] = 0
    x[17, 9] = np.inf
    x[30, 40] = np.nan

    def body(data, scale, src):
        nisa.quantize_mx(data.view(f"{form}_x4"), src, scale)

    data, scale = run_tiles(body, [x], [((64, 12), nl.uint32), np.zeros((64, 12), np.uint8)], on="trn3")
    elements, dense = mx.quantize_lanes(x, form)
    np.testing.assert_array_equal(mx.pack_x4(elements), data)
    np.testing.assert_array_equal(mx.to_hardware_scales(dense), scale)


@formats
def test_lanes_are_blocks_of_eight_rows_and_four_columns(form):
    x = spread(16, 8)
    elements, scales = mx.quantize_lanes(x, form, rule="ocp")
    flat = x.reshape(2, 8, 2, 4).transpose(0, 2, 1, 3).reshape(2, 2, 32)
    expected, codes = mx.quantize(flat, form)
    np.testing.assert_array_equal(scales, codes[..., 0])
    np.testing.assert_array_equal(
        mx.dequantize_lanes(elements, scales),
        mx.dequantize(expected, codes).reshape(2, 2, 8, 4).transpose(0, 2, 1, 3).reshape(16, 8),
    )


# ---- layouts -------------------------------------------------------------------------------------


def documented_index(layout, k, row, lane):
    """k of a row and lane, as the conventions print it; tiles of 512."""
    tile, p = divmod(row, 128)
    return {
        "quarter": lane * (k // 4) + row,
        "wrapX": 512 * tile + 128 * lane + p,
        "innermost": 512 * tile + 4 * p + lane,
    }[layout]


@pytest.mark.parametrize(
    "layout, same", [("wrapX", "consecutive"), ("innermost", "1x32"), ("quarter", "interleaved")]
)
def test_layouts_are_the_documented_maps(layout, same):
    index = mx.contraction_index(1024, layout)
    for row, lane in np.ndindex(index.shape):
        assert index[row, lane] == documented_index(layout, 1024, row, lane)
    np.testing.assert_array_equal(index, mx.contraction_index(1024, same))


def test_wrapX_has_smaller_tiles_for_what_remains():
    index = mx.contraction_index(512 + 256 + 128, "wrapX")
    np.testing.assert_array_equal(index[128 + 5], 512 + 5 + 64 * np.arange(4))
    np.testing.assert_array_equal(index[128 + 64 + 5], 768 + 5 + 32 * np.arange(4))


@layouts
@pytest.mark.parametrize("k", [128, 384, 512, 640, 2048])
def test_a_swizzle_is_undone_by_its_inverse(layout, k):
    x = spread(6, k).astype(ml_dtypes.bfloat16)
    z = mx.swizzle(x, layout)
    assert z.shape == (k // 4, 24) and z.dtype == x.dtype
    np.testing.assert_array_equal(mx.unswizzle(z, layout), x)
    r, f, q = 17, 3, 2
    assert z[r, 4 * f + q] == x[f, mx.contraction_index(k, layout)[r, q]]


@formats
def test_words_hold_the_first_lane_lowest(form):
    elements = np.arange(16, dtype=np.uint8).reshape(2, 8).view(getattr(ml_dtypes, form))
    words = mx.pack_x4(elements)
    width = 8 if form.startswith("float8") else 4
    assert words.shape == (2, 2) and words.itemsize == width // 2
    assert int(words[0, 0]) == sum(lane << width * lane for lane in range(4))
    np.testing.assert_array_equal(mx.unpack_x4(words, form).view(np.uint8), elements.view(np.uint8))
    assert words.view(mx.x4_dtype(form)).dtype.names == (f"{form}_x4",)


def test_pairs_hold_the_first_element_lowest():
    elements = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    assert mx.pack_pairs(elements)[0] == 0x10
    np.testing.assert_array_equal(mx.unpack_pairs(mx.pack_pairs(elements)), elements)


@pytest.mark.parametrize("k", [128, 512, 1152, 2048, 5120])
def test_scale_layouts_are_undone_by_their_inverses(k):
    dense = np.random.default_rng(k).integers(1, 255, (k // 32, 5), np.uint8)
    hardware, packed = mx.to_hardware_scales(dense), mx.pack_scales(dense)
    assert hardware.shape == (k // 4, 5) and packed.shape == (128 * -(-k // 2048), 5)
    np.testing.assert_array_equal(mx.from_hardware_scales(hardware), dense)
    np.testing.assert_array_equal(mx.unpack_scales(packed, k), dense)
    assert np.count_nonzero(hardware) == np.count_nonzero(packed) == dense.size
    for tile in range(-(-k // 512)):
        rows = slice(128 * tile, 128 * tile + min(128, k // 4 - 128 * tile))
        part = packed[128 * (tile // 4) :][4 * (tile % 4) :]
        where = np.flatnonzero(hardware[rows].any(axis=1))
        np.testing.assert_array_equal(part[where], hardware[rows][where])


@layouts
@pytest.mark.parametrize("scale_layout", ["packed", "hardware", "dense"])
def test_an_operand_comes_back_as_the_numbers_it_holds(layout, scale_layout):
    x = spread(8, 640, low=-2, high=2)
    data, scales = mx.quantize_operand(x, "mxfp8_e5m2", layout, scale_layout)
    back = mx.dequantize_operand(data, scales, layout, scale_layout)
    elements, dense = mx.quantize_lanes(mx.swizzle(x, layout), "float8_e5m2")
    np.testing.assert_array_equal(back, mx.unswizzle(mx.dequantize_lanes(elements, dense), layout))
    assert np.abs(back - x).max() <= np.abs(x).max() / 8


# ---- torch ---------------------------------------------------------------------------------------


@formats
def test_torch_tensors_give_the_same_bits(form):
    torch = pytest.importorskip("torch")
    x = spread(8, 64).astype(ml_dtypes.bfloat16)
    tensor = torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
    elements, scales = mx.quantize(tensor, form)
    expected, codes = mx.quantize(x, form)
    assert elements.dtype == (torch.uint8 if form == "float4_e2m1fn" else getattr(torch, form))
    np.testing.assert_array_equal(elements.view(torch.uint8).numpy(), expected.view(np.uint8))
    np.testing.assert_array_equal(scales.numpy(), codes)
    numbers = mx.dequantize(elements, scales.view(torch.float8_e8m0fnu), format=form)
    np.testing.assert_array_equal(numbers.numpy(), mx.dequantize(expected, codes))
    z = mx.swizzle(tensor, "quarter")
    assert z.dtype == torch.bfloat16 and torch.equal(mx.unswizzle(z, "quarter"), tensor)
    words = mx.pack_x4(elements, form)
    assert torch.equal(mx.unpack_x4(words, form).view(torch.uint8), elements.view(torch.uint8))
    dense = scales.repeat(2, 1)
    assert torch.equal(mx.unpack_scales(mx.pack_scales(dense), 512), dense)


@pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2"])
def test_torch_reads_elements_and_scales_as_the_same_numbers(form):
    torch = pytest.importorskip("torch")
    elements, scales = mx.quantize(torch.from_numpy(spread(4, 64, low=-9, high=9)), form)
    factors = scales.view(torch.float8_e8m0fnu).to(torch.float32).repeat_interleave(32, dim=1)
    assert torch.equal(elements.to(torch.float32) * factors, mx.dequantize(elements, scales))


@formats
def test_the_ocp_rule_is_the_floor_mode_of_torchao(form):
    torch = pytest.importorskip("torch")
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    x = torch.from_numpy(spread(32, 256))
    x[3] = 0
    scale, data = mx_tensor.to_mx(x, getattr(torch, form.replace("e2m1fn", "e2m1fn_x2")), 32)
    elements, scales = mx.quantize(x, form)
    elements = mx.pack_pairs(elements) if form == "float4_e2m1fn" else elements
    assert torch.equal(scale.view(torch.uint8).reshape(scales.shape), scales)
    assert torch.equal(data.view(torch.uint8).reshape(elements.shape), elements.view(torch.uint8))


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: mx.quantize(np.ones(33)), "axis -1 has 33 elements, a multiple of 32"),
        (lambda: mx.quantize(np.ones(32), "fp7"), "fp7 is not an MX format, use one of float8_e4m3fn"),
        (lambda: mx.quantize(np.ones(32), rule="up"), "'up' is none of ocp, hardware"),
        (lambda: mx.dequantize(np.zeros(32, np.uint8), np.zeros(1, np.uint8)), "could be of any format"),
        (lambda: mx.dequantize(np.zeros(32), np.zeros(1, np.uint8), format="mxfp4"), "one element in a byte"),
        (
            lambda: mx.dequantize(mx.quantize(np.ones(64))[0], np.zeros(1, np.uint8)),
            "need one for each 32 of axis -1",
        ),
        (lambda: mx.swizzle(np.ones((2, 512)), "spiral"), "'spiral' is none of wrapX"),
        (lambda: mx.swizzle(np.ones((2, 160))), "K is 160, wrapX needs a multiple of 128"),
        (lambda: mx.swizzle(np.ones(512)), "expected [F, K]"),
        (lambda: mx.quantize_lanes(np.ones((7, 8))), "expected [P, 4N]"),
        (lambda: mx.quantize_operand(np.ones((2, 512)), scale_layout="loose"), "'loose' is none of packed"),
        (lambda: mx.pack_scales(np.ones((3, 2))), "expected [K/32, F]"),
    ],
)
def test_the_error_of_a_wrong_argument_lists_what_is_allowed(call, text):
    with pytest.raises(ValueError) as refusal:
        call()
    assert text in str(refusal.value)
