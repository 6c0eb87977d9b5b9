"""Tilings that callers of the MXFP8 kernels may request. They are hints: these kernels choose their own.

Values are checked, so that an impossible tiling is an error; results never depend on one.
"""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert

ORDERS = ("mnk", "mkn", "nmk", "nkm", "kmn", "knm")


@dataclass
class MatmulMxfp8KernelConfig(nl.NKIObject):
    """The tiling arguments of matmul_mxfp8, in one object."""

    TILES_IN_BLOCK_M: int | None = None
    TILES_IN_BLOCK_N: int | None = None
    TILES_IN_BLOCK_K: int | None = None
    TILES_IN_LOAD_M: int | None = None
    TILES_IN_LOAD_N: int | None = None
    lhs_matmul_tile_shape_logical: tuple[int, int] | None = None
    rhs_matmul_tile_shape_logical: tuple[int, int] | None = None
    block_loop_order: str = "mnk"
    tile_loop_order: str = "mnk"


@dataclass
class MlpBwdMatmulConfig(nl.NKIObject):
    """A tiling for each phase of mlp_backward_mxfp8_nki, and for what it recomputes."""

    phase1_config: MatmulMxfp8KernelConfig | None = None
    phase2_config: MatmulMxfp8KernelConfig | None = None
    phase3_config: MatmulMxfp8KernelConfig | None = None
    phase4_config: MatmulMxfp8KernelConfig | None = None
    recompute_config: MatmulMxfp8KernelConfig | None = None


def check_config(name: str, config: MatmulMxfp8KernelConfig | None) -> None:
    """Check that tile counts are positive and loop orders are permutations of m, n and k."""
    if config is None:
        return
    counts = (
        ("TILES_IN_BLOCK_M", config.TILES_IN_BLOCK_M),
        ("TILES_IN_BLOCK_N", config.TILES_IN_BLOCK_N),
        ("TILES_IN_BLOCK_K", config.TILES_IN_BLOCK_K),
        ("TILES_IN_LOAD_M", config.TILES_IN_LOAD_M),
        ("TILES_IN_LOAD_N", config.TILES_IN_LOAD_N),
    )
    for count in counts:
        kernel_assert(
            count[1] is None or count[1] >= 1,
            f"{name}{count[0]}: got {count[1]}, expected at least 1 or None",
        )
    orders = (("block_loop_order", config.block_loop_order), ("tile_loop_order", config.tile_loop_order))
    for order in orders:
        kernel_assert(
            order[1] in ORDERS, f"{name}{order[0]}: got {order[1]}, expected an order of m, n and k"
        )
    shapes = (
        ("lhs_matmul_tile_shape_logical", config.lhs_matmul_tile_shape_logical),
        ("rhs_matmul_tile_shape_logical", config.rhs_matmul_tile_shape_logical),
    )
    for shape in shapes:
        kernel_assert(
            shape[1] is None or len(shape[1]) == 2,
            f"{name}{shape[0]}: got {shape[1]}, expected two sizes or None",
        )
