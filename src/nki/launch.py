"""A launch: one call of a kernel, on one core or on two that take turns.

Two programs advance one at a time, core 0 first, and hand over only where the language says they meet,
so results never depend on thread timing. When every program waits, the launch says for what.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from . import core as core_module
from .core import Core
from .dtypes import DType
from .errors import NkiError, Site, emit_warning, error, error_class, show, user_site
from .execute.collector import fewer_collections
from .execute.memory import FRESH, Memory
from .execute.wide import WideMemory
from .machine import Machine
from .options import Options
from .program import Instruction, NkiInstruction
from .statistics import Statistics
from .storage import SHARED_HBM, Lease, Storage


class Diagnostic:
    """A W diagnostic as recorded on a run."""

    def __init__(
        self,
        kind: str,
        message: str,
        notes: list[str],
        help: str | None,
        site: Site | None,
        before: int | None = None,
    ):
        self.kind, self.message, self.notes, self.help, self.site = kind, message, notes, help, site
        self.before = before  # the instruction that came next; None: said by one that ran

    @property
    def parts(self) -> tuple[str, str, list[str], str | None, Site | None]:
        return self.kind, self.message, self.notes, self.help, self.site

    def __str__(self) -> str:
        return show(f"NkiWarning[{self.kind}]: {self.message}", self.site, self.notes, self.help)


class SharedTensor(NamedTuple):
    """A shared_hbm allocation and the cores that made it."""

    storage: Storage
    lease: Lease
    cores: set[int]


class Launch:
    """Everything the programs of one kernel call share."""

    def __init__(
        self,
        machine: Machine,
        options: Options,
        degree: int = 1,
        bracketed: bool = False,
        executes: bool = True,
        counts: bool = True,
        sink_makers: Iterable[Callable[[Core], Any]] = (),
    ):
        self.machine = machine
        self.options = options
        self.degree = degree
        self.bracketed = bracketed
        self.executes = executes
        self.statistics = Statistics(machine)
        self.counts = counts  # while the programs run; a recording can be counted later
        self.sink_makers = [*([self._counter] if counts else []), *sink_makers]
        self.diagnostics: list[Diagnostic] = []
        self.looked_at_values = False  # the kernel's Python saw run-time values
        self._said: set[tuple] = set()
        self._said_sites: set[Site | None] = set()
        self.shared: dict[tuple[str, int], SharedTensor] = {}
        self.meetings: dict[tuple[Any, int], dict[int, Any]] = {}
        self.constants: dict[tuple, tuple[Storage, Lease]] = {}  # by contents
        self.constant_order: list[tuple] = []  # what the n-th nl.shared_constant of each core holds
        self.dependencies: list[tuple[NkiInstruction, NkiInstruction]] = []
        self.cores = [Core(self, index) for index in range(degree)]
        self.baton = Baton(self) if degree > 1 else None

    # ---- running ---------------------------------------------------------------------------------

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *exception: object) -> None:
        """Give up the memories and the cores: they and the launch refer to each other."""
        for core in self.cores:
            core.chip.clear()
            core.sinks.clear()
        self.shared.clear()
        self.constants.clear()
        self.cores, self.sink_makers, self.baton = [], [], None

    def run(self, program: Callable[[], Any]) -> list[Any]:
        """What each core's program returned."""
        with fewer_collections():
            if self.baton is None:
                return [self._run_core(self.cores[0], program)]
            results = self.baton.run(program)
        self._compare_shared()
        self._compare_loops()
        return results

    def _run_core(self, core: Core, program: Callable[[], Any]) -> Any:
        before = core_module.activate(core)
        try:
            with np.errstate(all="ignore"):
                return program()
        finally:
            core_module.activate(before)

    def wait(self, core: Core, what: str, ready: Callable[[], bool], alone: bool = False) -> bool:
        """Let the other programs run until `ready()`.

        A wait that may end `alone` gives up, and returns False, when no other program can go on either.
        """
        if self.baton is not None:
            return self.baton.wait(core, what, ready, alone)
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
        alone: bool = False,
    ) -> dict[int, Any]:
        """Wait for every core to come to `point`; returns what each offered, by core.

        The n-th time a core comes to a point it meets the others' n-th time. The last to come does
        `act`, before anybody goes on. See `wait` for `alone`: then only this core's offer comes back.
        """
        count = core.meetings[point] = core.meetings.get(point, 0) + 1
        offers = self.meetings.setdefault((point, count), {})
        offers[core.index] = offer
        if len(offers) < self.degree:
            if self.wait(core, what, lambda: len(offers) == self.degree, alone):
                return offers
            core.meetings[point] = count - 1
        del self.meetings[point, count]
        if act is not None:
            act(offers)
        return offers

    # ---- services to the cores -------------------------------------------------------------------

    def shared_storage(
        self, core: Core, name: str, shape: tuple[int, ...], dtype: DType
    ) -> tuple[Storage, Lease]:
        """The n-th shared_hbm tensor of a name is one storage for all cores (language.md 12)."""
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
        """A dynamic loop that both cores ran must have run equally often on both (language.md 10.6)."""
        first, second = (core.trips for core in self.cores)
        for site in first:
            if site in second and first[site] != second[site]:
                self.diagnose(
                    "lnc-divergence",
                    "a dynamic loop runs different numbers of iterations on the two cores",
                    [f"core {c.index}: {', '.join(map(str, c.trips[site][:8]))}" for c in self.cores],
                    "a core_barrier or collective in its body would wait for ever",
                    site,
                )

    def borrow(self, storage: Storage, raw: np.ndarray) -> Memory:
        """A memory over the caller's bytes, copied at the first write."""
        return (Memory if self.options.precise_fp else WideMemory)(storage, raw)

    def fill(self, storage: Storage, raw: np.ndarray) -> Memory:
        """A fresh memory whose bytes the caller lends for good."""
        memory = Memory(storage, raw)
        memory.state, memory.borrowed = FRESH, False
        return memory

    def storage_released(self, storage: Storage) -> None:
        if self.counts:
            self.statistics.retire(storage)

    def _counter(self, core: Core) -> Callable[[Instruction], None]:
        return self.statistics.sink_of(core.index)

    def count_from_now_on(self, core: Core, instructions: Iterable[Instruction]) -> None:
        """Begin to count with what a core has done so far."""
        self.counts = True
        count = self._counter(core)
        for instruction in instructions:
            count(instruction)
        self.statistics.retire_dead()
        core.sinks = [*core.sinks, count]  # a new list: somebody walks over the old one

    def add_dependency(self, later: NkiInstruction, earlier: NkiInstruction) -> None:
        for instruction in (later, earlier):
            if isinstance(instruction, Instruction):
                instruction.detach()  # it ran already; the list must not keep its tiles alive
        self.dependencies.append((later, earlier))

    # ---- diagnostics -----------------------------------------------------------------------------

    def hush(self, diagnostics: Iterable[Diagnostic]) -> None:
        """These were said before: not again."""
        self._said.update((d.kind, d.site and (d.site.filename, d.site.lineno)) for d in diagnostics)

    def heard(self, what: tuple) -> bool:
        """True from the second time on that this is to be said in the launch."""
        known = what in self._said
        self._said.add(what)
        return known

    def would_say(self, site: Site | None) -> bool:
        """True while nothing was said about this line yet."""
        return site not in self._said_sites

    def diagnose(
        self,
        kind: str,
        message: str,
        notes: list[str],
        help: str | None,
        site: Site | None,
        before: int | None = None,
    ) -> None:
        """Say something about a line, once. `before`: the number of the instruction that comes next."""
        if self.options.strict:
            raise error_class(kind)(message, notes=notes, help=help, site=site)
        self._said_sites.add(site)
        line = (kind, site and (site.filename, site.lineno))  # a line may hold several instructions
        if line in self._said:
            return
        self._said.add(line)
        self.diagnostics.append(Diagnostic(kind, message, notes, help, site, before))
        emit_warning(kind, message, site, notes, help)


