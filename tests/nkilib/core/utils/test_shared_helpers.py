"""Small helpers that kernels share: limits, shapes of tokens, new tiles."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.clamping import clamp, has_limits
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.token_shapes import hidden_size, is_in_sbuf, sixteen_bit_dtype, token_count


@nki.jit
def clamped(x, upper=None, lower=None):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = load(x)
    clamp(tile, tile, upper, lower)
    store(out, tile)
    return out


@pytest.mark.parametrize("upper, lower", [(0.5, None), (None, -0.5), (0.5, -0.5)])
def test_clamp_applies_the_limits_that_are_given(upper, lower):
    x = np.linspace(-1.0, 1.0, 128 * 8, dtype=np.float32).reshape(128, 8)
    np.testing.assert_array_equal(clamped(x, upper, lower), np.clip(x, lower, upper))


def test_clamp_applies_the_lower_limit_last():
    x = np.zeros((128, 1), np.float32)
    assert (clamped(x, upper=-1.0, lower=1.0) == 1.0).all()


def test_has_limits_is_false_without_limits():
    assert not has_limits(None, None)
    assert has_limits(0.0, None) and has_limits(None, 0.0)


@nki.jit
def sizes(x):
    out = nl.ndarray((1, 3), nl.float32, buffer=nl.shared_hbm)
    tile = new_column(1)
    for i, size in enumerate((token_count(x), hidden_size(x), int(is_in_sbuf(x)))):
        nisa.memset(tile, float(size))
        store(out[:, i : i + 1], tile)
    return out


@pytest.mark.parametrize("shape", [(2, 3, 256), (6, 256)])
def test_sizes_of_tokens_in_hbm(shape):
    assert sizes(np.zeros(shape, np.float32)).tolist() == [[6.0, 256.0, 0.0]]


@nki.jit
def sizes_of_a_tile(x):
    tile = nl.ndarray((128, 6, 2), x.dtype, buffer=nl.sbuf)
    return sizes(tile)


def test_sizes_of_tokens_in_sbuf():
    assert sizes_of_a_tile(np.zeros((1, 1), np.float32)).tolist() == [[6.0, 256.0, 1.0]]


@pytest.mark.parametrize(
    "dtype, expected",
    [(nl.float16, nl.float16), (nl.bfloat16, nl.bfloat16), (nl.float32, nl.bfloat16), (nl.int8, nl.bfloat16)],
)
def test_sixteen_bit_dtype_keeps_float16_alone(dtype, expected):
    assert sixteen_bit_dtype(dtype) == expected


@nki.jit
def copied(x, dtype=None):
    tile = load(x)
    other = like(tile, dtype)
    nisa.tensor_copy(other, tile)
    out = nl.ndarray(other.shape, other.dtype, buffer=nl.shared_hbm)
    store(out, other)
    return out


def test_like_has_the_dtype_of_the_tile_unless_one_is_given():
    x = np.arange(256, dtype=np.float16).reshape(128, 2)
    assert copied(x).dtype == np.float16
    assert copied(x, nl.float32).dtype == np.float32
    assert copied(x).shape == x.shape
