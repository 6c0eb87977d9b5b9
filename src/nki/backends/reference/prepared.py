"""Running a lowered Program with the numpy executor.

A storage gets its bytes at its first use and gives them up after its last; one of a loop's body does so in
every iteration. What is made here is shared by all that run the program: values live in the launch.
"""

from __future__ import annotations

from typing import Any

from ...errors import NkiError, error
from ...ir.caches import per_program
from ...ir.program import Loop, Program
from ..lowered import Lowered, lower
from ..lowered import LoweredLoop as PreparedLoop
from ..lowered import LoweredStep as Step


class Unverified(Exception):
    """A loop is to run more often than the kernel's Python was seen to allow."""


class Prepared:
    """Runs the steps of a lowered program."""

    def __init__(self, lowered: Lowered):
        self.cores = lowered.cores

    def run(self, core: Any) -> None:
        """Run the steps of a core; the memories of the parameters are there already."""
        try:
            self._run(core, self.cores[core.index])
        except NkiError as problem:
            if core.instruction is not None:
                problem.site = core.instruction.site
            raise
        finally:
            core.instruction = None

    def _run(self, core: Any, steps: list[Step]) -> None:
        execute, close, report = core.run_one, core.memories.close, core.execution.diagnostics.report
        for said, item, closes in steps:
            for diagnostic in said:
                report(diagnostic)
            if item.__class__ is PreparedLoop:
                self._repeat(core, item)  # type: ignore[arg-type]
            else:
                core.instruction = item
                execute(item)  # type: ignore[arg-type]
            for storage in closes:
                close(storage)

    def _repeat(self, core: Any, prepared: PreparedLoop) -> None:
        loop, steps = prepared
        verified = core.execution.verified
        limit = None if verified is None else verified.get(loop.number, 0)
        count = 0
        for value in _values(core, loop):
            count += 1
            if limit is not None and count > limit:
                raise Unverified(f"{loop.function} runs more than {limit} times")
            loop.index.set(value)
            self._run(core, steps)
        core.trips.setdefault(loop.number, []).append(count)
        core.loop_sites[loop.number] = loop.site


def _values(core: object, loop: Loop) -> Any:
    """What the index of a loop is in each iteration; bounds are read once, when the loop starts."""
    if not loop.is_while:
        return range(_bound(core, loop.lower), _bound(core, loop.upper), loop.step)
    return _while(core, loop)


def _while(core: Any, loop: Loop) -> Any:
    limit = core.execution.options.max_iterations
    value, count = loop.lower.read(), 0
    while value != 0:
        count += 1
        if count > limit:
            raise error("endless-loop", f"while_loop: {limit} iterations and the condition still holds")
        yield value
        value = loop.upper.read()


def _bound(core: object, bound: Any) -> int:
    return bound if isinstance(bound, int) else bound.as_index()


@per_program
def prepare(program: Program) -> Prepared:
    """Return the program as the reference backend runs it."""
    return Prepared(lower(program))
