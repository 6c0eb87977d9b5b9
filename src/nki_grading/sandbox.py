"""Processes with limits: how a submission is traced, and how its Program is run.

A child is given a role, a job and limits. It answers on a pipe that only it and the grader have. Where Linux
allows it (`unshare` and `setpriv` of util-linux), a child that runs foreign code has no network, sees no
other process, cannot write outside its empty folder, and sees an empty folder in place of each hidden one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

NOBODY = 65534  # the user `nobody` of Linux, who owns nothing
TAIL = 4000  # characters of what a child printed
NAMESPACES = (
    "--user",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount",
    "--ipc",
    "--uts",
)
BOOT = "import sys; sys.path[:0] = {paths!r}; from nki_grading.child import main; main(sys.argv[1:])"


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
        with tempfile.TemporaryDirectory(prefix="nki-grade-") as folder:
            read, write = os.pipe()
            isolated = self.foreign and isolation()
            setup = {
                "role": self.role,
                "answer": write,
                "limits": asdict(self.limits),
                "folder": folder,
                "hidden": [str(path.resolve()) for path in self.hidden] if isolated else [],
                "isolated": bool(isolated),
                "job": job,
            }
            with os.fdopen(read, "rb") as pipe:
                try:
                    process = subprocess.Popen(
                        [*(isolation() if isolated else ()), *_python(), json.dumps(setup)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        pass_fds=(write,),
                        env=_environment(folder),
                        cwd=folder,
                        start_new_session=True,
                    )
                finally:
                    os.close(write)
                answer = _collect(process, pipe, data, self.limits)
        answer.seconds = time.monotonic() - start
        answer.enforced = enforced(bool(isolated))
        return answer


def _collect(process: subprocess.Popen[bytes], pipe: IO[bytes], data: bytes, limits: Limits) -> Answer:
    """Feed a child and read what it answers and prints, both bounded; stop it when its time is over."""
    printed, answered = (
        _Reader(process.stdout, TAIL, keep_end=True),
        _Reader(pipe, limits.output),
    )
    feeder = threading.Thread(target=_feed, args=(process.stdin, data), daemon=True)
    for thread in (printed, answered, feeder):
        thread.start()
    why = ""
    deadline = time.monotonic() + limits.seconds
    while process.poll() is None and not why:
        time.sleep(0.005)
        why = "time" if time.monotonic() > deadline else "output" if answered.overflow else ""
    _kill(process)
    code = process.wait()
    for thread in (answered, printed):
        thread.join(5.0)
    text = printed.data.decode("utf-8", "replace")
    return Answer(b"" if answered.overflow else answered.data, code, text, 0.0, why)


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


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started; with a PID namespace, nothing can survive it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        process.kill()


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


@cache
def isolation() -> tuple[str, ...]:
    """Return the command that starts a process in namespaces of its own; () where the system has none."""
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if not sys.platform.startswith("linux") or unshare is None or setpriv is None:
        return ()
    # the kernel never limits the processes of a real root; the effective user still reads its files
    user = (setpriv, "--ruid", str(NOBODY)) if os.geteuid() == 0 else ()
    command = (*user, unshare, *NAMESPACES, "--mount-proc")
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ()
    return command if tried.returncode == 0 else ()


def enforced(isolated: bool) -> tuple[str, ...]:
    """Return what holds a child back on this system, for the verdict."""
    limits = ("time", "memory", "processes", "open files", "output", "clean environment", "empty folder")
    own = ("no network", "no other process", "no capabilities", "read-only files", "hidden task")
    if os.name == "nt":
        return ("time", "output", "clean environment", "empty folder")
    return (*limits, *own) if isolated else limits
