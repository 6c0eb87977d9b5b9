"""The core that runs on this thread, and warnings about the user's current line.

A kernel is ordinary Python, so its functions cannot be handed the core they run on. They ask here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

from ..errors import Site, emit_warning, error, user_site
from ..machine.machine import Machine
from ..options import choose_machine


class RunningCore(Protocol):
    """What any code may ask of the core that runs on this thread."""

    pending_warnings: list[tuple] | None

    @property
    def machine(self) -> Machine: ...

    @property
    def index(self) -> int: ...

    @property
    def execution(self) -> Any:
        """What the cores of a call share while they execute: memory, barriers, options, diagnostics."""

    @property
    def instruction(self) -> Any:
        """The instruction of a Program that runs; None while the kernel's Python runs."""

    def diagnose(
        self, kind: str, message: str, notes: Iterable[str], help: str | None, site: Site | None
    ) -> None: ...


class _Running(threading.local):
    core: Any = None


_local = _Running()


def running() -> Any:
    """The core of the kernel running on this thread, or None."""
    return _local.core


def current() -> Any:
    """The core of the kernel running on this thread."""
    core = _local.core
    if core is None:
        raise error(
            "no-kernel",
            "this only works inside a kernel",
            help="call it from a function decorated with @nki.jit",
        )
    return core


def activate(core: RunningCore | None) -> RunningCore | None:
    """Make `core` the one of this thread; returns the one before."""
    before = _local.core
    _local.core = core
    return before


def current_machine() -> Machine:
    """The machine of the running kernel, or the one a call would choose."""
    core = running()
    return choose_machine() if core is None else core.machine


def warn(kind: str, message: str, notes: Iterable[str] = (), help: str | None = None) -> None:
    """Report a diagnostic about the user's current line; during validation it is reported afterwards."""
    core = running()
    if core is None:
        emit_warning(kind, message, user_site(2), notes, help)
    elif core.pending_warnings is not None:
        core.pending_warnings.append((kind, message, list(notes), help))
    else:
        core.diagnose(kind, message, notes, help, user_site(2))
