"""`tile[...] = value`: the instruction that an assignment is."""

from __future__ import annotations

import numpy as np

from ..errors import error
from ..ir.layout import without_ones
from ..ir.tensor import NkiTensor
from ..machine.memories import PSUM
from .copies import memset, tensor_copy
from .dma import dma_copy


def assign(target: NkiTensor, value: object) -> None:
    """Issue `t[key] = value`, by the instruction that fits the two buffers (spec/tensor.md 4.6)."""
    if isinstance(value, (bool, int, float, np.generic)):
        if not target.on_chip:
            raise error(
                "buffer",
                "assignment: a number cannot be written to HBM",
                notes=[target.describe()],
                help="nl.full(shape, value, dtype, buffer=nl.shared_hbm), or memset a tile and dma_copy it",
            )
        memset(target, value)
        return
    if not isinstance(value, NkiTensor):
        raise error(
            "argument",
            f"assignment: expected a tensor or a number, got {type(value).__name__}",
            notes=[f"target: {target.describe()}"],
            help="pass arrays to the kernel as arguments; inside it they are HBM tensors",
        )
    if without_ones(target.shape) != without_ones(value.shape):
        raise error(
            "shape",
            f"assignment: {tuple(value.shape)} does not fit {tuple(target.shape)}",
            notes=[f"target: {target.describe()}", f"value: {value.describe()}"],
            help="nothing is broadcast on assignment",
        )
    if target.on_chip and value.on_chip:
        tensor_copy(target, value)
    elif value.buffer is PSUM or target.buffer is PSUM:
        raise error(
            "buffer",
            "assignment: DMA cannot reach PSUM",
            notes=[f"target: {target.describe()}", f"value: {value.describe()}"],
            help="copy the PSUM tile to SBUF first (nl.copy)",
        )
    else:
        dma_copy(target, value)
