"""The core: one door for every instruction.

`issue` validates an instruction and hands it to the sinks of the launch: a recorder, the executor, an
observer. Instructions know none of them. What validation finds depends on shapes, dtypes, buffers and
options alone, so it is cached per signature.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..backends.reference.memories import Memories
from ..errors import Site, error, user_site
from ..ir.caches import LRUCache
from ..ir.context import _local, current
from ..ir.engine_state import EngineState
from ..ir.instruction import Instruction, NkiInstruction, ProgramPosition
from ..ir.operand_access import OperandAccess
from ..ir.program import Diagnostic
from ..ir.recorder import Recorder
from ..ir.storage import Lease, Storage
from ..ir.validation import shifted_pairs, validate
from ..ir.view import View
from ..machine.engines import engine
from ..machine.machine import Machine
from ..machine.memories import SHARED_HBM, MemoryRegion
from .execution import CoreState, Execution

Sink = Callable[[Instruction], None]

_VALIDATIONS: dict[str, LRUCache[tuple, Validation]] = defaultdict(lambda: LRUCache(1 << 16))


class Validation:
    """What validating a signature found.

    The engine, how the operands are read and written, and whether there were warnings.
    """

    __slots__ = ("engine", "access", "shifted", "warned", "reports")

    def __init__(
        self, engine: engine | None, access: OperandAccess, shifted: tuple[tuple[str, str], ...], warned: bool
    ):
        self.engine = engine
        self.access = access
        self.shifted = shifted  # (output, input): overlap at different offsets, if both are one tensor
        self.warned = warned
        self.reports = warned or bool(shifted)  # at every line, or for every instruction


class Counts:
    """How many of each thing a core's Python has made: the n-th of one core matches the n-th of the other."""

    def __init__(self) -> None:
        self.storages = 0
        self.loops = 0  # dynamic loops
        self.constants = 0  # calls of nl.shared_constant
        self.shared: dict[str, int] = {}  # shared_hbm tensors, by name


class Ordering:
    """The no_reorder blocks of a core: first and last instruction of each that has ended."""

    def __init__(self) -> None:
        self.depth = 0
        self.blocks: list[tuple[int, int]] = []


