"""Reordering: one of the orders that the dependences allow, chosen by a seed.

If the dependences are complete, every such order gives the same results. A `no_reorder` block stays together,
in its order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from nki.ir.items import Edge, Item, Loop, OrderedBlock
from nki.ir.program import Program
from nki.ir.schedule_edges import declared

from .dependences import dependences, item_of
from .rebuilding import rebuilt, with_body


def reordered(program: Program, seed: int) -> Program:
    """Return the program with the items of each region in another order."""
    chance = random.Random(seed)
    edges = declared(program)
    cores = []
    for core, items in enumerate(program.cores):
        own = [edge for edge in edges if edge.core == core]
        blocks = [block for block in program.blocks if block.core == core]
        cores.append(_region(items, 0, own, blocks, chance))
    return rebuilt(program, cores)


def _region(
    items: Sequence[Item], first: int, edges: list[Edge], blocks: list[OrderedBlock], chance: random.Random
) -> tuple[Item, ...]:
    waits = dependences(items, first, edges)
    units = _units(items, first, blocks)
    unit_of = {number: unit for unit, numbers in enumerate(units) for number in numbers}
    before: list[set[int]] = [set() for _ in units]
    for later, found in enumerate(waits):
        before[unit_of[later]] |= {unit_of[earlier] for earlier in found} - {unit_of[later]}
    starts = {number: position for position, number in reversed(item_of(items, first).items())}
    found_items: list[Item] = []
    for unit in _topological(before, chance):
        for number in units[unit]:
            item = items[number]
            if isinstance(item, Loop) and item.body:
                item = with_body(item, _region(item.body, starts[number], edges, blocks, chance))
            found_items.append(item)
    return tuple(found_items)


def _units(items: Sequence[Item], first: int, blocks: list[OrderedBlock]) -> list[list[int]]:
    """Return what moves as one: the items of a block in this region, or a single item."""
    where = item_of(items, first)
    block_of: dict[int, int] = {}
    for number, block in enumerate(blocks):
        inside = {where[p] for p in range(block.first, block.last + 1) if p in where}
        if not any(isinstance(items[i], Loop) for i in inside):
            block_of.update(dict.fromkeys(inside, number))
    units: dict[tuple[str, int], list[int]] = {}
    for number in range(len(items)):
        key = ("block", block_of[number]) if number in block_of else ("item", number)
        units.setdefault(key, []).append(number)
    return list(units.values())


def _topological(before: list[set[int]], chance: random.Random) -> list[int]:
    """Return the units in a random order, each after those it waits for."""
    waits = [len(earlier) for earlier in before]
    after: list[list[int]] = [[] for _ in before]
    for unit, earlier in enumerate(before):
        for other in earlier:
            after[other].append(unit)
    ready = [unit for unit, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        unit = ready.pop(chance.randrange(len(ready)))
        order.append(unit)
        for other in after[unit]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    assert len(order) == len(before), "dependences go one way"
    return order
