"""GpSimdE: index patterns, and selections by them (spec/isa_gpsimd.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..errors import error
from ..ir.instruction import In, InstructionCost, NkiInstruction, Out, RegisterIn
from ..ir.layout import Int, is_int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes, operators
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.operators import OPERATORS, Operator
from ..typing import Number, OperatorLike
from . import rules
from .alu import COMPARISONS
from .deprecated import deprecated_order
from .gpsimd import GpsimdInstruction
from .numerics import moves_bits, shaped
from .virtual_register import VirtualRegister, is_register

# ---- affine values -------------------------------------------------------------------------------


def affine_pattern(pattern: Sequence[Sequence[Int]], function: str) -> tuple[tuple[int, int], ...]:
    """[[step, num], ...] as a tuple, outermost first."""
    is_list = isinstance(pattern, (list, tuple)) and 1 <= len(pattern) <= 4
    if not is_list or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pattern):
        raise error("pattern", f"{function}: pattern must be one to four [step, num] pairs, got {pattern!r}")
    for step, num in pattern:
        if not is_int(step) or not is_int(num) or num < 1:
            raise error(
                "pattern", f"{function}: [{step!r}, {num!r}] in pattern: a step is an int and num an int >= 1"
            )
    return tuple((int(step), int(num)) for step, num in pattern)


def affine_values(pattern: tuple, partitions: int, channel_multiplier: int, offset: int) -> np.ndarray:
    """offset + p * channel_multiplier + the steps of the pattern: [P, F] of int32 that wrap."""
    row = np.array(_int32(offset), np.int64)
    for step, num in pattern:
        row = np.add.outer(row, _int32(step) * np.arange(num))
    channels = _int32(channel_multiplier) * np.arange(partitions)
    return np.add.outer(channels.astype(np.int32), row.reshape(-1).astype(np.int32))


def _int32(value: Int) -> int:
    """A Python int wrapped to 32 bits."""
    return (int(value) + 2**31) % 2**32 - 2**31


def _now(offset: Int | VirtualRegister) -> int:
    """The value of an offset when its instruction runs."""
    return offset.as_index() if is_register(offset) else int(offset)


@lru_cache(maxsize=32)  # a masked kernel asks for the same few triangles again and again
def _fails(cmp_op: Operator, *affine: Any) -> np.ndarray:
    """Where an affine value does not compare with 0 as asked."""
    return np.logical_not(cmp_op.formula(affine_values(*affine), 0))  # type: ignore[misc]


def _check_affine(ins: Iota | AffineSelect) -> None:
    """The numbers of iota and affine_select, and that they fill dst."""
    if is_register(ins.channel_multiplier) or not is_int(ins.channel_multiplier):
        raise rules.fail(
            ins, "argument", f"channel_multiplier must be an int, got {ins.channel_multiplier!r}"
        )
    if not is_register(ins.offset) and not is_int(ins.offset):
        raise rules.fail(ins, "argument", f"offset must be an int or a register, got {ins.offset!r}")
    count = prod(num for _, num in ins.pattern)
    if count != ins.dst.free_elements:
        raise rules.fail(
            ins,
            "shape",
            f"pattern makes {count} values per partition, dst has {ins.dst.free_elements}",
            ["dst"],
            "the nums of the pattern must multiply to the elements per partition of dst",
        )


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[Int]],
    offset: Int | VirtualRegister = 0,
    channel_multiplier: Int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst[p, w, z, y, x] = offset + p * channel_multiplier + w * step_w + ... + x * step_x."""
    return issue(Iota(dst, affine_pattern(pattern, "iota"), offset, channel_multiplier, name))


class Iota(GpsimdInstruction):
    """32-bit integers; p counts from the first partition of dst."""

    public = "iota"
    cost_formula = "150 + N"

    dst: Out
    pattern: tuple
    offset: RegisterIn
    channel_multiplier: Any

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        rules.castable(self, "dst")
        _check_affine(self)

    def compute(self, dst: np.ndarray) -> None:
        values = affine_values(self.pattern, dst.shape[0], self.channel_multiplier, _now(self.offset))
        values = values.reshape(dst.shape)
        if self.dst.dtype in ("int32", "uint32"):
            dst[...] = values.view(dst.dtype)
        else:
            dtypes.store(dst, values.astype(np.float32), self.dst.dtype)

    def cost(self, m: Machine) -> InstructionCost:
        return self.cost_of(m, "gpsimd_one_input", self.dst.free_elements)


def _is_old_affine_select(args: tuple) -> bool:
    """NKI 0.2 had offset and channel_multiplier before on_true_tile."""
    if len(args) < 5 or not isinstance(args[4], View):
        return False
    return all(rules.is_number(a) or is_register(a) for a in args[2:4])


_OLD_AFFINE_SELECT = (
    "dst",
    "pattern",
    "offset",
    "channel_multiplier",
    "on_true_tile",
    "on_false_value",
    "cmp_op",
    "name",
)


@deprecated_order(_OLD_AFFINE_SELECT, _is_old_affine_select)
def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[Int]],
    channel_multiplier: Int,
    on_true_tile: NkiTensor,
    on_false_value: Number,
    cmp_op: OperatorLike = OPERATORS["equal"],
    offset: Int | VirtualRegister = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true_tile where cmp_op(a, 0) holds, else on_false_value; a is the value iota would write."""
    cmp_op = operators.resolve(cmp_op, "affine_select", "cmp_op")
    pattern = affine_pattern(pattern, "affine_select")
    return issue(
        AffineSelect(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op, offset, name)
    )


class AffineSelect(GpsimdInstruction):
    """Equal dtypes are copied bit by bit; the number is a float32 constant."""

    public = "affine_select"
    cost_formula = "150 + N"

    dst: Out
    pattern: tuple
    channel_multiplier: Any
    on_true_tile: In
    on_false_value: Any
    cmp_op: Operator
    offset: RegisterIn

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        rules.matching_values(self, "dst", "on_true_tile")
        rules.operator(self, "cmp_op", COMPARISONS)
        _check_affine(self)
        if not rules.is_number(self.on_false_value):
            raise rules.fail(
                self, "argument", f"on_false_value must be a number, got {self.on_false_value!r}", ["dst"]
            )

    def compute(self, dst: np.ndarray, on_true: np.ndarray) -> None:
        channels = int(self.channel_multiplier)
        fills = _fails(self.cmp_op, self.pattern, dst.shape[0], channels, _now(self.offset))
        fill = np.empty((), dst.dtype)
        dtypes.store(fill, np.asarray(self.on_false_value, np.float32), self.dst.dtype)
        on_true = shaped(on_true, dst)
        if not moves_bits(dst, self.dst.dtype, on_true, self.on_true_tile.dtype):
            dtypes.store(dst, f32(on_true, self.on_true_tile.dtype), self.dst.dtype)
        elif dst is not on_true:
            dtypes.bits(dst)[...] = dtypes.bits(on_true)
        np.copyto(dtypes.bits(dst), dtypes.bits(fill), where=fills.reshape(dst.shape))

    def cost(self, m: Machine) -> InstructionCost:
        return self.cost_of(m, "gpsimd_one_input", self.dst.free_elements)
