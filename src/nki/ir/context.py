"""What those below may ask of those above: the core that runs on this thread, and services.

A kernel is ordinary Python, so its functions cannot be handed the core they run on. They ask here. And
`program.run()` or `tile[...] = x` are written above Program and NkiTensor, which may not import them:
whoever does such a thing provides it here under a name. Who that is, `nki` says when it is imported; the
module itself is imported when the service is first asked for.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

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
    """Say a diagnostic about the user's current line. While an instruction is validated, it waits."""
    core = running()
    if core is None:
        emit_warning(kind, message, user_site(2), notes, help)
    elif core.pending_warnings is not None:
        core.pending_warnings.append((kind, message, list(notes), help))
    else:
        core.diagnose(kind, message, notes, help, user_site(2))


# ---- services ------------------------------------------------------------------------------------

_Service = TypeVar("_Service", bound=Callable[..., Any])
_services: dict[str, Callable[..., Any]] = {}
_providers: dict[str, str] = {}  # the module that provides a service, by the service's name


def provides(name: str) -> Callable[[_Service], _Service]:
    """Make a function the one that `service(name)` finds."""

    def register(function: _Service) -> _Service:
        _services[name] = function
        return function

    return register


def service(name: str) -> Callable[..., Any]:
    """The function that a room above provides under this name."""
    if name not in _services:
        importlib.import_module(_providers[name])
    return _services[name]


def provided_by(modules: Mapping[str, str]) -> None:
    """Name the module that provides each service."""
    _providers.update(modules)
