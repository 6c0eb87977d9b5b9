"""Parts of a plan on threads: an interrupt does not leave a thread behind that writes the arrays of a run."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from nki.backends.fused.threads import run_concurrently, run_parts


class Waiting:
    """Two parts that run at the same time; that of the other thread ends after the interrupt."""

    def __init__(self):
        self.together, self.interrupted = threading.Barrier(2, timeout=60), threading.Event()
        self.ended = []
        self.main = threading.current_thread()

    def __call__(self):
        self.together.wait()
        if threading.current_thread() is not self.main:
            assert self.interrupted.wait(60)
        self.ended.append(threading.current_thread())


@pytest.mark.parametrize("owner, name", [(Future, "result"), (threading.Thread, "join")])
def test_an_interrupt_while_other_threads_work_is_raised_when_they_have_ended(owner, name, monkeypatch):
    part, wait = Waiting(), getattr(owner, name)

    def interrupted(self, *args):
        if not part.interrupted.is_set():
            part.interrupted.set()
            raise KeyboardInterrupt
        return wait(self, *args)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_parts([part, part], 2) if owner is Future else run_concurrently([part, part])
    assert len(part.ended) == 2
