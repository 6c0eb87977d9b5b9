"""cumsum, linear_scan, selective_scan and ssd, against recurrences written step by step."""

from __future__ import annotations

import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals

from nkilib.core.cumsum.cumsum import cumsum
from nkilib.experimental.scan.linear_scan import linear_scan
from nkilib.experimental.scan.selective_scan import selective_scan
from nkilib.experimental.scan.ssd import ssd

BF16 = 2**-8


def wide(x):
    return None if x is None else np.asarray(x, np.float64)


def cast(arguments: dict, dtype: str) -> dict:
    return {n: x.astype(dtype) if isinstance(x, np.ndarray) else x for n, x in arguments.items()}


# ---- cumsum ------------------------------------------------------------------------------------------

ROWS = {"x": random((6, 50))}


def running(x, axis=-1):
    total, out = np.zeros(x.shape[:-1]), np.zeros(x.shape)
    for i in range(x.shape[-1]):
        total = total + wide(x)[..., i]
        out[..., i] = total
    return out


SUMS = [
    Option("axis-1", {"axis": 1}),
    Option("one-column", {"x": random((6, 1))}),
    Option("one-row", {"x": random((1, 50))}),
    Option("130-rows", {"x": random((130, 33))}),
    Option("three-axes", {"x": random((2, 3, 20)), "axis": 2}),
    Option("ten", {"x": random((2, 10, 20))}),
    Option("long", {"x": random((2, 2500))}, tolerance=1e-5),
    Option("bfloat16", cast(ROWS, "bfloat16"), tolerance=BF16),
    Option("float16", cast(ROWS, "float16"), tolerance=2**-11),
]


@each(on_both(SUMS))
def test_cumsum(option):
    check(option, cumsum, ROWS, running, 1e-6)


SUMS_REFUSED = refusals(
    x=None, x__rank=random(5), x__four=random((2, 2, 2, 2)), x__dtype=np.ones((2, 2), np.int32)
) + refusals(axis=0, axis__none=None, axis__far=3, x__S=random((2, 11, 4)), x__H=random((1, 8193)))


@each(SUMS_REFUSED)
def test_cumsum_refusals(option):
    check(option, cumsum, ROWS, running, 1e-6)


# ---- linear_scan ---------------------------------------------------------------------------------------

LINEAR = {"decay": random((4, 30), scale=0.5), "data": random((4, 30), seed=1)}


def recurrence(decay, data, initial=None):
    state = np.zeros((*data.shape[:-1], 1)) if initial is None else wide(initial)
    out = np.zeros(data.shape)
    for t in range(data.shape[-1]):
        state = wide(decay)[..., t : t + 1] * state + wide(data)[..., t : t + 1]
        out[..., t] = state[..., 0]
    return [out, state]


LINEARS = [
    Option("basic"),
    Option("initial", {"initial": random((4, 1), seed=2)}),
    Option("initial-bfloat16", {"initial": random((4, 1), "bfloat16", seed=2)}),
    Option("one-step", {"decay": random((4, 1)), "data": random((4, 1)), "initial": random((4, 1))}),
    Option("three-axes", {"decay": random((2, 3, 9), scale=0.5), "data": random((2, 3, 9))}),
    Option("300-rows", {"decay": random((300, 7), scale=0.5), "data": random((300, 7))}),
    Option("decay-bfloat16", {"decay": random((4, 30), "bfloat16", scale=0.5)}),
    Option("data-bfloat16", {"data": random((4, 30), "bfloat16", seed=1)}, tolerance=BF16),
    Option("zero-decay", {"decay": np.zeros((4, 30), np.float32)}),
    Option("long", {"decay": random((2, 3000), scale=0.4), "data": random((2, 3000))}),
]


@each(on_both(LINEARS))
def test_linear_scan(option):
    check(option, linear_scan, LINEAR, recurrence, 1e-5)


LINEAR_REFUSED = refusals(
    decay=None,
    data=None,
    decay__shape=random((4, 29)),
    data__rank=random(30),
    initial=random((4, 2)),
    initial__number=1.0,
)


@each(LINEAR_REFUSED)
def test_linear_scan_refusals(option):
    check(option, linear_scan, LINEAR, recurrence, 1e-5)


# ---- selective_scan ------------------------------------------------------------------------------------


def selective(b=2, c=5, n=3, length=12, dtype="float32") -> dict:
    return {
        "x": random((b, c, length), dtype),
        "dt": np.abs(random((b, c, length), dtype, seed=1)),
        "A": -np.abs(random((c, n), dtype, seed=2)),
        "B": random((b, n, length), dtype, seed=3),
        "C": random((b, n, length), dtype, seed=4),
    }


