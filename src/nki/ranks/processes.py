"""One process per rank on this machine: started here, watched until the last has ended.

The parent sees every rendezvous, so it knows who waits for whom: a deadlock is seen at once, and a process
that was killed is named. Bytes lie in memory that the processes share.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from ..errors import error, error_class
from ..ir.items import Diagnostic
from ..ir.tree import map_tree
from ..kernel.arrays import NumpyFramework, framework_of
from ..kernel.kernel import Kernel
from ..launch.diagnostics import show
from ..launch.scheduler import table
from ..launch.world import Rendezvous
from .errors import first_of, source_line, unpacked, wrong_record
from .inputs import CallOf, is_tensor
from .member import run_member, tensors_of
from .memory import Mapped, unnamed_file
from .records import LARGEST, Arrived, Failed, Finished, Proceed, TreeReader, described, dumps, loads

GRACE_S = 0.2  # for ranks that are about to fail by themselves, so that the lowest one is named


@dataclass
class Member:
    """A rank's process as its parent sees it."""

    rank: int
    pid: int
    pipe: Connection
    file: int
    waits: Rendezvous | None = None
    at: tuple[int, int] = (0, 0)  # start and size of what it sent
    sent: int = 0
    unread: dict[int, set[int]] = field(default_factory=dict)  # who may still read the n-th message
    outcome: Finished | None = None
    problem: Exception | None = None
    reaped: bool = False

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.problem is not None


def run_processes(kernel: Kernel, calls: list[CallOf], timeout: float | None) -> list[Any]:
    """What each rank returns."""
    if not hasattr(os, "fork"):
        raise error(
            "not-supported",
            f"run_ranks: backend='processes' forks, which {sys.platform} does not do",
            help="leave backend out: ranks then run in this process, and compute the same bits",
        )
    converted = [_as_numpy(call) for call in calls]
    members: list[Member] = []
    try:
        _start(kernel, converted, members)
        _Watch(members, timeout).run()
        return [_result(member, calls[member.rank]) for member in members]
    finally:
        _end(members)


def _as_numpy(call: CallOf) -> CallOf:
    """Return the tensors of a call as arrays: a forked process leaves frameworks alone."""

    def leaf(value: object, name: str) -> Any:
        framework = framework_of(value)
        return value if framework is None else framework.to_numpy(value)

    args, kwargs = map_tree(leaf, (tuple(call.args), dict(call.kwargs)), "", is_leaf=is_tensor)
    return CallOf(args, kwargs)


def _start(kernel: Kernel, calls: list[CallOf], members: list[Member]) -> None:
    files, parent = [unnamed_file() for _ in calls], os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    for rank, call in enumerate(calls):
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for member in members:
                member.pipe.close()
            run_member(kernel, call, rank, files, theirs, parent)  # does not return
        theirs.close()
        members.append(Member(rank, pid, ours, files[rank]))


