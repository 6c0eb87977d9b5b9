"""Scalar registers of the sequencers, and queries of the target (spec/isa_registers_sync.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeGuard

import numpy as np

from ..errors import error
from ..ir.context import current_machine, running, warn
from ..ir.instruction import Cost, In, Instruction, NkiInstruction, Out, RegisterIn, RegisterOut
from ..ir.layout import Int
from ..ir.parser_values import REGISTER
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine.machine import Machine
from ..machine.memories import PRIVATE_HBM, SBUF, SHARED_HBM
from . import rules
from .deprecated import P, R
from .enums import nc_version

LOWEST, HIGHEST = -(1 << 31), (1 << 32) - 1  # what a register_move takes; values wrap to signed 32 bits
FLOAT_HELP = "convert it to an int32 tile with nisa.tensor_copy, then register_load that"


class VirtualRegister:
    """One 32-bit cell of a sequencer: a signed integer, or the float32 value it was loaded with.

    Its value exists while the kernel runs, not while it is traced, so Python cannot compute with it. A
    core that runs a recorded program holds the values, since several may run it at once.
    """

    is_register = True

    def __init__(self, state: Any = None, frozen: bool = False):
        self._first: int | float | None = None  # what it was made with: every run begins so
        self._now: int | float | None = None  # while the kernel's Python runs
        self._asked = 0  # truth values taken, to end a `while register:` that never would
        self.frozen = bool(frozen)
        if state is not None:
            self.set(as_value(state, "VirtualRegister"))
            self._first = self._now

    # ---- the value, for the executor and the loops -----------------------------------------------

    def set(self, value: int | float) -> None:
        """Store a value; integers wrap to signed 32 bits."""
        stored = value if isinstance(value, float) else (int(value) + (1 << 31)) % (1 << 32) - (1 << 31)
        core = running()
        if core is None or core.registers is None:
            self._now = stored
        else:
            core.registers[self] = stored

    @property
    def _value(self) -> int | float | None:
        core = running()
        if core is None:
            return self._now
        if core.registers is None:
            core.require_values()
            return self._now
        return core.registers.get(self, self._first)

    def read(self) -> int | float:
        """The value now."""
        value = self._value
        if value is None:
            raise error(
                "uninitialized",
                "a register is read before anything was written to it",
                help="nisa.register_alloc(0), nisa.register_move or nisa.register_load first",
            )
        return value

    def as_index(self) -> int:
        """The value now, as an index or loop bound."""
        value = self.read()
        if isinstance(value, float):
            raise error(
                "dtype", f"a register that holds the float {value} cannot be an index", help=FLOAT_HELP
            )
        return value

    # ---- Python manners --------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """value != 0, so that `while register:` runs."""
        warn(
            "deprecated",
            "the truth value of a register steers Python (dynamic-while)",
            help="nl.while_loop(register, body) works in every front end",
        )
        core = running()
        self._asked += 1
        if core is not None:
            if not core.read_back():
                return self._asked % 2 == 1  # without values, a body is traced once
            self._stop_endless(core.execution.options.max_iterations)
        return self.read() != 0

    def _stop_endless(self, limit: int) -> None:
        if self._asked > limit:
            raise error(
                "endless-loop",
                f"a register was tested {limit} times, its value is {self._value}",
                help="load a new condition in the body; OPEN_NKI_MAX_ITERATIONS raises the limit",
            )

    def __repr__(self) -> str:
        core = running()
        if core is not None:
            core.read_back()
        shown = "uninitialised" if self._value is None else repr(self._value)
        return f"VirtualRegister({shown}{', frozen' if self.frozen else ''})"

    def __eq__(self, other: object) -> bool:
        """Kernels test optional arguments with `== None`; other comparisons need the value."""
        if other is None:
            return False
        _refuse("==")

    def __ne__(self, other: object) -> bool:
        if other is None:
            return True
        _refuse("!=")

    __hash__ = object.__hash__

    def __index__(self) -> int:
        _refuse("int(), range(), a slice or a list index")

    __int__ = __index__

    def __float__(self) -> float:
        _refuse("float()")


def _refuse(what: str) -> NoReturn:
    raise error(
        "register-value",
        f"{what} on a register: its value exists only at run time",
        help="count with nl.fori_loop; index with t[register], nl.ds(register, n) or ap(scalar_offset=); "
        "compute on an SBUF tile (register_store, tensor_scalar, register_load)",
    )


def _refuse_operator(method: str, symbol: str) -> None:
    def refuse(self, *others):
        _refuse(symbol)

    refuse.__name__ = method
    setattr(VirtualRegister, method, refuse)


_BINARY = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_BINARY |= {
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
    "divmod": "divmod()",
}
_OTHERS = {
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "neg": "-",
    "pos": "+",
    "invert": "~",
    "abs": "abs()",
}
for _name, _symbol in _BINARY.items():
    _refuse_operator(f"__{_name}__", _symbol)
    _refuse_operator(f"__r{_name}__", _symbol)
for _name, _symbol in _OTHERS.items():
    _refuse_operator(f"__{_name}__", _symbol)


def _listed(first: Any = None) -> VirtualRegister:
    """The register of a listing."""
    register = VirtualRegister()
    if not isinstance(first, (type(None), int, float)):
        raise TypeError(f"a register holds a number, not {first!r}")
    register._first = register._now = first
    return register


REGISTER.append(_listed)


def is_register(value: object) -> TypeGuard[VirtualRegister]:
    return isinstance(value, VirtualRegister)


def as_value(value: Any, function: str, argument: str = "src") -> int:
    """A compile-time integer that fits a register."""
    if not isinstance(value, (bool, int, np.integer, np.bool_)):
        raise error(
            "argument",
            f"{function}: {argument} must be an int or a register, got {type(value).__name__}",
            help="nisa.register_load reads a value from a tensor" if isinstance(value, View) else None,
        )
    if not LOWEST <= value <= HIGHEST:
        raise error("register-range", f"{function}: {value} does not fit the 32 bits of a register")
    return int(value)


def writable(register: Any, function: str) -> VirtualRegister:
    """The register, if it may be written."""
    if not is_register(register):
        raise error(
            "argument",
            f"{function}: dst must be a register, got {type(register).__name__}",
            help="make one with nisa.register_alloc()",
        )
    if register.frozen:
        raise error(
            "frozen-register",
            f"{function}: this register belongs to its loop or rank and cannot be written",
            help="copy it: register = nisa.register_alloc(i)",
        )
    return register


# ---- register_alloc ------------------------------------------------------------------------------


def register_alloc(x: Int | VirtualRegister | NkiTensor | None = None) -> VirtualRegister:
    """A register: uninitialised, or holding an int, a copy of a register, or a one-element tensor's value."""
    register = VirtualRegister()
    if isinstance(x, View):
        register_load(register, x)
    elif x is not None:
        register_move(register, x)
    return register


