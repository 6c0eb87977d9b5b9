"""What a kernel's Python prints: a call that starts again does not print the same twice.

While a kernel is traced whose Python may print, writes to stdout and stderr pass through a recorder. If the
call then starts again in eager mode, writes that the first attempt has made are left out.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ..backends.reference.settings import WhileKernelsRun


class Printed:
    """What an attempt has written to each stream."""

    def __init__(self) -> None:
        self.texts: Counter[tuple[str, str]] = Counter()


_recording: ContextVar[Printed | None] = ContextVar("nki_recording", default=None)
_omitting: ContextVar[Printed | None] = ContextVar("nki_omitting", default=None)


class _Stream:
    """Writes to another stream what was not written before."""

    def __init__(self, name: str, stream: Any):
        self.name, self.stream = name, stream

    def write(self, text: str) -> int:
        printed, omitted = _recording.get(), _omitting.get()
        if printed is not None:
            printed.texts[self.name, text] += 1
        elif omitted is not None and omitted.texts[self.name, text] > 0:
            omitted.texts[self.name, text] -= 1
            return len(text)
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Streams(WhileKernelsRun):
    """Replaces sys.stdout and sys.stderr while kernels record or omit output."""

    @classmethod
    def begin(cls) -> None:
        sys.stdout, sys.stderr = _Stream("stdout", sys.stdout), _Stream("stderr", sys.stderr)  # type: ignore[assignment]

    @classmethod
    def end(cls) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _Stream):  # else something else replaced it meanwhile
                setattr(sys, name, stream.stream)


@contextlib.contextmanager
def recorded(printed: Printed) -> Iterator[None]:
    """Record what is printed in this block."""
    token = _recording.set(printed)
    try:
        with _Streams():
            yield
    finally:
        _recording.reset(token)


@contextlib.contextmanager
def without(printed: Printed | None) -> Iterator[None]:
    """Leave out what was printed before; None: nothing was."""
    if printed is None or not printed.texts:
        yield
        return
    token = _omitting.set(printed)
    try:
        with _Streams():
            yield
    finally:
        _omitting.reset(token)
