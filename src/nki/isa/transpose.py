"""Transposes on the PE array and on VectorE (spec/isa_tensor.md)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..ir.context import current_machine, warn
from ..ir.instruction import In, Instruction, InstructionCost, MatmulInstruction, Out
from ..ir.semantics import Move
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF
from . import rules
from .enums import TENSOR, UNKNOWN, VECTOR, engine
from .numerics import all_hold, flat, moves_bits
from .psum import check_bank
from .public import public


def transpose_flops(source: View) -> int:
    """2 x MACs of a transpose, which is a product with an identity."""
    return 2 * source.shape[0] * source.shape[0] * source.free_elements


@lru_cache(maxsize=64)
def _identity_bits(size: int, dtype: dtypes.DType) -> np.ndarray:
    return dtypes.bits(dtypes.cast(np.eye(size, dtype=np.float32), dtype))


def is_identity(array: np.ndarray, dtype: dtypes.DType) -> bool:
    """True for a square tile of ones and zeros with the ones on the diagonal."""
    k, n = array.shape
    if k != n:
        return False
    if array.dtype == dtype.storage and all_hold(dtypes.bits(array) == _identity_bits(k, dtype)):
        return True
    return np.array_equal(f32(array, dtype), np.eye(k, dtype=np.float32))


def transposed_dtypes(source: dtypes.DType, machine: Machine) -> tuple[str, ...]:
    """The dtypes TensorE can give the transpose of `source`."""
    if not machine.transpose_exact:
        return ("float32", source) if source.castable and source.is_float else ()
    if source.itemsize == 1:  # the array writes 16-bit slots, the upper byte zero
        return ("uint16", "int16")
    return (source, "float32") if source.is_float and source.itemsize == 2 else (source,)


def move_transposed(dst: np.ndarray, target: dtypes.DType, data: np.ndarray, source: dtypes.DType) -> None:
    """dst = data.T: bits of equal dtypes, codes of bytes into 16-bit slots, else values."""
    transposed = data.T.reshape(dst.shape)
    if moves_bits(dst, target, transposed, source):
        dtypes.bits(dst)[...] = dtypes.bits(transposed)
    elif source.itemsize == 1 and target.is_integer:
        dst[...] = dtypes.bits(
            dtypes.cast(transposed, source) if transposed.dtype == np.float32 else transposed
        )
    else:
        dtypes.store(dst, f32(transposed, source), target)


def warn_not_finite(ins: Instruction, name: str) -> None:
    warn(
        "nan-transpose",
        f"{ins.public}: {name} holds NaN or infinity, which trn1 spreads over whole rows of the transpose",
        notes=[f"{name}: {getattr(ins, name).describe()}"],
        help="replace them first; from trn2 on transposes move bits",
    )


class NcTranspose(MatmulInstruction):
    """dst[j, i] = data[i, j], the free dimensions of data taken as one."""

    public = "nc_transpose"
    engines = (TENSOR, VECTOR)
    cost_formula = "Tensor max(P, min(64, F)), fp32 x4 trn1, x2 trn2+; Vector max(64, F)"
    cost_source = "spec/machine.md 4, 5.2, 6.2"

    dst: Out
    data: In
    engine: engine = UNKNOWN

    is_transpose = True

    def adds_to_dst(self) -> bool:
        return False

    def array_operand(self) -> View:
        return self.data

    def array_flops(self) -> int:
        return transpose_flops(self.data)

    def choose_engine(self, machine: Machine) -> Any:
        """By the destination buffer (spec/isa.md 1.8)."""
        return TENSOR if self.dst.buffer is PSUM and self.data.buffer is SBUF else VECTOR

    def check(self, machine: Machine) -> None:
        p, f = self.data.shape[0], self.data.free_elements
        if self.dst.shape[0] != f or self.dst.free_elements != p:
            raise rules.fail(
                self,
                "shape",
                f"dst is [{self.dst.shape[0]}, {self.dst.free_elements}], the transpose is [{f}, {p}]",
                ["dst", "data"],
            )
        chosen = self.choose_engine(machine) if self.engine is UNKNOWN else self.engine
        if chosen is TENSOR:
            self._check_tensor(machine)
        else:
            self._check_size("vector", 32)
            rules.same_dtype(self, "dst", "data")

    def _check_tensor(self, machine: Machine) -> None:
        rules.in_sbuf(self, "data")
        rules.in_psum(self, "dst")
        self._check_size("tensor", machine.matmul_stationary_max)
        source = self.data.dtype
        allowed = transposed_dtypes(source, machine)
        if self.dst.dtype not in allowed:
            raise rules.fail(
                self,
                "dtype",
                f"the tensor engine of {machine.name} does not transpose {source} into {self.dst.dtype}",
                ["dst", "data"],
                f"allocate dst as {' or '.join(allowed)}"
                if source.itemsize > 1 and allowed
                else "cast to bf16 first",
            )
        check_bank(self, self.dst, machine)

    def _check_size(self, name: str, limit: int) -> None:
        p, f = self.data.shape[0], self.data.free_elements
        if p > limit or f > limit:
            raise rules.fail(
                self,
                "free-limit",
                f"data is [{p}, {f}], the {name} engine transposes at most [{limit}, {limit}]",
                ["data"],
                f"tile data by {limit} x {limit}"
                + (", or write to PSUM with the tensor engine" if limit < 128 else ""),
            )

    def meaning(self, machine: Machine) -> Move | None:
        """Bits and values move; bytes in 16-bit slots, and products of trn1, are another matter."""
        exact = self.runs_on is not TENSOR or machine.transpose_exact
        return Move("transpose") if exact and self.dst.dtype.is_float == self.data.dtype.is_float else None

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        data = flat(data)
        if self.runs_on is TENSOR and not current_machine().transpose_exact:
            dtypes.store(dst, self._through_product(data).reshape(dst.shape), self.dst.dtype)
        else:
            move_transposed(dst, self.dst.dtype, data, self.data.dtype)

    def _through_product(self, data: np.ndarray) -> np.ndarray:
        """trn1 multiplies by the identity: one NaN or infinity spoils its row of dst."""
        values = f32(data, self.data.dtype).T + np.float32(0)  # a sum turns -0 into 0
        finite = np.isfinite(values).all(axis=1)
        if not all_hold(finite):
            warn_not_finite(self, "data")
            values[~finite] = np.nan
        return values

    def cost(self, m: Machine) -> InstructionCost:
        p, f = self.data.shape[0], self.data.free_elements
        if self.runs_on is VECTOR:
            floor = m.vector_transpose_next_ns * m.vector_ghz
            return InstructionCost(
                max(f, floor), m.fix_vector_ns, ("vector_transpose_next_ns",), m.min_ii_cycles
            )
        cycles = max(p, min(m.matmul_min_cycles, f))
        if self.data.dtype.itemsize == 4:
            cycles *= m.fp32_transpose_factor
        return InstructionCost(cycles, m.fix_tensor_ns, ("fix_tensor_ns",))


nc_transpose = public(NcTranspose)
