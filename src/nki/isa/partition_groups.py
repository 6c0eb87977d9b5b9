"""Groups of 16 partitions, as GpSimdE works on them (spec/isa_gpsimd.md)."""

from __future__ import annotations

import numpy as np

from ..ir.instruction import Instruction
from . import rules
from .numerics import flat

GROUP = 16  # partitions of one GpSimd processor


def snake(tile: np.ndarray) -> np.ndarray:
    """One row per group of 16 partitions: its elements down the partitions, column by column."""
    groups = flat(tile).reshape(tile.shape[0] // GROUP, GROUP, -1)
    return groups.transpose(0, 2, 1).reshape(len(groups), -1)


def whole_groups(ins: Instruction, name: str) -> None:
    partitions = getattr(ins, name).shape[0]
    if partitions % GROUP:
        raise rules.fail(
            ins,
            "shape",
            f"{name} has {partitions} partitions, a multiple of {GROUP} is needed",
            [name],
            "each GpSimd processor owns 16 partitions",
        )
