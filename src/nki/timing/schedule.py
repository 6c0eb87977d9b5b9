"""Schedules a program: plans the operations of each core, then simulates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir.columns import ProgramColumns
from ..ir.program import Edge, Program
from ..ir.schedule_edges import declared
from ..options import from_environment
from ..progress import Progress
from .access_columns import AccessColumns
from .compiler.compilation import Compilation
from .compiler.stage import compiled, parts
from .entries import SignatureNumbers
from .operation_plan import OperationPlan
from .simulation import simulate
from .timeline import Timeline


def schedule(program: Program, progress: Progress | None = None) -> Timeline:
    """Return when each instruction of each core starts and ends; bodies of loops as often as they run.

    Of several ranks that all do the same, it is the timeline of one.
    """
    progress = progress or Progress()
    plans = plan(program, progress=progress)
    return Timeline(program, plans, simulate(program.machine, plans, progress=progress))


def schedule_ranks(program: Program, starts: Sequence[float]) -> list[Timeline]:
    """Return the timelines of ranks that start at these times, in ns, on one clock."""
    plans = plan(program)
    ran = simulate(program.machine, plans, starts)
    count = len(plans)
    ranks = [ran[i * count : (i + 1) * count] for i in range(len(starts))]
    return [Timeline(program, plans, cores) for cores in ranks]


def plan(
    program: Program,
    edit: Callable[[Compilation], None] | None = None,
    progress: Progress | None = None,
    most: int | None = None,
) -> list[OperationPlan]:
    """Return the operations of each core, and what they wait for.

    `edit` changes the kernel before that; `most` leaves out what comes after so many instructions of a core.
    """
    edges = declared(program)
    plans, places = _core_plans(program, edges, edit, most)
    if progress is not None:  # each operation is planned, then simulated
        count = sum(len(plan.instructions) for plan in plans)
        progress.expect(2 * count, [plan.table for plan in plans])
    for plan in plans:
        plan.plan()
    add_declared(plans, places, edges)
    return plans


def _core_plans(
    program: Program, edges: Sequence[Edge], edit: Callable[[Compilation], None] | None, most: int | None
) -> tuple[list[OperationPlan], list[list[int]]]:
    """Return the instructions of each core, to be planned; where there are edges, with their positions."""
    plans, places = [], []
    for core, (instructions, at) in enumerate(_run_order(program)):
        numbers = SignatureNumbers()
        listed = numbers.listed(instructions, at, most)
        core_items = Compilation(program.machine, listed, numbers, _pinned(program, edges, core))
        if edit is not None:
            edit(core_items)
        changes = compiled(core_items, parts(program), from_environment().without)
        listed = core_items.listed
        blocks = {
            position: number
            for number, block in enumerate(program.blocks)
            for position, at in enumerate(listed.at)
            if block.core == core and block.first <= at <= block.last
        }
        found = _accesses(program, core, core_items)
        as_written = not program.transformed
        plans.append(OperationPlan(program.machine, listed, found, core, blocks, changes, as_written))
        places.append([*listed.at] if edges else [])
    return plans, places


def _run_order(program: Program) -> Iterator[tuple[Sequence[Any], Sequence[int]]]:
    """Yield the instructions of each core in the order of a run, and their positions in the walk."""
    if not program.loops:
        for items in program.cores:
            yield items, range(len(items))
        return
    for unrolled in program.unrolled():
        yield [instruction for instruction, _ in unrolled], [at for _, at in unrolled]


def _accesses(program: Program, core: int, compiled: Compilation) -> AccessColumns:
    """Return the accesses of a core; from the columns of the program if it has the same instructions."""
    instructions, items = compiled.listed.instructions, program.cores[core]
    if compiled.is_rewritten or program.loops or len(instructions) != len(items):
        return AccessColumns(instructions, ProgramColumns([instructions], ()), 0)
    return AccessColumns(instructions, program.columns, core)


def _pinned(program: Program, edges: Sequence[Edge], core: int) -> set[int]:
    """Return the positions of a core that a declared edge or a no_reorder block names."""
    named = {at for edge in edges if edge.core == core for at in (edge.later, edge.earlier)}
    for block in program.blocks:
        if block.core == core:
            named.update(range(block.first, block.last + 1))
    return named


def add_declared(plans: list[OperationPlan], places: list[list[int]], edges: Sequence[Edge]) -> None:
    """Add the edges of depends_on and with_schedule; in a loop, between instructions of one iteration."""
    if not edges:
        return
    for core, (plan, where) in enumerate(zip(plans, places, strict=True)):
        found: dict[int, list[int]] = {}  # operations in the order of their positions
        for index in np.argsort(plan.table.positions, kind="stable").tolist():
            position = plan.table.positions[index]
            if position >= 0:
                found.setdefault(where[position], []).append(index)
        pairs = []
        for edge in edges:
            if edge.core == core:
                later, earlier = found.get(edge.later, []), found.get(edge.earlier, [])
                if earlier:
                    pairs += [(op, earlier[min(i, len(earlier) - 1)]) for i, op in enumerate(later)]
        plan.add_waits(pairs)
