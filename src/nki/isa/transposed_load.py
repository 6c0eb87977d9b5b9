"""A load of columns of a tensor, as the compiler of the old API does it: rows, transposed by TensorE."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from ..ir.instruction import Instruction
from ..ir.operand_access import OperandAccess
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..ir.validation import validate
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
    return [plain, *(_validated(part, load, machine) for part in parts)]


def _is_transposed(dst: View, src: View, machine: Machine) -> bool:
    """True when neighbours in HBM go to neighbouring partitions, at most 128 of them and as many columns."""
    most = machine.matmul_stationary_max
    if dst.buffer is not SBUF or src.on_chip or dst.dtype != src.dtype or dst.dtype.itemsize == 1:
        return False
    if dst.ndim != 2 or src.ndim not in (1, 2) or src.shape[0] != dst.shape[0] or not dst.dtype.is_float:
        return False
    return src.strides[0] == 1 and 1 < dst.shape[0] <= most and 1 <= dst.free_elements <= most


def _tile(like: View, buffer: MemoryRegion, shape: tuple[int, int], dtype: DType) -> View:
    storage = Storage(buffer, shape, dtype, like.storage.name, None, like.storage.site)
    return View(storage, 0, shape, (shape[1], 1), dtype)


def _validated(instruction: Instruction, load: Instruction, machine: Machine) -> Instruction:
    """Return an instruction at the line of the load."""
    instruction.runs_on = validate(instruction, machine)
    instruction.access = OperandAccess.of(instruction)
    instruction.site, instruction.handle = load.site, load.handle
    return instruction
