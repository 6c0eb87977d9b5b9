"""attach: make a process that torchrun (or any user of torch.distributed) started one rank.

Bytes travel between processes through the given gloo group. Only this module imports torch.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import NkiError, error
from ..launch.world import Rendezvous, World, attached
from .errors import first_of, packed, raised_on, unpacked, wrong_record
from .records import LARGEST as LARGEST_RECORD
from .records import Failed, dumps, loads

BYTES, FAILED = 0, 1  # what a message is
LARGEST = 1 << 40  # bytes of a message: more than any memory
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
        sends = []
        for rank in others:
            with self._reaching(rank, key):
                sends += self._send(rank, BYTES, key.number, data)
        received = {self.rank: data}
        problems: dict[int, Exception] = {}
        for rank in others:
            with self._reaching(rank, key):
                kind, content = self._receive(rank)
            if kind == FAILED:
                problems[rank] = _failure(content.tobytes(), rank)
            received[rank] = content
        if problems:
            raise first_of(problems)
        for rank, work, _ in sends:
            with self._reaching(rank, key):
                self._wait(work)
        return [received[rank] for rank in key.members]

    def send_failure(self, problem: Exception) -> None:
        """Send the failure to ranks that wait for this one, and store it for ranks that come late."""
        failed = packed(problem)
        named = failed if failed.rank is not None else failed._replace(rank=self.rank)
        record = np.frombuffer(dumps(named), np.uint8)
        _in_time(lambda: self.store.compare_set(self.key, "", record.tobytes().decode()))
        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(Exception):
                    _pending_sends.extend(self._send(rank, FAILED, 0, record))
        time.sleep(SEND_FAILURE_S)  # a wait that times out would close the connections

    # ---- messages --------------------------------------------------------------------------------

    def _send(self, rank: int, kind: int, number: int, data: np.ndarray) -> list[tuple[int, Any, Any]]:
        import torch

        head = torch.tensor([kind, data.nbytes, number], dtype=torch.int64)
        body = torch.from_numpy(data if data.flags.writeable else data.copy())
        target = self._global(rank)
        send = self.distributed.isend
        return [(rank, send(t, target, group=self.group, tag=self.tag), t) for t in (head, body)]

    def _receive(self, rank: int) -> tuple[int, np.ndarray]:
        import torch

        head = torch.empty(3, dtype=torch.int64)
        self._wait(self._irecv(head, rank))
        kind, size, _ = head.tolist()
        if kind not in (BYTES, FAILED) or not 0 <= size <= (LARGEST if kind == BYTES else LARGEST_RECORD):
            raise wrong_record(rank, f"kind {kind} of {size} bytes")
        body = torch.empty(size, dtype=torch.uint8)
        self._wait(self._irecv(body, rank))
        return kind, body.numpy()

    def _irecv(self, tensor: Any, rank: int) -> Any:
        return self.distributed.irecv(tensor, self._global(rank), group=self.group, tag=self.tag)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else self.distributed.get_global_rank(self.group, rank)

    def _wait(self, work: Any) -> None:
        work.wait(datetime.timedelta(seconds=self.timeout))

    @contextlib.contextmanager
    def _reaching(self, rank: int, key: Rendezvous) -> Iterator[None]:
        """Explain gloo's errors: a rank that comes late finds connections of others that have ended."""
        try:
            yield
        except NkiError:
            raise
        except RuntimeError as problem:
            raise self._lost(rank, key, str(problem)) from None

    def _first_failure(self, rank: int) -> Exception | None:
        """Return the failure that a rank stored before its connections were lost."""
        failure = _in_time(lambda: self.store.get(self.key) if self.store.check([self.key]) else None)
        return None if failure is None else _failure(failure, rank)

    def _lost(self, rank: int, key: Rendezvous, text: str) -> Exception:
        failure = self._first_failure(rank)
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


def _failure(content: bytes, sender: int) -> Exception:
    """Return the error that a rank sent or stored."""
    try:
        failed = loads(content, Failed)
        return unpacked(failed, sender if failed.rank is None else failed.rank)
    except ValueError as problem:
        return wrong_record(sender, problem)


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
