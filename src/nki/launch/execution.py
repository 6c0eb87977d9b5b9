"""Executions: cores that execute instructions on memory of their own.

In eager mode the kernel's Python feeds one. `execute` gives each attempt to run a Program a new one; when the
attempt fails, it is dropped, and nothing needs to be rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backends.lowered import lower
from ..backends.protocol import Backend
from ..backends.reference.backend import ReferenceBackend
from ..backends.reference.executor import Executor
from ..backends.reference.memories import Memories
from ..backends.reference.random import Generators
from ..backends.reference.settings import importing
from ..check.whole_program import findings
from ..errors import NkiError, Site, emit_warning, user_site
from ..ir.context import RunningCore, activate
from ..ir.engine_state import EngineState
from ..ir.instruction import Instruction
from ..ir.program import Diagnostic, Program
from ..ir.storage import Storage
from ..machine.machine import Machine
from ..options import Options
from .barriers import Barriers
from .diagnostics import Diagnostics, SideEffects
from .scheduler import TaskId
from .world import World, current_world


class CoreState:
    """One NeuronCore that executes instructions: its registers, accumulators and position."""

    def __init__(self, execution: Execution, index: int, has_registers: bool):
        self.execution = execution
        self.index = index
        self.machine = execution.machine
        self.memories = execution.memories
        self.executor = Executor(self, execution.memories)
        self.run_one: Callable[[Instruction], None] = self.executor  # interleaved where cores race
        # values of registers while a Program runs; while Python runs, registers hold their own
        self.registers: dict[Any, int | float | None] | None = {} if has_registers else None
        self.engine_state = EngineState(self.machine.partitions)
        self.instruction: Instruction | None = None  # of a Program: its line is the one to report
        self.trips: dict[int, list[int]] = {}  # how often each dynamic loop ran, each time, by its number
        self.loop_sites: dict[int, Site | None] = {}

    pending_warnings: list[tuple] | None = None  # instructions of a Program are validated already

    def use(self, executor: Executor) -> None:
        """Execute with another executor, on its memories, from now on."""
        self.executor = self.run_one = executor
        self.memories = executor.memories

    def diagnose(
        self, kind: str, message: str, notes: Iterable[str], help: str | None, site: Site | None
    ) -> None:
        """Report a diagnostic of the instruction that runs."""
        if self.instruction is not None:
            site = self.instruction.site
        self.execution.diagnostics.report(Diagnostic(kind, message, list(notes), help, site, self.index))


class Execution:
    """What the cores of one execution share."""

    def __init__(
        self,
        machine: Machine,
        options: Options,
        cores: int,
        diagnostics: Diagnostics,
        *,
        call: object = None,
        released: Callable[[Storage], None] | None = None,
    ):
        self.machine = machine
        self.options = options
        self.world: World = current_world()
        self.diagnostics = diagnostics
        self.memories = Memories(machine, options.precise_fp, call, released)
        self.barriers = Barriers(cores, self.world)
        self.generators = Generators()
        self.verified: dict[int, int] | None = None  # trips of each loop that the Python was seen to allow
        self.cores = [CoreState(self, index, has_registers=call is None) for index in range(cores)]

    @property
    def degree(self) -> int:
        return self.barriers.cores

    @property
    def trips(self) -> dict[int, list[int]]:
        """How often each dynamic loop ran, each time, by its number."""
        return {number: counts for core in self.cores for number, counts in core.trips.items()}

    @property
    def side_effects(self) -> SideEffects:
        return self.diagnostics.side_effects

    def interleave(self) -> None:
        """Run one instruction of each core in turn: the cores race."""
        interleaving = self.barriers.interleave()
        for core in self.cores:
            core.run_one = interleaving.sink(core.index, core.executor)

    def run_cores(self, jobs: Sequence[tuple[RunningCore, Callable[[], object]]]) -> list[Any]:
        """Run a job on each core and return the results. Several cores take turns at barriers."""
        if len(jobs) == 1:
            return [run_on(*jobs[0])]
        rank = None if self.world.scheduler is None else self.world.rank
        tasks = [(TaskId(rank, core.index), partial(_run_noted, core, job)) for core, job in jobs]
        return self.barriers.start().run(tasks)

    def report_divergent_loops(self) -> None:
        """Report dynamic loops that the two cores ran differently often (spec/language.md 10.6)."""
        if self.degree == 1:
            return
        first, second = (
            {core.loop_sites[n]: trips for n, trips in core.trips.items()} for core in self.cores
        )
        for site in first:
            if site in second and first[site] != second[site]:
                self.diagnostics.report(
                    Diagnostic(
                        "lnc-divergence",
                        "a dynamic loop runs different numbers of iterations on the two cores",
                        [
                            f"core {i}: {', '.join(map(str, t[site][:8]))}"
                            for i, t in enumerate((first, second))
                        ],
                        "a core_barrier or collective in its body would wait for ever",
                        site,
                    )
                )

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memories and the cores: they refer to each other."""
        self.memories.released = None
        self.memories.clear()
        self.memories.chips.clear()
        self.cores = []


