"""The other side of `sandbox`: a process that confines itself and does a role, and the server that forks it.

Roles: `trace` runs a submission and answers with Programs; `command` runs a command of `nki` on a foreign
file; `run` runs Programs and has no foreign code. A process starts faster as a copy of the server, which has
imported all of nki, than as a new Python. The server and its copies know nothing of tasks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import traceback

from . import confine

ANSWER = 3  # the descriptor on which a copy of the server answers
POLL_MS = 5


def main(argv: list[str]) -> None:
    """Serve on the descriptor in the first argument, or do one role and answer on it."""
    kind, descriptor = argv
    if kind == "serve":
        serve(socket.socket(fileno=int(descriptor)))
    else:
        do_role(int(descriptor))


def do_role(answer_to: int) -> None:
    """Do the role that the first line on stdin describes, within its limits."""
    from . import roles

    setup = json.loads(sys.stdin.buffer.readline())
    if setup["isolated"]:
        confine.give_up_rights(setup["folder"], setup["hidden"])
    confine.end_with_parent()
    os.environ.clear()
    os.environ.update(setup["environment"])
    os.chdir(setup["folder"])
    confine.limit(setup["limits"])
    with open(answer_to, "wb") as answer:
        getattr(roles, setup["role"])(setup["job"], sys.stdin.buffer.read(), answer)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(0)  # what a submission registered for the exit does not matter any more


# ---- the server ----------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Start a process for each request: one byte, isolated or not, and the descriptors of its pipes."""
    from . import roles

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        roles.import_all()
        can_isolate = _can_isolate(folder)
        os.chdir(os.sep)
    tempfile.tempdir = None  # a copy has a folder of its own
    gc.freeze()  # a copy does not touch the pages of these objects
    requests.sendall(b"1" if can_isolate else b"0")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Linux removes supervisors that have ended
    while True:
        kind, pipes, _, _ = socket.recv_fds(requests, 1, 4)
        if not kind:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _supervise(kind == b"1", *pipes)
        for pipe in pipes:
            os.close(pipe)


def _supervise(isolated: bool, stdin: int, stdout: int, answer: int, status: int) -> None:
    """Start the process of a role, and end it with all that it started when the grader closes `status`."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        if isolated:
            confine.enter_namespaces()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            os.dup2(stdout, 2)
            os.dup2(answer, ANSWER)
            os.closerange(ANSWER + 1, os.sysconf("SC_OPEN_MAX"))
            do_role(ANSWER)
        for pipe in (stdin, stdout, answer):
            os.close(pipe)
        code = _wait(child, status)
        os.write(status, str(code).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _wait(child: int, status: int) -> int:
    """Return the exit code of a process that ended, or was killed because the grader has closed `status`."""
    grader = select.poll()
    grader.register(status, select.POLLIN)
    while True:
        ended, state = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(state)
        if grader.poll(POLL_MS):
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os._exit(0)


def _can_isolate(folder: str) -> bool:
    """Return whether this system lets a process confine itself, by trying it."""
    supervisor = os.fork()
    if supervisor:
        return os.waitpid(supervisor, 0)[1] == 0
    try:
        confine.enter_namespaces()
        child = os.fork()
        if child == 0:
            confine.give_up_rights(folder, [])
            os._exit(0)
        os._exit(os.waitpid(child, 0)[1] != 0)
    finally:
        os._exit(1)
