"""The cooperative scheduler: tasks of several cores and ranks run one at a time and switch where they wait.

Results never depend on thread timing. When every task waits, the deadlock error lists what for.
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


class TaskId(NamedTuple):
    """The rank and core of a task. A launch outside a world of ranks has no rank."""

    rank: int | None
    core: int


class GivesUp(IntEnum):
    """When a wait ends without its condition: if no task can run, the lowest value gives up first."""

    FIRST = 0
    LAST = 1
    NEVER = 2


class Wait(NamedTuple):
    """What a task waits for, where, and whether it gives up when no task can run."""

    what: str
    ready: Callable[[], bool]
    line: str
    site: Site | SourceLine | None
    gives_up: GivesUp


class TaskGroup:
    """Tasks that were started together: when one fails, all are stopped."""

    def __init__(self, parent: TaskGroup | None):
        self.parent = parent
        self.failure: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None or (self.parent is not None and self.parent.failed)


class Task:
    """A function on a thread of its own that runs when the scheduler lets it."""

    def __init__(self, id: TaskId, group: TaskGroup):
        self.id, self.group = id, group
        self.gate = threading.Lock()  # open when this task may run; a lock is the fastest gate
        self.gate.acquire()
        self.waits: Wait | None = None
        self.finished = False
        self.thread: threading.Thread | None = None
        self.result: Any = None

    def open(self) -> None:
        """Let the task run. The caller holds the scheduler's lock."""
        if self.gate.locked():
            self.gate.release()

    @property
    def unwinds(self) -> bool:
        return not self.finished and self.group.failed

    @property
    def gives_up(self) -> GivesUp:
        return GivesUp.NEVER if self.finished or self.waits is None else self.waits.gives_up

    @property
    def can_run(self) -> bool:
        return not self.finished and not self.group.failed and (self.waits is None or self.waits.ready())


