"""MX weights of decode as callers have them, and their values (spec/library/mlp.md)."""

from __future__ import annotations

import mx_emulation
import numpy as np
from kernel_support import random

from nki import mx


def places_of_rows(h, layout):
    """[H/512, 128, 4]: the row of the weights in each tile, partition and lane (spec/library/mlp.md)."""
    t, p, q = np.ogrid[: h // 512, :128, :4]
    return {
        "quarter": q * (h // 4) + t * 128 + p,
        "wrapX": 512 * t + 128 * q + p,
        "innermost": 512 * t + 4 * p + q,
    }[layout]


def places_of_columns(inner):
    """[tiles, I_p, 4]: which column of gate and up each row and lane of the down weights has; -1: none."""
    rows = min(128, -(-inner // 32) * 8)
    tiles = []
    for start in range(0, inner, 512):
        width = 2 * -(-min(512, inner - start) // 8)  # a quarter, but even; up to 8 rows the rest is padding
        p, q = np.ogrid[:rows, :4]
        places = start + width * q + p
        tiles.append(np.where((places < inner) & (p < width), places, -1))
    return np.stack(tiles)


def in_words(weight, places, form):
    """[partitions, tiles, columns] words, their scales, and the weights that they stand for."""
    tiles, rows, _ = places.shape
    lanes = np.where((places >= 0)[..., None], weight[places], 0).transpose(
        0, 1, 3, 2
    )  # tile, row, column, lane
    flat = np.ascontiguousarray(lanes).reshape(tiles * rows, -1).astype(np.float32)
    data, scales = mx.quantize_lanes(flat, form, "ocp")
    values = mx.dequantize_lanes(data, scales).reshape(tiles, rows, -1, 4).transpose(0, 1, 3, 2)
    seen = np.zeros(weight.shape)
    seen[places[places >= 0]] = values[places >= 0]
    words = mx.pack_x4(data).view(mx.x4_dtype(form)).reshape(tiles, rows, -1).swapaxes(0, 1)
    return (
        np.ascontiguousarray(words),
        np.ascontiguousarray(scales.reshape(tiles, rows // 8, -1).swapaxes(0, 1)),
        seen,
    )


def rows_in_words(rows, columns, form="float4_e2m1fn", seed=3):
    """Words [rows / 4, columns], scales [rows / 32, columns], and the float64 weights that they stand for."""
    weight = random((columns, rows), "float32", seed, rows**-0.5)
    data, scales = mx.quantize_operand(weight, form, "innermost", "dense", "ocp")
    seen = mx.dequantize_operand(data, scales, "innermost", "dense")
    return mx.pack_x4(data).view(mx.x4_dtype(form)), scales, seen.T.astype(np.float64)


def by_blocks(x, places):
    """x [T, K] as MXFP8 sees it: blocks of 8 partitions x 4 lanes, each with its scale."""
    order = np.where(places >= 0, places, x.shape[1]).reshape(-1)
    padded = np.concatenate([x, np.zeros((len(x), 1))], axis=1)[:, order]
    short = -padded.shape[1] % 128
    values = mx_emulation.quantized(np.pad(padded, ((0, 0), (0, short))), scheme="1x32").values
    seen = np.zeros_like(x)
    seen[:, order[order < x.shape[1]]] = values[:, : len(order)][:, order < x.shape[1]]
    return seen
