"""A dynamic loop while its body runs: every iteration issues the same instructions (spec/language.md 10)."""

from __future__ import annotations

import weakref
from typing import TypeAlias

from ..errors import error, user_site
from ..ir.instruction import Instruction, InstructionCost, ProgramPosition, RegisterOut, State
from ..ir.layout import Int
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
        if core.launch.statistics is not None:
            core.launch.statistics.begin_loop(core.index, self.number)
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
        if core.launch.statistics is not None:
            core.launch.statistics.end_loop(core.index, self.number)
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
                self.core.renew_storage(storage)
            lease = ref() or Lease(storage, self.core.memories)
            self.allocated[number] = (description, storage, weakref.ref(lease))
            return storage, lease
        storage, lease = self._new(description)
        made = (description, storage, weakref.ref(lease))
        if known is None:
            self.allocated.append(made)
        else:
            self.others.append(known[1])
            self.allocated[number] = made
        return storage, lease

    def _new(self, description: tuple) -> tuple[Storage, Lease]:
        core = self.core
        shape, dtype, buffer, name, address = description
        if buffer is SHARED_HBM and core.launch.degree > 1:  # belongs to both cores, not to this loop
            return core.launch.shared.tensor(core, name, shape, dtype)
        storage = core.new_storage(shape, dtype, buffer, name, address, self.number)
        return storage, Lease(storage, core.memories)


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
