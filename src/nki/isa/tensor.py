"""TensorE: matrix products and transposes into PSUM (spec/isa_tensor.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..backends.reference.blas import add_product
from ..ir.context import current_machine, warn
from ..ir.instruction import WHOLE_ARRAY, Accumulated, In, InstructionCost, NkiInstruction, PeTile
from ..ir.layout import Int, is_int
from ..ir.semantics import MatrixProduct
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes
from ..machine.dtypes import f32
from ..machine.machine import Machine
from . import rules
from .deprecated import current_keywords, hide_old_keywords
from .enums import matmul_perf_mode, member
from .numerics import all_hold, flat, scratch
from .psum import AccumulatingMatmul, check_bank
from .transpose import is_identity, move_transposed, transpose_flops, transposed_dtypes, warn_not_finite

FLOAT_INPUTS = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "tfloat32", "float32")
FP8 = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")
FULL_PRECISION = ("float32", "tfloat32")
GATHERED = ("float16", "bfloat16", *FP8)  # what an index tile may pick for TensorE


def _as_tuple(value: object) -> Any:
    """Nothing, or a pair; what is no list is left to the checks."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (tuple, list)) else value


class TiledMatmul(AccumulatingMatmul):
    """A product of two tiles in SBUF, on a part of the PE array."""

    if TYPE_CHECKING:
        stationary: View
        moving: View
        is_stationary_onezero: bool
        is_moving_onezero: bool
        tile_position: tuple[int, ...]
        tile_size: tuple[int, ...]

    @property
    def halves(self) -> int:
        """Rows of the contraction that one partition holds."""
        return 1

    def check_tiling(self, machine: Machine) -> tuple[int, int]:
        """(rows, columns) of the PE tile in use."""
        position, size = self.tile_position, self.tile_size
        if not position and not size:
            return machine.partitions, machine.matmul_stationary_max
        if not position or not size:
            raise rules.fail(self, "shape", "give tile_position and tile_size together, or neither")
        if len(position) != 2 or len(size) != 2 or not all(map(is_int, (*position, *size))):
            raise rules.fail(
                self,
                "shape",
                f"tile_position {position} and tile_size {size} must be pairs of ints (row, column)",
            )
        for what, start, extent in zip(("row", "column"), position, size, strict=True):
            if extent not in machine.pe_tile_sizes:
                allowed = ", ".join(map(str, machine.pe_tile_sizes))
                raise rules.fail(
                    self, "shape", f"tile_size {what} is {extent}, {machine.name} takes {allowed}"
                )
            if start % extent or start < 0 or start + extent > 128:
                raise rules.fail(
                    self, "shape", f"tile_position {what} {start} is not a multiple of {extent} below 128"
                )
        self._warn_physical_tile(position)
        return size

    def _warn_physical_tile(self, position: tuple[int, int]) -> None:
        for name, wanted in (("stationary", position[0]), ("moving", position[0]), ("dst", position[1])):
            view = getattr(self, name)
            placed = view.storage.address is not None or view.start_partition
            if placed and view.start_partition != wanted:
                warn(
                    "pe-tile",
                    f"{self.public}: {name} starts at partition {view.start_partition}, "
                    f"the PE tile works at {wanted}",
                    notes=[f"{name}: {view.describe()}"],
                    help="stationary and moving start at the tile's row, dst at its column",
                )

    def check_destination(self, machine: Machine, rows: int, columns: int) -> None:
        """dst is [M, N] in PSUM, within the bank and size limits of the generation."""
        self.check_accumulate()
        if self.dst.shape[0] != rows or self.dst.free_elements != columns:
            raise rules.fail(
                self,
                "shape",
                f"dst is [{self.dst.shape[0]}, {self.dst.free_elements}], the product is [{rows}, {columns}]",
                ["dst", "stationary", "moving"],
            )
        limit = machine.matmul_moving_max if self.dst.dtype.itemsize == 4 else machine.matmul_moving_max_bf16
        rules.at_most(
            self,
            "moving",
            columns,
            limit,
            "columns",
            f"tile the free dimension by nl.tile_size.gemm_moving_fmax ({machine.gemm_moving_fmax})",
        )
        check_bank(self, self.dst, machine)

    def is_onezero(self) -> bool:
        return self.is_stationary_onezero or self.is_moving_onezero

    def array_operand(self) -> View:
        return self.stationary

    def pe_tile(self) -> PeTile:
        if not self.tile_size:
            return WHOLE_ARRAY
        (row, column), (rows, columns) = self.tile_position, self.tile_size
        return PeTile(range(row, row + rows), range(column, column + columns))

    def array_flops(self) -> int:
        if self.is_transpose:
            return transpose_flops(self.stationary)
        k = self.stationary.shape[0] * (4 if self.stationary.dtype.is_packed else 1) * self.halves
        m, n = self.stationary.free_elements // self.halves, self.moving.free_elements // self.halves
        return 2 * k * m * n


