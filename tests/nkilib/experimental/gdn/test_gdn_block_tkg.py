"""The convolution before Gated DeltaNet and the decode block against loops in float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals

from nkilib.experimental.gdn import (
    gdn_block_tkg,
    gdn_block_tkg_ref,
    gdn_conv1d_decode,
    gdn_conv1d_decode_ref,
    gdn_conv1d_prefill,
    gdn_conv1d_prefill_ref,
)


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [gdn_conv1d_prefill, gdn_conv1d_decode, gdn_block_tkg])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def silu(x):
    return x / (1 + np.exp(-x))


def prefill(b=2, c=5, t=9, k=4, dtype="float32"):
    return {"mixed": random((b, c, t), dtype, 1), "conv_weight": random((c, k), dtype, 2)}


def prefill_by_token(mixed, conv_weight):
    b, c, t = mixed.shape
    k = conv_weight.shape[1]
    out, state = np.zeros(mixed.shape), np.zeros((b, c, k))
    x, w = mixed.astype(np.float64), conv_weight.astype(np.float64)
    for at in range(t):
        for j in range(k):
            if at - k + 1 + j >= 0:
                out[:, :, at] += w[:, j] * x[:, :, at - k + 1 + j]
    for j in range(k):
        if t - k + j >= 0:
            state[:, :, j] = x[:, :, t - k + j]
    return silu(out), state


PREFILL = [
    Option("basic"),
    Option("one-token", prefill(t=1)),
    Option("few-tokens", prefill(t=3)),
    Option("as-many-as-taps", prefill(t=4)),
    Option("one-tap", prefill(k=1)),
    Option("sixteen-taps", prefill(k=16, t=20)),
    Option("131-channels", prefill(b=1, c=131)),
    Option("one-channel", prefill(c=1)),
    Option("2100-tokens", prefill(b=1, c=2, t=2100)),
    Option("2048-tokens", prefill(b=1, c=2, t=2048)),
    Option("bf16", prefill(dtype="bfloat16"), tolerance=2**-7),
    Option("fp16", prefill(dtype="float16"), tolerance=2**-9),
]
PREFILL_WRONG = refusals(
    mixed=random((5, 9)),
    mixed__dtype=np.zeros((2, 5, 9), np.int32),
    conv_weight=random((4, 4)),
    conv_weight__taps=random((5, 17)),
    conv_weight__dtype=random((5, 4), "bfloat16"),
)


@each(on_both(PREFILL) + [Option("trn3", on="trn3")] + PREFILL_WRONG)
def test_each_option_of_the_prefill_is_right_or_refused(option):
    check(option, gdn_conv1d_prefill, prefill(), prefill_by_token, 1e-5)


def decode(b=3, c=7, k=4, dtype="float32"):
    return {
        "x": random((b, c), dtype, 1),
        "conv_state": random((b, c, k), dtype, 2),
        "conv_weight": random((c, k), dtype, 3),
    }


def decode_by_channel(x, conv_state, conv_weight):
    out, state = np.zeros(x.shape), np.zeros(conv_state.shape)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            state[b, c] = [*conv_state[b, c, 1:].astype(np.float64), float(x[b, c])]
            out[b, c] = silu(state[b, c] @ conv_weight[c].astype(np.float64))
    return out, state


DECODE = [
    Option("basic"),
    Option("one-request", decode(b=1)),
    Option("128-requests", decode(b=128, c=3)),
    Option("one-channel", decode(c=1)),
    Option("1100-channels", decode(b=2, c=1100)),
    Option("one-tap", decode(k=1)),
    Option("sixteen-taps", decode(k=16)),
    Option("bf16", decode(dtype="bfloat16"), tolerance=2**-7),
]
DECODE_WRONG = refusals(
    x=random((129, 7)), conv_state=random((3, 7, 3)), conv_state__dtype=random((3, 7, 4), "bfloat16"),
    conv_weight=random((6, 4)),
)  # fmt: skip


@each(on_both(DECODE) + [Option("trn3", on="trn3")] + DECODE_WRONG)
def test_each_option_of_the_decode_is_right_or_refused(option):
    check(option, gdn_conv1d_decode, decode(), decode_by_channel, 1e-5)


def test_decode_continues_prefill():
    given = prefill(t=8)
    whole = gdn_conv1d_prefill(**given)[0]
    first, state = gdn_conv1d_prefill(given["mixed"][:, :, :7].copy(), given["conv_weight"])
    last, _ = gdn_conv1d_decode(given["mixed"][:, :, 7].copy(), state, given["conv_weight"])
    near(np.concatenate([first, last[:, :, None]], 2), whole, 1e-6)


def block(b=2, h=128, keys=2, heads=4, size=8, values=8, k=4):
    channels = 2 * keys * size + heads * values

    def bf16(*shape, seed, scale=1.0):
        return random(shape, "bfloat16", seed, scale)

    return {
        "hidden": bf16(b, 1, h, seed=1),
        "W_in_qkv": bf16(h, channels, seed=2, scale=h**-0.5),
        "W_in_z": bf16(h, heads * values, seed=3, scale=h**-0.5),
        "W_in_a": bf16(h, heads, seed=4, scale=h**-0.5),
        "W_in_b": bf16(h, heads, seed=5, scale=h**-0.5),
        "conv_weight": bf16(channels, k, seed=6),
        "conv_state": bf16(b, channels, k, seed=7),
        "A_log": random(heads, seed=8),
        "dt_bias": random(heads, seed=9),
        "norm_weight": random(values, seed=10),
        "recurrent_state": random((b, heads, size, values), seed=11),
    }


def by_head(
    hidden, W_in_qkv, W_in_z, W_in_a, W_in_b, conv_weight, conv_state, A_log, dt_bias, norm_weight,
    recurrent_state,
):  # fmt: skip
    batches, heads, size, values = recurrent_state.shape
    x, A_log, dt_bias = (v.astype(np.float64) for v in (hidden[:, 0], A_log, dt_bias))
    mixed, state = decode_by_channel(x @ W_in_qkv.astype(np.float64), conv_state, conv_weight)
    keys = (mixed.shape[1] - heads * values) // (2 * size)
    z, a, b = (x @ w.astype(np.float64) for w in (W_in_z, W_in_a, W_in_b))
    out, new = np.zeros((batches, 1, heads * values)), np.zeros(recurrent_state.shape)
    for batch in range(batches):
        for head in range(heads):
            key = head // (heads // keys)
            q = mixed[batch, key * size : (key + 1) * size]
            k = mixed[batch, (keys + key) * size : (keys + key + 1) * size]
            start = 2 * keys * size + head * values
            v = mixed[batch, start : start + values]
            q, k = (t / np.sqrt(t @ t + 1e-6) for t in (q, k))
            decay = np.exp(-np.exp(A_log[head]) * np.log1p(np.exp(a[batch, head] + dt_bias[head])))
            s = recurrent_state[batch, head].astype(np.float64) * decay
            s = s + np.outer(k, (v - s.T @ k) / (1 + np.exp(-b[batch, head])))
            y = s.T @ q / np.sqrt(size)
            y = y / np.sqrt(np.mean(y * y) + 1e-6) * norm_weight
            own = slice(head * values, (head + 1) * values)
            out[batch, 0, own], new[batch, head] = y * silu(z[batch, own]), s
    return out, state, new


BLOCK = [
    Option("basic"),
    Option("one-request", block(b=1)),
    Option("33-requests", block(b=33, heads=2, keys=1)),
    Option("one-head", block(keys=1, heads=1)),
    Option("as-many-keys", block(keys=3, heads=3)),
    Option("six-of-two", block(keys=2, heads=6)),
    Option("wide", block(h=384)),
    Option("128-heads-of-values", block(size=128, values=128, b=1)),
    Option("other-values", block(size=16, values=40)),
    Option("two-taps", block(k=2)),
]
BLOCK_WRONG = refusals(
    hidden=random((2, 2, 128), "bfloat16"),
    W_in_qkv=random((128, 63), "bfloat16"),
    W_in_z=random((128, 31), "bfloat16"),
    W_in_a=random((128, 3), "bfloat16"),
    W_in_b=random((128, 5), "bfloat16"),
    conv_weight=random((63, 4), "bfloat16"),
    conv_state=random((2, 64, 3), "bfloat16"),
    A_log=random(3),
    recurrent_state=random((3, 4, 8, 8)),
)


@each(on_both(BLOCK) + [Option("trn3", on="trn3")] + BLOCK_WRONG)
def test_each_option_of_the_block_is_right_or_refused(option):
    check(option, gdn_block_tkg, block(), by_head, 2**-5)


def test_the_references_agree_with_loops():
    for reference, loop, given in (
        (gdn_conv1d_prefill_ref, prefill_by_token, prefill()),
        (gdn_conv1d_decode_ref, decode_by_channel, decode()),
        (gdn_block_tkg_ref, by_head, block()),
    ):
        for got, wanted in zip(reference(**given), loop(**given), strict=True):
            near(got, wanted, 1e-12)
