"""`neuronxcc.nki.language`: the old `nl`. Each function becomes instructions of `nki.isa`."""
# ruff: noqa: F401

from __future__ import annotations

from typing import Any

from nki.ir.indexing import DynamicSlice
from nki.machine.machine import Machine

from . import state as run
from .creation import (
    empty_like,
    full,
    hbm,
    ndarray,
    ones,
    par_dim,
    private_hbm,
    psum,
    rand,
    random_seed,
    sbuf,
    shared_constant,
    shared_hbm,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from .elementwise import ELEMENTWISE
from .indices import Index, arange, mgrid
from .loops import Loop
from .movement import (
    all_reduce,
    atomic_rmw,
    broadcast_to,
    device_print,
    dropout,
    expand_dims,
    finfo,
    gather_flattened,
    load,
    load_transpose2d,
    loop_reduce,
    matmul,
    static_cast,
    store,
    transpose,
    where,
)
from .reductions import all, max, mean, min, prod, rms_norm, softmax, sum, var
from .types import (
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float32r,
    int8,
    int16,
    int32,
    sizeinbytes,
    tfloat32,
    uint8,
    uint16,
    uint32,
)

globals().update(ELEMENTWISE)


class Constants:
    """Numbers by name; a kernel that reads them is cached."""

    def __init__(self, **values: float):
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no {name}: {', '.join(vars(self))}")


fp32 = Constants(min=-3.4028235e38, max=3.4028235e38)
bfp16 = Constants(min=-3.3895313892515355e38)
tile_size = Constants(
    pmax=Machine.partitions,
    psum_fmax=Machine.psum_bank_bytes // 4,
    gemm_stationary_fmax=Machine.matmul_stationary_max,
    gemm_moving_fmax=Machine.gemm_moving_fmax,
    bn_stats_fmax=Machine.bn_stats_max,
    psum_min_align=Machine.psum_min_align,
    sbuf_min_align=Machine.sbuf_min_align,
    total_available_sbuf_size=192 * 1024 - 16 * 1024,
)


# ---- loops and programs --------------------------------------------------------------------------


def static_range(*args: Any, **_: object) -> range:
    """Python's range."""
    return range(*(int(a) for a in args))


def affine_range(*args: Any, **_: object) -> Loop:
    """Python's range, for a loop whose tiles keep the addresses of the first iteration."""
    return Loop(static_range(*args))


sequential_range = affine_range


def ds(start: Any, size: int) -> DynamicSlice:
    return DynamicSlice(start.base if isinstance(start, Index) and start.is_constant() else start, int(size))


def program_id(axis: int) -> int:
    current = run.running()
    return current.place[axis] if current is not None and axis < len(current.place) else 0


def num_programs(axes: Any = None) -> int:
    current = run.running()
    grid = current.grid if current is not None else ()
    chosen = range(len(grid)) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    total = 1
    for axis in chosen:
        total *= grid[axis] if axis < len(grid) else 1
    return total


def program_ndim() -> int:
    current = run.running()
    return len(current.grid) if current is not None else 0


class nc(int):
    """A number of physical cores, as an axis of a grid: all programs run one after the other here."""

    def __mul__(self, other: Any) -> Any:
        return spmd_dim(self, other)

    __rmul__ = __mul__


def spmd_dim(a: Any, b: Any) -> int:
    return int(a) * int(b)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'neuronxcc.nki.language' has no attribute {name!r}")
