"""Quantisation of SBUF tiles, in kernels that load a decode activation and store it quantised."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki import TensorSpec
from nkilib.core.quantization.fp8_quantize import row_quantization, static_quantization

from . import Case


def load(tensor):
    tile = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, tensor)
    return tile


def store(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def static(x, scale):
    return store(static_quantization(load(x), load(scale), dtype=nl.float8_e4m3))


@nki.jit
def row(x):
    quantized, scale = row_quantization(load(x), nl.float8_e4m3)
    return store(quantized), store(scale)


def activation(tokens: int, columns: int) -> TensorSpec:
    return TensorSpec((128, tokens, columns), "bfloat16")


def static_case(tokens: int, columns: int) -> Case:
    arguments = (activation(tokens, columns), TensorSpec((128, 1), "float32"))
    label, size = f"128x{tokens}x{columns} bf16", 128 * tokens * columns
    return Case("static_quantization", label, static, arguments, hbm_bytes=3 * size + 512)


def row_case(tokens: int, columns: int) -> Case:
    label, size = f"128x{tokens}x{columns} bf16", 128 * tokens * columns
    return Case(
        "row_quantization", label, row, (activation(tokens, columns),), hbm_bytes=3 * size + 512 * tokens
    )


CASES = [static_case(96, 40), static_case(32, 64), row_case(96, 40), row_case(32, 64)]
