"""Listeners that are notified of every call of a kernel: the profilers that scripts start and stop."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .arrays import TensorSpec
from .specs import as_specs, label

Listener = Callable[[Any, tuple, dict], None]
listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """KernelCall `listener(kernel, args, kwargs)` before every kernel call in this block."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


class KernelCall(NamedTuple):
    """A call of a kernel, its arrays described by shape and dtype."""

    kernel: Any
    args: tuple
    kwargs: dict


@contextlib.contextmanager
def distinct_calls() -> Iterator[dict[str, KernelCall]]:
    """Yield the calls made in this block, each distinct one once, by `kernel(float32[128, 512]) on trn2`."""
    calls: dict[str, KernelCall] = {}

    def note(kernel: Any, args: tuple, kwargs: dict) -> None:
        call = KernelCall(kernel, as_specs(args), as_specs(kwargs))
        calls.setdefault(_text(call), call)

    with listening(note):
        yield calls


def _text(call: KernelCall) -> str:
    given = [*map(_shown, call.args), *(f"{name}={_shown(value)}" for name, value in call.kwargs.items())]
    kernel = call.kernel
    bracket = f"[{kernel.lnc}]" if kernel.grid else ""
    machine = re.sub(r".*target=(\w+)>", r"\1", repr(kernel))
    return f"{kernel.__name__}{bracket}({', '.join(given)}) on {machine}"


def _shown(value: object) -> str:
    if isinstance(value, TensorSpec):
        return str(label(value))
    text = repr(value)
    return text if len(text) <= 40 and " at 0x" not in text else type(value).__name__
