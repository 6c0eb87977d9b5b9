"""Names of older releases: a few still work, the others say what took their place (language.md 1.2)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ..context import warn
from .creation import ParDim

fp32 = SimpleNamespace(min=-3.4028235e38, max=3.4028235e38)

_SLICES = "index tiles with slices, nl.ds(start, size) or t.ap(pattern)"
_LAUNCH = "launch on two cores with kernel[2]; nl.program_id(0) tells them apart"

REMOVED = {
    "arange": _SLICES,
    "mgrid": _SLICES,
    "nc": _LAUNCH,
    "spmd_dim": _LAUNCH,
    "loop_reduce": "accumulate in a tile: nl.add into it, or nisa.nc_matmul into one PSUM tile",
    "atomic_rmw": "nisa.dma_compute(dst, [dst, src], reduce_op=nl.add)",
    "all_reduce": "nl.max, nl.sum over free dimensions; nisa.tensor_partition_reduce over partitions",
    "static_cast": "nl.copy(tile, dtype=...) in a kernel, x.astype(...) on arrays",
    "simulate_kernel": "nki.simulate(kernel)(...)",
    "tensor": "nl.ndarray makes tensors, nl.NkiTensor is their class",
}


def par_dim(size):
    """Marks the partition dimension of a shape in old code; today it is always the first one."""
    warn(
        "legacy", "nl.par_dim is an old form", help="the first dimension of a tile is the partition dimension"
    )
    return ParDim(size)


__all__: list[Any] = ["fp32", "par_dim"]
