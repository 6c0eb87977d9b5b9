"""kda_block_tkg against the rule token by token and head by head, in float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals

from nkilib.experimental.attention.kda_block_tkg import kda_block_tkg, kda_block_tkg_ref


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(kda_block_tkg)


def call(b=2, n=2, h=128, heads=3, size=8, depth=8, rank=128, taps=4):
    channels = heads * (2 * size + depth)

    def bf16(*shape, seed, scale=1.0):
        return random(shape, "bfloat16", seed, scale)

    return {
        "hidden": bf16(b, n, h, seed=1),
        "gamma_in": random(h, seed=2),
        "W_in": bf16(h, channels + 2 * rank + heads, seed=3, scale=h**-0.5),
        "W_fb": bf16(rank, heads * size, seed=4, scale=rank**-0.5),
        "W_gb": bf16(rank, heads * depth, seed=5, scale=rank**-0.5),
        "conv_w": bf16(channels, taps, seed=6),
        "A_log": random(heads, seed=7, scale=0.3),
        "dt_bias": random((size, heads), seed=8),
        "gamma_o": random(depth, seed=9),
        "W_o": bf16(heads * depth, h, seed=10, scale=(heads * depth) ** -0.5),
        "out": bf16(b, n, h, seed=0, scale=0.0),
        "S": random((b, heads, size, depth), seed=11),
        "conv_state": bf16(b, channels, taps, seed=12),
        "scale": np.full((1, 1), 0.4, np.float32),
        "lower_bound": np.full((1, 1), -2.0, np.float32),
    }


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x, gamma, eps):
    return x / np.sqrt(x @ x / len(x) + eps) * gamma


def by_token(
    hidden, gamma_in, W_in, W_fb, W_gb, conv_w, A_log, dt_bias, gamma_o, W_o, out, S, conv_state, scale,
    lower_bound, rms_norm_eps=1e-5,
):  # fmt: skip
    x, w_in, fb, gb, w, w_o = (v.astype(np.float64) for v in (hidden, W_in, W_fb, W_gb, conv_w, W_o))
    rate, bias, gammas = A_log.astype(np.float64), dt_bias.astype(np.float64), gamma_o.astype(np.float64)
    _, heads, size, depth = S.shape
    state, conv, out = S.astype(np.float64), conv_state.astype(np.float64), np.zeros(hidden.shape)
    ends = np.cumsum([heads * size, heads * size, heads * depth, len(fb), len(gb)])
    for b in range(len(x)):
        for n in range(x.shape[1]):
            parts = np.split(rms(x[b, n], gamma_in.astype(np.float64), rms_norm_eps) @ w_in, ends)
            conv[b] = np.concatenate([conv[b][:, 1:], np.concatenate(parts[:3])[:, None]], axis=1)
            mixed = (conv[b] * w).sum(1)
            mixed = mixed * sigmoid(mixed)
            f, gate, beta = parts[3] @ fb, parts[4] @ gb, sigmoid(parts[5])
            values = np.zeros(heads * depth)
            for i in range(heads):
                q, k = (mixed[ends[j] - heads * size + i * size :][:size] for j in (0, 1))
                v = mixed[ends[1] + i * depth :][:depth]
                q, k = (t / np.sqrt(t @ t + 1e-6) for t in (q, k))
                inside = np.exp(rate[i]) * (f[i * size : (i + 1) * size] + bias[:, i])
                s = state[b, i] * np.exp(float(lower_bound[0, 0]) * sigmoid(inside))[:, None]
                s = s + np.outer(k, beta[i] * (v - s.T @ k))
                state[b, i] = s
                own = slice(i * depth, (i + 1) * depth)
                values[own] = rms(float(scale[0, 0]) * s.T @ q, gammas, rms_norm_eps) * sigmoid(gate[own])
            out[b, n] = values @ w_o
    return out, state, conv


CASES = [
    Option("basic"),
    Option("one-token", call(n=1)),
    Option("five-tokens", call(n=5)),
    Option("one-request", call(b=1)),
    Option("17-requests", call(b=17, n=1)),
    Option("one-head", call(heads=1)),
    Option("18-heads", call(heads=18, n=1)),
    Option("wide", call(h=384)),
    Option("other-values", call(size=16, depth=40)),
    Option("kimi-heads", call(b=1, n=1, heads=2, size=128, depth=128)),
    Option("wide-gates", call(rank=256)),
    Option("two-taps", call(taps=2)),
    Option("eps", {"rms_norm_eps": 0.1}),
]
WRONG = refusals(
    hidden=random((2, 2, 100), "bfloat16"),
    gamma_in=random(64),
    W_in=random((128, 300), "bfloat16"),
    W_fb=random((100, 24), "bfloat16"),
    W_gb=random((128, 23), "bfloat16"),
    conv_w=random((71, 4), "bfloat16"),
    A_log=random(2),
    dt_bias=random((3, 8)),
    gamma_o=random(9),
    W_o=random((24, 100), "bfloat16"),
    out=random((2, 1, 128), "bfloat16"),
    S=random((3, 3, 8, 8)),
    conv_state=random((2, 72, 3), "bfloat16"),
    scale=random((2, 1)),
    l2_eps=1e-5,
)
WRONG = [case._replace(refused="a_log") if case.name == "refuses-A_log" else case for case in WRONG]


@each(on_both(CASES) + [Option("trn3", on="trn3")] + WRONG)
def test_each_option_is_right_or_refused(option):
    check(option, kda_block_tkg, call(), by_token, 2**-5)


def test_the_reference_agrees_with_a_loop():
    for got, wanted in zip(kda_block_tkg_ref(**call()), by_token(**call()), strict=True):
        near(got, wanted, 1e-6)
