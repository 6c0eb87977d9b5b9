"""Creating tensors (spec/language.md 9, spec/tensor.md 8)."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
from collections.abc import Callable
from math import prod
from typing import Any, NoReturn, Union

import numpy as np

from .. import isa
from ..errors import error, user_site
from ..ir.context import current, warn
from ..ir.layout import Int, is_int
from ..ir.storage import Lease, Storage
from ..ir.tensor import NkiTensor, Template, whole
from ..ir.view import View
from ..launch.core import Core
from ..machine import dtypes
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, SHARED_HBM, MemoryRegion
from ..machine.operators import OPERATORS

# (platform, shape, types of its entries, dtype, buffer) -> what to allocate
_CHECKED: dict[tuple, Template] = {}
_CHECKED_LIMIT = 1 << 16
_STAGE_BYTES = 32 * 1024  # per partition of the SBUF tile through which HBM is filled


def allocate(
    function: str, shape: Any, dtype: Any, buffer: Any = SBUF, name: Any = "", address: Any = None
) -> NkiTensor:
    """A fresh tensor for the public function named; its checks are remembered, for loops call it per tile."""
    core = current()
    key: tuple | None
    try:
        key = (core.machine.name, tuple(shape), tuple(map(type, shape)), dtype, buffer)
        checked = _CHECKED.get(key)
    except TypeError:  # not a sequence, or something unhashable: the check says what
        key = checked = None
    if checked is None:
        checked = Template(*_check(function, shape, dtype, buffer, core.machine))
        quiet = len(checked.shape) == len(shape) and not _excess(
            checked.shape, checked.dtype, buffer, core.machine
        )
        if key is not None and quiet:  # what is said of a shape is said again on the next line
            if len(_CHECKED) >= _CHECKED_LIMIT:
                _CHECKED.clear()
            _CHECKED[key] = checked
    sizes, resolved = checked.shape, checked.dtype
    if name.__class__ is not str:
        name = _check_name(function, name)
    if address is not None:
        address = _check_address(function, address, sizes, resolved, buffer, core.machine)
        return whole(*core.allocate(sizes, resolved, buffer, name, address))
    return checked.tensor(*core.allocate(sizes, resolved, buffer, name, None))


# ---- checks --------------------------------------------------------------------------------------


def _check(
    function: str, shape: Any, dtype: Any, buffer: Any, machine: Machine
) -> tuple[tuple[int, ...], DType]:
    """The canonical shape and dtype of a new tensor, if it can exist."""
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


def _check_buffer(function: str, buffer: Any) -> None:
    if isinstance(buffer, MemoryRegion):
        return
    known = buffer if isinstance(buffer, str) and buffer in MemoryRegion.__members__ else None
    known = "hbm" if isinstance(buffer, str) and buffer == "hbm" else known
    raise error(
        "buffer",
        f"{function}: buffer must be a memory region, got {buffer!r}",
        help=f"write buffer=nl.{known}" if known else "use nl.sbuf, nl.psum, nl.hbm or nl.shared_hbm",
    )


def _check_shape(function: str, shape: Any) -> tuple[int, ...]:
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


def _room(buffer: Any, machine: Machine) -> int:
    """Bytes per partition of an on-chip memory."""
    return machine.psum_bytes if buffer is PSUM else machine.sbuf_usable_bytes


def _excess(shape: tuple[int, ...], dtype: DType, buffer: Any, machine: Machine) -> bool:
    """A tile that could not be placed even alone."""
    on_chip = buffer is SBUF or buffer is PSUM
    return on_chip and prod(shape[1:]) * dtype.itemsize > _room(buffer, machine)


def _check_name(function: str, name: Any) -> str:
    if name is None or isinstance(name, str):
        return str(name or "")
    raise error("argument", f"{function}: name must be a str, got {name!r}")


def _check_address(
    function: str, address: Any, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, machine: Machine
) -> tuple[int, int]:
    """(partition, byte) of an explicit placement, if the tile fits there."""

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


# ---- uninitialised -------------------------------------------------------------------------------


class _Ndarray:
    """A function that also serves as an annotation, as in `bias: nl.ndarray | None`."""

    __name__ = __qualname__ = "ndarray"
    __module__ = "nki.language"

    def __init__(self) -> None:
        self.__doc__ = "A new tensor with undefined contents; `address=(partition, byte)` places a tile."
        self.__signature__ = inspect.signature(self.__call__)

    def __call__(self, shape, dtype, buffer=SBUF, name="", address=None):
        return allocate("ndarray", shape, dtype, buffer, name, address)

    def __get__(self, instance: Any, owner: type | None = None) -> _Ndarray:
        return self  # lets help() show it as the function it is

    def __or__(self, other: Any) -> Any:
        return Union[NkiTensor, NkiTensor if other is self else other]  # noqa: UP007

    __ror__ = __or__

    def __repr__(self) -> str:
        return "<function nl.ndarray>"


ndarray = _Ndarray()


def empty_like(x, dtype=None, buffer=None, name=""):
    """A new tensor with undefined contents and the shape, dtype and buffer of x unless given."""
    return _like("empty_like", x, dtype, buffer, name)


def _like(function: str, x: Any, dtype: Any, buffer: Any, name: Any) -> NkiTensor:
    if not isinstance(x, View):
        current()
        raise error("argument", f"{function}: x must be a tensor, got {type(x).__name__}")
    return allocate(
        function, x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name
    )


# ---- filled --------------------------------------------------------------------------------------


def zeros(shape, dtype, buffer=SBUF, name=""):
    """A new tensor filled with zeros."""
    return _filled(allocate("zeros", shape, dtype, buffer, name), 0)


def ones(shape, dtype, buffer=SBUF, name=""):
    """A new tensor filled with ones."""
    return _filled(allocate("ones", shape, dtype, buffer, name), 1)


def full(shape, fill_value, dtype, buffer=SBUF, name=""):
    """A new tensor filled with a number; an integer dtype takes an int."""
    return _filled(allocate("full", shape, dtype, buffer, name), fill_value)


def zeros_like(x, dtype=None, buffer=None, name=""):
    """A new tensor of zeros with the shape, dtype and buffer of x unless given."""
    return _filled(_like("zeros_like", x, dtype, buffer, name), 0)


def _filled(tensor: NkiTensor, value: Any) -> NkiTensor:
    if tensor.on_chip:
        isa.memset(tensor, value)
        return tensor
    tile = _stage(tensor)
    isa.memset(tile, value)
    _write_through(tile, tensor, lambda: None)
    return tensor


def _stage(tensor: NkiTensor) -> NkiTensor:
    """An SBUF tile through which an HBM tensor is written."""
    columns = -(-tensor.size // Machine.partitions)
    columns = min(columns, _STAGE_BYTES // tensor.dtype.itemsize)
    return allocate("full", (min(Machine.partitions, tensor.size), columns), tensor.dtype, SBUF)


def _write_through(tile: NkiTensor, tensor: NkiTensor, refill: Callable[[], Any]) -> None:
    """Copy `tile` to every stretch of `tensor`, with a new content for each."""
    flat = tensor.reshape((tensor.size,))
    columns = tile.shape[1]
    for start in range(0, tensor.size, tile.size):
        refill()
        rows, rest = divmod(min(tile.size, tensor.size - start), columns)
        stop = start + rows * columns
        if rows:
            isa.dma_copy(flat[start:stop].reshape((rows, columns)), tile[0:rows])
        if rest:
            isa.dma_copy(flat[stop : stop + rest].reshape((1, rest)), tile[0:1, 0:rest])


# ---- random --------------------------------------------------------------------------------------


def rand(shape, dtype, buffer=SBUF, name=""):
    """A new tensor of random numbers, uniform in [0, 1)."""
    tensor = allocate("rand", shape, dtype, buffer, name)
    if not (tensor.dtype.is_float and tensor.dtype.castable):
        raise error(
            "dtype",
            f"rand: dtype {tensor.dtype} cannot hold numbers in [0, 1)",
            help="draw nl.float32; nisa.rng draws random integers",
        )
    if tensor.on_chip:
        _draw(tensor)
        return tensor
    tile = _stage(tensor)
    _write_through(tile, tensor, lambda: _draw(tile))
    return tensor


def _draw(tile: NkiTensor) -> None:
    if current().machine.generation >= 4:
        isa.rand2(tile, 0.0, 1.0)
        return
    bits = allocate("rand", tile.shape, dtypes.uint32)
    isa.rng(bits)
    isa.tensor_scalar(bits, bits, OPERATORS["right_shift"], 8)
    isa.tensor_scalar(tile, bits, OPERATORS["multiply"], 2.0**-24)


# ---- constants -----------------------------------------------------------------------------------

_TESTED_CONSTANTS = (
    dtypes.float32,
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.int32,
    dtypes.int16,
    dtypes.int8,
    dtypes.uint32,
    dtypes.uint16,
    dtypes.uint8,
    dtypes.float8_e4m3fn,
    dtypes.float8_e5m2,
    dtypes.float8_e8m0fnu,
)
_UNTESTED_CONSTANTS = (
    dtypes.float8_e5m2_x4,
    dtypes.float8_e4m3fn_x4,
    dtypes.float4_e2m1fn_x4,
    dtypes.tfloat32,
)


def shared_constant(constant):
    """A shared HBM tensor holding a numpy array, or the contents of a .npy file. It cannot be written."""
    core = current()
    array = _constant_array(constant)
    dtype = dtypes.resolve(array.dtype, "shared_constant: dtype")
    if dtype in _UNTESTED_CONSTANTS:
        warn("untested-on-hardware", f"shared_constant: {dtype} constants are not tested on hardware")
    elif dtype not in _TESTED_CONSTANTS:
        raise error(
            "dtype",
            f"shared_constant: {dtype} cannot be a constant",
            help=f"allowed: {', '.join(_TESTED_CONSTANTS)}",
        )
    _check(f"shared_constant of {array.shape}", array.shape, dtype, SHARED_HBM, core.machine)
    key = (dtype, array.shape, hashlib.blake2b(array.tobytes()).digest())
    _check_same_constant(core, key)
    return _constant(core, key, dtype, lambda: array)


def _constant_array(constant: Any) -> np.ndarray:
    if isinstance(constant, (str, os.PathLike)):
        try:
            with open(constant, "rb") as file:
                content = file.read()
            digest = hashlib.blake2b(content).hexdigest()
            current().launch.python.files.append((os.path.abspath(constant), digest))
            return np.load(io.BytesIO(content), allow_pickle=False)
        except (OSError, ValueError) as problem:
            raise error(
                "argument",
                f"shared_constant: {os.fspath(constant)!r} cannot be read as a .npy file: {problem}",
            ) from None
    if isinstance(constant, np.ndarray):
        return np.ascontiguousarray(constant) if constant.ndim else constant
    raise error(
        "argument",
        f"shared_constant: expected a numpy array or the path of a .npy file, got {type(constant).__name__}",
        help="np.asarray(values, dtype=np.float32)",
    )


def _check_same_constant(core: Core, key: tuple) -> None:
    """The n-th constant of every core holds the same data."""
    number = core.counts.constants
    core.counts.constants += 1
    order = core.launch.shared.constant_order
    if number == len(order):
        order.append(key)
    elif order[number] != key:
        raise error(
            "lnc-divergence",
            f"shared_constant: core {core.index} passes other data than another core did",
            help="constants are shared by all cores: they must not depend on nl.program_id",
        )


def _constant(core: Core, key: tuple, dtype: DType, make: Callable[[], np.ndarray]) -> NkiTensor:
    """The tensor of some constant data; equal data is stored once."""
    launch = core.launch
    found = launch.shared.constants.get(key)
    if found is None:
        array = make()
        core.counts.storages += 1
        storage = Storage(
            SHARED_HBM,
            array.shape,
            dtype,
            site=user_site(2),
            number=core.counts.storages,
            constant=True,
            call=launch.call,
        )
        raw = np.array(array).reshape(-1).view(np.uint8)
        core.memories.borrow(storage, raw)
        found = launch.shared.constants[key] = (storage, Lease(storage, core.memories), raw)
    return whole(*found[:2])


def shared_identity_matrix(n, dtype=dtypes.uint8, dst=None):
    """An n x n identity in SBUF, or in the tile `dst`, whose dtype then counts."""
    core = current()
    if not is_int(n) or n < 1:
        raise error("shape", f"shared_identity_matrix: n must be a positive int, got {n!r}")
    if dst is not None:
        _check_identity_target(n, dst)
    target = dst if dst is not None and dst.buffer is SBUF else None
    resolved = dtypes.resolve(dtype if dst is None else dst.dtype, "shared_identity_matrix: dtype")
    if target is None:
        target = allocate("shared_identity_matrix", (n, n), resolved)
    identity = _constant(core, ("identity", resolved), resolved, lambda: _identity(resolved))
    isa.dma_copy(target, identity[0:n, 0:n])
    if dst is not None and dst is not target:
        isa.tensor_copy(dst, target)
    return target if dst is None else dst


def _identity(dtype: DType) -> np.ndarray:
    return dtypes.cast(np.eye(Machine.partitions, dtype=np.float32), dtype)


def _check_identity_target(n: Int, dst: object) -> None:
    if not isinstance(dst, View):
        raise error("argument", f"shared_identity_matrix: dst must be a tile, got {type(dst).__name__}")
    if not dst.on_chip:
        raise error(
            "buffer",
            "shared_identity_matrix: dst must be in SBUF or PSUM, it is in HBM",
            notes=[f"dst: {dst.describe()}"],
        )
    if tuple(dst.shape) != (n, n):
        raise error(
            "shape",
            f"shared_identity_matrix: dst has shape {tuple(dst.shape)}, the identity has {(n, n)}",
            notes=[f"dst: {dst.describe()}"],
        )


__all__ = [
    "empty_like",
    "full",
    "ndarray",
    "ones",
    "rand",
    "shared_constant",
    "shared_identity_matrix",
    "zeros",
    "zeros_like",
]
