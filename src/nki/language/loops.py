"""Loops: unrolled ranges, and the dynamic loops that registers steer (spec/language.md 10)."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from ..errors import error
from ..ir.context import current, warn
from ..ir.layout import Int, is_int
from ..ir.view import View
from ..isa.virtual_register import VirtualRegister, is_register
from ..launch.core import Core
from .dynamic_loop import Bound, DynamicLoop

_LOWEST, _HIGHEST = -(1 << 31), (1 << 31) - 1


# ---- static ranges -------------------------------------------------------------------------------


def affine_range(start: Int, stop: Int | None = None, step: Int = 1) -> range:
    """Python's range: the loop is unrolled."""
    return _static_range("affine_range", start, stop, step)


def sequential_range(start: Int, stop: Int | None = None, step: Int = 1) -> range:
    """Python's range: the loop is unrolled."""
    return _static_range("sequential_range", start, stop, step)


def static_range(start: Int, stop: Int | None = None, step: Int = 1) -> range:
    """Python's range: the loop is unrolled."""
    return _static_range("static_range", start, stop, step)


_deprecated: set[str] = set()  # functions whose warning was shown in this process


def _static_range(function: str, start: Int, stop: Int | None, step: Int) -> range:
    if function not in _deprecated:
        _deprecated.add(function)
        warnings.warn(f"nl.{function} is deprecated, use range()", PendingDeprecationWarning, stacklevel=3)
    for bound in (start, stop, step):
        if is_register(bound):
            raise error(
                "register-value",
                f"{function}: a bound is a register, whose value exists only at run time",
                help="use nl.fori_loop(lower, upper, body)",
            )
    return range(0, start, step) if stop is None else range(start, stop, step)


# ---- dynamic loops -------------------------------------------------------------------------------


def dynamic_range(start: Bound, stop: Bound | None = None, step: Int = 1) -> Iterator[VirtualRegister]:
    """Iterate at run time over start, start + step, ... below stop, which may be registers."""
    warnings.warn("nl.dynamic_range is deprecated, use nl.fori_loop", DeprecationWarning, stacklevel=2)
    if stop is None:
        start, stop = 0, start
    _check_step("dynamic_range", step)
    return _iterate(start, stop, int(step))


def _iterate(start: Bound, stop: Bound, step: int) -> Iterator[VirtualRegister]:
    core = current()
    if core.loops:
        warn("nested-dynamic-range", "dynamic_range inside a dynamic loop fails in real compilers up to 0.4")
    _check_bounds("dynamic_range", start, stop)
    with DynamicLoop(core, "dynamic_range", start, stop, step) as loop:
        for value in _values(core, "dynamic_range", start, stop, step):
            index = VirtualRegister(frozen=True)
            loop.step(index, value)
            yield index


def fori_loop(lower: Bound, upper: Bound, body_fun: Callable[[VirtualRegister], None], step: Int = 1) -> None:
    """Call body_fun(i) for i = lower, lower + step, ... below upper; i is a register, passed by value."""
    _check_step("fori_loop", step)
    _check_body("fori_loop", body_fun)
    core = current()
    _check_bounds("fori_loop", lower, upper)
    with DynamicLoop(core, "fori_loop", lower, upper, int(step)) as loop:
        for value in _values(core, "fori_loop", lower, upper, int(step)):
            index = VirtualRegister()
            loop.step(index, value)
            returned = body_fun(index)  # type: ignore[func-returns-value]
            if returned is not None:
                _wrong_body("fori_loop", returned, "None", "carry state through SBUF or HBM tensors")


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Call r = body_fun(r) while the register r is not zero; r is passed by value."""
    if not is_register(init):
        raise error(
            "argument",
            f"while_loop: init must be a register, got {type(init).__name__}",
            help="nisa.register_alloc(1), or nisa.register_load from a tensor",
        )
    _check_body("while_loop", body_fun)
    core = current()
    condition = init
    seen: deque = deque(maxlen=4)
    with DynamicLoop(core, "while_loop", init, None, 1) as loop:
        executes = core.launch.executes  # entering the loop made it so, if there is data
        limit = core.execution.options.max_iterations if executes else 1
        while not executes or condition.read() != 0:
            if loop.trips == limit:
                if not executes:  # without values, the body is traced once
                    break
                _endless(limit, seen)
            register = VirtualRegister()
            loop.step(register, condition.read() if executes else None)
            seen.append(register.read() if executes else None)
            condition = body_fun(register)
            if not is_register(condition):
                _wrong_body(
                    "while_loop", condition, "a register", "return the register of the next condition"
                )
        loop.upper = condition


def _endless(limit: int, seen: deque) -> NoReturn:
    raise error(
        "endless-loop",
        f"while_loop: {limit} iterations and the condition still holds",
        notes=[f"last conditions: {', '.join(map(str, seen))}"],
        help="let the condition become 0; OPEN_NKI_MAX_ITERATIONS raises the limit",
    )


def _wrong_body(function: str, returned: object, wanted: str, help: str) -> NoReturn:
    raise error(
        "loop-body", f"{function}: the body must return {wanted}, got {type(returned).__name__}", help=help
    )


def _check_step(function: str, step: object) -> None:
    if not is_int(step) or step < 1:
        shown = "a register" if is_register(step) else repr(step)
        raise error("loop-step", f"{function}: step must be a compile-time int of at least 1, got {shown}")


def _check_body(function: str, body: object) -> None:
    if not callable(body):
        raise error("argument", f"{function}: body_fun must be a function, got {type(body).__name__}")


def _check_bounds(function: str, lower: Bound, upper: Bound) -> None:
    for name, bound in (("lower", lower), ("upper", upper)):
        if not is_register(bound):
            _bound(function, name, bound)


def _values(core: Core, function: str, lower: Bound, upper: Bound, step: int) -> range:
    """Return the induction values; bounds are read once, when the loop starts."""
    if not core.launch.executes:
        return range(1)  # without values, the body is traced once
    return range(_bound(function, "lower", lower), _bound(function, "upper", upper), step)


def _bound(function: str, name: str, bound: object) -> int:
    if is_register(bound):
        return bound.as_index()
    if not isinstance(bound, (int, np.integer)):
        help = "nisa.register_load it into a register" if isinstance(bound, View) else None
        raise error(
            "argument",
            f"{function}: the {name} bound must be an int or a register, got {type(bound).__name__}",
            help=help,
        )
    if not _LOWEST <= bound <= _HIGHEST:
        raise error("register-range", f"{function}: the {name} bound {bound} does not fit a 32-bit register")
    return int(bound)


# ---- no_reorder ----------------------------------------------------------------------------------


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions issued in this block, in any function called, stay in program order."""
    core = current()
    first = core.issued + 1
    core.ordering.depth += 1
    try:
        yield
    finally:
        core.ordering.depth -= 1
        if not core.ordering.depth and core.issued >= first:
            core.ordering.blocks.append((first, core.issued))
