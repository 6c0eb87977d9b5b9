"""In which iteration of which loops each instruction was issued: an observer that reads the kernel's frames.

A kernel's loops are Python's own, so nothing of them is in a Program. While a kernel is traced for a profile,
the variables of the `for` loops around each call are recorded for its reports.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..errors import is_ours
from ..ir.context import running
from ..ir.instruction import Instruction

LONGEST_WORD = 24
Turn = tuple[tuple[str, Any], ...]
OUTSIDE = ("nki.kernel", "nki.launch", "threading", "concurrent")  # who called the kernel


class LoopOf(NamedTuple):
    """A `for` statement in bytecode: the offsets of its body, and the variables it sets."""

    first: int
    last: int
    variables: tuple[str, ...]


OURS, CALLER = ("",), ("", "")  # what places of our own have instead of variables; who called the kernel


class Iterations:
    """`turns[core, handle]`: ((variable, value), ...) of the loops around an instruction, outermost first."""

    def __init__(self) -> None:
        self.turns: dict[tuple[int, int], Turn] = {}
        self.last: Turn = ()
        self.places = Places()

    def __call__(self, instruction: Instruction) -> None:
        core = running()
        turn = self.places.turn(sys._getframe(1))
        if not turn or core is None:
            return
        if turn == self.last:
            turn = self.last  # most instructions are of the same iteration as the one before
        self.last = turn
        self.turns[core.index, core.issued] = turn


class Places:
    """The loops around each place of the code that issues instructions; each place is analysed once."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], tuple[str, ...]] = {}  # by code and offset: the variables
        self.codes: list[CodeType] = []  # held, so that their ids are not used again

    def turn(self, frame: FrameType | None) -> Turn:
        """The variables of all loops that are open in the kernel's frames, the innermost frame given."""
        found: Turn = ()
        known, in_kernel = self.known, False
        while frame is not None:
            place = (id(frame.f_code), frame.f_lasti)  # cheaper than the hash of a code object
            names = known.get(place)
            if names is None:
                names = known[place] = self._look(frame)
            if names is CALLER:
                if in_kernel:
                    break
            elif names is not OURS:
                in_kernel = True
                if names:
                    found = _values(frame.f_locals, names) + found
            frame = frame.f_back
        return found

    def _look(self, frame: FrameType) -> tuple[str, ...]:
        self.codes.append(frame.f_code)
        module = frame.f_globals.get("__name__", "")
        if is_ours(module):
            return CALLER if module.startswith(OUTSIDE) else OURS
        return variables_at(frame.f_code, frame.f_lasti)


def _values(values: Mapping[str, object], names: tuple[str, ...]) -> Turn:
    found = []
    for name in names:
        value = values.get(name)
        shown = value if value.__class__ is int else _shown(value)
        if shown is not None:
            found.append((name, shown))
    return tuple(found)


def variables_at(code: CodeType, offset: int) -> tuple[str, ...]:
    """The variables of the loops around an offset, outermost first."""
    return tuple(
        name for loop in loops_of(code) if loop.first <= offset < loop.last for name in loop.variables
    )


@lru_cache(maxsize=4096)
def loops_of(code: CodeType) -> tuple[LoopOf, ...]:
    """The `for` loops of a function, in the order of its text."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    found = []
    for number, step in enumerate(steps):
        if step.opname == "FOR_ITER":
            found.append(LoopOf(step.offset, step.argval, _stored(steps[number + 1 :])))
    return tuple(found)


def _stored(steps: list[dis.Instruction]) -> tuple[str, ...]:
    """The variables that the first steps of a loop's body set: `i`, or `i, (a, b)`."""
    names: list[str] = []
    missing = 1
    for step in steps:
        if missing == 0:
            break
        if step.opname in ("UNPACK_SEQUENCE", "UNPACK_EX"):
            missing += (step.arg or 0) - 1
        elif step.opname.startswith("STORE_FAST") or step.opname in ("STORE_DEREF", "STORE_NAME"):
            set_here = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            if step.opname.endswith("LOAD_FAST"):  # Python 3.13 sets one and reads another in one step
                set_here = set_here[:1]
            names += set_here
            missing -= len(set_here)
        else:
            break  # something else is set, such as an item of a list
    return tuple(names)


def _shown(value: object) -> Any:
    """Return a number or a short word that identifies the iteration; None for everything else."""
    if isinstance(value, (bool, str)):
        return str(value) if len(str(value)) <= LONGEST_WORD else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple) and 0 < len(value) <= 3 and all(type(part) is int for part in value):
        return str(tuple(value))
    return None
