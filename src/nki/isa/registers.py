"""Scalar registers of the sequencers, and queries of the target (spec/isa_registers_sync.md)."""

from __future__ import annotations

import numpy as np

from ..errors import error
from ..ir.context import current_machine, warn
from ..ir.instruction import In, Instruction, InstructionCost, NkiInstruction, Out, RegisterIn, RegisterOut
from ..ir.layout import Int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine.machine import Machine
from ..machine.memories import PRIVATE_HBM, SBUF, SHARED_HBM
from . import rules
from .deprecated import deprecated_keywords
from .enums import nc_version
from .virtual_register import VirtualRegister, as_value, is_register, writable


def register_alloc(x: Int | VirtualRegister | NkiTensor | None = None) -> VirtualRegister:
    """A register: uninitialised, or holding an int, a copy of a register, or a one-element tensor's value."""
    register = VirtualRegister()
    if isinstance(x, View):
        register_load(register, x)
    elif x is not None:
        register_move(register, x)
    return register


@deprecated_keywords(imm="src")
def register_move(dst: VirtualRegister, src: Int | VirtualRegister) -> NkiInstruction:
    """dst = src, a compile-time int or another register."""
    writable(dst, "register_move")
    return issue(RegisterMove(dst, src if is_register(src) else as_value(src, "register_move")))


class RegisterInstruction(Instruction):
    """What the sequencers do by themselves."""

    reaches_hbm = True
    cost_formula = "register_ns"
    cost_source = "spec/machine.md 10"

    def cost(self, machine: Machine) -> InstructionCost:
        return InstructionCost(0, machine.register_ns, ("register_ns",))


class RegisterMove(RegisterInstruction):
    public = "register_move"
    cost_formula = "register_move_ns"
    cost_source = "spec/machine.md 4, 10"

    dst: RegisterOut
    src: RegisterIn

    def compute(self) -> None:
        self.dst.set(self.src.read() if is_register(self.src) else self.src)

    def cost(self, machine: Machine) -> InstructionCost:
        return InstructionCost(0, machine.register_move_ns, ("register_move_ns",))


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """dst = the value of a one-element tensor in HBM or SBUF."""
    writable(dst, "register_load")
    return issue(RegisterLoad(dst, src))


class RegisterLoad(RegisterInstruction):
    """Signed integers sign-extend, unsigned ones zero-extend; a float32 keeps its value."""

    public = "register_load"
    cost_formula = "register_load_ns"

    dst: RegisterOut
    src: In

    def check(self, machine: Machine) -> None:
        check_element(self, "src")
        if self.src.dtype == "float32":
            warn(
                "register-float",
                "register_load: src is float32; the register can be tested and stored, not used as an index",
                notes=[f"src: {self.src.describe()}"],
                help="convert it to an int32 tile with nisa.tensor_copy first",
            )

    def compute(self, src: np.ndarray) -> None:
        value = src.reshape(-1)[0]
        self.dst.set(float(value) if src.dtype.kind == "f" else int(value))

    def cost(self, machine: Machine) -> InstructionCost:
        return InstructionCost(0, machine.register_load_ns, ("register_load_ns",))


def check_element(ins: Instruction, name: str) -> None:
    """The operand is one integer, bool or float32 in HBM or SBUF."""
    view = getattr(ins, name)
    rules.buffers(ins, name, (SBUF, PRIVATE_HBM, SHARED_HBM), "copy it to SBUF first (nisa.tensor_copy)")
    if view.size != 1:
        raise rules.fail(
            ins,
            "shape",
            f"{name} must have one element, it has {view.size}",
            [name],
            "slice the element, for example t[0:1, 0:1]",
        )
    if not (view.dtype.is_integer or view.dtype.is_bool or view.dtype == "float32"):
        raise rules.fail(
            ins,
            "dtype",
            f"{name} has dtype {view.dtype}, a register takes integers and float32",
            [name],
            "convert it with nisa.tensor_copy into an int32 or float32 tile",
        )


def register_store(dst: NkiTensor, src: Int | VirtualRegister) -> NkiInstruction:
    """A one-element tensor in HBM or SBUF = the value of a register; integer dtypes keep its low bits."""
    if not is_register(src):
        raise error(
            "argument",
            f"register_store: src must be a register, got {type(src).__name__}",
            help="register_store(dst, src): the tensor comes first",
        )
    return issue(RegisterStore(dst, src))


class RegisterStore(RegisterInstruction):
    public = "register_store"

    dst: Out
    src: RegisterIn

    def check(self, machine: Machine) -> None:
        check_element(self, "dst")

    def compute(self, dst: np.ndarray) -> None:
        value = self.src.read()
        dtype = self.dst.dtype
        if isinstance(value, float) and dtype != "float32":
            raise rules.fail(
                self,
                "dtype",
                f"the register holds the float {value}, dst is {dtype}",
                ["dst"],
                "store it in float32",
            )
        if dtype.is_integer:
            dst[...] = np.asarray(value, np.int64).astype(dst.dtype)
        else:
            dst[...] = value


# ---- target queries ------------------------------------------------------------------------------


def get_nc_version() -> nc_version:
    """The NeuronCore generation of the running kernel, or of the platform a call would choose."""
    return nc_version(current_machine().generation)


def get_nc_sub_version() -> int:
    """The silicon revision: 0, the first."""
    return 0
