"""Microscaling (MX), trn3: four-packed elements, a scale per 32 (spec/isa_tensor.md, spec/isa_vector.md).

A group of 32 is 8 partitions x the 4 lanes of one packed element. Its scale, a power of two, sits in one of
the first four partitions of the quadrant that holds the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import error
from ..ir.context import current, warn
from ..ir.instruction import Accumulated, In, Instruction, InstructionCost, NkiInstruction, Out
from ..ir.layout import Int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes
from ..machine.dtypes import DType, bits
from ..machine.machine import Machine
from . import rules
from .costs import VectorInstruction
from .numerics import Array, all_hold, flat, shaped
from .tensor import TiledMatmul

PACKED = ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")
PACKED_FP8 = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}  # the largest exponent of a lane
SCALES = ("float8_e8m0fnu", "uint8")
QUADRANT, GROUP, LANES = 32, 8, 4  # partitions, partitions, elements
SCALE_ROWS = QUADRANT // GROUP
SCALE_STARTS = (0, 4, 8, 12)  # four sets of scales may share a quadrant
BIAS, LARGEST_CODE = 127, 254  # code 255 is NaN

_FACTORS = np.ldexp(1.0, np.arange(256) - BIAS)
_FACTORS[255] = np.nan
_FLOAT32_FACTORS = _FACTORS.astype(np.float32)
_MAY_OVERFLOW = 240  # from this code on, an element times its scale may leave float32


def scale_rows(partitions: int) -> np.ndarray:
    """The partition of a scale tile that serves each group of 8 data partitions."""
    group = np.arange(partitions // GROUP)
    return QUADRANT * (group // SCALE_ROWS) + group % SCALE_ROWS


def scale_parts(scale: View, partitions: int) -> list[View]:
    """Return the rows of a scale tile that hold the scales of these partitions."""
    return [scale[start : start + SCALE_ROWS] for start in range(0, partitions, QUADRANT)]


def check_scale(ins: Instruction, name: str, partitions: int, columns: int) -> None:
    """A scale tile with four rows at the start of each quadrant of the data, and enough columns."""
    scale = getattr(ins, name)
    rules.in_sbuf(ins, name)
    rules.dtype_in(ins, name, SCALES, "allocate it as nl.float8_e8m0fnu")
    needed = partitions - QUADRANT + SCALE_ROWS
    if scale.shape[0] < needed:
        raise rules.fail(
            ins,
            "shape",
            f"{name} has {scale.shape[0]} partitions, {partitions} partitions of data need {needed}",
            [name],
            "the scales of each 32 partitions sit in the first 4 of these partitions",
        )
    if scale.free_elements < columns:
        raise rules.fail(
            ins,
            "shape",
            f"{name} has {scale.free_elements} elements per partition, the data needs {columns}",
            [name],
            "there is one scale for each packed element of 8 partitions",
        )
    if scale.start_partition % QUADRANT not in SCALE_STARTS:
        warn(
            "mx-scale",
            f"{ins.public}: {name} starts at partition {scale.start_partition}; "
            "inside a quadrant scales may start at 0, 4, 8, 12",
            notes=[f"{name}: {scale.describe()}"],
        )


def check_quadrants(ins: Instruction, name: str) -> None:
    """The operand fills whole quadrants."""
    padded = -(-getattr(ins, name).shape[0] // QUADRANT) * QUADRANT
    wanted = f"MX works on multiples of {QUADRANT}"
    rules.partition_multiple(ins, name, QUADRANT, wanted, f"pad it with zeros to {padded} partitions")


def quantize_mx(
    dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst = src in packed MXFP8, dst_scale = a power of two for each group of 8 partitions x 4 elements."""
    doubled = current().execution.options.since("0.5")
    return issue((QuantizeMx if doubled else QuantizeMxOcp)(dst, src, dst_scale, name))