def states(x, dt, A, B, C, D=None, initial_state=None):
    x, dt, A, B, C = map(wide, (x, dt, A, B, C))
    b, c, length = x.shape
    h = np.zeros((b, c, A.shape[1])) if initial_state is None else wide(initial_state)
    y = np.zeros(x.shape)
    for t in range(length):
        drive = dt[:, :, t, None] * x[:, :, t, None] * B[:, None, :, t]
        h = np.exp(dt[:, :, t, None] * A) * h + drive
        y[:, :, t] = (h * C[:, None, :, t]).sum(-1)
    return [y if D is None else y + wide(D)[:, None] * x, h]


SELECTIVES = [
    Option("basic"),
    Option("D", {"D": random(5, seed=5)}),
    Option("initial", {"initial_state": random((2, 5, 3), seed=6)}),
    Option("both", {"D": random(5, seed=5), "initial_state": random((2, 5, 3), seed=6)}),
    Option("one-state", selective(n=1)),
    Option("sixteen-states", selective(n=16)),
    Option("one-step", selective(length=1)),
    Option("130-channels", selective(b=1, c=130)),
    Option("A-zero", {"A": np.zeros((5, 3), np.float32)}),
    Option("long", selective(b=1, length=600)),
    Option("bfloat16", selective(dtype="bfloat16"), tolerance=3 * BF16),
]


@each(on_both(SELECTIVES))
def test_selective_scan(option):
    check(option, selective_scan, selective(), states, 2e-5)


SELECTIVE_REFUSED = refusals(
    x=None,
    x__rank=random((5, 12)),
    dt=None,
    dt__shape=random((2, 5, 11)),
    A=None,
    A__shape=random((4, 3)),
    B=None,
    B__shape=random((2, 3, 11)),
    C=None,
    C__shape=random((2, 2, 12)),
    D=random(4),
    initial_state=random((2, 5, 4)),
)


@each(SELECTIVE_REFUSED)
def test_selective_scan_refusals(option):
    check(option, selective_scan, selective(), states, 2e-5)


# ---- ssd -----------------------------------------------------------------------------------------------


def chunked(b=1, h=2, s=16, d=4, n=3, chunk=8, dtype="float32") -> dict:
    return {
        "x": random((b, h, s, d), dtype),
        "dt": np.abs(random((b, h, s), dtype, seed=1)),
        "A": -np.abs(random(h, dtype, seed=2)),
        "B": random((b, s, n), dtype, seed=3),
        "C": random((b, s, n), dtype, seed=4),
        "chunk_size": chunk,
        "causal_mask": np.tri(chunk, dtype=np.float32),
    }


def heads(x, dt, A, B, C, chunk_size=128, D=None, initial_state=None, causal_mask=None):
    x, dt, A, B, C = map(wide, (x, dt, A, B, C))
    b, h, s, d = x.shape
    state = np.zeros((b, h, B.shape[2], d)) if initial_state is None else wide(initial_state)
    y = np.zeros(x.shape)
    for t in range(s):
        step = dt[:, :, t, None] * x[:, :, t]
        state = np.exp(dt[:, :, t] * A)[..., None, None] * state
        state = state + B[:, None, t, :, None] * step[:, :, None, :]
        y[:, :, t] = np.einsum("bn,bhnd->bhd", C[:, t], state)
    return [y if D is None else y + wide(D)[None, :, None, None] * x, state]


CHUNKS = [
    Option("basic"),
    Option("D", {"D": random(2, seed=5)}),
    Option("initial", {"initial_state": random((1, 2, 3, 4), seed=6)}),
    Option("one-chunk", chunked(chunk=16)),
    Option("chunks-of-one", chunked(chunk=1)),
    Option("chunks-of-128", chunked(s=256, chunk=128)),
    Option("two-batches", chunked(b=2)),
    Option("four-heads", chunked(h=4)),
    Option("one-state", chunked(n=1)),
    Option("wide", chunked(d=64, n=64)),
    Option("strong-decay", {"A": np.full(2, -30.0, np.float32)}),
    Option("bfloat16", chunked(dtype="bfloat16"), tolerance=4 * BF16),
]


@each(on_both(CHUNKS))
def test_ssd(option):
    check(option, ssd, chunked(), heads, 2e-5)


SSD_REFUSED = refusals(
    x=None,
    x__rank=random((2, 16, 4)),
    dt=None,
    dt__shape=random((1, 2, 15)),
    A=None,
    A__shape=random(3),
    B=None,
    B__shape=random((1, 15, 3)),
    C=None,
    C__shape=random((1, 16, 2)),
    chunk_size=5,
    chunk_size__zero=0,
    chunk_size__large=256,
    D=random(3),
    initial_state=random((1, 2, 4, 4)),
    causal_mask=None,
    causal_mask__shape=np.tri(16, dtype=np.float32),
)


@each(SSD_REFUSED)
def test_ssd_refusals(option):
    check(option, ssd, chunked(), heads, 2e-5)
