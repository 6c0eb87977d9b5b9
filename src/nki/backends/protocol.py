"""The protocol of backends: a backend runs a lowered Program on the memory of an execution.

`reference` runs instructions one by one in numpy; it is the definition of what a Program computes. `fused`
and `torch` are faster and are tested against it with random programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..ir.context import RunningCore
from ..ir.program import Diagnostic
from ..options import Options
from .lowered import Lowered
from .reference.memories import Memories


class Reports(Protocol):
    """Where a backend reports diagnostics."""

    found: list[Diagnostic]

    def report(self, diagnostic: Diagnostic) -> None: ...


class ExecutionContext(Protocol):
    """What a backend may use of an execution. Each attempt has a new one; a failed one is dropped."""

    @property
    def memories(self) -> Memories:
        """The bytes of all storages; those of parameters and constants are there already."""

    @property
    def cores(self) -> Sequence[Any]:
        """One state for each core: registers, accumulators, `run_one` for a single instruction."""

    @property
    def diagnostics(self) -> Reports: ...

    @property
    def options(self) -> Options: ...

    def run_cores(self, jobs: Sequence[tuple[RunningCore, Callable[[], object]]]) -> list[Any]:
        """Run a job on each core; several cores take turns at barriers."""

    def report_divergent_loops(self) -> None:
        """Report dynamic loops that the two cores ran a different number of times."""


class Backend(Protocol):
    """Runs Programs."""

    name: str

    def refusal(self, lowered: Lowered, options: Options) -> str:
        """Return why this backend leaves a program to the next one, or "" if it runs it."""

    def run(self, lowered: Lowered, execution: ExecutionContext) -> bool:
        """Run all cores of a program. False: drop the attempt and try the next backend."""
