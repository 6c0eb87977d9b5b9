"""ScalarE: activation functions of scaled and shifted tiles, optionally reduced (spec/isa_scalar.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..ir.context import current, warn
from ..ir.instruction import (
    In,
    Instruction,
    InstructionCost,
    NkiInstruction,
    Operand,
    OptionalOut,
    Out,
    State,
)
from ..ir.semantics import Move
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import activations as special
from ..machine import dtypes, operators
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.memories import PSUM
from ..machine.operators import OPERATORS, Operator
from ..typing import OperatorLike, TileOrNumber
from . import accumulators, rules
from .accumulators import ReducingInstruction
from .costs import held_back
from .enums import SCALAR, reduce_cmd
from .numerics import apply, column, scratch, shaped

ADD, BYPASS, COPY = OPERATORS["add"], OPERATORS["bypass"], OPERATORS["copy"]
COMMANDS = (reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reduce, reduce_cmd.reset_reduce)


class ActivationInstruction(ReducingInstruction):
    """What the three share: the function, the registers it may reduce into, and the cost."""

    engines = (SCALAR,)
    indirect = ("dst", "data")
    state = (State.scalar_accumulator,)
    cost_formula = "max(64, N); + 64 trn1, 185 ns trn2+ to read the registers"
    cost_source = "spec/machine.md 4, 7"
    REDUCTIONS: ClassVar[tuple[str, ...]] = ("add",)
    columns: ClassVar[tuple[str, ...]] = ()  # operands that are numbers or [P, 1] tiles

    if TYPE_CHECKING:
        dst: View
        op: Operator
        data: View
        reduce_op: Operator

    def check_activation(self, machine: Machine) -> None:
        rules.matching_values(self, "dst", "data")
        if self.op.activation is None:
            raise rules.fail(
                self,
                "op",
                f"{self.op!r} is not an activation function",
                [],
                f"allowed: {', '.join(special.ACTIVATIONS)}",
            )
        accumulators.check(self, COMMANDS, like="data", idle_reads=True)
        if self.reduces:
            rules.operator(self, "reduce_op", self.REDUCTIONS)

    def touches(self) -> tuple[State, ...]:
        return self.state if self.reduces else ()

    def activation_table(self) -> str:
        return self.op.name

    def activate(self, dst: np.ndarray, z: np.ndarray, reduce_res: np.ndarray | None, **options: Any) -> None:
        """dst = op(z); the registers see the float32 results before the cast."""
        self._warn_range(z)
        function: Any = self.op.activation
        is_ufunc = function.__class__ is np.ufunc
        straight = is_ufunc and dst.dtype == np.float32 and self.dst.dtype is not dtypes.tfloat32
        if straight:
            values = function(z, out=dst)
        elif is_ufunc:
            values = function(z, out=scratch(z.shape, z))  # z may be this scratch array itself
        else:
            values = function(z, **options)
        lanes = self._reduce(values) if self.reduces else None
        if not straight:
            dtypes.store(dst, values, self.dst.dtype)
        if reduce_res is not None:
            assert lanes is not None
            dtypes.store(reduce_res, lanes.reshape(reduce_res.shape), self.reduce_res.dtype)

    def _reduce(self, values: np.ndarray) -> np.ndarray:
        idle = self.reduce_cmd is reduce_cmd.idle
        defined = current().engine_state.scalar.defined
        if idle and defined < len(values):
            warn(
                "acc-undefined",
                f"{self.public}: reduce_res reads registers that hold nothing",
                notes=[f"{defined} of {len(values)} accumulator registers are defined"],
                help="pass reduce_cmd=nisa.reduce_cmd.reset_reduce to reduce this tile",
            )
        return accumulators.step("scalar", self.reduce_cmd, self.reduce_op, values, user=self.public)

    def _warn_range(self, z: np.ndarray) -> None:
        outside = special.outside_valid_range(self.op.name, z)
        if outside is None:
            return
        low, high = special.VALID_RANGES[self.op.name]
        what = "magnitudes" if self.op.name == "reciprocal" else "inputs"
        warn(
            "act-range",
            f"{self.public}: {self.op!r} takes {what} from {low:.4g} to {high:.4g}, got {outside[0]:.6g}",
            notes=[f"{outside.size} of {z.size} inputs are outside", f"data: {self.data.describe()}"],
            help="bring the inputs into range first; hardware gives other results than the exact ones here",
        )

    def cost(self, m: Machine) -> InstructionCost:
        rests_on = ["scalar_activation", "scalar_access_cycles"]
        cycles, shortest = m.scalar_activation * self.data.free_elements, float(m.min_ii_cycles)
        from_psum = self.data.buffer is PSUM
        fix = m.fix_activation_psum_ns if from_psum else m.fix_activation_ns
        if self.op is COPY:
            fix = m.fix_scalar_psum_copy_ns if from_psum else m.fix_scalar_copy_ns
        if self.reduce_res is not None:
            rests_on += ["accumulator_read_ns", "fix_accumulator_read_ns"]
            cycles += m.accumulator_read_ns * m.scalar_ghz
            shortest += m.accumulator_read_ns * m.scalar_ghz
            fix = m.fix_accumulator_read_ns
        # a bias is read by its address in any case: its time is part of the fixed one
        tiles = sum(isinstance(getattr(self, name), View) for name in self.columns if name != "bias")
        if tiles:
            rests_on.append("scalar_operand_ns")
        fix += tiles * m.scalar_operand_ns
        gap = m.scalar_access_cycles + held_back(m, fix) * m.scalar_ghz
        return InstructionCost(cycles, fix, tuple(rests_on), shortest, gap)


def _check_column(ins: Instruction, name: str) -> None:
    """A number, or a [P, 1] tile of any dtype that converts to float32."""
    if getattr(ins, name) is None:
        raise rules.fail(ins, "argument", f"{name} must be a number or a [P, 1] tile, got None")
    rules.column(ins, name, like="data")
    rules.castable(ins, name)


def _function(op: OperatorLike, public: str) -> Operator:
    return op if op.__class__ is Operator else operators.resolve(op, public)


def _reduction(op: OperatorLike | None, public: str) -> Operator:
    """None means add."""
    if op is None:
        return ADD
    return op if op.__class__ is Operator else operators.resolve(op, public, "reduce_op")


def activation(
    dst: NkiTensor,
    op: OperatorLike,
    data: NkiTensor,
    bias: TileOrNumber | None = None,
    scale: TileOrNumber = 1.0,
    reduce_op: OperatorLike | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias); the sum over each partition may go to the registers and reduce_res."""
    op, reduce_op = _function(op, "activation"), _reduction(reduce_op, "activation")
    return issue(Activation(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, name))


