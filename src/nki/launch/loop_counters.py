"""In which iteration of which loops each instruction was issued: an observer that reads the kernel's frames.

A kernel's loops are Python's own, so nothing of them is in a Program. While a kernel is traced for a profile,
the variables of the `for` loops around each call are recorded for its reports.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..errors import is_ours
from ..ir.context import running
from ..ir.instruction import Instruction
from ..ir.turns import OUTSIDE, Row, Turns

LONGEST_WORD = 24
CALLERS = ("nki.kernel", "nki.launch", "threading", "concurrent")  # who called the kernel
RESUMED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR  # frames that may have another caller next time


class LoopOf(NamedTuple):
    """A `for` statement in bytecode: the offsets of its body, and the variables it sets."""

    first: int
    last: int
    variables: tuple[str, ...]


class Place(NamedTuple):
    """A place in the code where an instruction or a function is called."""

    names: tuple[str, ...] = ()  # the variables of the loops around it
    values: Callable[[Mapping[str, object]], tuple[object, ...]] = lambda variables: ()  # of these


OURS, CALLER = Place(("",)), Place(("", ""))  # in our own code; in the code that called the kernel


class Iterations:
    """An observer that adds the turn of each instruction to `turns`.

    While a function runs, its callers stand still. So only those frames are read that were called since the
    instruction before, and the one that called them.
    """

    def __init__(self) -> None:
        self.turns = Turns()
        self.last: Row = OUTSIDE
        self.places: dict[tuple[int, int], Place] = {}  # by code and offset
        self.codes: list[CodeType] = []  # held, so that their ids are not used again
        self.around: dict[
            FrameType, Row
        ] = {}  # of the kernel's frames, outermost first: the loops around each

    def __call__(self, instruction: Instruction) -> None:
        core = running()
        if core is None:
            return
        frame: FrameType | None = sys._getframe(3)  # it called a function of ours, which called `issue`
        row = self._row_at(frame) if frame in self.around else self._row_of_new(frame)
        if row == self.last:
            row = self.last  # most instructions are of the same iteration as the one before
        self.last = row
        self.turns.add(core.index, core.issued, row)
        if core.recorder is None:  # each instruction runs as it is issued: a frame would keep tiles in memory
            self.around.clear()

    def finish(self) -> Turns:
        """Return the turns, and release the frames of the kernel."""
        self.around.clear()
        return self.turns

    def _row_of_new(self, frame: FrameType | None) -> Row:
        """Return the loops that are open in the kernel's frames, of which the innermost was called since."""
        around = self.around
        inner: list[FrameType] = []  # the kernel's frames that were called since, innermost first
        while frame is not None and frame not in around:
            place = self._place(frame)
            if place is CALLER and inner:
                frame = None
                break
            if place is not OURS and place is not CALLER:
                inner.append(frame)
            frame = frame.f_back
        if frame is None:
            around.clear()
            row = OUTSIDE
        else:
            row = self._row_at(frame)
        while inner:
            frame = inner.pop()
            if not frame.f_code.co_flags & RESUMED:
                around[frame] = row
            place = self._place(frame)
            if place.names:
                row = _extended(row, frame, place)
        return row

    def _row_at(self, frame: FrameType) -> Row:
        """Return the loops that are open in a frame and around it. All that it called before has ended."""
        around = self.around
        while next(reversed(around)) is not frame:
            around.popitem()
        place = self.places.get((id(frame.f_code), frame.f_lasti)) or self._place(frame)
        return _extended(around[frame], frame, place) if place.names else around[frame]

    def _place(self, frame: FrameType) -> Place:
        key = (id(frame.f_code), frame.f_lasti)  # cheaper than the hash of a code object
        found = self.places.get(key)
        if found is None:
            found = self.places[key] = _place(frame)
            self.codes.append(frame.f_code)
        return found


def _place(frame: FrameType) -> Place:
    module = frame.f_globals.get("__name__", "")
    if is_ours(module):
        return CALLER if module.startswith(CALLERS) else OURS
    names = variables_at(frame.f_code, frame.f_lasti)
    if len(names) < 2:
        return Place(names, lambda variables: (variables[names[0]],)) if names else Place()
    return Place(names, itemgetter(*names))


def _extended(row: Row, frame: FrameType, place: Place) -> Row:
    """Add the variables of a frame's loops to those of the frames around it."""
    names, variables = place.names, frame.f_locals
    try:
        values = place.values(variables)
    except KeyError:  # one was deleted
        values = tuple(map(variables.get, names))
    if not _INTS.issuperset(map(type, values)):
        shown = [(name, _shown(value)) for name, value in zip(names, values, strict=True)]
        kept = [pair for pair in shown if pair[1] is not None]
        names, values = tuple([name for name, _ in kept]), tuple([value for _, value in kept])
    return (row[0] + names, row[1] + values)


_INTS = frozenset([int])


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
