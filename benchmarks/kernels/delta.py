"""Gated DeltaNet of Qwen 3.5 and Kimi Delta Attention."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.attention.kda_block_tkg import kda_block_tkg
from nkilib.experimental.attention.kda_tkg import kda_tkg
from nkilib.experimental.gdn import (
    gdn_block_tkg,
    gdn_conv1d_decode,
    gdn_conv1d_prefill,
    gdn_conv1d_prefill_bwd,
    gdn_cte,
    gdn_cte_bwd,
    gdn_tkg,
)

from . import Case
from .convolution import VECTOR_GHZ

SIZE = 128
STATE = SIZE * SIZE * 4


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def inputs(keys: int, heads: int, tokens: int, dtype: str) -> tuple:
    """q, k, v, the logs of the decays, beta."""
    key = spec(1, keys, tokens, SIZE, dtype=dtype)
    gate = spec(1, heads, tokens)
    return key, key, spec(1, heads, tokens, SIZE, dtype=dtype), gate, gate


def prefill(keys: int, heads: int, tokens: int) -> Case:
    """Eight products of 128 x 128 x 128 in a chunk; the inverse takes 19 in float32."""
    chunk = 2 * SIZE**3
    flops = {"bfloat16": 8 * chunk * heads * tokens / SIZE, "float32": 19 * chunk * heads * tokens / SIZE}
    label = f"{tokens} tokens, {keys} key and {heads} value heads bf16"
    moved = tokens * SIZE * 2 * (2 * keys + 2 * heads)
    return Case("gdn_cte", label, gdn_cte, inputs(keys, heads, tokens, "bfloat16"), moved, flops, lnc=2)


def gradient(keys: int, heads: int, tokens: int) -> Case:
    """The forward again, and 29 products and transposes, all in float32."""
    flops = {"float32": (27 + 29) * 2 * SIZE**3 * heads * tokens / SIZE}
    q, k, v, g, beta = inputs(keys, heads, tokens, "float32")
    label = f"{tokens} tokens, {keys} key and {heads} value heads fp32"
    moved = tokens * SIZE * 4 * (4 * keys + 3 * heads)
    return Case("gdn_cte_bwd", label, gdn_cte_bwd, (v, q, k, v, g, beta), moved, flops, lnc=2)


def decode(requests: int, heads: int) -> Case:
    rows = requests * heads
    row = spec(rows, SIZE, dtype="bfloat16")
    one, head = spec(rows, dtype="bfloat16"), spec(heads)
    given = (row, row, row, one, one, head, head, row, spec(SIZE), spec(rows, SIZE, SIZE))
    label = f"{requests} requests, {heads} value heads"
    return Case("gdn_tkg", label, gdn_tkg, given, rows * (2 * STATE + 10 * SIZE), lnc=2)


def kimi(requests: int, heads: int) -> Case:
    column, row = spec(requests, SIZE, heads), spec(requests, heads, SIZE)
    given = (column, column, row, column, spec(requests, heads), spec(heads), spec(SIZE, heads), row)
    given += (spec(requests, heads, SIZE, SIZE), spec(1, 1), spec(1, 1))
    moved = requests * heads * (2 * STATE + 20 * SIZE)
    return Case("kda_tkg", f"{requests} requests, {heads} heads", kda_tkg, given, moved, lnc=2)


def convolution(channels: int, tokens: int) -> Case:
    """TensorE passes each token for each of four taps."""
    given = (spec(1, channels, tokens, dtype="bfloat16"), spec(channels, 4, dtype="bfloat16"))
    label, moved = f"{channels} channels, {tokens} tokens bf16", 4 * channels * tokens
    flops = {"bfloat16": 2.0 * 4 * SIZE * channels * tokens}
    return Case("gdn_conv1d_prefill", label, gdn_conv1d_prefill, given, moved, flops, lnc=2)


def convolution_gradients(channels: int, tokens: int) -> Case:
    """VectorE passes each token for each of four taps, for either gradient."""
    row = spec(1, channels, tokens, dtype="bfloat16")
    given = (row, row, spec(channels, 4, dtype="bfloat16"))
    label, passes = f"{channels} channels, {tokens} tokens bf16", 8 * tokens * channels / SIZE / 2
    return Case(
        "gdn_conv1d_prefill_bwd",
        label,
        gdn_conv1d_prefill_bwd,
        given,
        6 * channels * tokens,
        other=("Vector", passes / VECTOR_GHZ / 1e3),
        lnc=2,
    )


def convolved_token(requests: int, channels: int) -> Case:
    state, row = spec(requests, channels, 4, dtype="bfloat16"), spec(requests, channels, dtype="bfloat16")
    given = (row, state, spec(channels, 4, dtype="bfloat16"))
    label, moved = f"{requests} requests, {channels} channels bf16", 2 * channels * (10 * requests + 4)
    return Case("gdn_conv1d_decode", label, gdn_conv1d_decode, given, moved, lnc=2)


def layer(requests: int, hidden: int, keys: int, heads: int) -> Case:
    """A layer of Qwen 3.5: weights, and the states of the heads."""
    channels, inner = (2 * keys + heads) * SIZE, heads * SIZE
    shapes = ((requests, 1, hidden), (hidden, channels), (hidden, inner), (hidden, heads), (hidden, heads))
    given = tuple(spec(*shape, dtype="bfloat16") for shape in shapes)
    given += (spec(channels, 4, dtype="bfloat16"), spec(requests, channels, 4, dtype="bfloat16"))
    given += (spec(heads), spec(heads), spec(SIZE), spec(requests, heads, SIZE, SIZE))
    moved = 2 * hidden * (channels + inner + 2 * heads) + 16 * requests * channels
    moved += requests * heads * 2 * STATE
    label = f"{requests} requests x {hidden}, {keys} key and {heads} value heads"
    return Case("gdn_block_tkg", label, gdn_block_tkg, given, moved, lnc=2)


def kimi_layer(requests: int, hidden: int, heads: int) -> Case:
    """A layer of Kimi Linear: weights, and the states of the heads."""
    channels, rank = 3 * heads * SIZE, SIZE
    columns = channels + 2 * rank + heads

    def bf16(*shape: int) -> TensorSpec:
        return spec(*shape, dtype="bfloat16")

    inner = heads * SIZE
    given = (
        bf16(requests, 1, hidden),
        spec(hidden),
        bf16(hidden, columns),
        bf16(rank, inner),
        bf16(rank, inner),
    )
    given += (bf16(channels, 4), spec(heads), spec(SIZE, heads), spec(SIZE), bf16(inner, hidden))
    given += (bf16(requests, 1, hidden), spec(requests, heads, SIZE, SIZE), bf16(requests, channels, 4))
    given += (spec(1, 1), spec(1, 1))
    moved = 2 * (hidden * (columns + inner) + 2 * rank * inner) + 16 * requests * channels
    moved += requests * heads * 2 * STATE
    return Case(
        "kda_block_tkg", f"{requests} requests x {hidden}, {heads} heads", kda_block_tkg, given, moved, lnc=2
    )


CASES = [prefill(4, 8, 2048), prefill(8, 16, 1024), gradient(2, 4, 512), gradient(4, 4, 1024)]
CASES += [
    convolution(8192, 2048),
    convolution(4096, 1024),
    convolution_gradients(4096, 1024),
    convolution_gradients(1024, 2048),
    convolved_token(16, 8192),
    convolved_token(128, 8192),
]
CASES += [layer(8, 2048, 16, 32), layer(16, 4096, 8, 16)]
CASES += [kimi_layer(4, 2304, 32), kimi_layer(8, 2048, 16)]
CASES += [decode(32, 8), decode(16, 32), kimi(16, 16), kimi(8, 32)]
