"""Padding before convolutions, random words, sums of a run-time number of rows.

Reading and setting the random state has no size: it takes what any kernel takes.
"""

from __future__ import annotations

from math import prod

from nki import TensorSpec
from nkilib.experimental.dynamic_shapes import dynamic_elementwise_add
from nkilib.experimental.pad import pad
from nkilib.experimental.rng.rng import generate_random

from . import Case


def padding(shape: tuple[int, ...], pads: tuple[int, ...], mode: str) -> Case:
    axes = [(size, sum(pads[2 * i : 2 * i + 2])) for i, size in enumerate(reversed(shape))]
    elements = prod(shape) + prod(size + extra for size, extra in axes)
    return Case(
        "pad",
        f"{' x '.join(map(str, shape))} bf16 {mode}",
        pad,
        (TensorSpec(shape, "bfloat16"), pads, mode),
        hbm_bytes=2 * elements,
    )


def words(count: int) -> Case:
    return Case(
        "generate_random",
        f"{count} words",
        generate_random,
        (TensorSpec((1, count), "int32"), count),
        hbm_bytes=4 * count,
    )


def one_iteration(rows: int, columns: int) -> Case:
    """A loop whose trip count is known at run time is timed for one iteration: 128 rows."""
    matrix = TensorSpec((rows, columns), "bfloat16")
    return Case(
        "dynamic_elementwise_add",
        f"{rows} x {columns} bf16, 128 rows",
        dynamic_elementwise_add,
        (matrix, matrix, TensorSpec((1, 1), "int32")),
        hbm_bytes=3 * 2 * 128 * columns,
    )


CASES = [
    padding((1, 128, 4, 256, 256), (1, 1, 1, 1, 2, 0), "replicate"),  # a causal video convolution
    padding((16, 256, 56, 56), (1, 1, 1, 1), "constant"),  # a residual network
    words(1 << 22),
    words(1 << 24),
    one_iteration(512, 4096),
    one_iteration(2048, 8192),
]