class QuantizeMx(VectorInstruction):
    public = "quantize_mx"
    since = 4
    zero_fills = True
    doubling = 1  # the scale is 2^doubling times that of OCP
    cost_formula = "max(64, N/4)"

    dst: Out
    src: In
    dst_scale: Out

    def check(self, machine: Machine) -> None:
        rules.start_partition(self, machine, "dst", "src")
        rules.in_sbuf(self, "src", "dst")
        rules.dtype_in(self, "src", ("bfloat16", "float16"), "convert it with nisa.tensor_copy")
        rules.dtype_in(self, "dst", PACKED_FP8, "the engine quantizes to MXFP8 only")
        check_quadrants(self, "src")
        if self.src.free_elements % LANES:
            raise rules.fail(
                self,
                "shape",
                f"src has {self.src.free_elements} elements per partition, it must be a multiple of {LANES}",
                ["src"],
            )
        rules.same_partitions(self, "src", "dst")
        rules.elements(self, "dst", self.packed, ", a quarter of those of src")
        check_scale(self, "dst_scale", self.src.shape[0], self.packed)
        if self.dst_scale.free_elements > self.packed:
            warn(
                "mx-scale",
                f"quantize_mx: dst_scale has {self.dst_scale.free_elements} elements per partition, "
                f"{self.packed} are written",
                notes=[f"dst_scale: {self.dst_scale.describe()}"],
                help="slice it to the elements of dst",
            )

    @property
    def packed(self) -> int:
        """Packed elements per partition."""
        return self.src.free_elements // LANES

    def parts(self, index: int) -> list[View] | None:
        return scale_parts(self.dst_scale, self.src.shape[0]) if index == 2 else None

    def compute(self, dst: np.ndarray, src: np.ndarray, dst_scale: np.ndarray) -> None:
        values = flat(dtypes.f32(src, self.src.dtype))
        values = values.reshape(-1, GROUP, self.packed, LANES)
        codes = self.scale_codes(np.maximum.reduce(np.abs(values), axis=(1, 3)))
        factors = dtypes.entries(_FLOAT32_FACTORS, 2 * BIAS - codes)
        lanes = self.limited(values * factors[:, None, :, None])
        lanes = lanes.reshape(dst.shape[0], self.packed, LANES)
        dst[...] = shaped(dtypes.pack_x4(lanes, self.dst.dtype), dst)
        rows, columns = scale_rows(src.shape[0]), np.arange(self.packed)
        place = (rows[:, None], *np.unravel_index(columns, dst_scale.shape[1:]))
        bits(dst_scale)[place] = codes.astype(np.uint8)

    def scale_codes(self, largest: np.ndarray) -> np.ndarray:
        """Twice the OCP scale: the largest element lands one binade below the end of the range."""
        exponents = (bits(largest) >> np.uint32(23)).astype(np.int32)  # as codes; that of no number is 255
        return np.clip(exponents - (PACKED_FP8[self.dst.dtype] - self.doubling), 0, LARGEST_CODE)

    def limited(self, lanes: np.ndarray) -> np.ndarray:
        """Nothing lies beyond the range."""
        return lanes

    def cost(self, m: Machine) -> InstructionCost:
        cycles = m.vector_quantize_mx * self.src.free_elements
        return InstructionCost(cycles, m.fix_vector_ns, ("fix_vector_ns",), m.min_ii_cycles)