class Scheduler:
    """Runs one task at a time and knows what the others wait for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended = threading.Condition(self.lock)
        self.tasks: list[Task] = []  # in the order of their ids
        self.current: Task | None = None
        self.root: TaskGroup | None = None
        self._here = threading.local()

    def run(self, jobs: Sequence[tuple[TaskId, Callable[[], object]]]) -> list[Any]:
        """Return the result of each job. Jobs see the caller's ContextVars; a running task may start more."""
        host: Task | None = getattr(self._here, "task", None)
        group = TaskGroup(host.group if host is not None else None)
        tasks = [Task(id, group) for id, _ in jobs]
        for task, (_, job) in zip(tasks, jobs, strict=True):
            rank, core = task.id
            task.thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._run_task, task, job),
                name=f"nki-core-{core}" if rank is None else f"nki-rank-{rank}-core-{core}",
                daemon=True,
            )
        with self.lock:
            if host is None:
                self.root = group
            self.tasks = sorted([*self.tasks, *tasks], key=lambda task: (task.id.rank or 0, task.id))
        started: list[Task] = []
        try:
            for task in tasks:
                task.thread.start()  # type: ignore[union-attr]
                started.append(task)
            if host is None:
                with self.lock:
                    self._switch_to(tasks[0])
                self._await_end(started)
            else:
                self.wait("its cores", lambda: all(task.finished for task in tasks))
        except BaseException:  # Ctrl-C reaches this thread, not the tasks
            self._abandon(group, started)
            raise
        finally:
            with self.lock:
                self.tasks = [task for task in self.tasks if task not in tasks]
        for task in tasks:
            task.thread.join()  # type: ignore[union-attr]
        _raise(group)
        return [task.result for task in tasks]

    def _await_end(self, tasks: list[Task], seconds: float | None = None) -> None:
        """Wait for all tasks. An interrupted `Thread.join` would take its thread for finished."""
        with self.lock:
            self.ended.wait_for(lambda: all(task.finished for task in tasks), seconds)

    def _abandon(self, group: TaskGroup, started: list[Task]) -> None:
        """Stop the tasks: those that wait wake up, the one that runs is interrupted."""
        with self.lock:
            self._fail(group, _Abandoned())
            running = self.current
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        for _ in range(100):  # a long instruction ends first, and a __del__ swallows an exception
            if all(task.finished for task in started):
                return
            if running is not None and running.thread is not None and not running.finished:
                raise_in(ctypes.c_ulong(running.thread.ident or 0), ctypes.py_object(_Abandoned))
            self._await_end(started, 0.1)

    def _run_task(self, task: Task, job: Callable[[], object]) -> None:
        self._here.task = task
        with contextlib.suppress(_Abandoned):
            try:
                self._await_turn(task)
                task.result = job()
            except _Abandoned:
                raise
            except BaseException as failure:
                with self.lock:
                    if task.group.failure is None:
                        self._fail(task.group, failure)
            finally:
                with self.lock:
                    task.finished = True
                    if self.current is task or self.current is None:
                        self._run_next(task)
                    self.ended.notify_all()

    def wait(
        self,
        what: str,
        ready: Callable[[], bool],
        gives_up: GivesUp = GivesUp.NEVER,
        site: Site | SourceLine | None = None,
        line: str = "",
    ) -> bool:
        """Let other tasks run until `ready()` holds or this wait gives up; returns `ready()`."""
        if not ready():
            task: Task = self._here.task
            site = site or (None if line else user_site(2))
            task.waits = Wait(what, ready, line or str(site), site, gives_up)
            with self.lock:
                self._run_next(task)
            self._await_turn(task)
            task.waits = None
        return ready()

    @staticmethod
    def _await_turn(task: Task) -> None:
        task.gate.acquire()
        if task.group.failed:
            raise _Abandoned

    # ---- with the lock held ----------------------------------------------------------------------

    def _run_next(self, task: Task) -> None:
        """Run the next task that can run; report a deadlock when none can."""
        at = self.tasks.index(task) + 1 if task in self.tasks else 0
        order = self.tasks[at:] + self.tasks[:at]
        for candidate in order:
            if candidate.can_run:
                self._switch_to(candidate)
                return
        self.current = None
        if any(candidate.unwinds for candidate in self.tasks):
            return  # the last of them switches to the next task
        least = min(order, key=lambda candidate: candidate.gives_up, default=None)
        if least is not None and least.gives_up < GivesUp.NEVER:
            self._switch_to(least)
            return
        if any(not candidate.finished for candidate in self.tasks):
            assert self.root is not None
            self._fail(self.root, self._deadlock())

    def _switch_to(self, task: Task) -> None:
        self.current = task
        task.open()

    def _fail(self, group: TaskGroup, failure: BaseException) -> None:
        """Wake the tasks that the failure stops."""
        group.failure = failure
        for task in self.tasks:
            if task.unwinds and task is not self.current:
                task.open()

    def _deadlock(self) -> NkiError:
        rows = []
        for task in self.tasks:
            if task.id.core == HOST and any(s.id.rank == task.id.rank and s is not task for s in self.tasks):
                continue  # its cores are in the table
            rows.append((task.id, task.waits))
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


def _core_lines(rows: list[tuple[TaskId, Wait | None]]) -> list[str]:
    return [
        f"core {id.core} has finished"
        if wait is None
        else f"core {id.core} waits for {wait.what} at {wait.line}"
        for id, wait in rows
    ]


def _rank_table(rows: list[tuple[TaskId, Wait | None]]) -> list[str]:
    shown = []
    for id, wait in rows:
        core = str(max(id.core, 0)) if wait is not None else ""
        what = (wait.line, wait.what) if wait is not None else ("", "nothing: it has finished")
        shown.append((str(id.rank), core, *what))
    return table(("rank", "core", "line", "waits for"), shown)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines, with columns as wide as their widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _raise(group: TaskGroup) -> None:
    """Raise what a task raised and drop the reference: its traceback holds the frames that hold us."""
    failure, group.failure = group.failure, None
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


class _Abandoned(BaseException):
    """Unwinds a task whose partner failed."""
