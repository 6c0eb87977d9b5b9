"""A rank in a process of its own, as that process sees it."""

from __future__ import annotations

import os
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
from .errors import line_of, packed
from .inputs import CallOf, is_tensor
from .lifetime import die_with
from .memory import Arena, Mapped
from .records import Arrived, Failed, Finished, Proceed, TreeWriter, array_head, dumps, loads


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
        members = list(key.members)
        place = Arrived(members, key.lane, key.number, key.what, key.line, start, data.nbytes)
        self.pipe.send_bytes(dumps(place))
        go = loads(self.pipe.recv_bytes(), Proceed)  # EOFError: the parent has gone
        self.arena.free(go.free)
        return [self.others[rank].bytes(begin, size) for rank, begin, size in go.places]


def run_member(
    kernel: Kernel, call: CallOf, rank: int, files: list[int], pipe: Connection, parent: int
) -> NoReturn:
    """Run a rank, send the parent its outcome, and exit without the parent's exit handlers."""
    code = 1
    try:
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends us
        world = ProcessWorld(rank, files, pipe)
        os.environ.setdefault("OPEN_NKI_THREADS", str(max(1, available() // world.size)))
        record: Finished | Failed
        try:
            with attached(world), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the parent shows it, once for all ranks
                record = _outcome(kernel, call, world)
        except Exception as problem:
            record = packed(problem)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send_bytes(dumps(record))
        code = 0
    finally:
        os._exit(code)


def _outcome(kernel: Kernel, call: CallOf, world: ProcessWorld) -> Finished:
    """Return the result of the rank; its arrays are in shared memory."""
    given, tree = tensors_of(call), TreeWriter()
    run = kernel.run(*call.args, **call.kwargs)
    result = tree.write(run.result)
    written = [[i, tree.write(t)] for i, t in enumerate(given) if any(t is w for w in run.written)]
    diagnostics = [
        [d.kind, d.message, d.notes, d.help, line_of(d.site), d.core, d.before] for d in run.diagnostics
    ]
    arrays = []
    for number, array in enumerate(tree.arrays):
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        arrays.append(array_head(array, world.arena.put(-1 - number, raw)))
    return Finished(result, written, diagnostics, arrays)


def tensors_of(call: CallOf) -> list[Any]:
    """Return the tensors of a call, in order."""
    found: list[Any] = []

    def leaf(value: object, name: str) -> Any:
        if is_tensor(value):
            found.append(value)
        return value

    map_tree(leaf, (tuple(call.args), dict(call.kwargs)), "", is_leaf=is_tensor)
    return found
