"""The schedule of a program: what is planned on each core, then simulated, as a Timeline."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.dependences import RAW
from ..ir.program import Edge, Program
from ..ir.schedule_edges import declared
from .compiler_model import compiled
from .core_plan import CorePlan
from .entries import SignatureNumbers
from .operation import Operation
from .simulation import Simulation
from .timeline import Timeline


def schedule(program: Program) -> Timeline:
    """When each instruction of each core starts and ends; bodies of loops as often as they run.

    In a world of several ranks, which all do the same, that of one of them.
    """
    planners = plan(program)
    return Timeline(program.machine, planners, Simulation(program.machine, planners).run())


def schedule_ranks(program: Program, starts: Sequence[float]) -> list[Timeline]:
    """The timelines of ranks that begin at these moments, in ns, on one clock: who is early waits."""
    planners = plan(program)
    ran = Simulation(program.machine, planners, starts).run()
    count = len(planners)
    ranks = [ran[i * count : (i + 1) * count] for i in range(len(starts))]
    return [Timeline(program.machine, planners, cores) for cores in ranks]


def plan(program: Program) -> list[CorePlan]:
    """The operations of each core, and what they wait for."""
    planners, places = [], []
    edges = declared(program)
    first = 0  # of the core, among the effects of the program
    for core, items in enumerate(program.unrolled()):
        numbers = SignatureNumbers()
        asked = numbers.entries(items, program.effects[first : first + program.length_of(core)])
        counted = compiled(program.machine, asked, numbers, _as_they_are(program, edges, core))
        first += program.length_of(core)
        where = [item.at for item in counted]
        blocks = {
            position: number
            for number, block in enumerate(program.blocks)
            for position, at in enumerate(where)
            if block.core == core and block.first <= at <= block.last
        }
        planners.append(CorePlan(program.machine, counted, core, blocks))
        places.append(where)
    for planner in planners:
        planner.plan()
    add_declared(planners, places, edges)
    return planners


def _as_they_are(program: Program, edges: Sequence[Edge], core: int) -> set[int]:
    """Positions of a core that a declared edge or a no_reorder block names."""
    named = {at for edge in edges if edge.core == core for at in (edge.later, edge.earlier)}
    for block in program.blocks:
        if block.core == core:
            named.update(range(block.first, block.last + 1))
    return named


def add_declared(planners: list[CorePlan], places: list[list[int]], edges: Sequence[Edge]) -> None:
    """Edges of depends_on and with_schedule; in a loop, between instructions of one iteration."""
    if not edges:
        return
    for core, (planner, where) in enumerate(zip(planners, places, strict=True)):
        found: dict[int, list[Operation]] = {}
        for op in sorted(planner.operations, key=lambda op: op.position):
            if op.position >= 0:
                found.setdefault(where[op.position], []).append(op)
        for edge in edges:
            if edge.core == core:
                later, earlier = found.get(edge.later, []), found.get(edge.earlier, [])
                for i, op in enumerate(later):
                    if earlier:
                        op.wait_for(earlier[min(i, len(earlier) - 1)].index, RAW)