class Activation(ActivationInstruction):
    public = "activation"
    columns = ("bias", "scale")

    dst: Out
    op: Operator
    data: In
    bias: Operand
    scale: Operand
    reduce_op: Operator
    reduce_res: OptionalOut
    reduce_cmd: reduce_cmd

    def check(self, machine: Machine) -> None:
        self.check_activation(machine)
        _check_column(self, "scale")
        rules.float32_column(self, "scale", like="data")
        if self.bias is not None:
            self._check_bias(machine)

    def _check_bias(self, machine: Machine) -> None:
        _check_column(self, "bias")
        constant = rules.is_number(self.bias)
        if not constant and self.bias.dtype == "tfloat32":
            raise rules.fail(
                self,
                "dtype",
                "bias cannot be tfloat32",
                ["bias"],
                "convert it with nisa.tensor_copy to float32",
            )
        if self.op.name == "reciprocal" and not (constant and self.bias == 0):
            rules.generation(self, 3, machine, "a bias of nl.reciprocal")
        if constant and machine.generation < 3:
            warn(
                "bias-constant",
                f"{self.public}: on {machine.name} bias must be a tile, got {self.bias!r}",
                help="memset a [P, 1] tile and pass it as bias",
            )

    def meaning(self, machine: Machine) -> Move | None:
        is_copy = (
            self.op is COPY and not self.reduces and self.dst.dtype.is_float and self.data.dtype.is_float
        )
        are_numbers = not isinstance(self.scale, View) and not isinstance(self.bias, View)
        is_direct = self.dst.indirection is None and self.data.indirection is None
        unscaled = is_copy and are_numbers and is_direct and self.scale == 1 and not self.bias
        return Move(through_float32=True) if unscaled else None

    def compute(self, dst, data, bias, scale, reduce_res) -> None:
        z = shaped(f32(data, self.data.dtype), dst)
        if isinstance(self.scale, View) or scale != 1:
            z = np.multiply(z, column(scale, self.scale, z.ndim), out=scratch(z.shape, z))
        if isinstance(self.bias, View) or (bias is not None and bias != 0):
            z = np.add(z, column(bias, self.bias, z.ndim), out=scratch(z.shape, z))
        self.activate(dst, z, reduce_res)


