"""The core: one door for every instruction.

`issue` checks an instruction and hands it to the sinks of the run: a recorder, the executor, an observer.
Instructions know none of them. What validation finds depends on shapes, dtypes, buffers and options
alone, so it is cached per signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..backends.reference.executor import Executor
from ..backends.reference.memories import Memories
from ..errors import Site, error, user_site
from ..ir.context import _local, current
from ..ir.engine_state import EngineState
from ..ir.instruction import Instruction, NkiInstruction, ProgramPosition
from ..ir.operand_access import OperandAccess
from ..ir.recorder import Recorder
from ..ir.storage import Lease, Storage
from ..ir.validation import shifted_pairs, validate
from ..ir.view import View
from ..machine.engines import engine
from ..machine.machine import Machine
from ..machine.memories import SHARED_HBM, MemoryRegion

Sink = Callable[[Instruction], None]

_VALIDATIONS: dict[str, dict[tuple, Validation]] = {}
_VALIDATION_LIMIT = 1 << 16


class Validation:
    """What validating a signature found.

    The engine, how the operands are read and written, and whether there were warnings.
    """

    __slots__ = ("engine", "access", "shifted", "warned")

    def __init__(
        self, engine: engine | None, access: OperandAccess, shifted: tuple[tuple[str, str], ...], warned: bool
    ):
        self.engine = engine
        self.access = access
        self.shifted = shifted  # (output, input): overlap at different offsets, if both are one tensor
        self.warned = warned


class Core:
    """One NeuronCore of a launch: its registers, sinks, and what its Python has open."""

    def __init__(self, launch: Any, index: int):
        self.launch: Any = launch
        self.index = index
        self.machine: Machine = launch.machine
        self.memories: Memories = launch.memories
        self.validations = _VALIDATIONS.setdefault(self.machine.name, {})
        self.executor = Executor(self, self.memories)
        self.run_one: Sink = self.executor  # what runs an instruction: the executor, where cores race in turn
        self.recorder: Recorder | None = None
        self.sinks: list[Sink] = []
        self.storages = 0
        self.pending_warnings: list[tuple] | None = None
        self.no_reorder_depth = 0
        self.ordered: list[tuple[int, int]] = []  # closed no_reorder blocks: first and last instruction
        self.loops: list[Any] = []  # open dynamic loop bodies, innermost last
        self.loops_met = 0
        self.trips: dict[int, list[int]] = {}  # how often each dynamic loop ran, each time, by its number
        self.loop_sites: dict[int, Site | None] = {}
        self.meetings: dict[Any, int] = {}  # how often this core came to each meeting point
        self.printed: dict[str, int] = {}  # device_prints so far, by prefix
        self.allocation_counts: dict[str, int] = {}
        self.constants = 0  # calls of nl.shared_constant so far
        # values of the registers of a recorded program; while Python runs, they hold their own
        self.registers: dict[Any, int | float | None] | None = {} if launch.mode == "replay" else None
        self.engine_state = EngineState(self.machine.partitions)
        self.issued = 0
        self.executing = False  # an instruction runs: what is said now, it says
        self.replayed: Instruction | None = None  # runs without the kernel's Python: its line counts

    # ---- instructions ----------------------------------------------------------------------------

    def validate(self, instruction: Instruction, key: tuple | None) -> Validation:
        """Validate an instruction in full; cache the result unless something raised."""
        outer, self.pending_warnings = self.pending_warnings, []
        try:
            chosen = validate(instruction, self.machine)
            said = self.pending_warnings
        finally:
            self.pending_warnings = outer
        for kind, message, notes, help in said:
            self.diagnose(kind, message, notes, help, instruction.site)
        validation = Validation(chosen, OperandAccess.of(instruction), shifted_pairs(instruction), bool(said))
        if key is not None:
            if len(self.validations) >= _VALIDATION_LIMIT:
                self.validations.clear()
            self.validations[key] = validation
        return validation

    def warn_shifted(self, instruction: Instruction, pairs: Iterable[tuple[str, str]]) -> None:
        """Hardware streams: what it has written already may come back as input (spec/isa.md 1.2)."""
        for output, input in pairs:
            written, read = getattr(instruction, output), getattr(instruction, input)
            if written.storage is read.storage:
                self.diagnose(
                    "alias-shift",
                    f"{instruction.public}: {output} overlaps {input} at another offset",
                    [f"{output}: {written.describe()}", f"{input}: {read.describe()}"],
                    "here all inputs are read first; hardware may read what it has just written: "
                    "use another tile",
                    instruction.site,
                )

    def add_dependencies(self, later: NkiInstruction, producers: Iterable[NkiInstruction]) -> None:
        """`later` waits for each producer; both are issued already, so only going back is possible."""
        for earlier in producers:
            check_dependency(later, earlier)
            self.launch.add_dependency(self, later, earlier)

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        buffer: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
    ) -> tuple[Storage, Lease]:
        """A storage of its own, or the one that all cores or all iterations of a loop share.

        The arguments are already checked.
        """
        if self.loops:
            return self.loops[-1].allocate(shape, dtype, buffer, name, address)
        if buffer is SHARED_HBM and self.launch.degree > 1:
            return self.launch.shared_storage(self, name, shape, dtype)
        return self.new_storage(shape, dtype, buffer, name, address)

    def new_storage(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        buffer: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
        loop: int = 0,
    ) -> tuple[Storage, Lease]:
        self.storages += 1
        storage = Storage(
            buffer, shape, dtype, name, address, user_site(2), self.storages, loop=loop, call=self.launch.call
        )
        return storage, Lease(storage, self.memories)

    def end_storage(self, storage: Storage) -> None:
        """From now on the tensor of a loop's body cannot be used."""
        self.memories.end(storage)
        if self.recorder is not None:
            self.recorder.known.discard(storage)

    # ---- values ----------------------------------------------------------------------------------

    @property
    def defers(self) -> bool:
        """Instructions wait to be run until the Python has ended, or looks at a value."""
        return self.launch.mode == "deferred"

    def look(self, storage: Storage | None = None) -> bool:
        """The one door through which Python looks at values: what waits is run first.

        False where there is none to see: the kernel is traced without data, or the storage has ended.
        """
        self.launch.mark_looked()
        if not self.launch.has_data:
            return False
        if self.recorder is not None:
            self.launch.drain(self)
        if storage is None:
            return True
        return storage.call is self.launch.call and storage not in self.memories.ended

    def values(self, view: View) -> np.ndarray:
        """What a view holds, for those who looked."""
        return self.memories[view.storage].peek(view)

    # ---- diagnostics -----------------------------------------------------------------------------

    def diagnose(
        self, kind: str, message: str, notes: Iterable[str], help: str | None, site: Site | None
    ) -> None:
        """A W diagnostic: once per kind and line in a call; an error in strict mode."""
        if self.replayed is not None:
            site = self.replayed.site
        before = None if self.executing else self.issued
        self.launch.diagnose(kind, message, list(notes), help, site, self.index, before)


