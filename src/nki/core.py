"""The core: one door for every instruction.

`issue` checks an instruction and hands it to the sinks of the run: the executor, the statistics, a
recorder. Instructions know none of them. The verdict of a check depends on shapes, dtypes, buffers
and options alone, so it is remembered per signature.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Site, emit_warning, error, user_site
from .execute.executor import Access, Executor
from .execute.memory import Memory
from .execute.placed import ChipMemory, PlacedMemory
from .execute.wide import WideMemory, WidePlacedMemory
from .machine import Machine
from .options import choose_machine
from .program import Instruction, NkiInstruction, Place
from .storage import SBUF, SHARED_HBM, Lease, MemoryRegion, Storage

if TYPE_CHECKING:
    from .launch import Launch

Sink = Callable[[Instruction], None]

_local = threading.local()
_VERDICTS: dict[str, dict[tuple, Verdict]] = {}
_VERDICT_LIMIT = 1 << 16


class Verdict:
    """What the check of a signature found.

    The engine, how the operands are read and written, and whether there was something to say.
    """

    __slots__ = ("engine", "access", "shifted", "warned")

    def __init__(self, engine: Any, access: Access, shifted: tuple[tuple[str, str], ...], warned: bool):
        self.engine = engine
        self.access = access
        self.shifted = shifted  # (output, input): overlap at different offsets, if both are one tensor
        self.warned = warned


class Core:
    """One NeuronCore of a launch: its memories, registers and sinks."""

    def __init__(self, launch: Launch, index: int):
        self.launch = launch
        self.index = index
        self.machine: Machine = launch.machine
        self.verdicts = _VERDICTS.setdefault(self.machine.name, {})
        self.sinks: list[Sink] = []
        if launch.executes:
            self.sinks.append(Executor(self))
        self.sinks += [make(self) for make in launch.sink_makers]
        self.chip: dict[MemoryRegion, ChipMemory] = {}
        self.storages = 0
        self.judging: list[tuple] | None = None
        self.no_reorder_depth = 0
        self.ordered: list[tuple[int, int]] = []  # closed no_reorder blocks: first and last instruction
        self.loops: list[Any] = []  # open dynamic loop bodies, innermost last
        self.trips: dict[Site | None, list[int]] = {}  # how often each dynamic loop ran, by its line
        self.meetings: dict[Any, int] = {}  # how often this core came to each meeting point
        self.printed: dict[str, int] = {}  # device_prints so far, by prefix
        self.allocation_counts: dict[str, int] = {}
        self.constants = 0  # calls of nl.shared_constant so far
        self.vector_accumulator = np.full(machine_lanes(self.machine), np.nan, np.float32)
        self.scalar_accumulator = np.full(machine_lanes(self.machine), np.nan, np.float32)
        self.vector_accumulator_lanes = self.scalar_accumulator_lanes = 0  # how many hold a value
        self.vector_accumulator_user = ""  # the instruction that began or went on with the chain
        self.issued = 0
        self.executing = False  # an instruction runs: what is said now, it says
        self.replayed: Instruction | None = None  # runs without the kernel's Python: its line counts

    # ---- instructions ----------------------------------------------------------------------------

    def judge(self, instruction: Instruction, key: tuple | None) -> Verdict:
        """Check an instruction in full; remember the verdict unless something raised."""
        from .isa import rules

        outer, self.judging = self.judging, []
        try:
            engine = rules.judge(instruction, self.machine)
            said = self.judging
        finally:
            self.judging = outer
        for kind, message, notes, help in said:
            self.diagnose(kind, message, notes, help, instruction.site)
        shifted = rules.shifted_pairs(instruction)
        verdict = Verdict(engine, Access.of(instruction), shifted, bool(said))
        if key is not None:
            if len(self.verdicts) >= _VERDICT_LIMIT:
                self.verdicts.clear()
            self.verdicts[key] = verdict
        return verdict

    def warn_shifted(self, instruction: Instruction, pairs: Iterable[tuple[str, str]]) -> None:
        """Hardware streams: what it has written already may come back as input (isa.md 1.2)."""
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
            self.launch.add_dependency(later, earlier)

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
    ) -> tuple[Storage, Lease]:
        self.storages += 1
        storage = Storage(buffer, shape, dtype, name, address, user_site(2), self.storages)
        if self.launch.executes:
            storage.memory = self.memory_for(storage)
        return storage, Lease(storage)

    def memory_for(self, storage: Storage) -> Memory:
        owner = self.launch
        if storage.address is not None:
            chip = self.chip.get(storage.buffer)
            if chip is None:
                m = self.machine
                pitch = m.sbuf_bytes if storage.buffer is SBUF else m.psum_bytes
                chip = self.chip[storage.buffer] = ChipMemory(m.partitions, pitch)
            placed = PlacedMemory if self.launch.options.precise_fp else WidePlacedMemory
            return placed(storage, chip, owner)
        return (Memory if self.launch.options.precise_fp else WideMemory)(storage, None, owner)

    # ---- diagnostics -----------------------------------------------------------------------------

    def diagnose(
        self, kind: str, message: str, notes: Iterable[str], help: str | None, site: Site | None
    ) -> None:
        """A W diagnostic: once per kind and line in a call; an error in strict mode."""
        if self.replayed is not None:
            site = self.replayed.site
        before = None if self.executing else self.issued
        self.launch.diagnose(kind, message, list(notes), help, site, before)


def machine_lanes(machine: Machine) -> int:
    return machine.partitions


def current() -> Core:
    """The core of the kernel running on this thread."""
    core = getattr(_local, "core", None)
    if core is None:
        raise error(
            "no-kernel",
            "this only works inside a kernel",
            help="call it from a function decorated with @nki.jit",
        )
    return core


def running() -> Core | None:
    return getattr(_local, "core", None)


def activate(core: Core | None) -> Core | None:
    """Make `core` the one of this thread; returns the one before."""
    before = getattr(_local, "core", None)
    _local.core = core
    return before


def current_machine() -> Machine:
    """The machine of the running kernel, or the one a call would choose."""
    core = running()
    return choose_machine() if core is None else core.machine


def issue(instruction: Instruction) -> Instruction:
    """Check an instruction and hand it to the sinks."""
    try:
        core = _local.core
        verdicts = core.verdicts
    except AttributeError:
        core = current()
    site = instruction.site = user_site(3)
    try:
        key: tuple | None = instruction.key()
        verdict = verdicts.get(key)
    except (AttributeError, TypeError):  # not a tensor, or an unhashable option: let the check say it
        key = verdict = None
    if verdict is None or (verdict.warned and core.launch.would_say(site)):
        verdict = core.judge(instruction, key)
    if verdict.shifted:
        core.warn_shifted(instruction, verdict.shifted)
    instruction.runs_on = verdict.engine
    instruction.access = verdict.access
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
    """Refuse edges that hardware could not wait for (isa_registers_sync.md, NkiInstruction)."""
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


def _place(instruction: NkiInstruction) -> Place:
    handle = instruction.handle
    return handle if isinstance(handle, Place) else Place(handle)


def warn(kind: str, message: str, notes: Iterable[str] = (), help: str | None = None) -> None:
    """Say a diagnostic about the user's current line. While an instruction is judged, it waits."""
    core = running()
    if core is None:
        emit_warning(kind, message, user_site(2), notes, help)
    elif core.judging is not None:
        core.judging.append((kind, message, list(notes), help))
    else:
        core.diagnose(kind, message, notes, help, user_site(2))


__all__ = ["SHARED_HBM", "Core", "activate", "current", "current_machine", "issue", "running", "warn"]