class Wait:
    """What a program waits for, where, and whether it may go on alone when nobody else can."""

    def __init__(self, what: str, ready: Callable[[], bool], site: Site | None, alone: bool):
        self.what, self.ready, self.site, self.alone = what, ready, site, alone


class Baton:
    """Lets one program run at a time and knows what the others wait for."""

    def __init__(self, launch: Launch):
        self.launch = launch
        self.turn = threading.Condition()
        self.started, self.holder = 0, -1
        self.waiting: dict[int, Wait] = {}
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self.results: list[Any] = [None] * launch.degree

    def run(self, program: Callable[[], Any]) -> list[Any]:
        threads = [
            threading.Thread(
                target=self._program, args=(core, program), name=f"nki-core-{core.index}", daemon=True
            )
            for core in self.launch.cores
        ]
        try:
            for thread in threads:
                thread.start()
                self.started += 1
            with self.turn:
                self._give_to(0)
            self._await_end()
        except BaseException:  # Ctrl-C reaches this thread, not the programs
            self._abandon(threads[self.holder])
            raise
        for thread in threads:
            thread.join()
        self._raise_failure()
        return self.results

    def _await_end(self, seconds: float | None = None) -> None:
        """Wait for all programs. An interrupted `Thread.join` would take its thread for finished."""
        with self.turn:
            self.turn.wait_for(lambda: len(self.finished) == self.started, seconds)

    def _abandon(self, running: threading.Thread) -> None:
        """Stop the programs: those that wait wake up, the one that runs is interrupted."""
        with self.turn:
            self.failure = _Abandoned()
            self.turn.notify_all()
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        for _ in range(100):  # a long instruction ends first, and a __del__ swallows an exception
            if len(self.finished) < self.started:
                raise_in(ctypes.c_ulong(running.ident or 0), ctypes.py_object(_Abandoned))
                self._await_end(0.1)

    def _raise_failure(self) -> None:
        """Raise what a program raised, and let go of it: its traceback holds the frames that hold us."""
        failure, self.failure = self.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure

    def _program(self, core: Core, program: Callable[[], Any]) -> None:
        with contextlib.suppress(_Abandoned):
            try:
                self._await_turn(core)
                self.results[core.index] = self.launch._run_core(core, program)
            except _Abandoned:
                raise
            except BaseException as failure:
                if self.failure is None:
                    if isinstance(failure, NkiError) and failure.kind != "deadlock":
                        failure.notes.append(f"raised on core {core.index}")
                    self.failure = failure
            finally:
                self.finished.add(core.index)
                self._pass_on(core.index)

    def wait(self, core: Core, what: str, ready: Callable[[], bool], alone: bool) -> bool:
        if not ready():
            self.waiting[core.index] = Wait(what, ready, user_site(2), alone)
            self._pass_on(core.index)
            self._await_turn(core)
            del self.waiting[core.index]
        return ready()

    def _await_turn(self, core: Core) -> None:
        with self.turn:
            self.turn.wait_for(lambda: self.holder == core.index or self.failure is not None)
        if self.failure is not None:
            raise _Abandoned

    def _pass_on(self, index: int) -> None:
        """Give the turn to the next program that can go on; report a deadlock when none can."""
        with self.turn:
            degree = self.launch.degree
            for step in range(1, degree + 1):
                candidate = (index + step) % degree
                if candidate in self.finished:
                    continue
                waits = self.waiting.get(candidate)
                if waits is None or waits.ready():
                    self._give_to(candidate)
                    return
            for candidate, waits in self.waiting.items():
                if waits.alone:
                    self._give_to(candidate)
                    return
            if len(self.finished) < degree and self.failure is None:
                self.failure = self._deadlock()
            self.turn.notify_all()

    def _give_to(self, index: int) -> None:
        self.holder = index
        self.turn.notify_all()

    def _deadlock(self) -> NkiError:
        notes = []
        for index in range(self.launch.degree):
            if index in self.waiting:
                wait = self.waiting[index]
                notes.append(f"core {index} waits for {wait.what} at {wait.site}")
            else:
                notes.append(f"core {index} has finished")
        site = next((wait.site for wait in self.waiting.values()), None)
        return error_class("deadlock")(
            "no core can go on",
            notes=notes,
            help="both cores must reach the same core_barrier, sendrecv and collective calls in one order",
            site=site,
        )


class _Abandoned(BaseException):
    """Unwinds a program whose partner failed."""
