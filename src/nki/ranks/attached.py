"""attach: make a process that torchrun (or any user of torch.distributed) started one rank.

Bytes travel between processes through the given gloo group. Only this module imports torch.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import error
from ..launch.world import Rendezvous, World, attached
from .errors import first_of, packed, raised_on, unpacked

BYTES, FAILED = 0, 1  # what a message is
TIMEOUT_S = 300.0
SEND_FAILURE_S = 0.2  # until a message has left this process, which may be about to end
STORE_S = 2.0  # for the store, which may be on a host that cannot be reached any more
_pending_sends: list[Any] = []  # messages that may never be received; gloo needs their memory


@contextlib.contextmanager
def attach(group: Any = None, timeout: float = TIMEOUT_S) -> Iterator[World]:
    """Make every kernel call in the block this process's part as a rank of `torch.distributed`.

    `group` is a process group of gloo, None the default one. A rank that is waited for longer than
    `timeout` seconds is an error.
    """
    import torch.distributed as distributed

    if not distributed.is_initialized():
        raise error(
            "argument",
            "attach: torch.distributed is not initialised",
            help='torch.distributed.init_process_group("gloo") first, in a program started by torchrun',
        )
    if distributed.get_backend(group) != "gloo":
        raise error(
            "argument",
            f"attach: the group's backend is {distributed.get_backend(group)}, it must be gloo",
            help='pass group=torch.distributed.new_group(backend="gloo")',
        )
    world = GlooWorld(distributed, group, timeout)
    try:
        with attached(world):
            yield world
    except Exception as problem:
        if world.size > 1:
            raised_on(problem, world.rank)
            world.send_failure(problem)
        raise


class GlooWorld(World):
    """A rank of torch.distributed. Members send their bytes to each other, in the order of exchanges."""

    backend = "gloo"
    opened = 0  # attach blocks so far: each has a message tag of its own

    def __init__(self, distributed: Any, group: Any, timeout: float):
        super().__init__(distributed.get_rank(group), distributed.get_world_size(group))
        GlooWorld.opened += 1
        self.tag = GlooWorld.opened
        self.distributed, self.group = distributed, group
        self.timeout = timeout
        self.store = distributed.distributed_c10d._get_default_store()  # outlives the connections
        self.key = f"nki/{self.tag}/failed"

    def exchange(self, key: Rendezvous, data: np.ndarray) -> Sequence[np.ndarray]:
        others = [rank for rank in key.members if rank != self.rank]
        sends = [work for rank in others for work in self._send(rank, BYTES, key.number, data)]
        received = {self.rank: data}
        problems: dict[int, Exception] = {}
        for rank in others:
            kind, content = self._receive(rank, key)
            if kind == FAILED:
                packed_failure = pickle.loads(content.tobytes())
                problems[rank] = unpacked(packed_failure, rank)
            received[rank] = content
        if problems:
            raise first_of(problems)
        for rank, work, _ in sends:
            self._wait(work, rank, key)
        return [received[rank] for rank in key.members]

    def send_failure(self, problem: Exception) -> None:
        """Send the failure to ranks that wait for this one, and store it for ranks that come late."""
        packed_failure = np.frombuffer(pickle.dumps(packed(problem)), np.uint8)
        stored = base64.b64encode(pickle.dumps((self.rank, packed(problem)))).decode()
        _in_time(lambda: self.store.compare_set(self.key, "", stored))
        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(Exception):
                    _pending_sends.extend(self._send(rank, FAILED, 0, packed_failure))
        time.sleep(SEND_FAILURE_S)  # a wait that times out would close the connections

    # ---- messages --------------------------------------------------------------------------------

    def _send(self, rank: int, kind: int, number: int, data: np.ndarray) -> list[tuple[int, Any, Any]]:
        import torch

        head = torch.tensor([kind, data.nbytes, number], dtype=torch.int64)
        body = torch.from_numpy(data if data.flags.writeable else data.copy())
        target = self._global(rank)
        send = self.distributed.isend
        return [(rank, send(t, target, group=self.group, tag=self.tag), t) for t in (head, body)]

    def _receive(self, rank: int, key: Rendezvous) -> tuple[int, np.ndarray]:
        import torch

        head = torch.empty(3, dtype=torch.int64)
        self._wait(self._irecv(head, rank), rank, key)
        kind, size, _ = head.tolist()
        body = torch.empty(size, dtype=torch.uint8)
        self._wait(self._irecv(body, rank), rank, key)
        return kind, body.numpy()

    def _irecv(self, tensor: Any, rank: int) -> Any:
        return self.distributed.irecv(tensor, self._global(rank), group=self.group, tag=self.tag)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else self.distributed.get_global_rank(self.group, rank)

    def _wait(self, work: Any, rank: int, key: Rendezvous) -> None:
        try:
            work.wait(datetime.timedelta(seconds=self.timeout))
        except RuntimeError as problem:
            raise self._lost(rank, key, str(problem)) from None

    def _first_failure(self) -> Exception | None:
        """Return the failure that a rank stored before its connections were lost."""
        failure = _in_time(lambda: self.store.get(self.key) if self.store.check([self.key]) else None)
        if failure is None:
            return None
        rank, packed_failure = pickle.loads(base64.b64decode(failure))
        return unpacked(packed_failure, rank)

    def _lost(self, rank: int, key: Rendezvous, text: str) -> Exception:
        failure = self._first_failure()
        if failure is not None:
            return failure
        notes = [f"rank {self.rank} waits for {key.what} at {key.line}"]
        if "imed out" in text or "imeout" in text:
            return error(
                "rank-timeout",
                f"rank {rank} has not come after {self.timeout:g} s",
                notes=notes,
                help="all ranks must reach the same collective calls in one order",
            )
        return error(
            "rank-lost",
            f"rank {rank} is gone: its process ended, or the connection to it was lost",
            notes=[*notes, text.strip().splitlines()[0][:100]],
            help=f"look at the output of rank {rank}",
        )


def _in_time(ask: Callable[[], object]) -> Any:
    """Return the store's answer, or None if it takes too long: its own timeout is half an hour."""
    answer: list[Any] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            answer.append(ask())

    thread = threading.Thread(target=run, name="nki-store", daemon=True)
    thread.start()
    thread.join(STORE_S)
    return answer[0] if answer else None
