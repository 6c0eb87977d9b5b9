"""Scalar registers of the sequencers (spec/isa_registers_sync.md)."""

from __future__ import annotations

from typing import Any, NoReturn, TypeGuard

import numpy as np

from ..errors import error
from ..ir.context import running, warn
from ..ir.parser_values import REGISTER
from ..ir.view import View

LOWEST, HIGHEST = -(1 << 31), (1 << 32) - 1  # what a register_move takes; values wrap to signed 32 bits
FLOAT_HELP = "convert it to an int32 tile with nisa.tensor_copy, then register_load that"


class VirtualRegister:
    """One 32-bit cell of a sequencer: a signed integer, or the float32 value it was loaded with.

    Its value exists while the kernel runs, not while it is traced, so Python cannot compute with it. A core
    that
    runs a recorded program holds the values, since several may run it at once.

    Members:

    - `frozen`: True for the register of a loop or rank, which cannot be written.

    Example:

    ```python
    @nki.jit
    def count():
        result = nl.ndarray((1, 1), nl.int32)

        def body(i):
            nisa.register_store(result, i)

        nl.fori_loop(0, 3, body)
        nl.device_print("last", result)

    count()
    ```

    ```output
    last int32[1, 1] sbuf
    [[2]]
    ```

    See also: `register_alloc`, `register_load`, `nl.fori_loop`, `nl.while_loop`.
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

    # ---- Python operators ------------------------------------------------------------------------

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


def _listed(first: int | float | None = None) -> VirtualRegister:
    """The register of a listing."""
    register = VirtualRegister()
    if not isinstance(first, (type(None), int, float)):
        raise TypeError(f"a register holds a number, not {first!r}")
    register._first = register._now = first
    return register


REGISTER.append(_listed)


def is_register(value: object) -> TypeGuard[VirtualRegister]:
    return isinstance(value, VirtualRegister)


def as_value(value: object, function: str, argument: str = "src") -> int:
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


def writable(register: object, function: str) -> VirtualRegister:
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