# ---- register_move -------------------------------------------------------------------------------


def _accepts_imm(function: Callable[P, R]) -> Callable[P, R]:
    """The old keyword `imm` of register_move."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if "imm" in kwargs:
            warn("legacy", "register_move: imm= is an old form", help="write src=")
            kwargs["src"] = kwargs.pop("imm")
        return function(*args, **kwargs)

    return wrapper


@_accepts_imm
def register_move(dst: VirtualRegister, src: Int | VirtualRegister) -> NkiInstruction:
    """dst = src, a compile-time int or another register."""
    writable(dst, "register_move")
    return issue(RegisterMove(dst, src if is_register(src) else as_value(src, "register_move")))


class RegisterInstruction(Instruction):
    """What the sequencers do by themselves."""

    reaches_hbm = True
    cost_formula = "register_ns"
    cost_source = "spec/machine.md 10"

    def cost(self, machine: Machine) -> Cost:
        return Cost(0, machine.register_ns, ("register_ns",))


class RegisterMove(RegisterInstruction):
    public = "register_move"
    cost_formula = "register_move_ns"
    cost_source = "spec/machine.md 4, 10"

    dst: RegisterOut
    src: RegisterIn

    def compute(self) -> None:
        self.dst.set(self.src.read() if is_register(self.src) else self.src)

    def cost(self, machine: Machine) -> Cost:
        return Cost(0, machine.register_move_ns, ("register_move_ns",))


# ---- register_load -------------------------------------------------------------------------------


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """dst = the value of a one-element tensor in HBM or SBUF."""
    writable(dst, "register_load")
    return issue(RegisterLoad(dst, src))


class RegisterLoad(RegisterInstruction):
    """Signed integers sign-extend, unsigned ones zero-extend; a float32 keeps its value."""

    public = "register_load"

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


def check_element(ins: Any, name: str) -> None:
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


# ---- register_store ------------------------------------------------------------------------------


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


__all__ = [
    "VirtualRegister",
    "get_nc_sub_version",
    "get_nc_version",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
]
