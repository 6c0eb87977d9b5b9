"""A call before it runs, a finished one, and what both are launched on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import emit_warning, error, user_site
from ..ir.layout import is_int
from ..ir.program import Diagnostic
from ..ir.statistics import Statistics
from ..machine.machine import Machine
from ..options import Options
from .cache import Leaf

ALIAS_SUFFIX = ".must_alias_input"


@dataclass
class Run:
    """A finished call: what it returned and what was seen on the way."""

    result: Any
    machine: Machine = field(repr=False)
    count: Callable[[], Statistics] = field(repr=False)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    trips: dict[int, list[int]] = field(default_factory=dict, repr=False)  # of each dynamic loop, each time
    written: list[Any] = field(default_factory=list, repr=False)  # the caller's arrays that it changed

    @cached_property
    def statistics(self) -> Statistics:
        """What the call did; counted when somebody asks."""
        return self.count()

    def _repr_html_(self) -> str:
        from html import escape

        counts = self.statistics
        rows = {
            "result": repr(self.result),
            "platform": self.machine.name,
            "instructions": f"{counts.instructions:,}",
            "DMA": f"{counts.dma_transfers:,} transfers, {counts.dma_bytes:,} bytes",
            "SBUF, PSUM at most": f"{counts.sbuf_peak_bytes:,}, {counts.psum_peak_bytes:,} bytes a partition",
            **{d.kind: d.message for d in self.diagnostics},
        }
        cells = "".join(
            f"<tr><th>{escape(k)}</th><td><pre>{escape(v)}</pre></td></tr>" for k, v in rows.items()
        )
        return f"<table>{cells}</table>"


@dataclass
class Call:
    """A call before it runs. Without a key it is neither cached nor replayed."""

    options: Options
    machine: Machine
    bound: inspect.BoundArguments
    aliased: set[str]  # arguments given as name.must_alias_input
    key: Any
    leaves: list[Leaf]
    said: Iterable[Diagnostic] = ()  # said already, when the call was staged
    eager: bool = False  # every instruction runs as it is issued
    reads: Any = None  # what the Python can read, as it was before it ran; None: not all is known


def launch_grid(degree: Any) -> tuple[int, ...]:
    """The (n,) of `kernel[degree]`."""
    sizes = tuple(degree) if isinstance(degree, (tuple, list)) else (degree,)
    for size in sizes:
        if not is_int(size):
            raise error(
                "launch-grid-type",
                f"kernel[...] takes the number of cores, got {size!r}",
                help="write kernel[2] for two cores",
            )
    if len(sizes) != 1 or sizes[0] < 1:
        raise error("launch-grid", f"kernel[...] takes one positive number of cores, got {degree!r}")
    return (int(sizes[0]),)


_said_once: set[str] = set()


def _warn_once(kind: str, message: str) -> None:
    if kind not in _said_once:
        _said_once.add(kind)
        emit_warning(kind, message, user_site(2))