class _Watch:
    """Listens to all ranks until they have ended."""

    def __init__(self, members: list[Member], timeout: float | None):
        self.members = members
        self.until = None if timeout is None else time.monotonic() + timeout
        self.timeout = timeout
        self.arrived: dict[Rendezvous, set[int]] = {}

    def run(self) -> None:
        while any(not member.ended for member in self.members):
            self._listen(None if self.until is None else self.until - time.monotonic())
            problems = {m.rank: m.problem for m in self.members if m.problem is not None}
            if problems:
                self._hear_out()
                raise first_of({m.rank: m.problem for m in self.members if m.problem is not None})
            if self.until is not None and time.monotonic() >= self.until:
                self._stuck("rank-timeout", f"the ranks have not ended after {self.timeout:g} s")
            if all(m.ended or m.waits is not None for m in self.members) and not all(
                m.ended for m in self.members
            ):
                self._stuck("deadlock", "no rank can go on")

    def _hear_out(self) -> None:
        """Others may be about to fail as well."""
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and any(not m.ended and m.waits is None for m in self.members):
            self._listen(until - time.monotonic())

    def _listen(self, seconds: float | None) -> None:
        pipes = {m.pipe: m for m in self.members if not m.ended}
        ready = wait(list(pipes), None if seconds is None else max(seconds, 0.0))
        for pipe in sorted(ready, key=lambda p: pipes[p].rank):  # type: ignore[index,arg-type]
            member = pipes[pipe]  # type: ignore[index]
            if member.ended:  # found lost while another one was answered
                continue
            try:
                self._heard(member, loads(member.pipe.recv_bytes(LARGEST), Arrived, Failed, Finished))
            except (EOFError, OSError):
                member.problem = _lost(member)
            except ValueError as problem:
                member.problem = wrong_record(member.rank, problem)

    def _heard(self, member: Member, record: Arrived | Failed | Finished) -> None:
        for other in self.members:  # whatever was sent to it before, it has read
            for unread in other.unread.values():
                unread.discard(member.rank)
        if isinstance(record, Failed):
            member.problem = unpacked(record, member.rank)
        elif isinstance(record, Finished):
            member.outcome = record
        else:
            self._arrived(member, record)

    def _arrived(self, member: Member, record: Arrived) -> None:
        members, lane, number, what, line, start, size = record
        if member.rank not in members or not set(members) <= set(range(len(self.members))):
            raise ValueError(f"ranks {members}")
        rendezvous = Rendezvous(tuple(members), lane, number, what, line)
        member.waits, member.at = rendezvous, (start, size)
        here = self.arrived.setdefault(rendezvous, set())
        here.add(member.rank)
        if len(here) < len(rendezvous.members) or any(self.members[r].problem for r in rendezvous.members):
            return
        del self.arrived[rendezvous]
        places = [[rank, *self.members[rank].at] for rank in rendezvous.members]
        for rank in rendezvous.members:
            one = self.members[rank]
            one.waits = None
            free = [number for number, unread in one.unread.items() if not unread]
            for number in free:
                del one.unread[number]
            one.unread[one.sent] = set(rendezvous.members) - {rank}
            one.sent += 1
            try:
                one.pipe.send_bytes(dumps(Proceed(places, free)))
            except OSError:
                one.problem = _lost(one)

    def _stuck(self, kind: str, message: str) -> None:
        rows = []
        for m in self.members:
            if m.waits is not None:
                core = "both" if m.waits.lane < 0 else str(m.waits.lane)
                rows.append((str(m.rank), core, m.waits.line, m.waits.what))
            else:
                what = "nothing: it has finished" if m.ended else "nothing: it runs"
                rows.append((str(m.rank), "", "", what))
        raise error_class(kind)(
            message,
            notes=table(("rank", "core", "line", "waits for"), rows),
            help="all ranks must reach the same collective calls in one order",
        )


def _lost(member: Member) -> Exception:
    """Return the error for a process that ended without sending one."""
    _, status = os.waitpid(member.pid, 0)
    member.reaped = True
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    waits = member.waits
    notes = [] if waits is None else [f"it waited for {waits.what} at {waits.line}"]
    found = error_class("rank-lost")(
        f"its process {how}", notes=notes, help="look for what ended it: memory, a signal, a crash"
    )
    found.rank = member.rank
    return found


def _end(members: list[Member]) -> None:
    """No process and no memory is left behind."""
    for member in members:
        if not member.reaped:
            if member.outcome is None:
                os.kill(member.pid, signal.SIGKILL)
            os.waitpid(member.pid, 0)
        member.pipe.close()
        os.close(member.file)


def _read(member: Member, tensors: int) -> tuple[Any, list[tuple[int, Any]], list[Diagnostic]]:
    """Read what a rank returned, what it wrote to its tensors by their index, and its diagnostics."""
    assert member.outcome is not None
    outcome, mapped = member.outcome, Mapped(member.file)
    try:
        tree = TreeReader([mapped.array(*described(head)) for head in outcome.arrays])
        written = [(range(tensors)[index], tree.read(array)) for index, array in outcome.written]
        diagnostics = [
            Diagnostic(kind, message, notes, help, source_line(line), core, before)
            for kind, message, notes, help, line, core, before in outcome.diagnostics
        ]
        return tree.read(outcome.result), written, diagnostics
    except (ValueError, TypeError, OverflowError, IndexError) as problem:
        raise wrong_record(member.rank, problem) from None


def _result(member: Member, call: CallOf) -> Any:
    """What a rank returned, in the caller's framework; what it wrote goes to the caller's tensors."""
    given = tensors_of(call)
    returned, written, diagnostics = _read(member, len(given))
    for diagnostic in diagnostics:
        show(diagnostic)
    for index, array in written:
        framework = framework_of(given[index])
        framework.write_back(given[index], array, given, "run_ranks")
    like = next((t for t in given if framework_of(t) is not NumpyFramework), None)
    if like is None:
        return returned
    framework = framework_of(like)

    def leaf(value: object, name: str) -> Any:
        return framework.from_numpy(value, like) if is_tensor(value) else value

    return map_tree(leaf, returned, "", is_leaf=is_tensor)
