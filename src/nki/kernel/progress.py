"""Progress of long calls: after two seconds a terminal or notebook shows which kernel runs, and how long."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

DELAY = 2.0  # seconds before anything is shown
EVERY = 0.5  # seconds between updates
LONG = 5000  # instructions of a known program that may take so long

_calls: list[tuple[str, float]] = []  # the outermost calls of all threads: name, begin
_watcher: threading.Thread | None = None


def is_watched() -> bool:
    """Return True on a terminal or in a notebook."""
    shell = sys.modules.get("IPython")
    if shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell":
        return True
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def shown(name: str) -> Iterator[None]:
    """Show the progress of the calls in this block, if they take long."""
    if not is_watched():
        yield
        return
    call = (name, time.monotonic())
    _calls.append(call)
    _start()
    try:
        yield
    finally:
        _calls.remove(call)


def _start() -> None:
    """One thread watches all calls, for as long as there are any; it holds no lock."""
    global _watcher
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_watch, args=(sys.stderr,), name="nki-progress", daemon=True)
        _watcher.start()


def _watch(stream: Any) -> None:
    width = idle = 0
    while idle < 2 * DELAY / EVERY:
        time.sleep(EVERY)
        calls = list(_calls)
        idle = 0 if calls else idle + 1
        lasting = [(name, time.monotonic() - begin) for name, begin in calls]
        lasting = [(name, seconds) for name, seconds in lasting if seconds >= DELAY]
        text = f"{lasting[0][0]}: running, {lasting[0][1]:.0f} s" if lasting else ""
        if text or width:
            with contextlib.suppress(OSError, ValueError):  # a closed stream
                stream.write("\r" + text.ljust(width) + ("\r" if not text else ""))
                stream.flush()
            width = len(text)


def _after_fork() -> None:
    """The watcher is a thread of the parent."""
    global _watcher
    _watcher = None
    _calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
