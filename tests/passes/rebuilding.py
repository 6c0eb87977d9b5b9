"""Programs with other items: edges, blocks and diagnostics follow their instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nki.ir.effects import storages as storages_of
from nki.ir.instruction import Instruction
from nki.ir.items import Diagnostic, Edge, Item, Loop, OrderedBlock, loops_in, walk
from nki.ir.program import Program
from nki.ir.storage import Storage
from nki.ir.tree import leaves
from nki.ir.view import View


def with_body(loop: Loop, body: tuple[Item, ...]) -> Loop:
    """Return the loop with another body."""
    return replace(loop, body=body)


def rewritten(items: Sequence[Item], change: Callable[[Instruction], Sequence[Instruction]]) -> tuple:
    """Return the items with every instruction replaced by what `change` makes of it."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            found.append(with_body(item, rewritten(item.body, change)))
        else:
            found += change(item)
    return tuple(found)


def rebuilt(
    program: Program,
    cores: Sequence[Sequence[Item]],
    stands_for: Mapping[Instruction, Instruction] | None = None,
) -> Program:
    """Return the program with other items; everything that names a position follows its instruction.

    Instructions may be missing, or stand elsewhere in their core; `stands_for` maps a new one to the one that
    it replaces. Edges of a missing instruction are dropped, a block shrinks, and a diagnostic before it moves
    to the next instruction that is left.
    """
    names = stands_for or {}
    places = []
    for core, items in enumerate(cores):
        new = {names.get(i, i): position for position, i in enumerate(walk(items))}
        places.append([new.get(i) for i in program.walk(core)])
    left = {loop.number for items in cores for loop in loops_in(items)}
    trips = program.trips and {n: counts for n, counts in program.trips.items() if n in left}
    return replace(
        program,
        cores=tuple(map(tuple, cores)),
        storages=_storages(program, cores),
        constants=_used_constants(program, cores),
        edges=tuple(edge for old in program.edges for edge in _moved_edge(old, places[old.core])),
        blocks=tuple(block for old in program.blocks for block in _moved_block(old, places[old.core])),
        diagnostics=tuple(_moved_diagnostic(d, places[d.core]) for d in program.diagnostics),
        trips=trips,
    )


def _used(program: Program, cores: Sequence[Sequence[Item]]) -> dict[Storage, None]:
    used = dict.fromkeys(storage for _, storage in program.parameters)
    used.update(dict.fromkeys(view.storage for view in leaves(program.result, View)))
    used.update(dict.fromkeys(s for items in cores for s in storages_of(walk(items))))
    return used


def _storages(program: Program, cores: Sequence[Sequence[Item]]) -> tuple[Storage, ...]:
    """The old ones that are left in their order, then the new ones."""
    used = _used(program, cores)
    old = [storage for storage in program.storages if storage in used]
    return tuple(dict.fromkeys([*old, *used]))


def _used_constants(program: Program, cores: Sequence[Sequence[Item]]) -> tuple:
    used = _used(program, cores)
    return tuple((storage, raw) for storage, raw in program.constants if storage in used)


def _moved_edge(edge: Edge, places: list[int | None]) -> list[Edge]:
    later, earlier = places[edge.later], places[edge.earlier]
    return [] if later is None or earlier is None else [Edge(edge.core, later, earlier)]


def _moved_block(block: OrderedBlock, places: list[int | None]) -> list[OrderedBlock]:
    left = [p for p in places[block.first : block.last + 1] if p is not None]
    return [OrderedBlock(block.core, min(left), max(left))] if left else []


def _moved_diagnostic(diagnostic: Diagnostic, places: list[int | None]) -> Diagnostic:
    if diagnostic.before is None:
        return diagnostic
    left = (p for p in places[diagnostic.before :] if p is not None)
    return replace(diagnostic, before=next(left, sum(p is not None for p in places)))
