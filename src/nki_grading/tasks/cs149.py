"""Stanford's CS149, assignment 4 of 2025: sums, a transpose, and a convolution with max pooling.

Sizes, points and limits are those of the assignment, but that its check of large images has one image, not
four: the small ones have four.
"""

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


def pooled(name: str, pool: int) -> str:
    return name + ", max pool" * (pool > 1)


def fast(size: tuple[int, int], points: tuple[float, float], limits: dict) -> list[Case]:
    """Return the cases that are timed: one image, with and without pooling."""
    return [
        case(
            pooled(f"{dtype}, {size[0]} x {size[1]}", pool),
            1,
            (256, 256),
            size,
            dtype,
            pool,
            worth,
            limits[dtype],
        )
        for pool, worth in zip((1, 2), points, strict=True)
        for dtype in ("float32", "float16")
    ]


SMALL = [
    case(pooled(f"{into} to {out} channels, 32 x 16", pool), 4, (into, out), (32, 16), "float32", pool, 1)
    for pool in (1, 2)
    for into in (128, 256)
    for out in (128, 256)
]
SMALL += [
    case(pooled("float16, 32 x 16", pool), 1, (256, 256), (32, 16), "float16", pool, 1) for pool in (1, 2)
]
LARGE = fast(
    (224, 224),
    (17.5, 7.5),
    {"float32": ((4596.0, 1.0), (4964.0, 0.95)), "float16": ((1002.0, 1.0), (1365.0, 0.95))},
)
EXTRA = fast((32, 16), (1.25, 1.25), {"float32": ((110.0, 1.0),), "float16": ((84.0, 1.0),)})


def convolution(name: str, cases: list[Case]) -> Task:
    return Task(name, "fused_conv2d_maxpool", reference, cases, TEXT, terms=9 * 256, visible_seeds=())


def add(a_vec: np.ndarray, b_vec: np.ndarray) -> np.ndarray:
    return a_vec + b_vec


def sum_task(way: str, text: str, sizes: tuple[int, ...]) -> Task:
    cases = [Case(f"{n} elements", {"a_vec": uniform((n,)), "b_vec": uniform((n,))}) for n in sizes]
    return Task(f"cs149-vector-add-{way}", f"vector_add_{way}", add, cases, text, visible_seeds=())


def transpose(a_tensor: np.ndarray) -> np.ndarray:
    return a_tensor.T


TASKS = [
    sum_task(
        "naive", "Write vector_add_naive(a_vec, b_vec): the sum of vectors of at most 128 elements.", (128,)
    ),
    sum_task(
        "tiled", "Write vector_add_tiled(a_vec, b_vec): the sum of long vectors, 128 at a time.", (25600,)
    ),
    sum_task(
        "stream",
        "Write vector_add_stream(a_vec, b_vec): the sum of long vectors in tiles of 128 rows.",
        (25600, 256000),
    ),
    Task(
        "cs149-transpose",
        "matrix_transpose",
        transpose,
        [
            Case("1024 x 1024", {"a_tensor": uniform((1024, 1024))}, 10),
            Case("4096 x 4096", {"a_tensor": uniform((4096, 4096))}, 1, ((700.0, 1.0),)),
        ],
        "Write matrix_transpose(a_tensor) for float32; both sides are multiples of 128.",
        rtol=0.0,
        visible_seeds=(),
    ),
    convolution("cs149-conv2d", [*SMALL, *LARGE]),
    convolution("cs149-conv2d-small", SMALL),
    convolution("cs149-conv2d-extra", EXTRA),
]
