"""Recorded programs: run again on new data without the kernel's Python (language.md 3.5).

The executor stays the definition: a replay hands it the recorded instructions in their order. What the
kernel's Python did in between is known beforehand: a storage gets its bytes before its first use and
gives them up after its last. A recording refers to storages and registers of its own, so nothing the
first run left behind can reach it, and each replay has a copy to itself.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import NkiError
from ..program import Instruction
from ..storage import Storage
from ..tensor import NkiTensor
from ..view import Indirection, View
from .executor import Executor

if TYPE_CHECKING:
    from ..core import Core

SPARE_COPIES = 4  # kept for threads that replay one program at the same time


class Step(NamedTuple):
    """An instruction, and what happens around it."""

    said: tuple[Any, ...]  # diagnostics that the kernel's Python and the checks gave before it ran
    opens: tuple[Storage, ...]  # used here for the first time
    instruction: Instruction | None
    closes: tuple[Storage, ...]  # used here for the last time


class Held(Storage):
    """A storage of a recording whose original somebody still holds: the same description, no bytes."""

    __slots__ = ()

    def __init__(self, original: Storage):
        for name in Storage.__slots__:
            setattr(self, name, getattr(original, name))
        self.memory, self.leases = None, 0


_numbers = itertools.count(1)


class Twins:
    """Copies of views, each storage and each register having one twin."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[Storage, Storage]] = {}  # the original stays, and its id its own
        self.registers: dict[int, tuple[Any, Any]] = {}

    def storage(self, original: Storage) -> Storage:
        known = self.storages.get(id(original))
        if known is None:
            known = self.storages[id(original)] = original, Held(original)
        return known[1]

    def register(self, original: Any) -> Any:
        if id(original) not in self.registers:
            self.registers[id(original)] = original, copy.copy(original)
        return self.registers[id(original)][1]

    def view(self, view: View) -> View:
        ind = view.indirection
        if ind is not None:
            base = None if ind.base is None else self.view(ind.base)
            ind = Indirection(ind.kind, self.of(ind.index), ind.scale, ind.dim, base)
        twin = View(self.storage(view.storage), view.offset, view.shape, view.strides, view.dtype, ind)
        twin._sig = view._sig
        return twin

    def of(self, value: Any) -> Any:
        """The twin of a view, register or container of them; anything else is itself."""
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, (tuple, list)):
            items = [self.of(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            twin = copy.copy(value)
            twin.update({k: self.of(v) for k, v in value.items()})
            return twin
        return self.register(value) if getattr(value, "is_register", False) else value

    def rebind(self, instruction: Instruction) -> None:
        """Let an instruction refer to the twins of its operands."""
        for name in instruction.operand_names:
            value = getattr(instruction, name)
            if isinstance(value, View):
                setattr(instruction, name, self.view(value))
        for name in instruction.registers:
            setattr(instruction, name, self.of(getattr(instruction, name)))


class Recorder(Twins):
    """A sink: keeps the instructions of a run, up to a limit, without keeping its tiles alive.

    The recording takes over the storages of the run. Those that somebody still holds when the run is
    over, the arguments and results above all, are then replaced by twins.
    """

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self.number = next(_numbers)
        self.now = 0
        self.instructions: list[Instruction] | None = []  # None: too many
        self.used: list[Storage] = []  # in the order of their first use
        self.views: list[View] = []  # that the instructions refer to

    def listen_to(self, core: Core) -> Recorder:
        """Become a sink of a core."""
        self.core = core
        return self

    def __call__(self, instruction: Instruction) -> None:
        """Keep an instruction that has run: this happens once for each of a program."""
        if self.instructions is None:
            return
        for name in instruction.access.views:
            value = getattr(instruction, name)
            bare: Any = value.recorded if value.__class__ is NkiTensor else None
            if bare is not None and bare.storage.recorder == self.number:
                bare.storage.last = self.now
            else:
                bare = self.view(value)
                if bare.indirection is None and value.__class__ is NkiTensor:
                    value.recorded = bare
            setattr(instruction, name, bare)
        for name in instruction.registers:
            setattr(instruction, name, self.of(getattr(instruction, name)))
        self.instructions.append(instruction)
        self.now += 1
        if self.now > self.limit:
            self._give_up(self.instructions)

    def view(self, view: View) -> View:
        """The same view without a claim on bytes."""
        if view.indirection is None:
            bare = View(self.storage(view.storage), view.offset, view.shape, view.strides, view.dtype)
            bare._sig = view._sig
        else:
            bare = super().view(view)
        self.views.append(bare)
        return bare

    def storage(self, original: Storage) -> Storage:
        if original.recorder != self.number:
            original.recorder, original.first = self.number, self.now
            self.used.append(original)
        original.last = self.now
        return original

    def _give_up(self, instructions: list[Instruction]) -> None:
        """The program is too long to keep: count what it does from now on, and what it did."""
        self.instructions = None
        self.core.launch.count_from_now_on(self.core, instructions)
        self.views.clear()
        self.used.clear()
        self.registers.clear()

    def finish(self, parameters: Iterable[tuple[str, Storage]], result: Any) -> Recording | None:
        """The recording of a run that ended well; None when it cannot be run again."""
        if self.instructions is None or self.core.trips or not _is_plain(result):
            return None
        given = [(name, self.storage(storage)) for name, storage in parameters]
        result = self.of(result)
        if self._uses_others([storage for _, storage in given]):
            return None
        constants = {id(s): s.memory.raw for s in self.used if s.constant and s.memory is not None}
        twins = {id(s): Held(s) for s in self.used if s.is_held}
        for view in self.views:
            view.storage = twins.get(id(view.storage), view.storage)
        data: list[tuple[Storage, np.ndarray]] = [(twins[number], raw) for number, raw in constants.items()]
        self.used = [twins.get(id(s), s) for s in self.used]
        return Recording(self, [(name, twins.get(id(s), s)) for name, s in given], data, result)

    def _uses_others(self, given: list[Storage]) -> bool:
        """True when a tensor of another call, kept in some variable, was used."""
        launch = self.core.launch
        return any(
            (s.parameter and s not in given)
            or (s.memory is not None and s.memory.owner not in (None, launch))
            for s in self.used
        )


def _is_plain(value: Any) -> bool:
    """True for tensors and numbers: what a replay can return once more."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (View, int, float, str))


class Recording:
    """A program and all it takes to run it again."""

    def __init__(
        self,
        recorder: Recorder,
        parameters: list[tuple[str, Storage]],
        constants: list[tuple[Storage, np.ndarray]],
        result: Any,
    ):
        assert recorder.instructions is not None
        self.instructions = recorder.instructions
        self.parameters = parameters
        self.constants = constants
        self.result = result
        self.registers = [(twin, twin._value) for _, twin in recorder.registers.values()]
        self.diagnostics = list(recorder.core.launch.diagnostics)
        self.storages = [s for s in recorder.used if not s.parameter and not s.constant]
        self._spare: list[Recording] = [self]

    @cached_property
    def steps(self) -> list[Step]:
        """The instructions and one step more: what is left to do when they have run.

        Made for the first replay, since many programs run once.
        """
        opens: dict[int, list[Storage]] = {}
        closes: dict[int, list[Storage]] = {}
        said: dict[int, list[Any]] = {}
        for storage in self.storages:
            opens.setdefault(storage.first, []).append(storage)
            closes.setdefault(storage.last, []).append(storage)
        for diagnostic in self.diagnostics:
            if diagnostic.before is not None:
                said.setdefault(diagnostic.before, []).append(diagnostic)
        return [
            Step(tuple(said.get(i, ())), tuple(opens.get(i, ())), instruction, tuple(closes.get(i, ())))
            for i, instruction in enumerate([*self.instructions, None])
        ]

    def __len__(self) -> int:
        return len(self.instructions)

    def listing(self) -> str:
        """The program as text, the same in every process."""
        return "\n".join(_Listing().lines(self))

    # ---- one copy per replay ---------------------------------------------------------------------

    def acquire(self) -> Recording:
        """This recording, or a copy of it while another thread replays it."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._copy()

    def release(self, recording: Recording) -> None:
        """Take a copy back after its replay, whatever became of it."""
        recording._let_go()
        if len(self._spare) < SPARE_COPIES:
            self._spare.append(recording)

    def _copy(self) -> Recording:
        twins = Twins()
        twin = copy.copy(self)
        twin.parameters = [(name, twins.storage(storage)) for name, storage in self.parameters]
        twin.constants = [(twins.storage(storage), raw) for storage, raw in self.constants]
        twin.registers = [(twins.register(register), value) for register, value in self.registers]
        twin.steps = [_step(step, twins) for step in self.steps]
        twin.result = twins.of(self.result)
        return twin

    def _let_go(self) -> None:
        for _, storage in self.parameters:
            storage.memory = None
        for storage, _ in self.constants:
            storage.memory = None
        for step in self.steps:
            for storage in step.opens:
                storage.memory = None

    # ---- running ---------------------------------------------------------------------------------

    def run(self, core: Core) -> Any:
        """Run the program on a core; the memories of its parameters are there already.

        Returns the tensors that the kernel returned. Errors point at the kernel's line.
        """
        launch = core.launch
        execute = Executor(core)
        for storage, raw in self.constants:
            storage.memory = launch.borrow(storage, raw)
        for register, value in self.registers:
            register._value = value
        instruction: Instruction | None = None
        try:
            for said, opens, instruction, closes in self.steps:
                for diagnostic in said:
                    launch.diagnose(*diagnostic.parts)
                for storage in opens:
                    if storage.memory is None:
                        storage.memory = core.memory_for(storage)
                if instruction is None:  # the end: what was returned stays
                    break
                core.replayed = instruction
                execute(instruction)
                for storage in closes:
                    storage.memory.released()  # type: ignore[union-attr]
                    storage.memory = None
        except NkiError as problem:
            if instruction is not None:
                problem.site = instruction.site
            raise
        return self.result


def _step(step: Step, twins: Twins) -> Step:
    instruction = copy.copy(step.instruction)
    if instruction is not None:
        twins.rebind(instruction)
    opens, closes = tuple(map(twins.storage, step.opens)), tuple(map(twins.storage, step.closes))
    return Step(step.said, opens, instruction, closes)


class _Listing:
    """Writes a recording line by line; storages and registers are numbered as they come."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.made: list[str] = []  # storages of which the current line is the first to speak

    def lines(self, recording: Recording) -> Iterator[str]:
        for name, storage in recording.parameters:
            self.name(storage)
            yield f"{self.made.pop()} argument {name}"
        for storage, raw in recording.constants:
            self.name(storage)
            yield f"{self.made.pop()} constant {hashlib.sha256(raw.tobytes()).hexdigest()[:16]}"
        for instruction in recording.instructions:
            shown = ", ".join(f"{f}={self.show(getattr(instruction, f))}" for f in instruction.fields)
            yield from self.flush(f"{instruction.public}({shown})")
        yield from self.flush(f"return {self.show(recording.result)}")

    def flush(self, line: str) -> Iterator[str]:
        yield from self.made
        self.made.clear()
        yield line

    def name(self, storage: Storage) -> str:
        if storage not in self.names:
            self.names[storage] = f"%{len(self.names)}"
            place = "" if storage.address is None else f" at {storage.address}"
            what = f"{storage.dtype}{list(storage.shape)} {storage.buffer.value}{place}"
            self.made.append(f"{self.names[storage]} = {what}")
        return self.names[storage]

    def show(self, value: Any) -> str:
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self.show(v)}' for k, v in value.items())}}}"
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({', '.join(map(self.show, value))})"
        if getattr(value, "is_register", False):
            return self.names.setdefault(value, f"register{len(self.names)}({value._value})")
        return repr(value)

    def view(self, view: View) -> str:
        pattern = ", ".join(f"{count}:{step}" for step, count in view.get_pattern())
        text = f"{self.name(view.storage)}[{view.offset} + {pattern}]:{view.dtype}"
        ind = view.indirection
        if ind is None:
            return text
        base = "" if ind.base is None else f" of {self.view(ind.base)}"
        return f"{text} {ind.kind}({self.show(ind.index)} * {ind.scale}, dim={ind.dim}){base}"
