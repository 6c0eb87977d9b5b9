"""A launch: the Python of one kernel call, on one core or on two.

It runs in one of two modes. `trace` records a Program and executes nothing. `eager` executes each instruction
as it is issued. A normal call traces, then executes the Program; where its Python needs a value, the call
starts again in eager mode (`NeedsEager`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from ..backends.reference.collector import fewer_collections
from ..backends.reference.memories import check_usable
from ..check.psum import PsumWatch
from ..check.races import Watch, races_between
from ..errors import NkiError, error
from ..ir.instruction import NkiInstruction, ProgramPosition
from ..ir.program import Diagnostic, Edge, OrderedBlock, Program
from ..ir.recorder import Recorder
from ..ir.statistics import Statistics
from ..ir.storage import Lease, Storage
from ..ir.tree import leaves
from ..ir.view import View
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.memories import SHARED_HBM
from ..options import Options
from . import observers
from .core import Core, Sink, register_value
from .diagnostics import Diagnostics, NeedsEager, SideEffects
from .execution import Execution, run_on
from .world import current_world

Mode = Literal["trace", "eager"]
LONGEST_TRACE = 1_000_000  # instructions of a call; a longer kernel runs in eager mode, tile by tile


class SharedTensor(NamedTuple):
    """A shared_hbm allocation and the cores that made it."""

    storage: Storage
    lease: Lease
    cores: set[int]


class SharedTensors:
    """Tensors and constants that the cores of a launch share."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, int], SharedTensor] = {}
        self.constants: dict[tuple, tuple[Storage, Lease, np.ndarray]] = {}  # by contents
        self.constant_order: list[tuple] = []  # what the n-th nl.shared_constant of each core holds

    def tensor(self, core: Core, name: str, shape: tuple[int, ...], dtype: DType) -> tuple[Storage, Lease]:
        """Return the storage of the n-th shared_hbm tensor of a name, on all cores (spec/language.md 12)."""
        number = core.counts.shared.get(name, 0)
        core.counts.shared[name] = number + 1
        found = self.tensors.get((name, number))
        if found is None:
            new = core.new_storage(shape, dtype, SHARED_HBM, name)
            found = self.tensors[name, number] = SharedTensor(new, Lease(new, core.memories), set())
        found.cores.add(core.index)
        storage = found.storage
        if storage.shape != shape or storage.dtype != dtype:
            raise error(
                "shared-mismatch",
                f"core {core.index} allocates {dtype}{list(shape)} where core {1 - core.index} "
                f"allocated {storage.dtype}{list(storage.shape)}",
                notes=[f"the other one: {storage.where}"],
                help="both cores must make the same shared_hbm tensors in the same order; "
                "give them names, or use nl.private_hbm",
            )
        return storage, found.lease

    def one_sided(self, degree: int) -> Iterable[Diagnostic]:
        """Yield a diagnostic for each tensor that not every core allocated."""
        for storage, _, cores in self.tensors.values():
            if len(cores) < degree:
                what = f"'{storage.name}'" if storage.name else f"{storage.dtype}{list(storage.shape)}"
                yield Diagnostic(
                    "shared-one-sided",
                    f"only core {min(cores)} allocates the shared_hbm tensor {what}",
                    [],
                    "allocate it on both cores under one name, or use nl.private_hbm",
                    storage.site,
                )


class PythonFacts:
    """What the kernel's Python was seen to do."""

    def __init__(self) -> None:
        self.read_values = False  # it read run-time values, so that its Program is one of many
        self.needs_eager = False  # it needs values that tracing does not have
        self.diverged = False  # iterations of a dynamic loop issued different instructions
        self.files: list[tuple[str, str]] = []  # that it read through nki: path, content hash


