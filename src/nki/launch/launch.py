"""A launch: one call of a kernel, on one core or on two.

A kernel's Python runs in one of three ways. `trace`: there is no data, its instructions become a Program.
`deferred`: the same, and the Program is run when the Python has ended; where Python looks at a value, what
it has issued so far is run first, and from then on it goes on as `eager`: each instruction runs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ..backends.reference.collector import fewer_collections
from ..backends.reference.memories import check_usable
from ..backends.reference.random import Generators
from ..check.program import findings
from ..check.races import Watch
from ..check.races import found as races_between
from ..errors import NkiError, Site, emit_warning, error, error_class, user_site
from ..ir.context import activate
from ..ir.instruction import Instruction, NkiInstruction, ProgramPosition
from ..ir.program import Block, Diagnostic, Edge, Item, Program, walk
from ..ir.recorder import Recorder, last_uses
from ..ir.statistics import Statistics
from ..ir.storage import Lease, Storage
from ..ir.tree import leaves
from ..ir.view import View
from ..machine.dtypes import DType
from ..machine.machine import Machine
from ..machine.memories import SHARED_HBM
from ..options import Options
from . import observers
from .core import Core, Validation, register_value
from .interleaving import Turns
from .scheduler import Baton, Patience
from .scheduler import Place as Seat
from .world import current_world

Mode = Literal["trace", "deferred", "eager", "replay"]


class SharedTensor(NamedTuple):
    """A shared_hbm allocation and the cores that made it."""

    storage: Storage
    lease: Lease
    cores: set[int]


class Gathering:
    """The cores that have come to a meeting, with what they offer."""

    def __init__(self) -> None:
        self.offers: dict[int, Any] = {}
        self.done = False


class Restart(BaseException):
    """The Python must run again from its beginning, eagerly."""


class Launch:
    """Everything the programs of one kernel call share."""

    def __init__(
        self,
        machine: Machine,
        options: Options,
        degree: int = 1,
        bracketed: bool = False,
        mode: Mode = "eager",
        limit: int | None = None,
        sinks: Iterable[Callable[[Instruction], None]] = (),
        alternates: bool = False,  # the cores were seen to race
    ):
        self.machine = machine
        self.options = options
        self.degree = degree
        self.bracketed = bracketed
        self.mode = mode
        self.world = current_world()
        self.met_ranks = False  # others have this rank's data: it cannot begin again
        self.call = object()  # whose storages these are
        whose = None if mode == "replay" else self.call
        from ..backends.fused.running import PlannedBackend  # a launch needs it, `import nki` does not

        self.backend = PlannedBackend(machine, options.precise_fp, whose, self._released)
        self.memories = self.backend.memories  # of kernels whose instructions run as they are issued
        self.generators = Generators()
        self.statistics: Statistics | None = Statistics(machine) if mode == "eager" else None
        self.diagnostics: list[Diagnostic] = []
        self.looked_at_values = False  # the kernel's Python saw run-time values
        self.files: list[tuple[str, str]] = []  # that the Python read through nki: path, digest
        self._said: set[tuple] = set()
        self._hushed: set[tuple] = set()
        self.diverged = False  # iterations of a dynamic loop issued different instructions
        self._warned: set[tuple[int, Site | None]] = set()
        self.shared: dict[tuple[str, int], SharedTensor] = {}
        self.meetings: dict[tuple[Any, int], Gathering] = {}
        self.constants: dict[tuple, tuple[Storage, Lease, np.ndarray]] = {}  # by contents
        self.constant_order: list[tuple] = []  # what the n-th nl.shared_constant of each core holds
        self.dependencies: list[tuple[int, NkiInstruction, NkiInstruction]] = []  # core, later, earlier
        self.verified: dict[int, int] | None = None  # trips of each loop that the Python was seen to allow
        self.prints_done = 0  # device_prints of an attempt before this one
        self.prints = 0
        self.cores = [Core(self, index) for index in range(degree)]
        self.baton = self._new_baton() if degree > 1 and mode in ("eager", "replay") else None
        self.turns: Turns | None = None
        # a race is seen when all has run, and a rank that has met others does not begin again
        if alternates or (mode == "eager" and degree > 1 and self.world.size > 1):
            self._alternate()
        self._limit = limit
        is_watched = mode == "eager" and degree > 1
        self.watches = [Watch(c.index, register_value) for c in self.cores] if is_watched else []
        for core in self.cores:
            watch = self.watches[core.index : core.index + 1]
            core.sinks = [*self._first_sinks(core), *watch, *sinks, *observers.current()]
        if mode == "deferred":
            self.memories.deferred = set()

    def _new_baton(self) -> Baton:
        return self.world.baton or Baton()

    def _alternate(self) -> None:
        """The cores race: from now on they take turns."""
        self.baton = self.baton or self._new_baton()
        self.turns = Turns(self.baton, self.degree)
        for core in self.cores:
            core.run_one = self.turns.sink(core.index, core.executor)

    def _first_sinks(self, core: Core) -> list[Callable[[Instruction], None]]:
        if self.mode in ("trace", "deferred"):
            full = (lambda: self._too_long(core)) if self._limit else None
            core.recorder = Recorder(self._admit, self._limit, full)
            return [core.recorder]
        if self.mode == "eager":
            assert self.statistics is not None
            return [core.run_one, self.statistics.sink_of(core.index)]
        return []

    @cached_property
    def races(self) -> list[Diagnostic]:
        """The races between cores whose instructions ran as they were issued."""
        return races_between(self.watches)

    @property
    def executes(self) -> bool:
        """Instructions run as they are issued."""
        return self.mode == "eager"

    @property
    def has_data(self) -> bool:
        return self.mode != "trace"

    # ---- running ---------------------------------------------------------------------------------

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *exception: object) -> None:
        """Give up the memories and the cores: they and the launch refer to each other."""
        for core in self.cores:
            core.sinks.clear()
        self.shared.clear()
        self.constants.clear()
        self.memories.released = None
        self.memories.clear()
        self.memories.chips.clear()
        self.cores, self.baton = [], None

    def run(self, program: Callable[[], Any]) -> list[Any]:
        """Run the kernel's Python; what each core's returned."""
        with fewer_collections():
            if self.baton is not None:
                results = self._in_turns(lambda core: program)
            else:
                results = [self._alone(core, program) for core in self.cores]
        if self.degree > 1:
            self._compare_shared()
            self._compare_loops()
        return results

    def _in_turns(self, program: Callable[[Core], Callable[[], Any]]) -> list[Any]:
        """Run a program of each core, one at a time."""
        assert self.baton is not None
        rank = None if self.world.baton is None else self.world.rank
        jobs = [(Seat(rank, core.index), partial(self._alone, core, program(core))) for core in self.cores]
        return self.baton.run(jobs)

    def _alone(self, core: Core, program: Callable[[], Any]) -> Any:
        """Run a program of one core: while tracing after the other's, where nobody waits."""
        try:
            return self._on(core, program)
        except NkiError as problem:
            if self.degree > 1:
                problem.notes.append(f"raised on core {core.index}")
            raise

    def replay(self, program: Program) -> None:
        """Run a program on the memories that its parameters have got."""
        for storage, raw in program.constants:
            self.backend.borrow(storage, raw)
        raced = any(found.kind == "race" for found in findings(program, self.options))
        if raced:
            self._alternate()
        with fewer_collections():
            executor, folder = self.options.executor, self.options.plan_cache
            planned = not raced and self.backend.choose(program, executor, folder)
            if not (planned and self._by_plan(program)):
                self._one_by_one(program)
        for core in self.cores:
            core.replayed = None
        for diagnostic in program.said:  # after the last instruction, or about none of them
            if diagnostic.before is None or diagnostic.before >= program.length_of(diagnostic.core):
                self.say(diagnostic)

    def _one_by_one(self, program: Program) -> None:
        if self.degree == 1:
            self._on(self.cores[0], lambda: self.backend.run(program, self.cores[0]))
        elif not self.backend.side_by_side(self.cores, self._on):
            self.baton = self.baton or self._new_baton()
            self._in_turns(lambda core: lambda: self.backend.run(program, core))
            self._compare_loops()

    def _by_plan(self, program: Program) -> bool:
        """Run a program by its plan. If anything has something to say: False, and all is as it was."""
        said, heard = list(self.diagnostics), set(self._said)
        known = {id(diagnostic) for diagnostic in program.said}
        try:
            self._one_by_one(program)
            if all(id(diagnostic) in known for diagnostic in self.diagnostics[len(said) :]):
                return True
        except Exception:  # one instruction after the other says what is wrong, and where
            pass
        self.diagnostics[:], self._said = said, heard
        self.meetings.clear()
        sinks = [core.sinks for core in self.cores]
        self.cores[:] = [Core(self, index) for index in range(self.degree)]
        for core, its_own in zip(self.cores, sinks, strict=True):
            core.sinks = its_own
        self.baton = None
        self.backend.start_again()
        return False

    @staticmethod
    def _on(core: Core, program: Callable[[], Any]) -> Any:
        before = activate(core)
        try:
            with np.errstate(all="ignore"):
                return program()
        finally:
            activate(before)

    # ---- deferring -------------------------------------------------------------------------------

    def begin_replay(self) -> None:
        """The Python has ended and is recorded: what it said is said again where it belongs."""
        self.mode, self.memories.deferred = "replay", None
        for core in self.cores:
            core.registers = {}
        self.diagnostics, self._said = [], set(self._hushed)

    def drain(self, core: Core) -> None:
        """Run what waits, and go on eagerly: somebody needs values."""
        if self.mode != "deferred":
            return
        if self.degree > 1:  # the other core's Python has not run yet
            raise Restart
        recorder = core.recorder
        assert recorder is not None and not core.loops
        try:
            self._eager(core, recorder.items)
        except Exception:  # an instruction fails where it was issued, and Python may catch it there
            if self.met_ranks:
                raise
            raise Restart from None

    def _too_long(self, core: Core) -> None:
        """More instructions than anybody keeps."""
        if self.mode == "deferred":
            self.looked_at_values = True
            self.drain(core)

    def _eager(self, core: Core, items: list[Item]) -> None:
        """Leave the deferred mode: run the items, then every instruction as it comes."""
        given_up = self.memories.deferred or set()
        self.mode, self.memories.deferred = "eager", None
        self.statistics = Statistics(self.machine)
        count = self.statistics.sink_of(core.index)
        said, self.diagnostics, self._said = self.diagnostics, [], set(self._hushed)
        following = iter(said)
        pending = next(following, None)
        executing, core.executing = core.executing, True
        try:
            last = last_uses(items)
            for position, instruction in enumerate(walk(items)):
                while pending is not None and pending.before is not None and pending.before <= position:
                    self.say(pending)
                    pending = next(following, None)
                core.replayed = instruction
                core.executor(instruction)
                count(instruction)
                for storage in last.get(position, ()):
                    if storage in given_up:
                        self.memories.close(storage)
        finally:
            core.replayed, core.executing = None, executing
        while pending is not None:
            self.say(pending)
            pending = next(following, None)
        core.recorder = None
        others = [sink for sink in core.sinks if not isinstance(sink, Recorder)]
        core.sinks = [core.executor, count, *others]  # a new list: somebody walks over the old one

    def _admit(self, storage: Storage) -> None:
        check_usable(storage, self.call, self.memories.ended)

    def recorded(
        self, name: str, parameters: list[tuple[str, Storage]], result: Any, schedule: tuple
    ) -> Program:
        """What the cores recorded, as a Program. `result` has views without a claim on bytes."""
        items = [tuple(core.recorder.items) for core in self.cores if core.recorder is not None]
        used: dict[Storage, None] = dict.fromkeys(storage for _, storage in parameters)
        for core in self.cores:
            if core.recorder is not None:
                used.update(core.recorder.used)
        used.update(dict.fromkeys(view.storage for view in leaves(result, View)))  # written or not
        constants = [(s, raw) for s, _, raw in self.constants.values() if s in used]
        return Program(
            name,
            self.machine,
            tuple(items),
            tuple(used),
            tuple(parameters),
            tuple(constants),
            result,
            tuple(Edge(core, _order(later), _order(earlier)) for core, later, earlier in self.dependencies),
            tuple(Block(c.index, first - 1, last - 1) for c in self.cores for first, last in c.ordered),
            schedule,
            tuple(self.diagnostics),
        )

    # ---- meetings --------------------------------------------------------------------------------

    def wait(
        self, core: Core, what: str, ready: Callable[[], bool], patience: Patience = Patience.ENDLESS
    ) -> bool:
        """Let the other programs run until `ready()`.

        A wait whose patience ends gives up, and returns False, when no other program can go on either.
        """
        if self.baton is not None:
            replayed = core.replayed
            return self.baton.wait(what, ready, patience, user_site(2) if replayed is None else replayed.site)
        if not ready():
            raise error("deadlock", f"core 0 waits for ever: {what}")
        return True

    def meet(
        self,
        core: Core,
        point: Any,
        what: str,
        offer: Any = None,
        act: Callable[[dict[int, Any]], None] | None = None,
        patience: Patience = Patience.ENDLESS,
    ) -> dict[int, Any]:
        """Wait for every core to come to `point`; returns what each offered, by core.

        The n-th time a core comes to a point it meets the others' n-th time. The last to come does
        `act`, before anybody goes on. Where its patience ends, see `wait`, only this core's offer comes back.
        """
        count = core.meetings[point] = core.meetings.get(point, 0) + 1
        gathering = self.meetings.setdefault((point, count), Gathering())
        offers = gathering.offers
        offers[core.index] = offer
        if len(offers) < self.degree:
            if self.wait(core, what, lambda: gathering.done, patience):
                return offers
            core.meetings[point] = count - 1
        elif self.turns is not None:
            self.turns.met()
        del self.meetings[point, count]
        if act is not None:
            act(offers)
        gathering.done = True
        return offers

    # ---- services to the cores -------------------------------------------------------------------

    def shared_storage(
        self, core: Core, name: str, shape: tuple[int, ...], dtype: DType
    ) -> tuple[Storage, Lease]:
        """The n-th shared_hbm tensor of a name is one storage for all cores (spec/language.md 12)."""
        number = core.allocation_counts.get(name, 0)
        core.allocation_counts[name] = number + 1
        found = self.shared.get((name, number))
        if found is None:
            found = SharedTensor(*core.new_storage(shape, dtype, SHARED_HBM, name), set())
            self.shared[name, number] = found
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

    def _compare_shared(self) -> None:
        for storage, _, cores in self.shared.values():
            if len(cores) < self.degree:
                what = f"'{storage.name}'" if storage.name else f"{storage.dtype}{list(storage.shape)}"
                self.diagnose(
                    "shared-one-sided",
                    f"only core {min(cores)} allocates the shared_hbm tensor {what}",
                    [],
                    "allocate it on both cores under one name, or use nl.private_hbm",
                    storage.site,
                )

    def _compare_loops(self) -> None:
        """A dynamic loop that both cores ran must have run equally often on both (spec/language.md 10.6)."""
        if not self.has_data or self.mode == "deferred":
            return
        first, second = (
            {core.loop_sites[n]: trips for n, trips in core.trips.items()} for core in self.cores
        )
        for site in first:
            if site in second and first[site] != second[site]:
                self.diagnose(
                    "lnc-divergence",
                    "a dynamic loop runs different numbers of iterations on the two cores",
                    [f"core {i}: {', '.join(map(str, t[site][:8]))}" for i, t in enumerate((first, second))],
                    "a core_barrier or collective in its body would wait for ever",
                    site,
                )

    def _released(self, storage: Storage) -> None:
        if self.statistics is not None:
            self.statistics.retire(storage)

    def add_dependency(self, core: Core, later: NkiInstruction, earlier: NkiInstruction) -> None:
        if self.mode != "eager":
            self.dependencies.append((core.index, later, earlier))

    def mark_looked(self) -> None:
        self.looked_at_values = True

    # ---- diagnostics -----------------------------------------------------------------------------

    def hush(self, diagnostics: Iterable[Diagnostic]) -> None:
        """These were said before: not again."""
        self._hushed.update(d.line for d in diagnostics)
        self._said |= self._hushed

    def go_on_from(self, before: Launch) -> None:
        """The same call runs again: what was said stays said."""
        self.hush(before.diagnostics)
        self.diagnostics = [*before.diagnostics]

    def heard(self, what: tuple) -> bool:
        """True from the second time on that this is to be said in the launch."""
        known = what in self._said
        self._said.add(what)
        return known

    def warned_before(self, validation: Validation, site: Site | None) -> bool:
        """Return True from the second time on that a validation with warnings is met on a line."""
        met = (id(validation), site)
        known = met in self._warned
        self._warned.add(met)
        return known

    def diagnose(
        self,
        kind: str,
        message: str,
        notes: list[str],
        help: str | None,
        site: Site | None,
        core: int = 0,
        before: int | None = None,
    ) -> None:
        """Say something about a line, once. `before`: the number of the instruction that comes next."""
        self.say(Diagnostic(kind, message, list(notes), help, site, core, before))

    def say(self, diagnostic: Diagnostic) -> None:
        """A deferred launch and a replay keep it until the call has ended well: see `speak`."""
        if self.options.strict:
            again = self.mode in ("deferred", "replay") and not self.met_ranks
            if again:  # whichever comes first when each runs as it is issued
                raise Restart
            raise error_class(diagnostic.kind)(
                diagnostic.message, notes=diagnostic.notes, help=diagnostic.help, site=diagnostic.site
            )
        if diagnostic.line in self._said:  # a line may hold several instructions
            return
        self._said.add(diagnostic.line)
        self.diagnostics.append(diagnostic)
        if self.mode in ("trace", "eager"):
            self.speak(diagnostic)

    def speak(self, diagnostic: Diagnostic) -> None:
        """Show a diagnostic, unless another rank of this process has."""
        said = self.world.said
        if said is None or diagnostic.line not in said:
            speak(diagnostic)
        if said is not None:
            said.add(diagnostic.line)


def speak(diagnostic: Diagnostic) -> None:
    """Show a diagnostic as a Python warning."""
    emit_warning(diagnostic.kind, diagnostic.message, diagnostic.site, diagnostic.notes, diagnostic.help)


def _order(instruction: NkiInstruction) -> int:
    """The position of an instruction in the walk of its core."""
    handle = instruction.handle
    return (handle.order if isinstance(handle, ProgramPosition) else handle) - 1
