"""TensorE: matrix products into PSUM (isa_tensor.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..core import issue, warn
from ..machine import Machine
from ..program import Cost, In, Instruction, Out
from . import rules
from .enums import TENSOR, matmul_perf_mode, member
from .numerics import flat, scratch

FLOAT_INPUTS = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "tfloat32", "float32")
FP8 = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")
FULL_PRECISION = ("float32", "tfloat32")


def nc_matmul(
    dst,
    stationary,
    moving,
    is_stationary_onezero=False,
    is_moving_onezero=False,
    is_transpose=False,
    accumulate=None,
    tile_position=(),
    tile_size=(),
    perf_mode=matmul_perf_mode.none,
    name=None,
):
    """dst[M, N] = stationary[K, M].T @ moving[K, N] into PSUM, overwriting or accumulating."""
    return issue(
        NcMatmul(
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


def _as_tuple(value: Any) -> Any:
    return tuple(value) if value else ()


class MatmulInstruction(Instruction):
    """What nc_matmul and nc_matmul_mx share: PE tiling, the PSUM side, accumulation."""

    engines = (TENSOR,)
    accumulates = True

    def check_tiling(self: Any, machine: Machine) -> tuple[int, int]:
        """(rows, columns) of the PE tile in use."""
        position, size = self.tile_position, self.tile_size
        if not position and not size:
            return machine.partitions, machine.matmul_stationary_max
        if not position or not size:
            raise rules.fail(self, "shape", "give tile_position and tile_size together, or neither")
        if len(position) != 2 or len(size) != 2:
            raise rules.fail(self, "shape", f"tile_position {position} and tile_size {size} are (row, column) pairs")
        for what, start, extent in zip(("row", "column"), position, size, strict=True):
            if extent not in machine.pe_tile_sizes:
                allowed = ", ".join(map(str, machine.pe_tile_sizes))
                raise rules.fail(self, "shape", f"tile_size {what} is {extent}, {machine.name} takes {allowed}")
            if start % extent or start < 0 or start + extent > 128:
                raise rules.fail(self, "shape", f"tile_position {what} {start} is not a multiple of {extent} below 128")
        self._warn_physical_tile(position)
        return size

    def _warn_physical_tile(self: Any, position: tuple[int, int]) -> None:
        for name, wanted in (("stationary", position[0]), ("moving", position[0]), ("dst", position[1])):
            view = getattr(self, name)
            placed = view.storage.address is not None or view.start_partition
            if placed and view.start_partition != wanted:
                warn(
                    "pe-tile",
                    f"{self.public}: {name} starts at partition {view.start_partition}, "
                    f"the PE tile works at {wanted}",
                    notes=[f"{name}: {view.describe()}"],
                )

    def check_destination(self: Any, machine: Machine, rows: int, columns: int) -> None:
        """dst is [M, N] in PSUM, within the bank and size limits of the generation."""
        if self.dst.shape[0] != rows or self.dst.free_elements != columns:
            raise rules.fail(
                self,
                "shape",
                f"dst is [{self.dst.shape[0]}, {self.dst.free_elements}], the product is [{rows}, {columns}]",
                ["dst", "stationary", "moving"],
            )
        limit = machine.matmul_moving_max if self.dst.dtype == "float32" else machine.matmul_moving_max_bf16
        rules.at_most(
            self,
            "moving",
            columns,
            limit,
            "columns",
            f"tile the free dimension by nl.tile_size.gemm_moving_fmax ({machine.gemm_moving_fmax})",
        )
        if machine.matmul_bank_limited and crosses_bank(self.dst, machine):
            raise rules.fail(
                self,
                "psum-bank",
                f"dst crosses a PSUM bank boundary ({machine.psum_bank_bytes} bytes per partition)",
                ["dst"],
                "one matmul writes one bank; slice dst at multiples of 512 float32 columns",
            )

    def accumulate_into(self: Any, dst: np.ndarray, product: np.ndarray, written: Any) -> None:
        """Overwrite, add, or per element whichever the earlier matmuls of this tile ask for."""
        if self.accumulate is False or (self.accumulate is None and written is False):
            dtypes.store(dst, product, self.dst.dtype)
            return
        if self.accumulate is True and written is not True:
            warn(
                "psum-uninit",
                f"{self.public}: accumulate=True onto a region no matmul has written",
                notes=[f"dst: {self.dst.describe()}"],
                help="let the first matmul of a group pass accumulate=False (or None)",
            )
        if self.accumulate is None and written is not True:
            warn(
                "psum-mixed",
                f"{self.public}: part of dst was written by a matmul before, part was not",
                notes=[f"dst: {self.dst.describe()}"],
                help="hardware has one flag per instruction; split the matmul",
            )
            old = np.where(written, dtypes.f32(dst, self.dst.dtype), np.float32(0))
        else:
            old = dtypes.f32(dst, self.dst.dtype)
        if old is dst and self.dst.dtype == "float32":
            np.add(dst, product, out=dst)
        else:
            dtypes.store(dst, old + product, self.dst.dtype)


class NcMatmul(MatmulInstruction):
    public = "nc_matmul"
    widened = (1, 2)
    cost_formula = "max(N, 64) cycles; fp32 x4 (x2 with a one/zero operand); pairs overlap"
    cost_source = "machine.md 5.2"

    dst: Out
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

    def check(self, machine: Machine) -> None:
        rules.in_sbuf(self, "stationary", "moving")
        rules.in_psum(self, "dst")
        self.perf_mode = member(self.perf_mode, matmul_perf_mode, self.public, "perf_mode")
        rows, columns = self.check_tiling(machine)
        self._check_dtypes(machine)
        s, mv = self.stationary, self.moving
        if s.shape[0] != mv.shape[0]:
            raise rules.fail(
                self,
                "shape",
                f"stationary has {s.shape[0]} partitions (K), moving has {mv.shape[0]}",
                ["stationary", "moving"],
                "both operands hold the contraction dimension in their partitions",
            )
        if s.shape[0] > rows:
            raise rules.fail(self, "shape", f"K is {s.shape[0]}, the PE tile has {rows} rows", ["stationary"])
        if self.is_double_row:
            self._check_double_row(machine, columns)
        halves = 2 if self.is_double_row else 1
        m, n = s.free_elements // halves, mv.free_elements // halves
        rules.at_most(
            self, "stationary", m, columns, "columns", f"tile it by nl.tile_size.gemm_stationary_fmax ({columns})"
        )
        self.check_destination(machine, m, n)

    def _check_dtypes(self, machine: Machine) -> None:
        s, mv, dst = self.stationary.dtype, self.moving.dtype, self.dst.dtype
        for name in ("stationary", "moving"):
            rules.dtype_in(self, name, FLOAT_INPUTS, "convert it with nisa.tensor_copy")
            if getattr(self, name).dtype == "float8_e4m3fn":
                rules.generation(self, 4, machine, "float8_e4m3fn")
        if not self.is_transpose and (s in FULL_PRECISION) != (mv in FULL_PRECISION):
            raise rules.fail(
                self,
                "dtype",
                f"stationary is {s} and moving is {mv}: float32 pairs only with float32",
                ["stationary", "moving"],
                "convert one of them with nisa.tensor_copy",
            )
        if {s, mv} == {"float8_e4m3", "float8_e4m3fn"}:
            raise rules.fail(self, "dtype", "float8_e4m3 and float8_e4m3fn cannot be mixed", ["stationary", "moving"])
        if self.is_transpose:
            self._check_transpose(machine)
        else:
            allowed = ("float32", "bfloat16") if machine.generation >= 4 else ("float32",)
            if dst not in allowed:
                raise rules.fail(
                    self,
                    "dtype",
                    f"dst is {dst}, {machine.name} accumulates in {' or '.join(allowed)}",
                    ["dst"],
                    "allocate the PSUM tile as nl.float32 and cast when you copy it out",
                )

    def _check_transpose(self, machine: Machine) -> None:
        s, dst = self.stationary.dtype, self.dst.dtype
        if self.accumulate is True:
            raise rules.fail(self, "op", "is_transpose overwrites, it cannot accumulate")
        wanted = (s, "float32") if machine.transpose_exact and s.itemsize == 2 else (s,)
        if not machine.transpose_exact:
            wanted = ("float32",)
        if dst not in wanted:
            raise rules.fail(
                self, "dtype", f"a transpose of {s} needs a dst of {' or '.join(wanted)}, got {dst}", ["dst"]
            )

    def _check_double_row(self, machine: Machine, columns: int) -> None:
        def refuse(why: str, *names: str) -> Exception:
            return rules.fail(self, "perf-mode", f"double_row {why}", names)

        rules.generation(self, 3, machine, "double_row")
        if self.is_transpose:
            raise refuse("cannot be combined with is_transpose")
        if columns != 128:
            raise refuse(f"needs all 128 columns of the array, tile_size gives {columns}")
        for name in ("stationary", "moving"):
            view = getattr(self, name)
            if view.dtype not in FP8:
                raise refuse(f"needs fp8 inputs, {name} is {view.dtype}", name)
            if view.ndim < 3 or view.shape[1] != 2:
                raise refuse(f"needs {name} of shape [K, 2, ...], got {tuple(view.shape)}", name)
        if self.moving.free_elements > 1024:
            raise refuse(f"takes at most 512 columns, moving has {self.moving.free_elements // 2}", "moving")

    def compute(self, dst: Any, stationary: np.ndarray, moving: np.ndarray, written: Any) -> None:
        stationary, moving = flat(stationary), flat(moving)
        if self.is_double_row:  # [K, 2, M]: the second half is K more rows of the contraction
            stationary = np.concatenate(np.split(stationary, 2, axis=1))
            moving = np.concatenate(np.split(moving, 2, axis=1))
        if self.is_transpose:
            dtypes.store(dst, self._transposed(stationary, moving).reshape(dst.shape), self.dst.dtype)
            return
        direct = (
            (self.accumulate is False or (self.accumulate is None and written is False))
            and dst.dtype == np.float32
            and dst.ndim == 2
        )
        if direct:
            np.matmul(stationary.T, moving, out=dst)
            return
        product = np.matmul(stationary.T, moving, out=scratch((stationary.shape[1], moving.shape[1])))
        self.accumulate_into(dst, product.reshape(dst.shape), written)

    def _transposed(self, stationary: np.ndarray, moving: np.ndarray) -> np.ndarray:
        """A move of bits when `moving` is the identity it should be, else the general product."""
        k, n = moving.shape
        if k == n and np.array_equal(moving, np.eye(k, dtype=np.float32)):
            return stationary.T
        warn(
            "transpose-identity",
            "nc_matmul: is_transpose needs a square identity as moving",
            notes=[f"moving: {self.moving.describe()}"],
        )
        return np.matmul(stationary.T, moving)

    def cost(self, m: Machine) -> Cost:
        n = self.moving.free_elements // (2 if self.is_double_row else 1)
        cycles = max(n, m.matmul_min_cycles) + m.matmul_gap_cycles
        if self.stationary.dtype == "float32":
            hinted = self.is_stationary_onezero or self.is_moving_onezero
            factor = m.fp32_onezero_factor if hinted else m.fp32_matmul_factor
            cycles *= m.fp32_transpose_factor if self.is_transpose else factor
        return Cost(cycles, m.fix_tensor_ns, ("fix_tensor_ns",))


def crosses_bank(dst: Any, machine: Machine) -> bool:
    """True when an access of PSUM touches more than one bank."""
    bank = machine.psum_bank_bytes
    width = dst.dtype.itemsize
    base = dst.storage.address[1] if dst.storage.address else 0
    first = base + dst.free_offset * width
    reach = sum((n - 1) * s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True))
    return first // bank != (first + (reach + 1) * width - 1) // bank
