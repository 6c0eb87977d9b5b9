"""A Program made ready for the numpy executor: what happens around each instruction is known beforehand.

A storage gets its bytes at its first use and gives them up after its last; one of a loop's body does so in
every iteration. A prepared program is shared by all that run it: values live in the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import NkiError, error
from ...ir.instruction import Instruction
from ...ir.program import Diagnostic, Item, Loop, Program
from ...ir.storage import Storage
from ...ir.tree import leaves
from ...ir.view import View


class Unverified(Exception):
    """A loop is to run more often than the kernel's Python was seen to allow."""


class Step(NamedTuple):
    """An instruction or a loop, and what happens around it."""

    said: tuple[Diagnostic, ...]  # what the kernel's Python and the checks said before it ran
    item: Instruction | PreparedLoop
    closes: tuple[Storage, ...]  # used here for the last time


class PreparedLoop(NamedTuple):
    loop: Loop
    steps: list[Step]


_NOTHING: tuple = ()
_step = Step._make


class Prepared:
    """The steps of every core."""

    def __init__(self, program: Program):
        self.said: dict[tuple[int, int], tuple[Diagnostic, ...]] = {}
        for diagnostic in program.said:
            if diagnostic.before is not None:
                place = (diagnostic.core, diagnostic.before)
                self.said[place] = (*self.said.get(place, ()), diagnostic)
        self.kept = {storage for _, storage in program.parameters}
        self.kept.update(storage for storage, _ in program.constants)
        self.kept.update(view.storage for view in leaves(program.result, View))
        self.kept.update(_shared(program))
        self.lengths = [0] * len(program.cores)  # instructions of each core, bodies counted once
        self.cores = [self._steps(items, core, 0)[0] for core, items in enumerate(program.cores)]

    def _steps(self, items: Sequence[Item], core: int, loop: int) -> tuple[list[Step], dict[Storage, None]]:
        """The steps of a body, and the storages it uses.

        Of the storages that belong to the body, each is closed after its last use.
        """
        found: list[Step] = []
        last: dict[Storage, int] = {}
        for position, item in enumerate(items):
            if item.__class__ is Loop:
                steps, used = self._steps(item.body, core, item.number)  # type: ignore[union-attr]
                found.append(_step((_NOTHING, PreparedLoop(item, steps), _NOTHING)))  # type: ignore[arg-type]
                last.update(dict.fromkeys(used, position))
                continue
            said = self.said.get((core, self.lengths[core]), _NOTHING) if self.said else _NOTHING
            self.lengths[core] += 1
            found.append(_step((said, item, _NOTHING)))
            if item.access.fixed:  # type: ignore[union-attr]
                for name in item.access.views:  # type: ignore[union-attr]
                    last[getattr(item, name).storage] = position
            else:
                for view in item.views():  # type: ignore[union-attr]
                    last[view.storage] = position
        closes: dict[int, list[Storage]] = {}
        for storage, position in last.items():
            if storage.loop == loop and storage not in self.kept:
                closes.setdefault(position, []).append(storage)
        for position, storages in closes.items():
            found[position] = found[position]._replace(closes=tuple(storages))
        return found, dict.fromkeys(last)

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


def _values(core: Any, loop: Loop) -> Any:
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


def _bound(core: Any, bound: Any) -> int:
    return bound if isinstance(bound, int) else bound.as_index()


def _shared(program: Program) -> set[Storage]:
    """Storages that more than one core uses: they live as long as the program runs."""
    if len(program.cores) == 1:
        return set()
    used = [
        {view.storage for i in program.walk(core) for view in i.views()} for core in range(len(program.cores))
    ]
    return set.intersection(*used)


def prepare(program: Program) -> Prepared:
    """The prepared form of a program, made once."""
    found = program.__dict__.get("_prepared")
    if found is None:
        found = program.__dict__["_prepared"] = Prepared(program)
    return found
