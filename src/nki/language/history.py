"""Names of older releases: some work, the others raise an error with a replacement (spec/language.md 1.2)."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

from ..ir.context import warn
from ..ir.tensor import NkiTensor
from ..machine import dtypes
from ..machine.dtypes import DTypeLike
from . import operands
from .allocation import ParDim

fp32 = SimpleNamespace(min=-3.4028235e38, max=3.4028235e38)

_SLICES = "index tiles with slices, nl.ds(start, size) or t.ap(pattern)"

REMOVED = {
    "arange": _SLICES,
    "mgrid": _SLICES,
    "loop_reduce": "accumulate in a tile: nl.add into it, or nisa.nc_matmul into one PSUM tile",
    "atomic_rmw": "nisa.dma_compute(dst, [dst, src], reduce_op=nl.add)",
    "all_reduce": "nl.max, nl.sum over free dimensions; nisa.tensor_partition_reduce over partitions",
    "static_cast": "nl.copy(tile, dtype=...) in a kernel, x.astype(...) on arrays",
    "simulate_kernel": "nki.simulate(kernel)(...)",
    "tensor": "nl.ndarray makes tensors, nl.NkiTensor is their class",
}


def par_dim(size: int) -> ParDim:
    """Mark the partition dimension of a shape in old code; today it is always the first one."""
    warn(
        "legacy", "nl.par_dim is an old form", help="the first dimension of a tile is the partition dimension"
    )
    return ParDim(size)


def nc(cores: int) -> int:
    """A number of cores in old launches: kernel[nl.nc(2)] is kernel[2]."""
    warn("legacy", "nl.nc is an old form", help="write kernel[2]; nl.program_id(0) is the number of the core")
    return int(cores)


def spmd_dim(*sizes: int) -> int:
    """An axis of an old launch grid: the product of its sizes, which is the number of cores today."""
    warn("legacy", "nl.spmd_dim is an old form", help="write kernel[2]; a kernel runs once per core")
    return prod(int(size) for size in sizes)


def cast(x: NkiTensor, dtype: DTypeLike) -> NkiTensor:
    """Return a copy of a tile in another dtype; nl.copy(x, dtype=dtype) today."""
    warn("legacy", "nl.cast is an old form", help="write nl.copy(x, dtype=...)")
    return operands.cast(operands.check_tile("cast", "x", x), dtypes.resolve(dtype, "cast: dtype"))