class Core:
    """One NeuronCore of a launch, as the kernel's Python sees it."""

    registers = None  # while Python runs, registers hold their own values
    instruction = None  # of a Program: there is none here

    def __init__(self, launch: Any, state: CoreState):
        self.launch = launch
        self.state = state
        self.index = state.index
        self.machine: Machine = launch.machine
        self.platform = launch.machine.name
        self.validations = _VALIDATIONS[self.machine.name]
        self.find_validation = self.validations.get  # bound once: every instruction asks
        self.recorder: Recorder | None = None  # while tracing
        self.sinks: list[Sink] = []
        self.counts = Counts()
        self.ordering = Ordering()
        self.loops: list[Any] = []  # open dynamic loop bodies, innermost last
        self.issued = 0
        self.executing = False  # an instruction runs: diagnostics are its own
        self.pending_warnings: list[tuple] | None = None  # of the instruction that is being validated

    @property
    def execution(self) -> Execution:
        return self.state.execution

    @property
    def engine_state(self) -> EngineState:
        return self.state.engine_state

    @property
    def memories(self) -> Memories:
        return self.state.memories

    # ---- instructions ----------------------------------------------------------------------------

    def validate(self, instruction: Instruction, key: tuple | None) -> Validation:
        """Validate an instruction in full; cache what was found unless something raised."""
        outer, self.pending_warnings = self.pending_warnings, []
        try:
            chosen = validate(instruction, self.machine)
            warnings = self.pending_warnings
        finally:
            self.pending_warnings = outer
        for kind, message, notes, help in warnings:
            self.diagnose(kind, message, notes, help, instruction.site)
        validation = Validation(
            chosen, OperandAccess.of(instruction), shifted_pairs(instruction), bool(warnings)
        )
        if key is not None:
            self.validations.put(key, validation)
        return validation

    def validated(self, instruction: Instruction, key: tuple | None, known: Validation | None) -> Validation:
        """Validate an instruction unless that is known, and report what concerns its line or its tiles."""
        if known is None or (known.warned and not self.has_warned(known, instruction.site)):
            known = self.validate(instruction, key)
            if known.warned:
                self.has_warned(known, instruction.site)
        if known.shifted:
            self.warn_shifted(instruction, known.shifted)
        return known

    def has_warned(self, validation: Validation, site: Site | None) -> bool:
        """Return True from the second time on that a validation with warnings is used on a line."""
        return self.execution.diagnostics.is_repeat((id(validation), site))

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
        """Make `later` wait for each producer; both are issued already, so the edge can only point back."""
        for earlier in producers:
            check_dependency(later, earlier)
            self.launch.add_dependency(self.index, later, earlier)

    # ---- memory ----------------------------------------------------------------------------------

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        buffer: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
    ) -> tuple[Storage, Lease | None]:
        """Return a new storage, or the one that all cores or all iterations of a loop share.

        The arguments are already validated. Without bytes, as in a trace, there is nothing to lease.
        """
        if self.loops:
            return self.loops[-1].allocate(shape, dtype, buffer, name, address)
        if buffer is SHARED_HBM and self.launch.degree > 1:
            return self.launch.shared.tensor(self, name, shape, dtype)
        storage = self.new_storage(shape, dtype, buffer, name, address)
        return storage, Lease(storage, self.memories) if self.recorder is None else None

    def new_storage(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        buffer: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
        loop: int = 0,
    ) -> Storage:
        self.counts.storages = number = self.counts.storages + 1
        return Storage(
            buffer, shape, dtype, name, address, user_site(2), number, False, False, loop, self.launch.call
        )

    def renew_storage(self, storage: Storage) -> None:
        """Begin an iteration of a loop with a tensor of its body: its values and its lifetime end."""
        self.memories.renew(storage)
        if self.launch.statistics is not None:
            self.launch.statistics.retire(storage)

    def end_storage(self, storage: Storage) -> None:
        """End the tensor of a loop's body: it cannot be used afterwards."""
        self.memories.end(storage)
        if self.recorder is not None:
            self.recorder.known.discard(storage)

    # ---- values ----------------------------------------------------------------------------------

    def read_back(self, storage: Storage | None = None) -> bool:
        """Let Python read values. A call that is being traced starts again in eager mode.

        Returns False where there are none: the kernel is traced for shapes alone, or the storage has ended.
        """
        self.launch.python.read_values = True
        if not self.launch.has_data:
            return False
        if self.launch.mode == "trace":
            self.launch.restart()
        return storage is None or (storage.call is self.launch.call and storage not in self.memories.ended)

    def require_values(self) -> None:
        """Start a call that is being traced again in eager mode: a value is needed."""
        if self.launch.mode == "trace" and self.launch.has_data:
            self.launch.restart()

    def values(self, view: View) -> np.ndarray:
        """Return what a view holds, after `read_back`."""
        return self.memories[view.storage].peek(view)

    def unwritten(self, view: View) -> np.ndarray | None:
        """Return which elements of a view were never written; None: all were."""
        return self.memories[view.storage].unwritten(view)

    # ---- diagnostics -----------------------------------------------------------------------------

    def diagnose(
        self, kind: str, message: str, notes: Iterable[str], help: str | None, site: Site | None
    ) -> None:
        """Report a diagnostic: once per kind and line in a call; an error in strict mode."""
        before = None if self.executing else self.issued
        self.execution.diagnostics.report(
            Diagnostic(kind, message, list(notes), help, site, self.index, before)
        )


def issue(instruction: Instruction) -> Instruction:
    """Validate an instruction and hand it to the sinks."""
    core = _local.core or current()
    instruction.site = user_site(3)
    try:
        key: tuple | None = instruction.bare_key()
        validation = core.find_validation(key)
    except (AttributeError, TypeError):  # not a tensor, or an unhashable option: validation reports it
        key = validation = None
    if validation is None or validation.reports:
        validation = core.validated(instruction, key, validation)
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
