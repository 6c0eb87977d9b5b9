"""The baton: programs of several cores advance one at a time, and hand over where they meet.

Results never depend on thread timing. When every program waits, the baton says for what.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import NkiError, Site, error_class, user_site
from .core import Core


class Wait:
    """What a program waits for, where, and whether it may go on alone when nobody else can."""

    def __init__(self, what: str, ready: Callable[[], bool], site: Site | None, alone: bool):
        self.what, self.ready, self.site, self.alone = what, ready, site, alone


class Baton:
    """Lets one program run at a time and knows what the others wait for."""

    def __init__(self, cores: Sequence[Core]):
        self.cores = cores
        self.turn = threading.Condition()
        self.started, self.holder = 0, -1
        self.waiting: dict[int, Wait] = {}
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self.results: list[Any] = [None] * len(cores)

    def run(self, program: Callable[[Core], Any]) -> list[Any]:
        """What `program` gives for each core. It sees the caller's ContextVars."""
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._program, core, program),
                name=f"nki-core-{core.index}",
                daemon=True,
            )
            for core in self.cores
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

    def _program(self, core: Core, program: Callable[[Core], Any]) -> None:
        with contextlib.suppress(_Abandoned):
            try:
                self._await_turn(core)
                self.results[core.index] = program(core)
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
            degree = len(self.cores)
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
        for index in range(len(self.cores)):
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