def run_on(core: RunningCore, job: Callable[[], object]) -> Any:
    """Run a job as the code of a core."""
    before = activate(core)
    try:
        with np.errstate(all="ignore"):
            return job()
    finally:
        activate(before)


def _run_noted(core: RunningCore, job: Callable[[], object]) -> Any:
    try:
        return run_on(core, job)
    except NkiError as problem:
        problem.notes.append(f"raised on core {core.index}")
        raise


def execute(
    program: Program,
    options: Options,
    inputs: Mapping[Storage, np.ndarray],
    results: Mapping[Storage, np.ndarray] | None = None,
    *,
    side_effects: SideEffects | None = None,
    silenced: Iterable[Diagnostic] = (),
    verified: dict[int, int] | None = None,
) -> Execution:
    """Run a Program and return the execution that holds its values.

    `inputs` are the bytes of its parameters, copied at the first write; `results` is memory that the caller
    lends for results. `verified` limits how often each dynamic loop may run.
    """
    side_effects = side_effects or SideEffects()
    lowered = lower(program)
    races = has_races(program, options)
    for backend in _backends(options, races):
        why = backend.refusal(lowered, options)
        if why:
            _warn_host(program, options, why)
            continue
        execution = execution_of(program, options, side_effects, silenced, verified)
        for storage, raw in (*inputs.items(), *program.constants):
            execution.memories.borrow(storage, raw)
        for storage, raw in (results or {}).items():
            execution.memories.fill(storage, raw)
        if races:
            execution.interleave()
        if backend.run(lowered, execution):
            break
        execution.close()
        _warn_host(program, options, "an instruction reports something about its values")
    report_the_rest(program, execution)
    return execution


def has_races(program: Program, options: Options) -> bool:
    """Return whether the cores of a program race: it depends on their order what they compute."""
    return any(found.kind == "race" for found in findings(program, options))


def execution_of(
    program: Program,
    options: Options,
    side_effects: SideEffects,
    silenced: Iterable[Diagnostic],
    verified: dict[int, int] | None,
) -> Execution:
    """Return a new execution for an attempt to run a program."""
    diagnostics = Diagnostics(options.strict, current_world(), side_effects, deferred=True, silenced=silenced)
    execution = Execution(program.machine, options, len(program.cores), diagnostics)
    execution.verified = verified if program.loops else None
    return execution


def report_the_rest(program: Program, execution: Execution) -> None:
    """Report what belongs after the last instruction, or to none of them."""
    for diagnostic in program.diagnostics:
        if diagnostic.before is None or diagnostic.before >= program.length_of(diagnostic.core):
            execution.diagnostics.report(diagnostic)


_warned_programs: set[str] = set()


def _warn_host(program: Program, options: Options, why: str) -> None:
    """Warn once per kernel that a call does not run on the GPU that the options name."""
    if options.device.startswith("cuda") and program.name not in _warned_programs:
        _warned_programs.add(program.name)
        text = f"{program.name} runs on the CPU ({why}), not on {options.device}"
        emit_warning("device-copy", text, user_site(2))


def _backends(options: Options, races: bool) -> list[Backend]:
    """Return the backends to try, in order. The reference runs every program; it alone interleaves cores."""
    chosen: list[Backend] = []
    if options.executor in ("auto", "fused", "plan") and not races:
        with importing:
            from ..backends.fused.backend import FusedBackend  # a call needs it, `import nki` does not
        chosen.append(FusedBackend())
    if (options.executor == "torch" or options.device not in ("", "cpu")) and not races:
        with importing:
            from ..backends.torch.backend import TorchBackend
        chosen.insert(0, TorchBackend())
    return [*chosen, ReferenceBackend()]
