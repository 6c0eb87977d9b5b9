"""In which iteration of which loops each instruction was issued: an observer that reads the kernel's frames.

A kernel's loops are Python's own, so nothing of them is in a Program. While a kernel is traced for a profile,
the variables of the `for` loops around each call are recorded for its reports.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from operator import itemgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..errors import is_ours
from ..ir.context import _local
from ..ir.instruction import Instruction
from ..ir.iterations import OUTSIDE, IterationTable, Row
from .observers import Sink, observe

LONGEST_WORD = 24
CALLERS = ("nki.kernel", "nki.launch", "threading", "concurrent")  # who called the kernel
Observing = Callable[[Sink], AbstractContextManager[Sink]]  # `observe` or `observe_first`
RESUMED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class LoopOf(NamedTuple):
    """A `for` statement in bytecode: the offsets of its body, and the variables it sets."""

    first: int
    last: int
    variables: tuple[str, ...]


class Place:
    """A place in the code where an instruction or a function is called: the variables of the loops around."""

    __slots__ = ("names", "values", "is_ours")

    def __init__(self, names: tuple[str, ...] = (), is_ours: bool = False):
        self.names = names
        self.values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
        self.values = itemgetter(*names) if len(names) > 1 else lambda variables: (variables[names[0]],)
        self.is_ours = is_ours  # not in the kernel's code


OURS, CALLER = Place(is_ours=True), Place(is_ours=True)  # CALLER: in the code that calls kernels


class IterationRecorder:
    """An observer that adds the iteration of each instruction to `table`. Each place is analysed once."""

    def __init__(self) -> None:
        self.table = IterationTable()
        self.last: Row = OUTSIDE
        self.frame: FrameType | None = None  # the kernel's function that issued the last instruction
        self.around: Row = OUTSIDE  # of its callers, which stand still while it runs
        self.places: dict[tuple[int, int], Place] = {}  # by code and offset
        self.codes: list[CodeType] = []  # held, so that their ids are not used again

    def __call__(self, instruction: Instruction) -> None:
        core = _local.core
        if core is None:
            return
        frame: FrameType | None = sys._getframe(3)  # it called a function of ours, which called `issue`
        row, places = OUTSIDE, self.places
        while frame is not None:
            place = places.get((id(frame.f_code), frame.f_lasti)) or self._add_place(frame)
            if not place.is_ours:
                row = self._row(frame, place, core.recorder is not None)
                break
            frame = frame.f_back
        if row != self.last:
            self.last = row  # most instructions are of the same iteration as the one before
        self.table.add(core.index, core.issued, self.last)

    def _row(self, frame: FrameType, place: Place, is_traced: bool) -> Row:
        """Return the variables of the loops that are open in the kernel's frames, the innermost given."""
        around = self.around
        if frame is not self.frame:
            around = self._callers(frame.f_back)
            # held only if no tile has bytes; and a generator may have another caller next time
            if is_traced and not frame.f_code.co_flags & RESUMED:
                self.frame, self.around = frame, around
        return _joined(around, _found(place, frame.f_locals)) if place.names else around

    def _callers(self, frame: FrameType | None) -> Row:
        """Return the variables of the loops that are open in a frame of the kernel and in its callers."""
        row, places = OUTSIDE, self.places
        while frame is not None:
            place = places.get((id(frame.f_code), frame.f_lasti)) or self._add_place(frame)
            if place.names:
                row = _joined(_found(place, frame.f_locals), row)
            elif place is CALLER:
                break
            frame = frame.f_back
        return row

    def _add_place(self, frame: FrameType) -> Place:
        """Analyse a place. The id of its code is cheaper than a hash of the code."""
        self.codes.append(frame.f_code)
        place = self.places[id(frame.f_code), frame.f_lasti] = _place(frame)
        return place


@contextmanager
def record_iterations(observing: Observing = observe) -> Iterator[IterationRecorder]:
    """Record the iterations of all instructions that kernels issue in this block; keep no frame after it."""
    recorder = IterationRecorder()
    try:
        with observing(recorder):
            yield recorder
    finally:
        recorder.frame = None  # its callers may hold the recorder


def _place(frame: FrameType) -> Place:
    module = frame.f_globals.get("__name__", "")
    if is_ours(module):
        return CALLER if module.startswith(CALLERS) else OURS
    return Place(variables_at(frame.f_code, frame.f_lasti))


def _joined(outer: Row, inner: Row) -> Row:
    if outer is OUTSIDE:
        return inner
    return outer if inner is OUTSIDE else (outer[0] + inner[0], outer[1] + inner[1])


def _found(place: Place, variables: Mapping[str, Any]) -> Row:
    """Return the variables of a frame's loops."""
    names = place.names
    try:
        found = place.values(variables)
    except KeyError:  # one was deleted
        found = tuple(map(variables.get, names))
    if not _INTS.issuperset(map(type, found)):
        pairs = [(name, _shown(value)) for name, value in zip(names, found, strict=True)]
        names = tuple([name for name, value in pairs if value is not None])
        found = tuple([value for _, value in pairs if value is not None])
    return names, found


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
