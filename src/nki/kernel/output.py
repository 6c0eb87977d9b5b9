"""What a kernel's Python prints: a call that starts again does not print the same twice.

While a kernel whose Python may print is traced, and in eager mode, writes to stdout and stderr pass through a
filter. It leaves out what an earlier attempt of the same call has written.
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
    """What the attempts of a call have written to each stream."""

    def __init__(self) -> None:
        self.shown: Counter[tuple[str, str]] = Counter()
        self.ahead: Counter[tuple[str, str]] = Counter()  # written by earlier attempts, not yet by this one


_printed: ContextVar[Printed | None] = ContextVar("nki_printed", default=None)


class _Stream:
    """Writes to another stream what no earlier attempt has written."""

    def __init__(self, name: str, stream: Any):
        self.name, self.stream = name, stream

    def write(self, text: str) -> int:
        printed, key = _printed.get(), (self.name, text)
        if printed is not None:
            if printed.ahead[key] > 0:
                printed.ahead[key] -= 1
                return len(text)
            printed.shown[key] += 1
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Streams(WhileKernelsRun):
    """Replaces sys.stdout and sys.stderr while calls filter what they print."""

    @classmethod
    def present(cls) -> tuple[Any, Any]:
        return sys.stdout, sys.stderr

    @classmethod
    def change(cls, before: tuple[Any, Any]) -> None:
        sys.stdout, sys.stderr = _Stream("stdout", before[0]), _Stream("stderr", before[1])  # type: ignore[assignment]

    @classmethod
    def restore(cls, before: tuple[Any, Any]) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _Stream):  # else something else replaced it meanwhile
                setattr(sys, name, stream.stream)


@contextlib.contextmanager
def once(printed: Printed) -> Iterator[None]:
    """Run an attempt of a call: print what earlier attempts have not."""
    printed.ahead = Counter(printed.shown)
    token = _printed.set(printed)
    try:
        with _Streams():
            yield
    finally:
        _printed.reset(token)
