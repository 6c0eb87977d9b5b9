"""Processes with limits: how a submission is traced, and how its Program is run.

A child is given a role, a job and limits. It answers on a pipe that only it and the grader have. On Linux
it is a copy of a server that has imported nki. Where Linux allows it (namespaces of users), a child that runs
foreign code has no network, sees no other process, cannot write outside its empty folder, and sees an empty
folder in place of each hidden one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Protocol

TAIL = 4000  # characters of what a child printed
POLL = 0.005  # seconds
BOOT = "import sys; sys.path[:0] = {paths!r}; from nki_grading.child import main; main(sys.argv[1:])"
FORKS = sys.platform.startswith("linux")  # elsewhere each child is a new Python, without isolation


@dataclass(frozen=True)
class Limits:
    """What one child may use."""

    seconds: float = 60.0  # of the clock, and of the processor
    memory: int = 8 << 30  # bytes of address space
    processes: int = 64  # with threads
    files: int = 256  # open at once
    output: int = 256 << 20  # bytes that it may answer, or write to one file


@dataclass
class Answer:
    """What a child sent before it ended."""

    data: bytes
    code: int
    printed: str  # the end of what it wrote to stdout and stderr
    seconds: float
    why: str = ""  # it was stopped: "time" or "output"
    enforced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Child:
    """How to start a child: its role in `nki_grading.child`, and what it must not see."""

    role: str
    limits: Limits
    hidden: Sequence[Path] = field(default=())
    foreign: bool = True  # it runs code of a submission

    def run(self, job: Mapping[str, object], data: bytes = b"") -> Answer:
        """Run the role on a job (JSON) and data (bytes on its stdin), and return its answer."""
        start = time.monotonic()
        isolated = self.foreign and isolation()
        with tempfile.TemporaryDirectory(prefix="nki-grade-") as folder:
            setup = {
                "role": self.role,
                "limits": asdict(self.limits),
                "folder": folder,
                "environment": _environment(folder),
                "hidden": [str(path.resolve()) for path in self.hidden],
                "isolated": isolated,
                "job": job,
            }
            with _Pipes() as pipes:
                process = _forked(isolated, pipes.theirs) if FORKS else _Spawned(pipes.theirs)
                pipes.close_theirs()
                answer = _collect(process, pipes, json.dumps(setup).encode() + b"\n" + data, self.limits)
        answer.seconds = time.monotonic() - start
        answer.enforced = enforced(isolated)
        return answer


class _Pipes:
    """The stdin, the output and the answer of a child, for both sides."""

    def __init__(self) -> None:
        stdin, self.stdin = os.pipe()
        self.printed, stdout = os.pipe()
        self.answer, answer = os.pipe()
        self.theirs: tuple[int, ...] = (stdin, stdout, answer)

    def __enter__(self) -> _Pipes:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close_theirs()

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = ()


def _collect(process: _Process, pipes: _Pipes, data: bytes, limits: Limits) -> Answer:
    """Feed a child and read what it answers and prints, both bounded; stop it when its time is over."""
    printed = _Reader(os.fdopen(pipes.printed, "rb"), TAIL, keep_end=True)
    answered = _Reader(os.fdopen(pipes.answer, "rb"), limits.output)
    feeder = threading.Thread(target=_feed, args=(os.fdopen(pipes.stdin, "wb"), data), daemon=True)
    for thread in (printed, answered, feeder):
        thread.start()
    why = ""
    deadline = time.monotonic() + limits.seconds
    while (code := process.poll()) is None and not why:
        why = "time" if time.monotonic() > deadline else "output" if answered.overflow else ""
    process.kill()
    for thread in (answered, printed):
        thread.join(5.0)
    text = printed.data.decode("utf-8", "replace")
    data = b"" if answered.overflow else answered.data
    return Answer(data, -signal.SIGKILL if code is None else code, text, 0.0, why)


# ---- how a child is started ----------------------------------------------------------------------


class _Process(Protocol):
    """A child that runs."""

    def poll(self) -> int | None:
        """Wait a little, and return the exit code of the child if it has ended."""

    def kill(self) -> None:
        """End the child and all that it started; with a PID namespace, nothing can survive it."""


class _Spawned:
    """A child that is a new Python."""

    def __init__(self, pipes: Sequence[int]):
        stdin, stdout, answer = pipes
        command = [*_python(), "once", str(answer)]
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stdout,
            pass_fds=(answer,),
            env=_environment(tempfile.gettempdir()),
            start_new_session=True,
        )

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(POLL)
        return self.process.returncode

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()


class _Forked:
    """A child that is a copy of the server; its supervisor holds the other end of `status`."""

    def __init__(self, status: socket.socket):
        self.status = status

    def poll(self) -> int | None:
        if not select.select([self.status], [], [], POLL)[0]:
            return None
        code = self.status.recv(16)
        return int(code) if code else -signal.SIGKILL

    def kill(self) -> None:
        self.status.close()


class _Server:
    """A process that has imported nki and starts copies of itself."""

    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair()
        self.lock = threading.Lock()
        with theirs:
            self.process = subprocess.Popen(
                [*_python(), "serve", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_environment(tempfile.gettempdir()),
                start_new_session=True,
            )
        self.isolates = self.requests.recv(1) == b"1"
        atexit.register(self.close)

    def start(self, isolated: bool, pipes: Sequence[int]) -> _Forked:
        """Start a child on three pipes."""
        ours, theirs = socket.socketpair()
        with theirs, self.lock:
            socket.send_fds(self.requests, [b"1" if isolated else b"0"], [*pipes, theirs.fileno()])
        return _Forked(ours)

    def close(self) -> None:
        self.requests.close()
        self.process.wait()


_starting = threading.Lock()  # two threads that need the server start one


def server() -> _Server:
    """Return the server of this process."""
    with _starting:
        return _server_of(os.getpid())  # a copy of this process needs its own


@cache
def _server_of(process: int) -> _Server:
    return _Server()


def _forked(isolated: bool, pipes: Sequence[int]) -> _Forked:
    try:
        return server().start(isolated, pipes)
    except OSError:  # without isolation a submission can end the server
        with _starting:
            _server_of.cache_clear()
        return server().start(isolated, pipes)


def isolation() -> bool:
    """Return whether this system has namespaces for children that run foreign code."""
    return FORKS and server().isolates


class _Reader(threading.Thread):
    """Reads a pipe to its end, and keeps at most `most` bytes of it."""

    def __init__(self, pipe: IO[bytes] | None, most: int, keep_end: bool = False):
        super().__init__(daemon=True)
        self.pipe, self.most, self.keep_end = pipe, most, keep_end
        self.data, self.overflow = b"", False

    def run(self) -> None:
        assert self.pipe is not None
        parts: list[bytes] = []
        size = 0
        with contextlib.suppress(OSError, ValueError):
            while chunk := self.pipe.read1(1 << 16):  # type: ignore[attr-defined]
                if self.keep_end:
                    self.data = (self.data + chunk)[-self.most :]
                elif size + len(chunk) > self.most:
                    self.overflow = True
                    return
                else:
                    parts.append(chunk)
                    size += len(chunk)
        if not self.keep_end:
            self.data = b"".join(parts)


def _feed(pipe: IO[bytes] | None, data: bytes) -> None:
    assert pipe is not None
    with contextlib.suppress(OSError, ValueError):
        pipe.write(data)
    with contextlib.suppress(OSError, ValueError):
        pipe.close()


def _python() -> list[str]:
    """Return the command of an interpreter that ignores its environment, and finds what this one finds."""
    paths = [path for path in sys.path if path and Path(path).exists()]
    return [sys.executable, "-I", "-c", BOOT.format(paths=paths)]


def _environment(folder: str) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    keep = {name: os.environ[name] for name in ("SYSTEMROOT", "LANG") if name in os.environ}
    return {
        **keep,
        **threads,
        "PATH": os.defpath,
        "HOME": folder,
        "TMPDIR": folder,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def enforced(isolated: bool) -> tuple[str, ...]:
    """Return what holds a child back on this system, for the verdict."""
    limits = ("time", "memory", "processes", "open files", "output", "clean environment", "empty folder")
    own = ("no network", "no other process", "no capabilities", "read-only files", "hidden task")
    if os.name == "nt":
        return ("time", "output", "clean environment", "empty folder")
    return (*limits, *own) if isolated else limits