class Launch:
    """Everything that the cores of one kernel call share while its Python runs."""

    def __init__(
        self,
        machine: Machine,
        options: Options,
        grid: tuple[int, ...] = (),
        mode: Mode = "eager",
        *,
        has_data: bool = True,
        silenced: Iterable[Diagnostic] = (),
        prints_before: int = 0,
        interleaved: bool = False,  # the cores were seen to race
    ):
        self.grid = grid
        self.mode = mode
        self.has_data = has_data
        self.call = object()  # whose storages these are
        self.python = PythonFacts()
        self.shared = SharedTensors()
        self.dependencies: list[Edge] = []
        self.statistics = Statistics(machine) if mode == "eager" else None
        world, degree = current_world(), grid[0] if grid else 1
        deferred = mode == "trace" and has_data
        diagnostics = Diagnostics(options.strict, world, SideEffects(prints_before), deferred, silenced)
        self.execution = Execution(
            machine, options, degree, diagnostics, call=self.call, released=self._released
        )
        # a race is seen when all has run, and a rank that has sent data does not start again
        if mode == "eager" and degree > 1 and (interleaved or world.size > 1):
            self.execution.interleave()
        self.cores = [Core(self, state) for state in self.execution.cores]
        is_watched = mode == "eager" and degree > 1
        self.watches = [Watch(core.index, register_value) for core in self.cores] if is_watched else []
        self.products = [PsumWatch() for _ in self.cores] if mode == "eager" else []
        for core in self.cores:
            mine = slice(core.index, core.index + 1)
            watches: list[Sink] = [*self.watches[mine], *self.products[mine]]
            executed = self._first_sinks(core)
            core.sinks = [*observers.first(), *executed, *watches, *observers.current()]

    def _first_sinks(self, core: Core) -> list[Sink]:
        if self.statistics is None:
            limit = LONGEST_TRACE if self.has_data else None
            core.recorder = Recorder(self._admit, limit, self.restart)
            return [core.recorder.record]
        return [core.state.run_one, self.statistics.sink_of(core.index)]

    def _admit(self, storage: Storage) -> None:
        if storage.call is not self.call or storage.loop:  # most are tiles of this call
            check_usable(storage, self.call, self.execution.memories.ended)

    def _released(self, storage: Storage) -> None:
        if self.statistics is not None:
            self.statistics.retire(storage)

    @property
    def machine(self) -> Machine:
        return self.execution.machine

    @property
    def options(self) -> Options:
        return self.execution.options

    @property
    def degree(self) -> int:
        return len(self.cores)

    @property
    def executes(self) -> bool:
        """Instructions run as they are issued."""
        return self.mode == "eager"

    def restart(self) -> NoReturn:
        """Start the call again in eager mode, even if the kernel catches the exception."""
        self.python.needs_eager = True
        raise NeedsEager

    def races(self) -> list[Diagnostic]:
        """Return the races between cores whose instructions ran as they were issued."""
        return races_between(self.watches)

    def continued_products(self) -> list[Diagnostic]:
        """Return the matmuls that added to a product that was read."""
        return [found for watch in self.products for found in watch.found.values()]

    # ---- running ---------------------------------------------------------------------------------

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the memories and the cores: they and the launch refer to each other."""
        for core in self.cores:
            core.sinks.clear()
        self.shared = SharedTensors()
        self.execution.close()
        self.cores = []

    def run(self, python: Callable[[], object]) -> list[Any]:
        """Run the kernel's Python on every core and return what each returned."""
        with fewer_collections():
            if self.executes:
                results = self.execution.run_cores([(core, python) for core in self.cores])
            else:  # one core after the other: nothing waits while tracing
                results = [self._trace(core, python) for core in self.cores]
        if self.python.needs_eager and not self.executes:
            raise NeedsEager
        if self.degree > 1:
            for diagnostic in self.shared.one_sided(self.degree):
                self.execution.diagnostics.report(diagnostic)
            if self.executes:
                self.execution.report_divergent_loops()
        return results

    def _trace(self, core: Core, python: Callable[[], object]) -> Any:
        try:
            return run_on(core, python)
        except NkiError as problem:
            if self.degree > 1:
                problem.notes.append(f"raised on core {core.index}")
            raise

    def recorded(
        self, name: str, parameters: list[tuple[str, Storage]], result: object, schedule: tuple
    ) -> Program:
        """Return what the cores recorded as a Program. `result` has views without a claim on bytes."""
        recorders = [core.recorder for core in self.cores if core.recorder is not None]
        used: dict[Storage, None] = dict.fromkeys(storage for _, storage in parameters)
        for recorder in recorders:
            used.update(recorder.used)
        used.update(dict.fromkeys(view.storage for view in leaves(result, View)))  # written or not
        constants = [(s, raw) for s, _, raw in self.shared.constants.values() if s in used]
        blocks = [
            OrderedBlock(c.index, first - 1, last - 1)
            for c in self.cores
            for first, last in c.ordering.blocks
        ]
        return Program(
            name,
            self.machine,
            tuple(tuple(recorder.items) for recorder in recorders),
            tuple(used),
            tuple(parameters),
            tuple(constants),
            result,
            tuple(self.dependencies),
            tuple(blocks),
            schedule,
            tuple(self.execution.diagnostics.found),
        )

    def add_dependency(self, core: int, later: NkiInstruction, earlier: NkiInstruction) -> None:
        """Record that an instruction waits for another."""
        if not self.executes:
            self.dependencies.append(Edge(core, _order(later), _order(earlier)))


def _order(instruction: NkiInstruction) -> int:
    """Return the position of an instruction in the walk of its core."""
    handle = instruction.handle
    return (handle.order if isinstance(handle, ProgramPosition) else handle) - 1
