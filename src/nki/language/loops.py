"""Loops: unrolled ranges, and the dynamic loops that registers steer (spec/language.md 10)."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeAlias

import numpy as np

from ..errors import error, user_site
from ..ir.context import current, warn
from ..ir.instruction import Instruction, InstructionCost, ProgramPosition, RegisterOut, State
from ..ir.layout import Int, is_int
from ..ir.program import Loop
from ..ir.storage import Lease, Storage
from ..ir.view import View
from ..isa.registers import RegisterInstruction
from ..isa.virtual_register import VirtualRegister, is_register
from ..launch.core import Core
from ..launch.core import issue as _issue
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.memories import SHARED_HBM, MemoryRegion

Bound: TypeAlias = Int | VirtualRegister

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


class DynamicLoop:
    """An open dynamic loop: what its first iteration issued, and the tensors of its body.

    The real compiler has one copy of the body, so every iteration must issue the same instructions
    and finds its tensors in the same storages, as poison; they end with the loop.
    """

    def __init__(self, core: Core, function: str, lower: Bound, upper: Bound | None, step: int):
        self.core = core
        self.function = function
        self.lower, self.upper, self.by = lower, upper, step
        self.index: VirtualRegister | None = None
        self.site = user_site(2)
        core.counts.loops += 1
        self.number = core.counts.loops
        self.trips = 0
        self.path: tuple = ()
        self.around: tuple = core.loops[-1].path if core.loops else ()
        self.issued: list[tuple] = []  # signatures of the first iteration
        self.position = 0
        self.diverged = False
        self.allocated: list[tuple[tuple, Storage, weakref.ref[Lease]]] = []
        self.allocations = 0
        self.others: list[Storage] = []  # allocations only some iterations make

    def __enter__(self) -> DynamicLoop:
        core = self.core
        if core.ordering.depth:
            raise error(
                "loop-in-no-reorder",
                f"{self.function}: a dynamic loop cannot stand inside nl.no_reorder()",
                help="put the no_reorder block into the body, or unroll the loop with range()",
            )
        if core.recorder is not None and core.launch.has_data:
            core.launch.restart()  # the loop runs as often as the data says
        if core.loops:
            core.loops[-1].record((self.function,))  # a loop of its own, whatever its trip count
        core.loops.append(self)
        core.sinks.append(self.see)
        if core.recorder is not None:
            core.recorder.begin_loop()
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        core = self.core
        core.sinks.remove(self.see)
        if self in core.loops:
            del core.loops[core.loops.index(self) :]
        for storage in [*(storage for _, storage, _ in self.allocated), *self.others]:
            if storage.loop == self.number:
                core.end_storage(storage)
        if kind is None:
            self._end_iteration()
        elif kind is GeneratorExit:  # `break`: Python steers what no instruction does
            core.launch.python.read_values = True
        if core.recorder is not None:
            core.recorder.end_loop(None if kind is not None else self._region(core.recorder.items))
        core.state.trips.setdefault(self.number, []).append(self.trips)
        core.state.loop_sites[self.number] = self.site

    def _region(self, body: list) -> Loop:
        """Return the loop as a Program has it."""
        return Loop(
            self.function, self.number, self.index, self.lower, self.upper, self.by, tuple(body), self.site
        )

    def step(self, index: VirtualRegister, value: int | float | None) -> None:
        """Begin an iteration: `index` holds `value`; None while there are no values."""
        self._end_iteration()
        self.trips += 1
        self.index = index
        self.path = (*self.around, (self.number, self.trips))
        self.position = self.allocations = 0
        if value is not None:
            index.set(value)
        _issue(LoopIteration(index))

    # ---- the same instructions in every iteration ------------------------------------------------

    def see(self, instruction: Instruction) -> None:
        """Set the position of an instruction, and compare it with the first iteration's. A sink."""
        loops = self.core.loops
        if not loops or loops[-1] is not self:
            return
        instruction.handle = ProgramPosition(instruction.handle, self.path)
        if instruction.__class__ is not LoopIteration:
            self.record(_signature(instruction), instruction)

    def record(self, signature: tuple, instruction: Instruction | None = None) -> None:
        position, self.position = self.position, self.position + 1
        if self.trips == 1:
            self.issued.append(signature)
        elif position >= len(self.issued) or not _equal(self.issued[position], signature):
            self._diverge(f"iteration {self.trips} issues {instruction or signature[0]}")

    def _end_iteration(self) -> None:
        if self.trips > 1 and self.position < len(self.issued):
            missing = len(self.issued) - self.position
            self._diverge(f"iteration {self.trips} leaves out {missing} instructions of the first")

    def _diverge(self, note: str) -> None:
        if self.diverged:
            return
        self.diverged = self.core.launch.python.diverged = True
        self.core.diagnose(
            "loop-divergence",
            f"{self.function}: the iterations do not issue the same instructions",
            [note],
            "the real compiler runs the Python of the body once: keep what changes in tensors and registers",
            self.site,
        )

    # ---- the same storages in every iteration ----------------------------------------------------

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        buffer: MemoryRegion,
        name: str,
        address: tuple[int, int] | None,
    ) -> tuple[Storage, Lease]:
        """Return the storage of the n-th allocation of an iteration; an earlier holder reads poison again."""
        number, self.allocations = self.allocations, self.allocations + 1
        description = (shape, dtype, buffer, name, address)
        known = self.allocated[number] if number < len(self.allocated) else None
        if known is not None and known[0] == description and address is None:
            _, storage, ref = known
            if storage.loop == self.number:
                self.core.memories.renew(storage)
            lease = ref() or Lease(storage, self.core.memories)
            self.allocated[number] = (description, storage, weakref.ref(lease))
            return storage, lease
        storage, lease = self._new(*description)
        made = (description, storage, weakref.ref(lease))
        if known is None:
            self.allocated.append(made)
        else:
            self.others.append(known[1])
            self.allocated[number] = made
        return storage, lease

    def _new(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        buffer: MemoryRegion,
        name: str,
        address: tuple[int, int] | None,
    ) -> tuple[Storage, Lease]:
        core = self.core
        if buffer is SHARED_HBM and core.launch.degree > 1:  # belongs to both cores, not to this loop
            return core.launch.shared.tensor(core, name, shape, dtype)
        return core.new_storage(shape, dtype, buffer, name, address, self.number)


def _signature(instruction: Instruction) -> tuple:
    """Return what must be equal in all iterations: kind, shapes, options, static offsets; no registers."""
    values = [None if is_register(part) else part for part in instruction.key()]
    values += [v.offset for v in instruction.operands() if isinstance(v, View) and not v.on_chip]
    values += [v for v in (getattr(instruction, r) for r in instruction.registers) if not is_register(v)]
    return tuple(values)


def _equal(a: tuple, b: tuple) -> bool:
    try:
        return a == b
    except (TypeError, ValueError):  # an option that does not compare, such as an array
        return True


class LoopIteration(RegisterInstruction):
    """The head of a dynamic loop: a barrier of all engines, which sets the induction register."""

    public = "dynamic_loop"
    state = (State.loop,)
    cost_formula = "dynamic_loop_ns"
    cost_source = "spec/machine.md 10"

    index: RegisterOut

    def compute(self) -> None:
        """Do nothing: the loop has set the register."""

    def cost(self, machine: Machine) -> InstructionCost:
        return InstructionCost(0, machine.dynamic_loop_ns, ("dynamic_loop_ns",))


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


__all__ = [
    "affine_range",
    "dynamic_range",
    "fori_loop",
    "no_reorder",
    "sequential_range",
    "static_range",
    "while_loop",
]
