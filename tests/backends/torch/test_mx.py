"""Microscaling runs on a device: quantizing bit for bit, products within the order of their sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nki.mx
from support import loaded, stored

torch = pytest.importorskip("torch")
from backend_agreement import agrees_on_device, torch_devices  # noqa: E402

DEVICES = torch_devices()
on_every_device = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
CHANCE = np.random.default_rng(5)
NUMBERS = CHANCE.standard_normal((2, 64, 128)) * 2.0 ** CHANCE.integers(-60, 60, (2, 64, 128))
NUMBERS[0, :8, :4], NUMBERS[0, 8:16, :8:3] = 0, np.inf  # a group of zeros; one with an infinity
NUMBERS[1, 3, 7], NUMBERS[1, :8, 8:12] = np.nan, 1e-40  # a group of what float32 holds with fewer bits
NUMBERS = NUMBERS.astype(ml_dtypes.bfloat16)
SMALL = CHANCE.integers(-4, 5, (2, 64, 128)).astype(ml_dtypes.bfloat16)  # any order sums the same


def quantized(x, dtype):
    """Return a tile and its scales, in the first four of each 32 partitions."""
    data = nl.ndarray((64, x.shape[1] // 4), dtype)
    scales = nl.ndarray((64, x.shape[1] // 4), nl.uint8)
    nisa.memset(scales, 0)
    nisa.quantize_mx(data, loaded(x), scales)
    return data, scales


@nki.jit
def quantize(x, dtype):
    results = []
    for i in range(2):  # two instructions, one step
        data, scales = quantized(x[i], dtype)
        results += [stored(data), stored(scales)]
    return tuple(results)


@nki.jit
def multiply(x, dtype):
    left, left_scales = quantized(x[0], dtype)
    right, right_scales = quantized(x[1], dtype)
    psum, out = nl.ndarray((32, 32), nl.float32, buffer=nl.psum), nl.ndarray((32, 32), nl.float32)
    for _ in range(2):
        nisa.nc_matmul_mx(psum, left, right, left_scales, right_scales)
    nisa.tensor_copy(out, psum)
    return stored(out)


@nki.jit
def multiply_four_bits(left, right, scales):
    tile = loaded(scales)
    psum, out = nl.ndarray((32, 32), nl.float32, buffer=nl.psum), nl.ndarray((32, 32), nl.float32)
    nisa.nc_matmul_mx(psum, loaded(left), loaded(right), tile, tile)
    nisa.tensor_copy(out, psum)
    return stored(out)


def agree(kernel, arrays, options, device):
    assert agrees_on_device(kernel, arrays, options, device) == "in order"


@on_every_device
@pytest.mark.parametrize("dtype", [nl.float8_e4m3fn_x4, nl.float8_e5m2_x4], ids=str)
def test_quantizing_gives_the_codes_and_scales_of_the_reference(dtype, device):
    agree(quantize, [NUMBERS], (dtype,), device)


@on_every_device
@pytest.mark.parametrize("dtype", [nl.float8_e4m3fn_x4, nl.float8_e5m2_x4], ids=str)
def test_products_of_eight_bits(dtype, device):
    agree(multiply, [SMALL], (dtype,), device)


def four_bits(scale):
    words = CHANCE.integers(0, 1 << 16, (2, 64, 32)).astype(np.uint16).view(nki.mx.x4_dtype("mxfp4"))
    return [*words, np.full((64, 32), scale, np.uint8)]


@on_every_device
@pytest.mark.parametrize("scale", [120, 127, 130])
def test_products_of_four_bits(scale, device):
    agree(multiply_four_bits, four_bits(scale), (), device)


@on_every_device
def test_products_whose_scales_may_leave_float32_run_on_the_host(device):
    with pytest.raises(AssertionError, match="nc_matmul_mx runs on the host: its values"):
        agree(multiply_four_bits, four_bits(250), (), device)
