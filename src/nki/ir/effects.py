"""Effects: what an instruction reads, writes and adds to, and which state it touches.

Backends, timing, staging, checks and passes all ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from .instruction import Instruction, State
from .storage import Storage
from .view import View


class Effects(NamedTuple):
    """What one instruction does. Index tiles of run-time addresses are among the reads."""

    reads: tuple[View, ...]
    writes: tuple[View, ...]
    adds_to: tuple[View, ...]  # read and written: a matmul into a PSUM tile that may hold a sum
    registers_read: tuple[Any, ...]
    registers_written: tuple[Any, ...]
    state: tuple[State, ...]

    @property
    def written(self) -> tuple[View, ...]:
        """Everything that may hold other values afterwards."""
        return self.writes + self.adds_to if self.adds_to else self.writes

    @property
    def seen(self) -> tuple[View, ...]:
        """Everything the results may depend on."""
        return self.reads + self.adds_to if self.adds_to else self.reads


FENCES = (State.peer, State.ranks, State.loop)  # everything stays on its side of these


class _Plain(NamedTuple):
    """How the operands of a class are fetched, if its effects are those of its annotations."""

    reads: Callable[[Instruction], tuple[Any, ...]]
    writes: Callable[[Instruction], tuple[Any, ...]]
    numbers: bool  # an operand may be a number, or None


@cache
def _plain(cls: type[Instruction]) -> _Plain | None:
    """Return None for a class whose effects depend on more than its annotations."""
    if cls.partial or cls.registers:
        return None
    names = cls.operand_names
    reads, writes = ([names[i] for i in at] for at in (cls.read_at, cls.write_at))
    return _Plain(_fetcher(reads), _fetcher(writes), not cls.required.issuperset(names))


def _fetcher(names: list[str]) -> Callable[[Instruction], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda instruction: ()
    one = attrgetter(names[0])
    return lambda instruction: (one(instruction),)


def effects(instruction: Instruction) -> Effects:
    """Return what an instruction does, from its annotations, `state` and `parts`."""
    plain = _plain(instruction.__class__)
    if plain is not None:  # most are: this runs several times for each of many instructions
        given, made = plain.reads(instruction), plain.writes(instruction)
        if plain.numbers:
            given = tuple([v for v in given if isinstance(v, View)])
            made = tuple([v for v in made if isinstance(v, View)])
        for view in given:
            if view.indirection is not None:
                return _effects(instruction)
        for view in made:
            if view.indirection is not None:
                return _effects(instruction)
        added: tuple[View, ...] = ()
        if instruction.accumulates and instruction.adds_to_dst():
            added, made = made[:1], made[1:]
        return tuple.__new__(Effects, (given, made, added, (), (), instruction.touches()))
    return _effects(instruction)


def _effects(instruction: Instruction) -> Effects:
    """Return the same for parts of operands, registers, or addresses known at run time."""
    operands = instruction.operands()
    reads: list[View] = []
    writes: list[View] = []
    added: list[View] = []
    for i in instruction.read_at:
        reads += _touched(instruction, i, operands[i])
    for i in instruction.write_at:
        views = _touched(instruction, i, operands[i])
        adds = i == 0 and instruction.accumulates and instruction.adds_to_dst()
        (added if adds else writes).extend(views)
    read: list[Any] = []
    written: list[Any] = []
    for name in instruction.registers:
        register = getattr(instruction, name)
        if _is_register(register):
            (written if name in instruction.registers_written else read).append(register)
    for view in instruction.views():
        ind = view.indirection
        if ind is not None:
            if isinstance(ind.index, View):
                reads.append(ind.index)
            else:
                read.append(ind.index)
    touched = instruction.touches()
    return Effects(tuple(reads), tuple(writes), tuple(added), tuple(read), tuple(written), touched)


def _touched(instruction: Instruction, index: int, value: object) -> list[View]:
    if not isinstance(value, View):
        return []
    if instruction.partial and instruction.state == () and value.indirection is None:
        parts = instruction.parts(index)
        return [value] if parts is None else list(parts)
    return [value]


def _is_register(value: object) -> bool:
    return getattr(value, "is_register", False)


def overwrites(instruction: Instruction, storage: Storage) -> bool:
    """Return True if the instruction gives every byte of a storage a new value and does not read it."""
    done = effects(instruction)
    begins_sum = instruction.accumulates and not done.adds_to
    if not (instruction.writes_all() or begins_sum or _moves_whole(instruction)):
        return False
    if any(view.storage is storage for view in done.seen):
        return False
    return any(view.storage is storage and view.covers_storage() for view in done.writes)


def _moves_whole(instruction: Instruction) -> bool:
    """Return True for a transfer without run-time addresses: it writes all of its dst."""
    return (
        instruction.lazy_output
        and not instruction.partial
        and not any(view.indirection is not None for view in instruction.views())
    )


def storages(instructions: Iterable[Instruction]) -> Iterator[Storage]:
    """Yield every storage the instructions refer to, in order of first appearance."""
    seen: set[Storage] = set()
    for instruction in instructions:
        for view in instruction.views():
            if view.storage not in seen:
                seen.add(view.storage)
                yield view.storage