_OLD_KEYWORDS = {"is_moving_zero": "is_moving_onezero", "psumAccumulateFlag": None}


@hide_old_keywords
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Sequence[Int] = (),
    tile_size: Sequence[Int] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
    **old: Any,
) -> NkiInstruction:
    """dst[M, N] = stationary[K, M].T @ moving[K, N] into PSUM, overwriting or accumulating."""
    if old:
        renamed = current_keywords("nc_matmul", old, _OLD_KEYWORDS)
        is_moving_onezero = is_moving_onezero or renamed.get("is_moving_onezero", False)
    if perf_mode.__class__ is not matmul_perf_mode:
        perf_mode = member(perf_mode, matmul_perf_mode, "nc_matmul", "perf_mode")
    return issue(
        (MatmulTranspose if is_transpose else NcMatmul)(
            dst,
            stationary,
            moving,
            is_stationary_onezero,
            is_moving_onezero,
            is_transpose,
            accumulate,
            _as_tuple(tile_position),
            _as_tuple(tile_size),
            perf_mode,
            name,
        )
    )


class NcMatmul(TiledMatmul):
    public = "nc_matmul"
    indirect: ClassVar[tuple[str, ...]] = ("dst", "stationary", "moving")
    float32_inputs: ClassVar[tuple[int, ...]] = (1, 2)
    cost_formula = "max(N, 64) cycles; fp32 x4 (x2 with a one/zero operand); pairs overlap"
    cost_source = "spec/machine.md 5.2"

    dst: Accumulated
    stationary: In
    moving: In
    is_stationary_onezero: bool
    is_moving_onezero: bool
    is_transpose: bool
    accumulate: bool | None
    tile_position: tuple
    tile_size: tuple
    perf_mode: matmul_perf_mode

    @property
    def is_double_row(self) -> bool:
        return self.perf_mode is matmul_perf_mode.double_row

    @property
    def halves(self) -> int:
        """Rows of the contraction that one partition holds."""
        return 2 if self.is_double_row else 1

    # ---- rules -----------------------------------------------------------------------------------

    def check(self, machine: Machine) -> None:
        rules.in_sbuf(self, "stationary", "moving")
        rules.in_psum(self, "dst")
        rows, columns = self.check_tiling(machine)
        self._check_inputs(machine)
        self.check_output(machine)
        self._check_gathered()
        k = self.stationary.shape[0]
        if k != self.moving.shape[0]:
            raise rules.fail(
                self,
                "shape",
                f"stationary has {k} partitions (K), moving has {self.moving.shape[0]}",
                ["stationary", "moving"],
                "both operands hold the contraction dimension in their partitions",
            )
        if k > rows:
            raise rules.fail(self, "shape", f"K is {k}, the PE tile has {rows} rows", ["stationary"])
        if self.is_double_row:
            self._check_double_row(machine, columns)
        m, n = self.stationary.free_elements // self.halves, self.moving.free_elements // self.halves
        rules.at_most(
            self,
            "stationary",
            m,
            columns,
            "columns",
            f"tile it by nl.tile_size.gemm_stationary_fmax ({columns})",
        )
        self.check_destination(machine, m, n)

    def _check_inputs(self, machine: Machine) -> None:
        s, mv = self.stationary.dtype, self.moving.dtype
        allowed = [d for d in FLOAT_INPUTS if d != "float8_e4m3fn" or machine.generation >= 4]
        for name in ("stationary", "moving"):
            rules.dtype_in(self, name, allowed, "convert it with nisa.tensor_copy (float8_e4m3fn needs trn3)")
        if (s in FULL_PRECISION) != (mv in FULL_PRECISION):
            self.refuse_mixture(f"stationary is {s} and moving is {mv}: float32 pairs only with float32")
        if {s, mv} == {"float8_e4m3", "float8_e4m3fn"}:
            raise rules.fail(
                self, "dtype", "float8_e4m3 and float8_e4m3fn cannot be mixed", ["stationary", "moving"]
            )

    def refuse_mixture(self, message: str) -> None:
        help = "convert one of them with nisa.tensor_copy"
        raise rules.fail(self, "dtype", message, ["stationary", "moving"], help)

    def check_output(self, machine: Machine) -> None:
        allowed = ("float32", "bfloat16") if machine.generation >= 4 else ("float32",)
        if self.dst.dtype not in allowed:
            raise rules.fail(
                self,
                "dtype",
                f"dst is {self.dst.dtype}, {machine.name} accumulates in {' or '.join(allowed)}",
                ["dst"],
                "allocate the PSUM tile as nl.float32 and cast when you copy it out",
            )

    def _check_gathered(self) -> None:
        """What changes when an index tile picks the columns of an operand."""
        for name in ("dst", "stationary", "moving"):
            ind = getattr(self, name).indirection
            if ind is None or ind.kind != "tensor":
                continue
            rules.dtype_in(self, name, GATHERED, "an index tile picks 16- and 8-bit floats only")
            if self.tile_position not in ((), (0, 0)):
                raise rules.fail(
                    self,
                    "indirect-view",
                    f"{name} is addressed by an index tile, tile_position must be (0, 0)",
                    [name],
                )

    def _check_double_row(self, machine: Machine, columns: int) -> None:
        def refuse(why: str, *names: str) -> Exception:
            return rules.fail(self, "perf-mode", f"double_row {why}", names)

        if machine.generation < 3:
            raise refuse(f"needs trn2, this kernel targets {machine.name}")
        if self.is_transpose:
            raise refuse("cannot be combined with is_transpose")
        if columns != 128:
            raise refuse(f"needs all 128 columns of the array, tile_size gives {columns}")
        for name, most in (("stationary", 128), ("moving", 512)):
            view = getattr(self, name)
            if view.dtype not in FP8:
                raise refuse(f"needs fp8 inputs, {name} is {view.dtype}", name)
            if view.ndim < 3 or view.shape[1] != 2:
                raise refuse(f"needs {name} of shape [K, 2, ...], got {tuple(view.shape)}", name)
            if view.free_elements > 2 * most:
                raise refuse(f"takes at most {most} columns, {name} has {view.free_elements // 2}", name)

    # ---- meaning ---------------------------------------------------------------------------------

    def meaning(self, machine: Machine) -> MatrixProduct | None:
        plain = self.perf_mode is matmul_perf_mode.none and self.dst.dtype is dtypes.float32
        hinted = self.is_stationary_onezero or self.is_moving_onezero  # `compute` checks the values
        return MatrixProduct(self.accumulate) if plain and not hinted else None

    def compute(self, dst: np.ndarray, stationary: np.ndarray, moving: np.ndarray) -> None:
        stationary, moving = self._contraction(stationary), self._contraction(moving)
        if self.is_stationary_onezero or self.is_moving_onezero:
            self._verify_onezero(stationary, moving)
        written = self.written_before()
        overwrites = self.overwrites(written)
        if overwrites and dst.dtype == np.float32 and dst.ndim == 2:
            np.matmul(stationary.T, moving, out=dst)
            return
        adds = not overwrites and written is True and self.dst.dtype == "float32"
        if adds and add_product(dst, stationary, moving):
            return
        product = np.matmul(stationary.T, moving, out=scratch((stationary.shape[1], moving.shape[1]), moving))
        self.accumulate_into(dst, product.reshape(dst.shape))

    def _contraction(self, operand: np.ndarray) -> np.ndarray:
        """[K, M]; of double_row [2K, M], for [K, 2, M] holds K more rows in its second half."""
        if self.perf_mode is not matmul_perf_mode.double_row:
            return flat(operand)
        k = operand.shape[0]
        return operand.reshape(k, 2, -1).transpose(1, 0, 2).reshape(2 * k, -1)

    def _verify_onezero(self, stationary: np.ndarray, moving: np.ndarray) -> None:
        """A wrong hint makes hardware drop digits of float32 operands."""
        for name, values in (("stationary", stationary), ("moving", moving)):
            hinted = getattr(self, f"is_{name}_onezero")
            if hinted and getattr(self, name).dtype == "float32" and not all_hold(values * values == values):
                warn(
                    "onezero",
                    f"{self.public}: is_{name}_onezero is set, but {name} holds other numbers than 1 and 0",
                    notes=[f"{name}: {getattr(self, name).describe()}"],
                    help="leave the hint out",
                )

    def cost(self, m: Machine) -> InstructionCost:
        cycles, factor, pairs = max(self.moving.free_elements // self.halves, m.matmul_min_cycles), 1, 1
        if self.stationary.dtype == "float32":
            hinted = self.is_stationary_onezero or self.is_moving_onezero
            factor = m.fp32_transpose_factor if self.is_transpose else m.fp32_matmul_factor
            factor = min(factor, m.fp32_onezero_factor) if hinted else factor
            pairs = min(factor, m.fp32_matmul_pairs)
        held = float(cycles * factor + m.matmul_gap_cycles * pairs)
        return InstructionCost(held, m.fix_tensor_ns, ("fix_tensor_ns", "matmul_gap_cycles"))


class MatmulTranspose(NcMatmul):
    """nc_matmul(is_transpose=True): stationary passes through an identity. Bits move from trn2 on."""

    indirect = ("dst", "stationary")
    float32_inputs = ()

    def meaning(self, machine: Machine) -> None:
        return None  # it depends on the values of moving

    def refuse_mixture(self, message: str) -> None:
        warn(
            "dtype-differs", f"{self.public}: {message}", help="make the identity of the dtype of stationary"
        )

    def check_output(self, machine: Machine) -> None:
        if self.accumulate:
            raise rules.fail(self, "op", "is_transpose overwrites, it cannot accumulate")
        source = self.stationary.dtype
        allowed = (source, *transposed_dtypes(source, machine)) if machine.transpose_exact else ("float32",)
        rules.dtype_in(self, "dst", dict.fromkeys(allowed), f"this is what a transpose of {source} gives")

    def compute(self, dst: np.ndarray, stationary: np.ndarray, moving: np.ndarray) -> None:
        stationary, moving = flat(stationary), flat(moving)
        regular = is_identity(moving, self.moving.dtype)
        if regular and current_machine().transpose_exact:
            move_transposed(dst, self.dst.dtype, stationary, self.stationary.dtype)
            return
        left, right = f32(stationary, self.stationary.dtype), f32(moving, self.moving.dtype)
        if not regular:
            warn(
                "transpose-identity",
                "nc_matmul: is_transpose needs a square identity as moving",
                notes=[f"moving: {self.moving.describe()}"],
                help="make it with nl.shared_identity_matrix, or leave is_transpose out",
            )
        elif not all_hold(np.isfinite(left)):
            warn_not_finite(self, "stationary")
        dtypes.store(dst, np.matmul(left.T, right).reshape(dst.shape), self.dst.dtype)
