"""Dead code elimination: leaves out instructions whose writes are not visible.

Visible are parameters, results, storages that both cores use, and all states but the internal ones below.
Accumulator registers, scalar registers and all other storages count while an instruction that stays reads
them later. A diagnostic or an error that a removed instruction would have given is lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nki.ir.boxes import space_of, whole_box
from nki.ir.effects import effects, overwrites
from nki.ir.effects import storages as storages_of
from nki.ir.instruction import Instruction, State
from nki.ir.items import Item, Loop, walk
from nki.ir.program import Program
from nki.ir.storage import Storage
from nki.ir.tree import leaves
from nki.ir.view import View

from .rebuilding import rebuilt, rewritten, with_body

INTERNAL = frozenset((State.vector_accumulator, State.scalar_accumulator))  # they end with the kernel


def without_dead_code(program: Program) -> Program:
    """Return the program without the instructions, and the loops, that change nothing visible."""
    shared = _shared(program)
    outside = {storage for _, storage in program.parameters}
    outside.update(view.storage for view in leaves(program.result, View))
    cores = []
    for items in program.cores:
        sweep = _Sweep(shared)
        sweep.back(items, Live(outside | shared))
        cores.append(_only(items, sweep.needed))
    return rebuilt(program, cores)


def _shared(program: Program) -> set[Storage]:
    """Return the storages that both cores use: the other core may read them at any time."""
    used = [set(storages_of(walk(items))) for items in program.cores]
    return set.intersection(*used) if len(used) > 1 else set()


def _only(items: Sequence[Item], needed: set[Instruction]) -> tuple[Item, ...]:
    left = rewritten(items, lambda instruction: [instruction] if instruction in needed else [])
    return _without_empty_loops(left)


def _without_empty_loops(items: Sequence[Item]) -> tuple[Item, ...]:
    left = [with_body(i, _without_empty_loops(i.body)) if isinstance(i, Loop) else i for i in items]
    return tuple(item for item in left if not isinstance(item, Loop) or item.body)


@dataclass
class Live:
    """What is read later: storages, registers, states."""

    storages: set[Storage] = field(default_factory=set)
    registers: set[Any] = field(default_factory=set)
    states: set[State] = field(default_factory=set)

    def copy(self) -> Live:
        return Live(set(self.storages), set(self.registers), set(self.states))

    def add(self, other: Live) -> bool:
        """Add another; True when something in it is new."""
        before = len(self.storages), len(self.registers), len(self.states)
        self.storages |= other.storages
        self.registers |= other.registers
        self.states |= other.states
        return before != (len(self.storages), len(self.registers), len(self.states))

    def holds(self, storage: Storage) -> bool:
        """True when the storage is read later, or one that shares its addresses."""
        if storage in self.storages or storage.address is None:
            return storage in self.storages
        place = whole_box(storage)
        space = space_of(storage)
        return any(space_of(s) is space and place.overlaps(whole_box(s)) for s in self.storages)


class _Sweep:
    """Walks a core backwards, from what is visible at its end, and collects what must stay."""

    def __init__(self, shared: set[Storage]):
        self.shared = shared
        self.needed: set[Instruction] = set()

    def back(self, items: Sequence[Item], live: Live) -> Live:
        """Return what is live before the items, given what is live after them."""
        for item in reversed(items):
            live = self._loop(item, live) if isinstance(item, Loop) else self._instruction(item, live)
        return live

    def _instruction(self, instruction: Instruction, live: Live) -> Live:
        done = effects(instruction)
        if not (
            any(state not in INTERNAL or state in live.states for state in done.state)
            or any(live.holds(view.storage) for view in done.written)
            or any(register in live.registers for register in done.registers_written)
        ):
            return live
        self.needed.add(instruction)
        for view in done.writes:
            if view.storage not in self.shared and overwrites(instruction, view.storage):
                live.storages.discard(view.storage)
        live.registers -= set(done.registers_written)
        live.storages |= {view.storage for view in done.seen}
        live.registers |= set(done.registers_read)
        live.states |= {state for state in done.state if state in INTERNAL}
        return live

    def _loop(self, loop: Loop, live: Live) -> Live:
        """The body may run any number of times: what its start needs is live at its end."""
        trial = _Sweep(self.shared)
        trial._until_stable(loop, live.copy(), ())
        if all(State.loop in effects(instruction).state for instruction in trial.needed):
            return live  # nothing it does is visible, so its heads can go too
        bounds = [bound for bound in (loop.lower, loop.upper) if not isinstance(bound, int)]
        live = self._until_stable(loop, live, bounds[1:] if loop.is_while else ())
        live.registers |= set(bounds)
        return live

    def _until_stable(self, loop: Loop, live: Live, condition: Sequence[Any]) -> Live:
        live.registers |= set(condition)
        while live.add(self.back(loop.body, live.copy())):
            pass
        return live
