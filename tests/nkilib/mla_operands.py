"""Operands of the MLA kernels as callers have them, and the numbers that they stand for."""

from __future__ import annotations

import ml_dtypes
import mx_emulation
import numpy as np
from kernel_support import random

from nki import mx


def block_weights(rows, columns, seed=0):
    """Words [rows / 4, columns], scales for 128 x 128 elements, and the float64 matrix [rows, columns]."""
    rng = np.random.default_rng(seed)
    elements = random((rows, columns), "float8_e4m3fn", seed, 4.0)
    scales = rng.integers(118, 121, (rows // 128, -(-columns // 128))).astype(np.uint8)
    values = elements.astype(np.float64)
    for row in range(rows):
        for block in range(scales.shape[1]):
            values[row, 128 * block : 128 * block + 128] *= 2.0 ** (int(scales[row // 128, block]) - 127)
    bytes_ = elements.view(np.uint8).reshape(rows // 4, 4, columns).transpose(0, 2, 1)
    words = np.ascontiguousarray(bytes_).view(np.uint32)[..., 0]
    return words.view(mx.x4_dtype("mxfp8")), scales, values


def as_mx(x):
    """What MXFP8 makes of the rows of x [..., K], rounded to bfloat16 first: blocks of 32 neighbours."""
    flat = np.asarray(x, np.float64).astype(ml_dtypes.bfloat16).reshape(-1, x.shape[-1])
    return mx_emulation.quantized(flat, scheme="1x32").values.reshape(x.shape)


def rms(x, gamma=1.0, eps=1e-6):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * np.asarray(gamma, np.float64)


def rotated(x, cos, sin):
    """Complex numbers (lower, upper) times cos + i sin; x [B, S, heads, d]."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    angle = cos.astype(np.float64)[..., :half] + 1j * sin.astype(np.float64)[..., :half]
    z = z * angle[:, :, None, :]
    return np.concatenate([z.real, z.imag], axis=-1)


def tables(b, s, d, seed=8):
    """cos and sin of random angles; both halves are the same."""
    angle = np.random.default_rng(seed).uniform(-3, 3, (b, s, d // 2)).repeat(2, axis=0)[:b]
    angle = np.concatenate([angle, angle], axis=-1)
    return [f(angle).astype(ml_dtypes.bfloat16) for f in (np.cos, np.sin)]


def packed_tokens(x):
    """x [B, S, H] as rmsnorm_mx_prefill packs rows, and the numbers that they stand for."""
    flat = x.reshape(-1, x.shape[-1])
    emulated = mx_emulation.quantized(flat, scheme="1x32")
    scales = mx_emulation.stored_scales(emulated.scales, packed=True).T
    rows = np.concatenate([emulated.codes, scales], axis=1)
    return rows.view(ml_dtypes.float8_e4m3fn).reshape(*x.shape[:2], -1), emulated.values.reshape(x.shape)
