"""A call before it runs, and a finished one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..errors import error
from ..ir.caches import cached_property
from ..ir.layout import is_int
from ..ir.program import Diagnostic, Program
from ..ir.statistics import Statistics
from ..machine.machine import Machine
from ..options import Options
from .arguments import Arguments
from .snapshot import Snapshot
from .transfer import Transfer


class CalledKernel(Protocol):
    """What running a call asks of its kernel."""

    __module__: str

    @property
    def __name__(self) -> str: ...

    @property
    def func(self) -> Callable[..., Any]: ...

    @property
    def grid(self) -> tuple[int, ...]: ...

    @property
    def schedule(self) -> tuple: ...

    @property
    def returns(self) -> bool: ...

    def trace(self, *args: object, **kwargs: Any) -> Program: ...

    def run(self, *args: object, **kwargs: Any) -> Run: ...


@dataclass
class Run:
    """A finished call: what it returned, and its diagnostics."""

    result: Any
    machine: Machine = field(repr=False)
    count: Callable[[], Statistics] = field(repr=False)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    trips: dict[int, list[int]] = field(default_factory=dict, repr=False)  # of each dynamic loop, each time
    written: list[Any] = field(default_factory=list, repr=False)  # the caller's arrays that it changed

    @cached_property
    def statistics(self) -> Statistics:
        """Count what the call did."""
        return self.count()

    def _repr_html_(self) -> str:
        from ..markup import escape

        counts = self.statistics
        peaks = f"{counts.sbuf_peak_bytes:,}, {counts.psum_peak_bytes:,}"
        rows = {
            "result": repr(self.result),
            "platform": self.machine.name,
            "instructions": f"{counts.instructions:,}",
            "DMA": f"{counts.dma_transfers:,} transfers, {counts.dma_bytes:,} bytes",
            "SBUF, PSUM at most": f"{peaks} bytes over all partitions",
            **{d.kind: d.message for d in self.diagnostics},
        }
        cells = "".join(
            f"<tr><th>{escape(k)}</th><td><pre>{escape(v)}</pre></td></tr>" for k, v in rows.items()
        )
        return f"<table>{cells}</table>"


class Traced(NamedTuple):
    """A call whose Python was traced."""

    program: Program
    transfer: Transfer
    is_fixed: bool  # the Program follows from the arguments' shapes: the Python read no values
    files: list[tuple[str, str]]  # that the Python read through nki: path, content hash


@dataclass
class Call:
    """A call before it runs. Without a key it is not cached."""

    kernel: CalledKernel
    options: Options
    machine: Machine
    arguments: Arguments
    key: Any
    silenced: Iterable[Diagnostic] = ()  # shown already, when the call was staged
    eager: bool = False  # every instruction runs as it is issued
    snapshot: Snapshot | None = None  # what the Python could read before it ran; None: unknown
    early: Any = None  # a run that was started before the arguments were examined: devices.Started
    repeats: bool = False  # that run is the one of this call


def launch_grid(degree: object) -> tuple[int, ...]:
    """Return the (n,) of `kernel[degree]`."""
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