def issue(instruction: Instruction) -> Instruction:
    """Check an instruction and hand it to the sinks."""
    core = _local.core or current()
    site = instruction.site = user_site(3)
    try:
        key: tuple | None = instruction.key()
        validation = core.validations.get(key)
    except (AttributeError, TypeError):  # not a tensor, or an unhashable option: let the check say it
        key = validation = None
    if validation is None or (validation.warned and not core.launch.warned_before(validation, site)):
        validation = core.validate(instruction, key)
        if validation.warned:
            core.launch.warned_before(validation, site)
    if validation.shifted:
        core.warn_shifted(instruction, validation.shifted)
    instruction.runs_on = validation.engine
    instruction.access = validation.access
    instruction.handle = core.issued = core.issued + 1
    core.executing = True
    try:
        for sink in core.sinks:
            sink(instruction)
    except BaseException:
        core.issued -= 1  # it did not run, and the kernel may catch the error and go on
        raise
    finally:
        core.executing = False
    return instruction


def check_dependency(later: NkiInstruction, earlier: NkiInstruction) -> None:
    """Refuse edges that hardware could not wait for (spec/isa_registers_sync.md "NkiInstruction")."""
    if not isinstance(earlier, NkiInstruction):
        raise error(
            "depends-on",
            f"depends_on: expected what an instruction call returned, got {type(earlier).__name__}",
            help="keep the result: copy = nisa.dma_copy(...), then later.depends_on(copy)",
        )
    if later is earlier:
        raise error("depends-on", "depends_on: an instruction cannot depend on itself")
    consumer, producer = _place(later), _place(earlier)
    notes = [f"waits: {later!r}", f"for: {earlier!r}"]
    if producer.order > consumer.order:
        raise error(
            "depends-on",
            "depends_on: the producer comes later in the program, so the consumer would wait for ever",
            notes=notes,
            help="issue the producer first",
        )
    if producer.loops != consumer.loops[: len(producer.loops)]:
        raise error(
            "depends-on",
            "depends_on: the edge crosses the boundary of a dynamic loop",
            notes=notes,
            help="producer and consumer must be in the same iteration, or the producer outside the loop",
        )


def _place(instruction: NkiInstruction) -> ProgramPosition:
    handle = instruction.handle
    return handle if isinstance(handle, ProgramPosition) else ProgramPosition(handle)


__all__ = ["Core", "issue"]


def register_value(register: Any) -> int | None:
    """While each instruction runs as it is issued, registers hold what they hold then."""
    value = register.read()
    return value if isinstance(value, int) else None