class QuantizeMxOcp(QuantizeMx):
    """Before NKI 0.5: the scale of OCP itself, and what lies beyond the range saturates."""

    doubling = 0

    def limited(self, lanes: np.ndarray) -> np.ndarray:
        largest = float(ml_dtypes.finfo(self.dst.dtype.lane).max)
        return np.clip(lanes, -largest, largest)


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: Sequence[Int] | None = None,
    tile_size: Sequence[Int] | None = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst[M, N] = stationary[K, M].T @ moving[K, N] of packed MX elements times their scales, into PSUM."""
    _check_same_index("stationary", stationary, stationary_scale)
    _check_same_index("moving", moving, moving_scale)
    return issue(
        NcMatmulMx(
            dst,
            stationary,
            moving,
            stationary_scale,
            moving_scale,
            tuple(tile_position or ()),
            tuple(tile_size or ()),
            accumulate,
            name,
        )
    )


def _check_same_index(name: str, data: NkiTensor, scale: NkiTensor) -> None:
    """Elements and scales are one tensor: an index tile that gathers one gathers the other."""
    index, scale_index = _index_tile(data), _index_tile(scale)
    same = index is scale_index
    if index is not None and scale_index is not None:
        same = index.storage is scale_index.storage and index.sig == scale_index.sig
    if not same:
        raise error(
            "indirect-view",
            f"nc_matmul_mx: {name} and {name}_scale must be gathered by the same index tile",
            notes=[f"{name}: {data.describe()}", f"{name}_scale: {scale.describe()}"],
            help="call .indirect(index) with one index on both, or on neither",
        )


def _index_tile(view: object) -> Any:
    indirection = view.indirection if isinstance(view, View) else None
    return indirection.index if indirection is not None and indirection.kind == "tensor" else None


class NcMatmulMx(TiledMatmul):
    public = "nc_matmul_mx"
    since = 4
    indirect = ("dst", "stationary", "moving", "stationary_scale", "moving_scale")
    is_transpose = is_stationary_onezero = is_moving_onezero = False
    cost_formula = "max(N, 64) cycles"
    cost_source = "spec/machine.md 5.2"

    dst: Accumulated
    stationary: In
    moving: In
    stationary_scale: In
    moving_scale: In
    tile_position: tuple
    tile_size: tuple
    accumulate: bool | None

    def check(self, machine: Machine) -> None:
        rules.start_partition(self, machine, "dst", "stationary", "moving")
        rules.in_sbuf(self, "stationary", "moving")
        rules.in_psum(self, "dst")
        rules.dtype_in(self, "stationary", PACKED, "quantize it with nisa.quantize_mx")
        rules.dtype_in(self, "moving", PACKED, "quantize it with nisa.quantize_mx")
        rules.dtype_in(self, "dst", ("float32", "bfloat16"))
        rows, columns = self.check_tiling(machine)
        if columns != machine.matmul_stationary_max:
            raise rules.fail(self, "shape", f"tile_size is {self.tile_size}, MX tiles rows only: (rows, 128)")
        self._check_contraction(rows)
        self._check_indirect()
        k, m, n = self.stationary.shape[0], self.stationary.free_elements, self.moving.free_elements
        if m % 2:
            raise rules.fail(
                self, "shape", f"stationary has {m} columns (M), MX needs an even number", ["stationary"]
            )
        rules.at_most(self, "stationary", m, columns, "columns", f"tile it by {columns}")
        check_scale(self, "stationary_scale", k, m)
        check_scale(self, "moving_scale", k, n)
        self.check_destination(machine, m, n)

    def _check_contraction(self, rows: int) -> None:
        rules.same_partitions(self, "stationary", "moving")
        check_quadrants(self, "stationary")
        k = self.stationary.shape[0]
        if k > rows:
            raise rules.fail(self, "shape", f"K is {k}, the PE tile has {rows} rows", ["stationary"])

    def _check_indirect(self) -> None:
        gathered = any(_index_tile(view) is not None for view in self.operands())
        if gathered and self.tile_position not in ((), (0, 0)):
            raise rules.fail(
                self,
                "indirect-view",
                f"tile_position is {self.tile_position}, an operand gathered by an index tile needs (0, 0)",
            )

    def parts(self, index: int) -> list[View] | None:
        return scale_parts(self.operands()[index], self.stationary.shape[0]) if index > 2 else None

    def compute(
        self, dst: Array, stationary: Array, moving: Array, stationary_scale: Array, moving_scale: Array
    ) -> None:
        left = dequantize(stationary, self.stationary.dtype, stationary_scale)
        right = dequantize(moving, self.moving.dtype, moving_scale)
        product = np.matmul(left.T, right).astype(np.float32, copy=False)
        self.accumulate_into(dst, product.reshape(dst.shape))

    def cost(self, m: Machine) -> InstructionCost:
        cycles = max(self.moving.free_elements, m.matmul_min_cycles) + m.matmul_gap_cycles
        return InstructionCost(cycles, m.fix_tensor_ns, ("fix_tensor_ns",))


def dequantize(packed: np.ndarray, dtype: DType, scale: np.ndarray) -> np.ndarray:
    """The values of [K, N] packed elements as [4K, N]: the lanes are rows of the contraction."""
    packed = flat(packed)
    k, n = packed.shape
    codes = bits(flat(scale))[:, :n][scale_rows(k)]
    values, factors = dtypes.unpack_x4(packed, dtype), _FLOAT32_FACTORS
    if not all_hold(codes < _MAY_OVERFLOW):  # the other operand's scale may bring the product back
        values, factors = values.astype(np.float64), _FACTORS
    values *= np.repeat(dtypes.entries(factors, codes), GROUP, axis=0)[:, :, None]
    return values.transpose(0, 2, 1).reshape(LANES * k, n)
