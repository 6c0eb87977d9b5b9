"""The reference backend: instructions one by one, in program order, on numpy arrays.

A storage gets its bytes at its first use and frees them after its last; one of a loop's body does so in every
iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ...errors import NkiError, error
from ...ir.program import Loop
from ...options import Options
from ..lowered import Lowered, LoweredLoop, LoweredStep
from ..protocol import ExecutingCore, ExecutionContext


class ReferenceBackend:
    """The definition of what a Program computes."""

    name = "reference"

    def refusal(self, lowered: Lowered, options: Options) -> str:
        return ""

    def run(self, lowered: Lowered, execution: ExecutionContext) -> bool:
        cores = zip(execution.cores, lowered.cores, strict=True)
        execution.run_cores([(core, partial(run_core, core, steps)) for core, steps in cores])
        execution.report_divergent_loops()
        return True


class Unverified(Exception):
    """A loop would run more often than the kernel's Python was seen to allow."""


def run_core(core: ExecutingCore, steps: Sequence[LoweredStep]) -> None:
    """Run the steps of a core; the memories of the parameters are there already."""
    try:
        _run_steps(core, steps)
    except NkiError as problem:
        if core.instruction is not None:
            problem.site = core.instruction.site
        raise
    finally:
        core.instruction = None


def _run_steps(core: ExecutingCore, steps: Sequence[LoweredStep]) -> None:
    execute, free, report = core.run_one, core.memories.close, core.execution.diagnostics.report
    for diagnostics, item, frees in steps:
        for diagnostic in diagnostics:
            report(diagnostic)
        if isinstance(item, LoweredLoop):
            run_loop(core, item)
        else:
            core.instruction = item
            execute(item)
        for storage in frees:
            free(storage)


def run_loop(core: ExecutingCore, lowered: LoweredLoop) -> None:
    """Run the iterations of a dynamic loop, and count them."""
    loop, steps = lowered
    verified = core.execution.verified
    limit = None if verified is None else verified.get(loop.number, 0)
    count = 0
    for value in _indices(core, loop):
        count += 1
        if limit is not None and count > limit:
            raise Unverified(f"{loop.function} runs more than {limit} times")
        loop.index.set(value)
        _run_steps(core, steps)
    core.trips.setdefault(loop.number, []).append(count)
    core.loop_sites[loop.number] = loop.site


def _indices(core: ExecutingCore, loop: Loop) -> Iterable[int]:
    """Return the index of a loop in each iteration; bounds are read once, when the loop starts."""
    if not loop.is_while:
        return range(_bound(loop.lower), _bound(loop.upper), loop.step)
    return _while(core, loop)


def _while(core: ExecutingCore, loop: Loop) -> Iterable[int]:
    limit = core.execution.options.max_iterations
    value, count = loop.lower.read(), 0
    while value != 0:
        count += 1
        if count > limit:
            raise error("endless-loop", f"while_loop: {limit} iterations and the condition still holds")
        yield value
        value = loop.upper.read()


def _bound(bound: Any) -> int:
    return bound if isinstance(bound, int) else bound.as_index()
