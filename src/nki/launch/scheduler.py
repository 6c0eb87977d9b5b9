"""The baton: programs of several cores and ranks advance one at a time, and hand over where they meet.

Results never depend on thread timing. When every program waits, the baton says for what.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from ..errors import NkiError, Site, SourceLine, error_class, user_site

HOST = -1  # the core of a rank's own thread, which launches the others


class Place(NamedTuple):
    """Whose program it is. A launch of its own has no rank."""

    rank: int | None
    core: int


class Patience(IntEnum):
    """Where no program can go on, the least patient goes on alone: it loses its turn, or a meeting."""

    LITTLE = 0
    MUCH = 1
    ENDLESS = 2


class Wait(NamedTuple):
    """What a program waits for, where, and how long if nobody can go on."""

    what: str
    ready: Callable[[], bool]
    line: str
    site: Site | SourceLine | None
    patience: Patience


class Party:
    """Programs that were started together: when one fails, all are stopped."""

    def __init__(self, parent: Party | None):
        self.parent = parent
        self.failure: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None or (self.parent is not None and self.parent.failed)


class Seat:
    """A program that takes turns."""

    def __init__(self, place: Place, party: Party):
        self.place, self.party = place, party
        self.gate = threading.Lock()  # open when it is this program's turn; a lock is the quickest gate
        self.gate.acquire()
        self.waits: Wait | None = None
        self.finished = False
        self.thread: threading.Thread | None = None
        self.result: Any = None

    def open(self) -> None:
        """Let the program pass once. Whoever opens holds the baton's lock."""
        if self.gate.locked():
            self.gate.release()

    @property
    def unwinds(self) -> bool:
        return not self.finished and self.party.failed

    @property
    def patience(self) -> Patience:
        return Patience.ENDLESS if self.finished or self.waits is None else self.waits.patience

    @property
    def can_go_on(self) -> bool:
        return not self.finished and not self.party.failed and (self.waits is None or self.waits.ready())


