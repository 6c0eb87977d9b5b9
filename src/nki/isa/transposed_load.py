"""Loads and stores of columns of a tensor, as the compiler of the old API does them: TensorE transposes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from ..ir.instruction import Instruction
from ..ir.rewriting import in_place_of
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion
from .copies import TensorCopy
from .enums import TENSOR, UNKNOWN
from .transpose import NcTranspose, transposed_dtypes


def rows_and_transpose(
    load: TransferInstruction, dst: View, src: View, machine: Machine
) -> Sequence[Instruction]:
    """Return a load of rows, their transpose in PSUM and its copy; nothing if the load is of another kind."""
    partitions, columns = dst.shape[0], dst.free_elements
    kinds = transposed_dtypes(dst.dtype, machine)
    if not (_is_transposed(dst, src, machine) and kinds):
        return ()
    rows = _tile(dst, SBUF, (columns, partitions), dst.dtype)
    bank = _tile(dst, PSUM, (partitions, columns), dtypes.resolve(kinds[0]))
    plain = copy(load)
    pitch = src.strides[1] if src.ndim > 1 else partitions
    plain.dst, plain.src = rows, View(src.storage, src.offset, rows.shape, (pitch, 1), src.dtype)  # type: ignore[misc]
    target = View(dst.storage, dst.offset, bank.shape, (dst.strides[0], dst.strides[-1]), dst.dtype)
    parts = NcTranspose(bank, rows, TENSOR), TensorCopy(target, bank, UNKNOWN)
    return [plain, *(in_place_of(part, load, machine) for part in parts)]


def transpose_and_rows(
    store: TransferInstruction, dst: View, src: View, machine: Machine
) -> Sequence[Instruction]:
    """Return a transpose in PSUM, its copy and a store of rows; nothing if the store is of another kind."""
    kinds = transposed_dtypes(src.dtype, machine)
    if not (_is_transposed(src, dst, machine) and dst.ndim == 2 and dst.strides[1] > 1 and kinds):
        return ()
    shape = (src.free_elements, src.shape[0])
    rows, bank = _tile(src, SBUF, shape, src.dtype), _tile(src, PSUM, shape, dtypes.resolve(kinds[0]))
    plain = copy(store)
    plain.dst = View(dst.storage, dst.offset, shape, (dst.strides[1], 1), dst.dtype)  # type: ignore[misc]
    plain.src = rows  # type: ignore[misc]
    parts = NcTranspose(bank, src, TENSOR), TensorCopy(rows, bank, UNKNOWN)
    return [*(in_place_of(part, store, machine) for part in parts), plain]


def _is_transposed(tile: View, outside: View, machine: Machine) -> bool:
    """True when neighbours in HBM are in neighbouring partitions, at most 128 of them and as many columns."""
    most = machine.matmul_stationary_max
    if tile.buffer is not SBUF or outside.on_chip or tile.dtype != outside.dtype or tile.dtype.itemsize == 1:
        return False
    if tile.ndim != 2 or outside.ndim not in (1, 2) or outside.shape[0] != tile.shape[0]:
        return False
    fits = 1 < tile.shape[0] <= most and 1 <= tile.free_elements <= most
    return outside.strides[0] == 1 and fits and tile.dtype.is_float


def _tile(like: View, buffer: MemoryRegion, shape: tuple[int, int], dtype: DType) -> View:
    storage = Storage(buffer, shape, dtype, like.storage.name, None, like.storage.site)
    return View(storage, 0, shape, (shape[1], 1), dtype)
