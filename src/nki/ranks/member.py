"""A rank in a process of its own, as that process sees it."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from ..backends.fused.threads import available
from ..ir.tree import map_tree
from ..kernel.kernel import Kernel
from ..launch.world import Rendezvous, World, attached
from .errors import packed
from .inputs import CallOf, is_tensor
from .memory import Arena, Mapped

PR_SET_PDEATHSIG = 1


class ProcessWorld(World):
    """A rank whose others are processes of this machine."""

    backend = "processes"

    def __init__(self, rank: int, files: list[int], pipe: Connection):
        super().__init__(rank, len(files))
        self.pipe = pipe
        self.arena = Arena(files[rank])
        self.others = [Mapped(file) for file in files]
        self.sent = 0

    def exchange(self, key: Rendezvous, data: np.ndarray) -> Sequence[np.ndarray]:
        start = self.arena.put(self.sent, data)
        self.sent += 1
        self.pipe.send(("exchange", (key, start, data.nbytes)))
        places, free = self.pipe.recv()  # EOFError: the parent has gone
        self.arena.free(free)
        return [self.others[rank].bytes(begin, size) for rank, begin, size in places]


def run_member(kernel: Kernel, call: CallOf, rank: int, files: list[int], pipe: Connection) -> NoReturn:
    """Run a rank, send the parent its outcome, and exit without the parent's exit handlers."""
    code = 1
    try:
        _die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends us
        world = ProcessWorld(rank, files, pipe)
        os.environ.setdefault("OPEN_NKI_THREADS", str(max(1, available() // world.size)))
        try:
            with attached(world), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the parent shows it, once for all ranks
                message: tuple[str, Any] = ("done", _outcome(kernel, call, world))
        except Exception as problem:
            message = ("failed", packed(problem))
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send(message)
        code = 0
    finally:
        os._exit(code)


def _outcome(kernel: Kernel, call: CallOf, world: ProcessWorld) -> dict[str, Any]:
    """The result of the rank, its arrays in shared memory."""
    given = tensors_of(call)
    run = kernel.run(*call.args, **call.kwargs)
    written = {i: t for i, t in enumerate(given) if any(t is w for w in run.written)}
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps((run.result, written, run.diagnostics), protocol=5, buffer_callback=buffers.append)
    places = []
    for number, buffer in enumerate(buffers):
        raw = np.frombuffer(buffer.raw(), np.uint8)
        places.append((world.arena.put(-1 - number, raw), raw.nbytes))
    return {"content": content, "places": places}


def tensors_of(call: CallOf) -> list[Any]:
    """The tensors of a call, in order."""
    found: list[Any] = []

    def leaf(value: object, name: str) -> Any:
        if is_tensor(value):
            found.append(value)
        return value

    map_tree(leaf, (tuple(call.args), dict(call.kwargs)), "", is_leaf=is_tensor)
    return found


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
