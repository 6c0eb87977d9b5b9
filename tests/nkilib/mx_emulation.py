"""MXFP8 by the text of the OCP specification in float64, from bit patterns: nothing of nki, no numpy casts.

The scale is that of the training kernels: the largest element of a block lands one binade below the last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Fp8(NamedTuple):
    mantissa_bits: int
    bias: int
    exponent: int  # of the largest power of two
    finite: int  # codes of numbers >= 0


FORMATS = {"float8_e4m3fn": Fp8(3, 7, 8, 127), "float8_e5m2": Fp8(2, 15, 15, 124)}


def numbers(form: Fp8) -> np.ndarray:
    """Every number >= 0 of a format, in the order of the codes."""
    code = np.arange(form.finite)
    exponent, mantissa = code >> form.mantissa_bits, code & (2**form.mantissa_bits - 1)
    fraction = mantissa / 2.0**form.mantissa_bits
    normal = (1 + fraction) * 2.0 ** (exponent - form.bias)
    return np.where(exponent == 0, fraction * 2.0 ** (1 - form.bias), normal)


def nearest_codes(x: np.ndarray, form: Fp8) -> np.ndarray:
    """Codes of the nearest numbers; of two that are as near, the even code."""
    grid = numbers(form)
    middles = (grid[1:] + grid[:-1]) / 2
    low, high = np.searchsorted(middles, np.abs(x), "left"), np.searchsorted(middles, np.abs(x), "right")
    code = np.where(low % 2 == 0, low, high)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def place(k: int, size: int, scheme: str) -> tuple[int, int]:
    """(row, lane) of contraction index k of `size`."""
    if scheme == "1x32":
        return k // 4, k % 4
    start, row = 0, 0
    for tile in [512] * (size // 512) + [256] * (size % 512 // 256) + [128] * (size % 256 // 128):
        if k < start + tile:
            lane, within = divmod(k - start, tile // 4)
            return row + within, lane
        start, row = start + tile, row + tile // 4
    raise AssertionError(k)


class Emulated(NamedTuple):
    codes: np.ndarray  # [F, K]
    scales: np.ndarray  # [K/32, F], E8M0
    values: np.ndarray  # [F, K] float64


def quantized(x: np.ndarray, name: str = "float8_e4m3fn", scheme: str = "wrapX") -> Emulated:
    """[F, K] in blocks of 8 rows x 4 lanes."""
    form = FORMATS[name]
    x = np.asarray(x).astype(np.float64)
    size = x.shape[1]
    blocks: dict[int, list[int]] = {}
    for k in range(size):
        blocks.setdefault(place(k, size, scheme)[0] // 8, []).append(k)
    codes, scales = np.zeros(x.shape, np.uint8), np.zeros((size // 32, len(x)), np.uint8)
    values = np.zeros(x.shape)
    for block, members in blocks.items():
        largest = np.abs(x[:, members]).max(axis=1)
        with np.errstate(divide="ignore"):
            power = np.floor(np.log2(largest)) - (form.exponent - 1)
        scale = np.where(largest > 0, np.clip(power + 127, 0, 254), 0)
        factor = 2.0 ** (scale - 127)[:, None]
        codes[:, members] = nearest_codes(x[:, members] / factor, form)
        scales[block] = scale
        signs = np.where(codes[:, members] & 0x80, -1.0, 1.0)
        values[:, members] = signs * numbers(form)[codes[:, members] & 0x7F] * factor
    return Emulated(codes, scales, values)


def product(a: np.ndarray, b: np.ndarray, name: str = "float8_e4m3fn", scheme: str = "wrapX") -> np.ndarray:
    """A B^T of quantised operands [M, K] and [N, K]."""
    return quantized(a, name, scheme).values @ quantized(b, name, scheme).values.T


def as_stored(x: Emulated, scheme: str = "wrapX") -> np.ndarray:
    """Codes where kernels have them: [K/4, 4F]."""
    f, k = x.codes.shape
    out = np.zeros((k // 4, 4 * f), np.uint8)
    for index in range(k):
        row, lane = place(index, k, scheme)
        out[row, lane::4] = x.codes[:, index]
    return out


def stored_scales(dense: np.ndarray, packed: bool) -> np.ndarray:
    """Scales in the first four rows of each quadrant; packed, four tiles of 16 dense rows share 128 rows."""
    tiles = -(-len(dense) // 16)
    out = np.zeros((128 * -(-tiles // 4) if packed else 8 * len(dense), dense.shape[1]), np.uint8)
    for row, codes in enumerate(dense):
        tile, inside = divmod(row, 16)
        start = 128 * (tile // 4) + 4 * (tile % 4) if packed else 128 * tile
        out[start + 32 * (inside // 4) + inside % 4] = codes
    return out
