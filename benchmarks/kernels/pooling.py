"""Pooling and batch normalisation of video, forward and backward."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.batch_norm import batch_norm_bwd
from nkilib.experimental.pooling import (
    avg_pooling_3d,
    avg_pooling_3d_backward,
    max_pooling_3d,
    max_pooling_3d_backward,
)

from . import Case

SIZES = ((8, 256, 8, 28, 28), (2, 128, 16, 56, 56))  # of C3D, behind its second and third group of layers


def spec(shape: tuple) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def pooled(shape: tuple) -> list[Case]:
    """Windows of 2, all of them read and written once."""
    small = (*shape[:2], *(n // 2 for n in shape[2:]))
    size, part = TensorSpec(shape, "bfloat16"), 1
    for n in shape:
        part *= n
    label = "x".join(map(str, shape)) + " by 2 bf16"
    x, y, both = size, spec(small), 2 * part + 2 * part // 8
    return [
        Case("avg_pooling_3d", label, avg_pooling_3d, (x, 2), hbm_bytes=both, lnc=2),
        Case("max_pooling_3d", label, max_pooling_3d, (x, 2), hbm_bytes=both, lnc=2),
        Case("avg_pooling_3d_backward", label, avg_pooling_3d_backward, (y, x, 2), hbm_bytes=both, lnc=2),
        Case(
            "max_pooling_3d_backward", label, max_pooling_3d_backward, (y, x, y, 2), hbm_bytes=2 * both, lnc=2
        ),
    ]


def normalized(shape: tuple) -> Case:
    """The sums come before dx: what SBUF does not hold until then is read twice, and not counted here."""
    part = 1
    for n in shape:
        part *= n
    column = TensorSpec((shape[1],), "float32")
    arguments = (spec(shape), spec(shape), column, column, column, column)
    label = "x".join(map(str, shape)) + " bf16"
    return Case("batch_norm_bwd", label, batch_norm_bwd, arguments, hbm_bytes=6 * part, lnc=2)


CASES = [*pooled(SIZES[0]), *pooled(SIZES[1]), normalized(SIZES[0]), normalized(SIZES[1])]
