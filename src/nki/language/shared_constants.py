"""Constants in HBM that all cores share, and the identity matrix (spec/language.md 9)."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from math import prod

import numpy as np

from .. import isa
from ..errors import error, user_site
from ..files import read_bytes
from ..ir.context import current, warn
from ..ir.layout import Int, is_int
from ..ir.storage import Lease, Storage
from ..ir.tensor import NkiTensor, whole
from ..ir.view import View
from ..launch.core import Core
from ..machine import dtypes
from ..machine.dtypes import DType, DTypeLike
from ..machine.machine import Machine
from ..machine.memories import SBUF, SHARED_HBM
from .allocation import allocate, check_tensor

LARGEST = 4 << 30  # bytes of a .npy file
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


def shared_constant(constant: np.ndarray | str | os.PathLike[str]) -> NkiTensor:
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
    check_tensor(f"shared_constant of {array.shape}", array.shape, dtype, SHARED_HBM, core.machine)
    key = (dtype, array.shape, hashlib.blake2b(array.tobytes()).digest())
    _check_same_constant(core, key)
    return _constant(core, key, dtype, lambda: array)


def _constant_array(constant: object) -> np.ndarray:
    if isinstance(constant, (str, os.PathLike)):
        try:
            content = read_bytes(constant, LARGEST)
            digest = hashlib.blake2b(content).hexdigest()
            current().launch.python.files.append((os.path.abspath(constant), digest))
            return _npy_array(content)
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


def _npy_array(content: bytes) -> np.ndarray:
    """Return the array of a .npy file; ValueError unless its bytes are those that its header describes."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, is_fortran, dtype = read_header(file)
    size = prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or size != len(content) - file.tell():
        raise ValueError(f"{dtype}{list(shape)} is not what its {len(content):,} bytes hold")
    array: np.ndarray = np.frombuffer(content, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if is_fortran else "C")


def _check_same_constant(core: Core, key: tuple) -> None:
    """Check that the n-th constant of every core holds the same data."""
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
    """Return the tensor of some constant data; equal data is stored once."""
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


def shared_identity_matrix(
    n: Int, dtype: DTypeLike = dtypes.uint8, dst: NkiTensor | None = None
) -> NkiTensor:
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
