"""The convolution with max pooling of Stanford's CS149, assignment 4, part 2: sizes and limits of 2025."""

from __future__ import annotations

import numpy as np

from ..task import Case, Task, uniform

TEXT = """\
Write fused_conv2d_maxpool(X, W, bias, pool_size=1): the convolution of a batch of images without padding and
with stride 1, plus a bias for each output channel, then a maximum over windows of pool_size x pool_size.
X is (batch, channels in, height, width), W is (channels out, channels in, filter height, filter width);
channels are multiples of 128.
"""


def reference(X: np.ndarray, W: np.ndarray, bias: np.ndarray, pool_size: int = 1) -> np.ndarray:
    """Return the result in float64: one product for each place in the filter."""
    rows, columns = W.shape[2:]
    height, width = X.shape[2] - rows + 1, X.shape[3] - columns + 1
    images, weights = X.astype(np.float64), W.astype(np.float64)
    total = np.zeros((len(X), len(W), height * width))
    for i in range(rows):
        for j in range(columns):
            window = images[:, :, i : i + height, j : j + width].reshape(len(X), X.shape[1], -1)
            total += weights[:, :, i, j] @ window
    total = (total + bias.astype(np.float64)[:, None]).reshape(len(X), len(W), height, width)
    shape = (len(X), len(W), height // pool_size, pool_size, width // pool_size, pool_size)
    return total.reshape(shape).max((3, 5))


def case(
    name: str,
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    dtype: str = "float32",
    pool_size: int = 1,
    points: float = 2.5,
    limits_us: tuple[tuple[float, float], ...] = (),
) -> Case:
    """Return a case with a filter of 3 x 3."""
    into, out = channels
    tensors = {
        "X": uniform((batch, into, *size), dtype),
        "W": uniform((out, into, 3, 3), dtype),
        "bias": uniform((out,), dtype),
    }
    rtol = 2e-3 if dtype == "float16" else None  # a sum, and a sum with the bias, each rounded
    return Case(name, {**tensors, "pool_size": pool_size}, points, limits_us, rtol=rtol)


SMALL = [
    case(
        f"{into} to {out} channels, 32 x 16{', max pool' * (pool > 1)}",
        4,
        (into, out),
        (32, 16),
        "float32",
        pool,
        1,
    )
    for pool in (1, 2)
    for into in (128, 256)
    for out in (128, 256)
]
SMALL += [
    case(f"float16, 32 x 16{', max pool' * (p > 1)}", 1, (256, 256), (32, 16), "float16", p, 1)
    for p in (1, 2)
]
LIMITS = {"float32": ((4596.0, 1.0), (4964.0, 0.95)), "float16": ((1002.0, 1.0), (1365.0, 0.95))}
LARGE = [
    case(f"{dtype}, 224 x 224{', max pool' * (p > 1)}", 1, (256, 256), (224, 224), dtype, p, 5, LIMITS[dtype])
    for p in (1, 2)
    for dtype in ("float32", "float16")
]


def task(name: str, cases: list[Case]) -> Task:
    return Task(
        name, "fused_conv2d_maxpool", reference, cases, TEXT, terms=9 * 256, hidden_seeds=1, visible_seeds=()
    )
