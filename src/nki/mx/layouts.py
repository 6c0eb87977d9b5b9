"""Where kernels want the elements: which contraction index stands in which row and lane, and words of four.

A matrix [F, K], contracted over K, lies in memory as [K/4, 4F]: row r holds, for each f, four lanes. The
layout says which k they are.
"""

from __future__ import annotations

import numpy as np

from ..machine import dtypes
from .arrays import Array, either
from .formats import FormatLike, find_format, format_of

LANES = 4
TILE = 512  # contraction indices that one matmul takes: 128 rows x 4 lanes


def _wrapped(k: int) -> np.ndarray:
    """Tiles of 512: lane q of row p is 128 q + p. What remains: tiles of 256 (64 rows), 128 (32)."""
    if k % 128:
        raise ValueError(f"K is {k}, wrapX needs a multiple of 128")
    parts, start = [], 0
    for size in [TILE] * (k // TILE) + [s for s in (256, 128) if k % TILE & s]:
        parts.append(start + np.arange(size).reshape(LANES, size // LANES).T)
        start += size
    return np.concatenate(parts)


def _innermost(k: int) -> np.ndarray:
    """The four lanes are neighbours."""
    return np.arange(k).reshape(k // LANES, LANES)


def _quarter(k: int) -> np.ndarray:
    """Lane q is in the q-th quarter of the whole dimension."""
    return np.arange(k).reshape(LANES, k // LANES).T


LAYOUTS = {
    "wrapX": _wrapped,
    "consecutive": _wrapped,
    "innermost": _innermost,
    "1x32": _innermost,
    "quarter": _quarter,
    "interleaved": _quarter,
}


def contraction_index(k: int, layout: str = "wrapX") -> np.ndarray:
    """[K/4, 4]: the contraction index that stands in each row and lane.

    >>> contraction_index(512, "wrapX")[1]
    array([  1, 129, 257, 385])
    >>> contraction_index(512, "innermost")[1]
    array([4, 5, 6, 7])
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout: {layout!r} is none of {', '.join(LAYOUTS)}")
    if k % 32:
        raise ValueError(f"K is {k}, a multiple of 32 is needed")
    return LAYOUTS[layout](k)


@either
def swizzle(x: Array, layout: str = "wrapX") -> Array:
    """[F, K] as [K/4, 4F]: result[r, 4 f + q] = x[f, k] with k in row r and lane q of the layout."""
    x = np.asarray(x)
    if x.ndim != 2:
        raise ValueError(f"x: got shape {x.shape}, expected [F, K]")
    f, k = x.shape
    return np.ascontiguousarray(x[:, contraction_index(k, layout)].swapaxes(0, 1)).reshape(-1, LANES * f)


@either
def unswizzle(z: Array, layout: str = "wrapX") -> Array:
    """[K/4, 4F] as [F, K]: `swizzle` undone."""
    z = np.asarray(z)
    if z.ndim != 2 or z.shape[1] % LANES:
        raise ValueError(f"z: got shape {z.shape}, expected [K/4, 4F]")
    rows, f = z.shape[0], z.shape[1] // LANES
    x = np.empty((f, LANES * rows), z.dtype)
    x[:, contraction_index(LANES * rows, layout)] = z.reshape(rows, f, LANES).swapaxes(0, 1)
    return x


# ---- words ---------------------------------------------------------------------------------------------


@either
def pack_x4(elements: Array, format: FormatLike | None = None) -> Array:
    """Elements [..., 4N] as words [..., N]: uint32 of FP8, uint16 of FP4; the first lane is lowest."""
    form = format_of(elements, format)
    if elements.shape[-1] % LANES:
        raise ValueError(f"elements: got shape {elements.shape}, the last axis must be a multiple of {LANES}")
    codes = np.ascontiguousarray(elements).view(np.uint8).reshape(*elements.shape[:-1], -1, LANES)
    return dtypes.pack_x4(codes, form.packed)


@either
def unpack_x4(words: Array, format: FormatLike) -> Array:
    """Words [..., N] as elements [..., 4N]."""
    form = find_format(format)
    words = np.ascontiguousarray(words).view(form.packed.storage)
    if form.packed.itemsize == 4:
        return words.view(form.dtype)
    nibbles = (words[..., None] >> np.arange(0, 16, 4, dtype=np.uint16)) & 0xF
    return nibbles.astype(np.uint8).view(form.dtype).reshape(*words.shape[:-1], -1)


def x4_dtype(format: FormatLike) -> np.dtype:
    """The NumPy dtype that makes a kernel see words as four-packed: `words.view(x4_dtype("mxfp4"))`."""
    packed = find_format(format).packed
    return np.dtype([(str(packed), packed.storage)])


@either
def pack_pairs(elements: Array) -> Array:
    """FP4 elements [..., 2N] as bytes [..., N], the first one lowest: the bits of torch.float4_e2m1fn_x2."""
    codes = np.ascontiguousarray(elements).view(np.uint8)
    if codes.shape[-1] % 2:
        raise ValueError(f"elements: got shape {codes.shape}, the last axis must be even")
    return codes[..., 0::2] | codes[..., 1::2] << 4


@either
def unpack_pairs(pairs: Array) -> Array:
    """Bytes [..., N] of FP4 pairs as elements [..., 2N]."""
    pairs = np.ascontiguousarray(pairs).view(np.uint8)
    codes = np.stack([pairs & 0xF, pairs >> 4], axis=-1)
    return codes.reshape(*pairs.shape[:-1], -1).view(find_format("mxfp4").dtype)