def activation_reduce(
    dst: NkiTensor,
    op: OperatorLike,
    data: NkiTensor,
    reduce_op: OperatorLike,
    reduce_res: NkiTensor | None,
    bias: TileOrNumber | None = None,
    scale: TileOrNumber = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias), reduce_res = its sum over each partition."""
    op, reduce_op = _function(op, "activation_reduce"), _reduction(reduce_op, "activation_reduce")
    command = reduce_cmd.reset_reduce
    return issue(ActivationReduce(dst, op, data, bias, scale, reduce_op, reduce_res, command, name))


class ActivationReduce(Activation):
    public = "activation_reduce"


def activate2(
    dst: NkiTensor,
    op: OperatorLike,
    data: NkiTensor,
    imm0: TileOrNumber | None,
    imm1: TileOrNumber | None,
    op0: OperatorLike | None,
    op1: OperatorLike | None,
    relu_param: TileOrNumber = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: OperatorLike | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op((data <op0> imm0) <op1> imm1); its reduction may go to the registers and reduce_res."""
    return issue(
        Activate2(
            dst,
            _function(op, "activate2"),
            data,
            imm0,
            imm1,
            _stage(op0, "op0"),
            _stage(op1, "op1"),
            relu_param,
            reverse0,
            reverse1,
            _reduction(reduce_op, "activate2"),
            reduce_res,
            reduce_cmd,
            name,
        )
    )


def _stage(op: OperatorLike | None, argument: str) -> Operator:
    """None leaves the stage out."""
    if op is None:
        return BYPASS
    return op if op.__class__ is Operator else operators.resolve(op, "activate2", argument)


class Activate2(ActivationInstruction):
    public = "activate2"
    since = 4
    columns = ("imm0", "imm1", "relu_param")
    REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")
    STAGES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("multiply", "add"),
        ("multiply", "subtract"),
        ("multiply", "bypass"),
        ("add", "bypass"),
        ("subtract", "bypass"),
        ("bypass", "bypass"),
    )

    dst: Out
    op: Operator
    data: In
    imm0: Operand
    imm1: Operand
    op0: Operator
    op1: Operator
    relu_param: Operand
    reverse0: bool
    reverse1: bool
    reduce_op: Operator
    reduce_res: OptionalOut
    reduce_cmd: reduce_cmd

    def check(self, machine: Machine) -> None:
        self.check_activation(machine)
        if (self.op0.name, self.op1.name) not in self.STAGES:
            pairs = ", ".join(f"({a}, {b})" for a, b in self.STAGES)
            raise rules.fail(
                self,
                "op",
                f"(op0, op1) = ({self.op0!r}, {self.op1!r}) is not possible",
                [],
                f"allowed: {pairs}",
            )
        for stage, reverse in (("op0", "reverse0"), ("op1", "reverse1")):
            if getattr(self, reverse) and getattr(self, stage) is BYPASS:
                raise rules.fail(self, "op", f"{reverse} needs an {stage}, it is nl.bypass")
        _check_column(self, "relu_param")
        for name, op in (("imm0", self.op0), ("imm1", self.op1)):
            if op is not BYPASS or getattr(self, name) is not None:
                _check_column(self, name)
        rules.same_dtype(self, "imm0", "imm1")

    def compute(self, dst, data, imm0, imm1, relu_param, reduce_res) -> None:
        z = shaped(f32(data, self.data.dtype), dst)
        if self.op0 is not BYPASS:
            z = apply(self.op0, z, column(imm0, self.imm0, z.ndim), self.reverse0)
        if self.op1 is not BYPASS:
            z = apply(self.op1, z, column(imm1, self.imm1, z.ndim), self.reverse1)
        slope = {"slope": column(relu_param, self.relu_param, z.ndim)} if self.op.name == "prelu" else {}
        self.activate(dst, z, reduce_res, **slope)
