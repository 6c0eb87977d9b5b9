"""Dead code: leaves out instructions whose writes nobody sees.

Seen from outside are parameters, results, storages that both cores use, and the states below. Accumulator
registers, scalar registers and all other storages count while somebody who stays reads them later. A
diagnostic that an instruction would have given while it ran is lost with it, an error too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .boxes import whole_box
from .effects import effects, overwrites
from .effects import storages as storages_of
from .instruction import Instruction, State
from .program import Item, Loop, Program, rebuilt, rewritten, walk, with_body
from .storage import Storage
from .tree import leaves
from .view import View

INTERNAL = frozenset((State.vector_accumulator, State.scalar_accumulator))  # they end with the kernel


def without_dead_code(program: Program) -> Program:
    """The program without the instructions, and the loops, that change nothing anybody sees."""
    shared = _shared(program)
    outside = {storage for _, storage in program.parameters}
    outside.update(view.storage for view in leaves(program.result, View))
    cores = []
    for items in program.cores:
        sweep = _Sweep(shared)
        sweep.back(items, Live(outside | shared))
        cores.append(_kept(items, sweep.kept))
    return rebuilt(program, cores)


def _shared(program: Program) -> set[Storage]:
    """Storages that both cores use: the other may look at any time."""
    used = [set(storages_of(walk(items))) for items in program.cores]
    return set.intersection(*used) if len(used) > 1 else set()


def _kept(items: Sequence[Item], kept: set[Instruction]) -> tuple[Item, ...]:
    left = rewritten(items, lambda instruction: [instruction] if instruction in kept else [])
    return _without_empty_loops(left)


def _without_empty_loops(items: Sequence[Item]) -> tuple[Item, ...]:
    left = [with_body(i, _without_empty_loops(i.body)) if isinstance(i, Loop) else i for i in items]
    return tuple(item for item in left if not isinstance(item, Loop) or item.body)


@dataclass
class Live:
    """What somebody will see: storages, registers, states."""

    storages: set[Storage] = field(default_factory=set)
    registers: set[Any] = field(default_factory=set)
    states: set[State] = field(default_factory=set)

    def copy(self) -> Live:
        return Live(set(self.storages), set(self.registers), set(self.states))

    def add(self, other: Live) -> bool:
        """Take in another; True when it was not all known."""
        before = len(self.storages), len(self.registers), len(self.states)
        self.storages |= other.storages
        self.registers |= other.registers
        self.states |= other.states
        return before != (len(self.storages), len(self.registers), len(self.states))

    def holds(self, storage: Storage) -> bool:
        """Somebody will read it, or a storage that shares its addresses."""
        if storage in self.storages or storage.address is None:
            return storage in self.storages
        place = whole_box(storage)
        return any(s.address is not None and place.overlaps(whole_box(s)) for s in self.storages)


class _Sweep:
    """Goes backwards through a core, from what is seen at its end, and collects what must stay."""

    def __init__(self, shared: set[Storage]):
        self.shared = shared
        self.kept: set[Instruction] = set()

    def back(self, items: Sequence[Item], live: Live) -> Live:
        """What is live before the items, given what is live after them."""
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
        self.kept.add(instruction)
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
        if all(State.loop in effects(instruction).state for instruction in trial.kept):
            return live  # nobody sees what it does, so nobody needs its heads
        bounds = [bound for bound in (loop.lower, loop.upper) if not isinstance(bound, int)]
        live = self._until_stable(loop, live, bounds[1:] if loop.is_while else ())
        live.registers |= set(bounds)
        return live

    def _until_stable(self, loop: Loop, live: Live, condition: Sequence[Any]) -> Live:
        live.registers |= set(condition)
        while live.add(self.back(loop.body, live.copy())):
            pass
        return live
