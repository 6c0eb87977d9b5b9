"""The protocol of backends: a backend runs a lowered Program on the memory of an execution.

`reference` runs instructions one by one in numpy; it is the definition of what a Program computes. `fused`
and `torch` are faster and are tested against it with random programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..errors import Site
from ..ir.context import RunningCore
from ..ir.engine_state import EngineState
from ..ir.instruction import Instruction
from ..ir.program import Diagnostic
from ..options import Options
from .lowered import Lowered
from .reference.executor import Executor
from .reference.memories import Memories


class Reports(Protocol):
    """Where a backend reports diagnostics."""

    found: list[Diagnostic]

    def report(self, diagnostic: Diagnostic) -> None: ...


class ExecutingCore(RunningCore, Protocol):
    """What a backend may use of a core that executes: its memory, registers and position."""

    instruction: Instruction | None  # which runs: its line is the one to report
    run_one: Callable[[Instruction], None]  # executes one instruction; in turns where cores race
    trips: dict[int, list[int]]  # how often each dynamic loop ran, each time, by its number
    loop_sites: dict[int, Site | None]

    @property
    def execution(self) -> ExecutionContext: ...

    @property
    def memories(self) -> Memories: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def engine_state(self) -> EngineState: ...

    def use(self, executor: Executor) -> None:
        """Execute with another executor, on its memories, from now on."""


class ExecutionContext(Protocol):
    """What a backend may use of an execution. Each attempt has a new one; a failed one is dropped."""

    @property
    def memories(self) -> Memories:
        """The bytes of all storages; those of parameters and constants are there already."""

    @property
    def cores(self) -> Sequence[ExecutingCore]: ...

    @property
    def diagnostics(self) -> Reports: ...

    @property
    def options(self) -> Options: ...

    @property
    def verified(self) -> dict[int, int] | None:
        """How often each loop may run, where the kernel's Python was seen to allow only so much."""

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
