"""A launch: one call of a kernel, on one core or on two that take turns.

Two programs advance one at a time, core 0 first, and hand over only where the language says they meet,
so results never depend on thread timing. When every program waits, the launch says for what.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from . import core as core_module
from .core import Core
from .dtypes import DType
from .errors import NkiError, Site, emit_warning, error, error_class, show, user_site
from .execute.memory import Memory, WideMemory
from .machine import Machine
from .options import Options
from .program import NkiInstruction
from .statistics import Statistics
from .storage import Lease, Storage

_NARROW_FLOATS = ("float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")


class Diagnostic:
    """A W diagnostic as recorded on a run."""

    def __init__(self, kind: str, message: str, notes: list[str], help: str | None, site: Site | None):
        self.kind, self.message, self.notes, self.help, self.site = kind, message, notes, help, site

    def __str__(self) -> str:
        return show(f"NkiWarning[{self.kind}]: {self.message}", self.site, self.notes, self.help)


class Launch:
    """Everything the programs of one kernel call share."""

    def __init__(
        self,
        machine: Machine,
        options: Options,
        degree: int = 1,
        bracketed: bool = False,
        executes: bool = True,
        sink_makers: list[Callable[[Core], Any]] | None = None,
    ):
        self.machine = machine
        self.options = options
        self.degree = degree
        self.bracketed = bracketed
        self.executes = executes
        self.statistics = Statistics(machine)
        self.sink_makers = [lambda core: self.statistics.sink, *(sink_makers or [])]
        self.diagnostics: list[Diagnostic] = []
        self.looked_at_values = False  # the kernel's Python saw run-time values
        self._said: set[tuple[str, Site | None]] = set()
        self._said_sites: set[Site | None] = set()
        self.shared: dict[tuple[str, int], tuple[Storage, Lease]] = {}
        self.dependencies: list[tuple[NkiInstruction, NkiInstruction]] = []
        self.cores = [Core(self, index) for index in range(degree)]
        self.baton = Baton(self) if degree > 1 else None

    # ---- running ---------------------------------------------------------------------------------

    def run(self, program: Callable[[], Any]) -> list[Any]:
        """What each core's program returned."""
        if self.baton is not None:
            return self.baton.run(program)
        return [self._run_core(self.cores[0], program)]

    def _run_core(self, core: Core, program: Callable[[], Any]) -> Any:
        before = core_module.activate(core)
        try:
            with np.errstate(all="ignore"):
                return program()
        finally:
            core_module.activate(before)

    def wait(self, core: Core, what: str, ready: Callable[[], bool]) -> None:
        """Let the other programs run until `ready()`."""
        if self.baton is None:
            if not ready():
                raise error("deadlock", f"core 0 waits for ever: {what}")
            return
        self.baton.wait(core, what, ready)

    # ---- services to the cores -------------------------------------------------------------------

    def keeps_wide(self, dtype: DType) -> bool:
        """NKI_PRECISE_FP=0 keeps narrow floats as float32 values."""
        return not self.options.precise_fp and dtype in _NARROW_FLOATS

    def borrow(self, storage: Storage, raw: np.ndarray) -> Memory:
        """A memory over the caller's bytes, copied at the first write."""
        return WideMemory(storage, raw) if self.keeps_wide(storage.dtype) else Memory(storage, raw)

    def storage_released(self, storage: Storage) -> None:
        self.statistics.retire(storage)

    def add_dependency(self, later: NkiInstruction, earlier: NkiInstruction) -> None:
        if later is earlier:
            raise error("depends-on", "depends_on: an instruction cannot depend on itself")
        self.dependencies.append((later, earlier))

    # ---- diagnostics -----------------------------------------------------------------------------

    def would_say(self, site: Site | None) -> bool:
        """True while nothing was said about this line yet."""
        return site not in self._said_sites

    def diagnose(
        self, kind: str, message: str, notes: list[str], help: str | None, site: Site | None
    ) -> None:
        if self.options.strict:
            raise error_class(kind)(message, notes=notes, help=help, site=site)
        self._said_sites.add(site)
        if (kind, site) in self._said:
            return
        self._said.add((kind, site))
        self.diagnostics.append(Diagnostic(kind, message, notes, help, site))
        emit_warning(kind, message, site, notes, help)


class Baton:
    """Lets one program run at a time and knows what the others wait for."""

    def __init__(self, launch: Launch):
        self.launch = launch
        self.turn = threading.Condition()
        self.holder = 0
        self.waiting: dict[int, tuple[str, Callable[[], bool], Site | None]] = {}
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self.results: list[Any] = [None] * launch.degree

    def run(self, program: Callable[[], Any]) -> list[Any]:
        threads = [
            threading.Thread(target=self._program, args=(core, program), name=f"nki-core-{core.index}")
            for core in self.launch.cores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return self.results

    def _program(self, core: Core, program: Callable[[], Any]) -> None:
        try:
            self._await_turn(core)
            self.results[core.index] = self.launch._run_core(core, program)
        except _Abandoned:
            pass
        except BaseException as failure:
            if self.failure is None:
                if isinstance(failure, NkiError) and failure.kind != "deadlock":
                    failure.notes.append(f"raised on core {core.index}")
                self.failure = failure
        finally:
            self.finished.add(core.index)
            self._pass_on(core.index)

    def wait(self, core: Core, what: str, ready: Callable[[], bool]) -> None:
        if ready():
            return
        self.waiting[core.index] = (what, ready, user_site(2))
        self._pass_on(core.index)
        self._await_turn(core)
        del self.waiting[core.index]

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
                if waits is None or waits[1]():
                    self.holder = candidate
                    self.turn.notify_all()
                    return
            if len(self.finished) < degree and self.failure is None:
                self.failure = self._deadlock()
            self.turn.notify_all()

    def _deadlock(self) -> NkiError:
        notes = []
        for index in range(self.launch.degree):
            if index in self.waiting:
                what, _, site = self.waiting[index]
                notes.append(f"core {index} waits for {what} at {site}")
            else:
                notes.append(f"core {index} has finished")
        site = next((w[2] for w in self.waiting.values()), None)
        return error_class("deadlock")(
            "no core can go on",
            notes=notes,
            help="every core must reach the same core_barrier, sendrecv and collective calls in the same order",
            site=site,
        )


class _Abandoned(BaseException):
    """Unwinds a program whose partner failed."""