class Baton:
    """Lets one program run at a time and knows what the others wait for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended = threading.Condition(self.lock)
        self.seats: list[Seat] = []  # in the order of their places
        self.holder: Seat | None = None
        self.root: Party | None = None
        self._here = threading.local()

    def run(self, jobs: Sequence[tuple[Place, Callable[[], Any]]]) -> list[Any]:
        """What each job gives. They see the caller's ContextVars; a running program may start more."""
        host: Seat | None = getattr(self._here, "seat", None)
        party = Party(host.party if host is not None else None)
        seats = [Seat(place, party) for place, _ in jobs]
        for seat, (_, job) in zip(seats, jobs, strict=True):
            rank, core = seat.place
            seat.thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._program, seat, job),
                name=f"nki-core-{core}" if rank is None else f"nki-rank-{rank}-core-{core}",
                daemon=True,
            )
        with self.lock:
            if host is None:
                self.root = party
            self.seats = sorted([*self.seats, *seats], key=lambda seat: (seat.place.rank or 0, seat.place))
        started: list[Seat] = []
        try:
            for seat in seats:
                seat.thread.start()  # type: ignore[union-attr]
                started.append(seat)
            if host is None:
                with self.lock:
                    self._give_to(seats[0])
                self._await_end(started)
            else:
                self.wait("its cores", lambda: all(seat.finished for seat in seats))
        except BaseException:  # Ctrl-C reaches this thread, not the programs
            self._abandon(party, started)
            raise
        finally:
            with self.lock:
                self.seats = [seat for seat in self.seats if seat not in seats]
        for seat in seats:
            seat.thread.join()  # type: ignore[union-attr]
        _raise(party)
        return [seat.result for seat in seats]

    def _await_end(self, seats: list[Seat], seconds: float | None = None) -> None:
        """Wait for all programs. An interrupted `Thread.join` would take its thread for finished."""
        with self.lock:
            self.ended.wait_for(lambda: all(seat.finished for seat in seats), seconds)

    def _abandon(self, party: Party, started: list[Seat]) -> None:
        """Stop the programs: those that wait wake up, the one that runs is interrupted."""
        with self.lock:
            self._fail(party, _Abandoned())
            running = self.holder
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        for _ in range(100):  # a long instruction ends first, and a __del__ swallows an exception
            if all(seat.finished for seat in started):
                return
            if running is not None and running.thread is not None and not running.finished:
                raise_in(ctypes.c_ulong(running.thread.ident or 0), ctypes.py_object(_Abandoned))
            self._await_end(started, 0.1)

    def _program(self, seat: Seat, job: Callable[[], Any]) -> None:
        self._here.seat = seat
        with contextlib.suppress(_Abandoned):
            try:
                self._await_turn(seat)
                seat.result = job()
            except _Abandoned:
                raise
            except BaseException as failure:
                with self.lock:
                    if seat.party.failure is None:
                        self._fail(seat.party, failure)
            finally:
                with self.lock:
                    seat.finished = True
                    if self.holder is seat or self.holder is None:
                        self._pass_on(seat)
                    self.ended.notify_all()

    def wait(
        self,
        what: str,
        ready: Callable[[], bool],
        patience: Patience = Patience.ENDLESS,
        site: Site | SourceLine | None = None,
        line: str = "",
    ) -> bool:
        """Let the others run until `ready()`; what it is then."""
        if not ready():
            seat: Seat = self._here.seat
            site = site or (None if line else user_site(2))
            seat.waits = Wait(what, ready, line or str(site), site, patience)
            with self.lock:
                self._pass_on(seat)
            self._await_turn(seat)
            seat.waits = None
        return ready()

    @staticmethod
    def _await_turn(seat: Seat) -> None:
        seat.gate.acquire()
        if seat.party.failed:
            raise _Abandoned

    # ---- with the lock held ----------------------------------------------------------------------

    def _pass_on(self, seat: Seat) -> None:
        """Give the turn to the next program that can go on; report a deadlock when none can."""
        at = self.seats.index(seat) + 1 if seat in self.seats else 0
        order = self.seats[at:] + self.seats[:at]
        for candidate in order:
            if candidate.can_go_on:
                self._give_to(candidate)
                return
        self.holder = None
        if any(candidate.unwinds for candidate in self.seats):
            return  # the last of them passes it on
        least = min(order, key=lambda candidate: candidate.patience, default=None)
        if least is not None and least.patience < Patience.ENDLESS:
            self._give_to(least)
            return
        if any(not candidate.finished for candidate in self.seats):
            assert self.root is not None
            self._fail(self.root, self._deadlock())

    def _give_to(self, seat: Seat) -> None:
        self.holder = seat
        seat.open()

    def _fail(self, party: Party, failure: BaseException) -> None:
        """Wake everybody whom the failure stops."""
        party.failure = failure
        for seat in self.seats:
            if seat.unwinds and seat is not self.holder:
                seat.open()

    def _deadlock(self) -> NkiError:
        rows = []
        for seat in self.seats:
            if seat.place.core == HOST and any(
                s.place.rank == seat.place.rank and s is not seat for s in self.seats
            ):
                continue  # its cores are in the table
            rows.append((seat.place, seat.waits))
        waits = [wait for _, wait in rows if wait is not None]
        site = waits[0].site if waits else None
        ranks = rows[0][0].rank is not None
        notes = _rank_table(rows) if ranks else _core_lines(rows)
        who = "ranks and cores" if ranks else "cores"
        return error_class("deadlock")(
            f"no {'rank' if ranks else 'core'} can go on",
            notes=notes,
            help=f"{'all' if ranks else 'both'} {who} must reach the same core_barrier, sendrecv and "
            "collective calls in one order",
            site=site,  # type: ignore[arg-type]
        )


def _core_lines(rows: list[tuple[Place, Wait | None]]) -> list[str]:
    return [
        f"core {place.core} has finished"
        if wait is None
        else f"core {place.core} waits for {wait.what} at {wait.line}"
        for place, wait in rows
    ]


def _rank_table(rows: list[tuple[Place, Wait | None]]) -> list[str]:
    shown = []
    for place, wait in rows:
        core = str(max(place.core, 0)) if wait is not None else ""
        what = (wait.line, wait.what) if wait is not None else ("", "nothing: it has finished")
        shown.append((str(place.rank), core, *what))
    return table(("rank", "core", "line", "waits for"), shown)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose columns are as wide as what they hold."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _raise(party: Party) -> None:
    """Raise what a program raised, and let go of it: its traceback holds the frames that hold us."""
    failure, party.failure = party.failure, None
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


class _Abandoned(BaseException):
    """Unwinds a program whose partner failed."""
