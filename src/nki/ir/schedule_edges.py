"""The edges of `Kernel.with_schedule`: which named instruction waits for which (spec/language.md 2.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import error, nearest
from .effects import effects
from .instruction import Instruction
from .program import Edge, Program

Names = tuple[str, tuple[str, ...]]


def checked_edges(edges: object) -> tuple[Names, ...]:
    """Return the edges as (later, earlier names); raise on a malformed one."""
    if not isinstance(edges, (tuple, list)):
        raise error("schedule", f"with_schedule: takes a list of (later, earlier) pairs, got {edges!r}")
    checked: list[Names] = []
    for edge in edges:
        pair: Any = edge if isinstance(edge, (tuple, list)) and len(edge) == 2 else (None, ())
        later, earlier = pair
        earlier = tuple(earlier) if isinstance(earlier, (tuple, list)) else (earlier,)
        if not earlier or not all(isinstance(name, str) for name in (later, *earlier)):
            raise error(
                "schedule",
                f"with_schedule: an edge is (later, earlier), got {edge!r}",
                help='("plus1", "recip") makes plus1 wait for recip; earlier may be a list of names',
            )
        checked.append((later, earlier))
    _refuse_cycles(checked)
    return tuple(checked)


def _refuse_cycles(edges: list[Names]) -> None:
    waits: dict[str, set[str]] = {}
    for later, earlier in edges:
        waits.setdefault(later, set()).update(earlier)
    for name in waits:
        reached, ahead = set(), [name]
        while ahead:
            for before in waits.get(ahead.pop(), ()):
                if before == name:
                    raise error("schedule", f"with_schedule: {name!r} would wait for itself")
                if before not in reached:
                    reached.add(before)
                    ahead.append(before)


def check_names(schedule: Iterable[Names], named: Iterable[str]) -> None:
    """Raise if a name in a schedule is neither that of an instruction nor of a tensor that one writes.

    `named` are the names of a core.
    """
    known = sorted(named)
    for later, earlier in schedule:
        for name in (later, *earlier):
            if name not in known:
                close = nearest(name, known)
                raise error(
                    "schedule",
                    f"with_schedule: no instruction or tensor is named {name!r}",
                    notes=[f"in the edge {(later, *earlier)}", f"named here: {', '.join(known) or 'none'}"],
                    help=f"did you mean {close!r}?" if close else "give the instruction name=",
                )


def names_of(instruction: Instruction) -> set[str]:
    """Return the name of an instruction and those of the tensors that it writes."""
    written = {view.name for view in effects(instruction).written}
    return {str(name) for name in (instruction.name, *written) if name}


def by_name(program: Program, core: int) -> dict[str, list[int]]:
    """Return the positions of each name: instructions of that name, and those that write such a tensor."""
    named: dict[str, list[int]] = {}
    for position, instruction in enumerate(program.walk(core)):
        for name in names_of(instruction):
            named.setdefault(name, []).append(position)
    return named


def declared(program: Program) -> list[Edge]:
    """Return all edges: of depends_on, and of with_schedule each `later` after each `earlier`."""
    edges = list(program.edges)
    for core in range(len(program.cores)) if program.schedule else ():
        named = by_name(program, core)
        for later, earlier in program.schedule:
            edges += [Edge(core, a, b) for a in named[later] for n in earlier for b in named[n]]
    return edges
