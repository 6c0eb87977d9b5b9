"""Allocating tensors, and the checks of shape, dtype, memory and address (spec/tensor.md 8)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NoReturn

from ..errors import error, user_site
from ..ir.caches import LRUCache
from ..ir.context import _local, current, warn
from ..ir.layout import Int, is_int
from ..ir.template import Template
from ..ir.tensor import NkiTensor, whole
from ..machine import dtypes
from ..machine.dtypes import DType, DTypeLike
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, SHARED_HBM, MemoryRegion

# (platform, shape, types of its entries unless all are ints, dtype, buffer) -> what to allocate
_CHECKED: LRUCache[tuple, Template] = LRUCache(1 << 16)
_find_checked = _CHECKED.get


def allocate(
    function: str,
    shape: Sequence[Int],
    dtype: DTypeLike,
    buffer: MemoryRegion = SBUF,
    name: str | None = "",
    address: Sequence[Int] | None = None,
) -> NkiTensor:
    """Return a new tensor for the public function named. Its checks are cached: loops call it per tile."""
    core = _local.core or current()
    key: tuple | None
    try:
        sizes, kinds = tuple(shape), None
        for size in sizes:
            if type(size) is not int:
                kinds = tuple(map(type, sizes))
                break
        key = (core.platform, sizes, kinds, dtype, buffer)
        checked = _find_checked(key)
    except TypeError:  # not a sequence, or something unhashable: the check reports which
        key = checked = None
    if checked is None:
        checked = Template(*check_tensor(function, shape, dtype, buffer, core.machine), buffer)
        quiet = len(checked.shape) == len(shape) and not _excess(
            checked.shape, checked.dtype, buffer, core.machine
        )
        if key is not None and quiet:  # a warning is repeated at the next line that allocates
            _CHECKED.put(key, checked)
    if type(name) is not str:
        name = _check_name(function, name)
    if address is not None:
        place = _check_address(function, address, checked.shape, checked.dtype, buffer, core.machine)
        return whole(*core.allocate(checked.shape, checked.dtype, buffer, name, place))
    if core.recorder is not None and not core.loops and buffer is not SHARED_HBM:
        counts = core.counts
        counts.storages = number = counts.storages + 1
        return checked.traced(name, user_site(3), number, core.launch.call)
    return checked.tensor(*core.allocate(checked.shape, checked.dtype, buffer, name, None))


# ---- checks --------------------------------------------------------------------------------------


def check_tensor(
    function: str, shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion, machine: Machine
) -> tuple[tuple[int, ...], DType]:
    """Return the canonical shape and dtype of a new tensor, if it can exist."""
    _check_buffer(function, buffer)
    resolved = dtypes.resolve(dtype, f"{function}: dtype")
    sizes = _check_shape(function, shape)
    if buffer is SBUF or buffer is PSUM:
        return _check_tile(function, sizes, resolved, buffer, machine), resolved
    nbytes = prod(sizes) * resolved.itemsize
    if nbytes > machine.hbm_bytes_per_core:
        raise error(
            "memory",
            f"{function}: {resolved}{list(sizes)} takes {nbytes} bytes, "
            f"a core of {machine.name} reaches {machine.hbm_bytes_per_core} bytes of HBM",
        )
    return sizes, resolved


def _check_buffer(function: str, buffer: object) -> None:
    if isinstance(buffer, MemoryRegion):
        return
    known = buffer if isinstance(buffer, str) and buffer in MemoryRegion.__members__ else None
    known = "hbm" if isinstance(buffer, str) and buffer == "hbm" else known
    raise error(
        "buffer",
        f"{function}: buffer must be a memory region, got {buffer!r}",
        help=f"write buffer=nl.{known}" if known else "use nl.sbuf, nl.psum, nl.hbm or nl.shared_hbm",
    )


def _check_shape(function: str, shape: object) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        raise error(
            "shape", f"{function}: shape must be a tuple of ints, got {shape!r}", help="write (128, 512)"
        )
    if not shape:
        raise error("shape", f"{function}: a tensor needs at least one dimension, got shape {shape!r}")
    for position, size in enumerate(shape):
        if not is_int(size) or size < 1:
            raise error(
                "shape",
                f"{function}: shape {tuple(shape)}: entry {position} must be a positive int, got {size!r}",
                help="divide sizes with //" if isinstance(size, float) else None,
            )
        if position and isinstance(size, ParDim):
            raise error(
                "block-dimension",
                f"{function}: nl.par_dim is entry {position} of shape {tuple(map(int, shape))}",
                help="the first dimension of a tile is the partition dimension; make a list of tiles, "
                "or put the block dimension behind it",
            )
    return tuple(int(size) for size in shape)


def _check_tile(
    function: str, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, machine: Machine
) -> tuple[int, ...]:
    if len(shape) == 1:
        warn(
            "one-dimensional-tile",
            f"{function}: a tile has two dimensions; shape {shape} is read as {(*shape, 1)}",
            help=f"write ({shape[0]}, 1), or (1, {shape[0]}) for one partition",
        )
        shape = (*shape, 1)
    if len(shape) > 5:
        raise error("rank", f"{function}: a tile has 2 to 5 dimensions, shape {shape} has {len(shape)}")
    if shape[0] > machine.partitions:
        raise error(
            "partition-limit",
            f"{function}: shape {shape} has {shape[0]} partitions, {buffer.value} has {machine.partitions}",
            help=f"tile the first dimension by nl.tile_size.pmax ({machine.partitions})",
        )
    if _excess(shape, dtype, buffer, machine):
        warn(
            "capacity",
            f"{function}: {dtype}{list(shape)} takes {prod(shape[1:]) * dtype.itemsize} bytes per partition, "
            f"{buffer.value} of {machine.name} has {_room(buffer, machine)}",
            help="tile the free dimensions: no compiler can place this tile",
        )
    return shape


def _room(buffer: MemoryRegion, machine: Machine) -> int:
    """Return the bytes per partition of an on-chip memory."""
    return machine.psum_bytes if buffer is PSUM else machine.sbuf_usable_bytes


def _excess(shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, machine: Machine) -> bool:
    """Whether a tile could not be placed even alone."""
    on_chip = buffer is SBUF or buffer is PSUM
    return on_chip and prod(shape[1:]) * dtype.itemsize > _room(buffer, machine)


def _check_name(function: str, name: object) -> str:
    if name is None or isinstance(name, str):
        return str(name or "")
    raise error("argument", f"{function}: name must be a str, got {name!r}")


def _check_address(
    function: str,
    address: Sequence[Int],
    shape: tuple[int, ...],
    dtype: DType,
    buffer: MemoryRegion,
    machine: Machine,
) -> tuple[int, int]:
    """Return (partition, byte) of an explicit placement, if the tile fits there."""

    def refuse(why: str, help: str | None = None) -> NoReturn:
        raise error("address", f"{function}: address={address!r}: {why}", help=help)

    if not (buffer is SBUF or buffer is PSUM):
        refuse("only tiles in SBUF or PSUM can be placed", "leave address out, or choose buffer=nl.sbuf")
    pair = isinstance(address, (tuple, list)) and len(address) == 2 and all(map(is_int, address))
    if not pair or min(address) < 0:
        refuse("expected (partition, byte), two ints >= 0", "write address=(0, byte)")
    partition, byte = int(address[0]), int(address[1])
    if partition + shape[0] > machine.partitions:
        refuse(f"{shape[0]} partitions from {partition} on do not fit the {machine.partitions} there are")
    align = machine.psum_min_align if buffer is PSUM else dtype.itemsize
    if byte % align:
        refuse(f"byte {byte} is not a multiple of {align}")
    limit = _room(buffer, machine)
    end = byte + prod(shape[1:]) * dtype.itemsize
    if end > limit:
        refuse(f"the tile ends at byte {end}, {buffer.value} of {machine.name} has {limit}")
    if buffer is PSUM and byte % machine.psum_bank_bytes:
        warn(
            "psum-bank-start",
            f"{function}: address={address!r} lies inside a PSUM bank",
            help=f"start tiles at multiples of {machine.psum_bank_bytes} bytes",
        )
    return partition, byte


class ParDim(int):
    """What nl.par_dim returns: an int that may only be the first entry of a shape."""
