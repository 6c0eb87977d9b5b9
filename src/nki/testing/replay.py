"""Replay: the instructions of a run, again from checkpoints, so that the values of any step can be had.

While the kernel's Python runs, `before` and `after` log each instruction, with what running it again does not
give: the registers it reads, which tiles are fresh, and what other cores and ranks sent. From time to time a
checkpoint copies what the cores hold. `values` runs the instructions from the last checkpoint on.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from ..backends.reference.memories import Memories
from ..backends.reference.memory import FRESH, Memory
from ..backends.reference.placed import ChipMemory
from ..backends.reference.random import STATES, Generator
from ..ir.context import current
from ..ir.effects import effects
from ..ir.engine_state import EngineState
from ..ir.instruction import Instruction, State
from ..ir.storage import Storage
from ..ir.view import View
from ..launch.core import Core
from ..launch.diagnostics import Diagnostics, SideEffects
from ..launch.execution import CoreState, Execution, run_on
from ..machine.memories import MemoryRegion
from ..report.recording import OperandValues, read_by, shown

BUDGET = 256 << 20  # bytes of all checkpoints
FIRST_INTERVAL = 256  # steps between checkpoints; it doubles whenever they exceed the budget
RECEIVES = frozenset(
    (State.peer, State.ranks, State.output)
)  # an instruction that touches them runs only once


class _Found(NamedTuple):
    """What an instruction finds when it begins."""

    registers: tuple[tuple[Any, Any], ...]  # that it reads, and their values
    fresh: tuple[Storage, ...]  # tiles of a dynamic loop to which nothing is written in this iteration


class _Step(NamedTuple):
    core: int
    instruction: Instruction
    found: _Found
    received: tuple[np.ndarray, ...] | None  # what it wrote, if it cannot run again


class _State(NamedTuple):
    """What the cores hold."""

    memories: dict[Storage, Memory]
    chips: dict[tuple[int, MemoryRegion], ChipMemory]
    engines: list[EngineState]
    generators: dict[tuple[int, str], Generator]

    @property
    def nbytes(self) -> int:
        own = sum(memory.raw.nbytes for memory in self.memories.values() if not memory.borrowed)
        return own + sum(chip.raw.nbytes + chip.written.nbytes for chip in self.chips.values())

    def copied(self, shared: dict[int, np.ndarray]) -> _State:
        """Return a copy. `shared` are arrays that it has instead of others, by the identity of these."""
        for memory in self.memories.values():  # what is derived from the bytes is not copied
            memory.arrays.clear()
            memory.floats.clear()
        return deepcopy(self, {**{id(storage): storage for storage in self.memories}, **shared})


class _Checkpoint(NamedTuple):
    """What the cores hold after a number of steps."""

    steps: int
    state: _State
    nbytes: int


class Replay:
    """The log and the checkpoints of one run."""

    def __init__(self, budget: int = BUDGET):
        self.budget = budget
        self.execution: Execution | None = None  # the one that is logged
        self._begin()

    def _begin(self) -> None:
        self.steps: list[_Step] = []
        self.interval = FIRST_INTERVAL
        self.checkpoints: list[_Checkpoint] = []
        # what the caller lent, and a copy of it, by identity
        self._inputs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._last_use: dict[Storage, int] = {}  # the step
        self._begun: dict[int, _Found] = {}  # by what runs on each core

    # ---- the run ---------------------------------------------------------------------------------

    def before(self, instruction: Instruction) -> None:
        """Log what an instruction that is about to run finds."""
        core: Core = current()
        if core.execution is not self.execution:  # the first, or a run that starts again
            self._begin()
            self.execution = core.execution
            for engine in STATES:  # theirs is the process's, which the run changes when it ends
                for other in core.execution.cores:
                    core.execution.generators.of(other.index, engine)
            self._checkpoint()
        done = effects(instruction)
        looped = {view.storage for view in instruction.views() if view.storage.loop}
        fresh = [storage for storage in looped if _is_fresh(core.memories, storage)]
        registers = tuple((r, r.read()) for r in done.registers_read)
        self._begun[core.index] = _Found(registers, tuple(fresh))

    def after(self, instruction: Instruction) -> None:
        """Log an instruction that has run. Its operands claim no bytes (`Instruction.bare_key`)."""
        core: Core = current()
        done = effects(instruction)
        received = None
        if not RECEIVES.isdisjoint(done.state):
            received = tuple(core.values(shown(view)).copy() for view in done.written)
        self._last_use.update((view.storage, len(self.steps)) for view in instruction.views())
        self.steps.append(_Step(core.index, instruction, self._begun.pop(core.index), received))
        if len(self.steps) % self.interval == 0:
            self._checkpoint()

    # ---- checkpoints -----------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        assert self.execution is not None
        memories, cores = self.execution.memories, self.execution.cores
        for memory in memories.values():
            if memory.borrowed and id(memory.raw) not in self._inputs:
                self._inputs[id(memory.raw)] = (memory.raw, memory.raw.copy())
        engines, generators = [core.engine_state for core in cores], self.execution.generators.taken
        state = _State(dict(memories), memories.chips, engines, generators)
        copied = state.copied({key: copy for key, (_, copy) in self._inputs.items()})
        self.checkpoints.append(_Checkpoint(len(self.steps), copied, state.nbytes))
        while len(self.checkpoints) > 1 and sum(one.nbytes for one in self.checkpoints) > self.budget:
            self.interval *= 2
            self.checkpoints = [one for one in self.checkpoints if one.steps % self.interval == 0]

    def values(self, step: int) -> list[OperandValues]:
        """Return what the operands of a step held: before it for those it reads, after it for the others."""
        begin = max((one for one in self.checkpoints if one.steps <= step), key=lambda one: one.steps)
        with self._restored(begin) as execution:
            for number, logged in enumerate(self.steps[begin.steps : step], begin.steps):
                _run(execution, logged)
                for view in logged.instruction.views():
                    if self._last_use[view.storage] == number:
                        execution.memories.close(view.storage)
            return _observed(execution, self.steps[step])

    def _restored(self, checkpoint: _Checkpoint) -> Execution:
        """Return an execution that holds what a checkpoint does."""
        logged = self.execution
        assert logged is not None
        diagnostics = Diagnostics(False, logged.world, SideEffects(), deferred=True)
        state = checkpoint.state.copied({id(copy): copy for _, copy in self._inputs.values()})
        made = Execution(logged.machine, logged.options, len(state.engines), diagnostics)
        made.memories.update(state.memories)
        made.memories.chips, made.generators.taken = state.chips, state.generators
        for core, engine in zip(made.cores, state.engines, strict=True):
            core.engine_state = engine
        return made


def _is_fresh(memories: Memories, storage: Storage) -> bool:
    memory = memories.get(storage)
    return memory is None or memory.state == FRESH


def _run(execution: Execution, logged: _Step) -> None:
    core = execution.cores[logged.core]
    for storage in logged.found.fresh:
        execution.memories.renew(storage)
    for register, value in logged.found.registers:
        assert core.registers is not None
        core.registers[register] = value
    run_on(core, lambda: _execute(core, logged))


def _execute(core: CoreState, logged: _Step) -> None:
    core.instruction = logged.instruction
    if logged.received is None:
        core.executor(logged.instruction)
        return
    for view, values in zip(effects(logged.instruction).written, logged.received, strict=True):
        core.memories[view.storage].write(shown(view))[...] = values


def _observed(execution: Execution, logged: _Step) -> list[OperandValues]:
    core, done = execution.cores[logged.core], effects(logged.instruction)
    for storage in logged.found.fresh:
        execution.memories.renew(storage)
    reads, adds_to = read_by(logged.instruction)
    found = run_on(core, lambda: [_held(core, view) for view in (*reads, *adds_to)])
    _run(execution, logged)
    return [*found, *run_on(core, lambda: [_held(core, view) for view in done.written])]


def _held(core: CoreState, view: View) -> OperandValues:
    memory = core.memories[view.storage]
    return OperandValues(view, memory.peek(shown(view)).copy(), memory.unwritten(shown(view)))
