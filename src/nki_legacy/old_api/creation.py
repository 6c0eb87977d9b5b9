"""New tensors of the old API: block, partition and free dimensions."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nki import isa
from nki.errors import user_site
from nki.language import creation as new
from nki.language.allocation import ParDim, allocate
from nki.language.shared_constants import shared_constant as new_shared_constant
from nki.machine import dtypes
from nki.machine.memories import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM, MemoryRegion

from . import state as run
from .assignment import fill
from .compiler import PlacedBuffer
from .failures import failure
from .masks import MaskLike, where
from .regions import new_tile
from .tensor import Tensor, Whole
from .types import DTypeLike, float32, new_dtype

sbuf, psum = SBUF, PSUM
hbm = private_hbm = PRIVATE_HBM
shared_hbm = SHARED_HBM
par_dim = ParDim


def region_of(buffer: Any) -> MemoryRegion:
    """Return the memory of a buffer, or of an allocation of `neuronxcc.nki.compiler`."""
    if buffer is None:
        return SBUF
    if isinstance(buffer, str):
        buffer = MemoryRegion("private_hbm" if buffer == "hbm" else buffer)
    found = buffer.region if isinstance(buffer, PlacedBuffer) else buffer
    if not isinstance(found, MemoryRegion):
        raise failure("err_unsupported_memory", f"there is no buffer {buffer!r}")
    return found


def ndarray(shape: Any, dtype: DTypeLike, *, buffer: Any = None, name: str = "", **_: object) -> Whole:
    """A new tensor with undefined contents."""
    current, region = run.state(), region_of(buffer)
    sizes, kind = tuple(shape), new_dtype(dtype)
    if region is SHARED_HBM or region is PRIVATE_HBM:
        return _in_hbm(current, region, tuple(int(n) for n in sizes), kind, name)
    at = next((d for d, n in enumerate(sizes) if isinstance(n, ParDim)), 0)
    outer, tile = tuple(int(n) for n in sizes[:at]), tuple(int(n) for n in sizes[at:])
    if tile[0] > 128:
        raise failure(
            "err_num_partition_exceed_arch_limit",
            f"Size of partition dimension {tile[0]} exceeds architecture limitation of 128",
        )
    tile = tile if len(tile) > 1 else (*tile, 1)
    blocks, nbytes = np.empty(outer, object), prod(tile[1:]) * kind.itemsize
    addresses: run.Addresses = {}
    if isinstance(buffer, PlacedBuffer):
        site = user_site()
        addresses = current.body.first(
            (site and site.key, outer, tile, kind),
            lambda: {place: buffer.address(place, tile[0], nbytes) for place in np.ndindex(outer)},
        )
    for place in np.ndindex(outer):
        blocks[place] = new_tile(tile, kind, region, name, addresses.get(place))
    return Whole(None, blocks)


def _in_hbm(
    current: run.RunState, region: MemoryRegion, shape: tuple[int, ...], kind: Any, name: str
) -> Whole:
    """shared_hbm tensors are one for all programs of a grid; the others are each program's own."""
    if region is SHARED_HBM and current.allocated < len(current.shared):
        found = current.shared[current.allocated]
        current.allocated += 1
        return found
    made = Whole(allocate("ndarray", shape, kind, SHARED_HBM, name))
    if region is SHARED_HBM:
        current.shared.append(made)
        current.allocated += 1
    return made


def full(
    shape: Any, fill_value: Any, dtype: DTypeLike, *, buffer: Any = None, name: str = "", **_: object
) -> Whole:
    """A new tile with every element `fill_value`."""
    made = ndarray(shape, dtype, buffer=buffer, name=name)
    if not made.on_chip:
        raise failure(
            "err_hbm_tensor_with_init_value_not_supported",
            "a tensor in HBM begins undefined",
            "nl.store(tensor, value) fills it",
        )
    for tile in made.blocks.flat:
        fill(Whole(tile), fill_value, where(None, tile.shape))
    made.filled = made.region is not PSUM or fill_value != 0  # the first matmul overwrites zeros
    return made


def zeros(shape: Any, dtype: DTypeLike, *, buffer: Any = None, name: str = "", **_: object) -> Whole:
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: DTypeLike, *, buffer: Any = None, name: str = "", **_: object) -> Whole:
    return full(shape, 1, dtype, buffer=buffer, name=name)


def empty_like(
    a: Tensor, dtype: DTypeLike | None = None, *, buffer: Any = None, name: str = "", **_: object
) -> Whole:
    return ndarray(a.shape, dtype or a.dtype, buffer=buffer or a.region, name=name)


def zeros_like(
    a: Tensor, dtype: DTypeLike | None = None, *, buffer: Any = None, name: str = "", **_: object
) -> Whole:
    chosen = buffer or (a.region if a.on_chip else SBUF)
    return zeros(a.shape, dtype or a.dtype, buffer=chosen, name=name)


def rand(shape: Any, dtype: DTypeLike = float32, **_: object) -> Whole:
    run.state()
    return Whole(new.rand(tuple(int(n) for n in shape), new_dtype(dtype)))


def shared_constant(constant: Any, dtype: DTypeLike | None = None, **_: object) -> Whole:
    """Numbers known before the run, in HBM."""
    run.state()
    array = np.asarray(constant)
    target = new_dtype(dtype if dtype is not None else _narrow(array.dtype))
    return Whole(new_shared_constant(array.astype(target.storage)))


def _narrow(dtype: np.dtype) -> Any:
    return {"float64": np.float32, "int64": np.int32, "uint64": np.uint32, "bool": np.uint8}.get(
        dtype.name, dtype
    )


def shared_identity_matrix(n: int, dtype: DTypeLike = np.uint8, **_: object) -> Whole:
    """An identity matrix in HBM."""
    return shared_constant(np.eye(n, dtype=np.float32), dtype)


def random_seed(seed: Any, *, mask: MaskLike = None, **_: object) -> None:
    run.state()
    if not isinstance(seed, Tensor):
        tile = allocate("random_seed", (1, 1), dtypes.int32)
        isa.memset(tile, int(seed))
    else:
        tile = seed.tile()
    isa.set_rng_seed(tile)
