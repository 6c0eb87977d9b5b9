"""The lowered form of a Program: what every backend takes (`lower`).

`reference` runs its steps, `fused` plans large products from it, `torch` schedules it on a device. It is
derived once for a Program, holds no values, and is shared by all executions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from math import prod
from typing import Any, NamedTuple

from ..ir.caches import cached_property, per_program
from ..ir.columns import ProgramColumns
from ..ir.instruction import Instruction, State
from ..ir.liveness import last_uses
from ..ir.program import Diagnostic, Item, Loop, Program, walk
from ..ir.semantics import MatrixProduct, Meaning
from ..ir.storage import Storage
from ..ir.tree import leaves
from ..ir.view import View
from ..machine.machine import Machine

REGISTERS = {State.vector_accumulator: "vector", State.scalar_accumulator: "scalar"}  # plans keep their order
RESETS = ("reset", "reset_reduce", "load_reduce")  # commands that do not read the registers
UNPLANNED = (State.output, State.ranks, State.vector_random, State.gpsimd_random)  # reference only


def register_use(instruction: Instruction, state: State) -> tuple[str, bool | None]:
    """Return the set of accumulator registers, and whether a chain begins; None: what they hold is lost."""
    command = getattr(getattr(instruction, "reduce_cmd", None), "name", "")
    which = REGISTERS[state]
    if command == "idle" and which == "vector":
        return which, None
    return which, command in RESETS


def lanes_of(instruction: Instruction) -> int:
    """Return how many accumulator registers of a set an instruction uses."""
    return instruction.operands()[0].shape[0]  # type: ignore[no-any-return]


class LoweredLoop(NamedTuple):
    """A dynamic loop and the steps of its body."""

    loop: Loop
    steps: list[LoweredStep]


class LoweredStep(NamedTuple):
    """An instruction or a loop, and what happens around it."""

    diagnostics: tuple[Diagnostic, ...]  # reported before it runs
    item: Instruction | LoweredLoop
    frees: tuple[Storage, ...]  # used here for the last time


class Signature:
    """What all instructions of one signature have in common. They share their `access`."""

    __slots__ = (
        "access",
        "fence",
        "lazy",
        "meaning",
        "flops",
        "elements",
        "states",
        "written",
        "widths",
        "hbm_reads",
        "hbm_writes",
    )

    def __init__(self, instruction: Instruction, machine: Machine):
        self.access = access = instruction.access
        self.states = instruction.touches() if instruction.state else ()
        # the reference backend runs a fence, and nothing is moved across it
        self.fence = (
            not access.fixed
            or not REGISTERS.keys() >= set(self.states)
            or any(
                getattr(getattr(instruction, name), "is_register", False) for name in instruction.registers
            )
        )
        self.meaning: Meaning | None = instruction.meaning(machine)
        self.lazy = instruction.lazy_output and self.meaning is None  # its compute accesses memory by itself
        self.flops = _flops(instruction) if self.meaning.__class__ is MatrixProduct else 0
        names, operands = instruction.operand_names, instruction.operands()
        reads = [i for i, _ in access.reads]
        written = [i for i in instruction.write_at if isinstance(operands[i], View)]
        self.elements = sum([operands[i].size for i in written])
        written_names = {names[i] for i in written}
        self.written = tuple([name in written_names for name in access.views])
        self.widths = tuple(getattr(instruction, name).dtype.itemsize for name in access.views)  # bytes
        self.hbm_reads = tuple(names[i] for i in reads if not operands[i].storage.on_chip)
        self.hbm_writes = tuple(
            (names[i], i in instruction.read_at) for i in written if not operands[i].storage.on_chip
        )


def _flops(product: Instruction) -> int:
    (k, *m), (_, *n) = (getattr(product, name).shape for name in ("stationary", "moving"))
    return 2 * k * prod(m) * prod(n)


_DERIVED = ("kinds", "counts", "states", "outliving", "shared", "cores")  # from the items, when asked for


class Lowered:
    """A Program as backends take it."""

    def __init__(self, program: Program):
        self.machine = program.machine
        self.items = program.cores
        self.storages = program.storages
        self.columns = program.columns
        self.diagnostics = program.diagnostics
        self._signatures: dict[int, Signature] = {}  # by the identity of an `access`, which is in the value
        self.parameters, self.constants, self.result = program.parameters, program.constants, program.result

    def with_items(self, items: tuple[tuple[Item, ...], ...], tiles: Sequence[Storage] = ()) -> Lowered:
        """Return the same program with other items, which use these tiles, too."""
        found = copy(self)
        for name in _DERIVED:
            vars(found).pop(name, None)
        found.items, found.storages = items, (*self.storages, *tiles)
        found.columns = ProgramColumns(items, found.storages)
        return found

    # ---- facts for planning ----------------------------------------------------------------------

    def signature(self, instruction: Instruction) -> Signature:
        """Return what is known of all instructions with the signature of this one."""
        found = self._signatures.get(id(instruction.access))
        if found is None:
            found = self._signatures[id(instruction.access)] = Signature(instruction, self.machine)
        return found

    def signatures(self, items: Sequence[Item]) -> list[Signature | None]:
        """Return the same for each of many items; None for a loop."""
        return [None if isinstance(item, Loop) else self.signature(item) for item in items]

    def known(self, core: int) -> list[Signature]:
        """Return the signatures of a core, in the order of its columns."""
        return [*map(self.signature, self.columns.of(core).samples)]

    @cached_property
    def kinds(self) -> tuple[list[Signature | None], ...]:
        """The signatures of the items of each core; None for a loop."""
        found: list[list[Signature | None]] = []
        for core, items in enumerate(self.items):
            if self.columns.pays(core):
                numbers = self.columns.of(core).signature.tolist()
                found.append([*map(self.known(core).__getitem__, numbers)])
            else:
                found.append(self.signatures(items))
        return tuple(found)

    @cached_property
    def counts(self) -> tuple[Counter[Signature | None], ...]:
        """How often each of them occurs."""
        return tuple(map(Counter, self.kinds))

    def walk(self, core: int) -> Iterator[Instruction]:
        """Iterate over the instructions of a core, each loop's body once."""
        return walk(self.items[core])

    @cached_property
    def states(self) -> frozenset[State]:
        """All that the program touches beside its storages."""
        every: set[Any] = set()
        for core, counts in enumerate(self.counts):
            every.update(self.signatures([*self.walk(core)]) if None in counts else counts)
        return frozenset(state for signature in every for state in signature.states)

    # ---- steps -----------------------------------------------------------------------------------

    @cached_property
    def outliving(self) -> set[Storage]:
        """The storages whose bytes are needed when the program ends, or by another core."""
        found = {storage for _, storage in self.parameters}
        found.update(storage for storage, _ in self.constants)
        found.update(view.storage for view in leaves(self.result, View))
        return found | self.shared

    @cached_property
    def shared(self) -> set[Storage]:
        """The storages that every one of several cores uses."""
        if len(self.items) == 1:
            return set()
        cores = range(len(self.items))
        used = [{view.storage for i in self.walk(core) for view in i.views()} for core in cores]
        return set.intersection(*used)

    @cached_property
    def cores(self) -> list[list[LoweredStep]]:
        """The steps of each core."""
        before: dict[tuple[int, int], tuple[Diagnostic, ...]] = {}
        for diagnostic in self.diagnostics:
            if diagnostic.before is not None:
                position = (diagnostic.core, diagnostic.before)
                before[position] = (*before.get(position, ()), diagnostic)
        return [_Steps(self, core, before).of(items, 0)[0] for core, items in enumerate(self.items)]


_NOTHING: tuple = ()
_step = LoweredStep._make


class _Steps:
    """Makes the steps of one core."""

    def __init__(self, lowered: Lowered, core: int, diagnostics: dict[tuple[int, int], tuple]):
        self.outliving = lowered.outliving
        self.core, self.diagnostics = core, diagnostics
        self.position = 0  # of the next instruction, bodies counted once

    def of(self, items: Sequence[Item], loop: int) -> tuple[list[LoweredStep], dict[Storage, None]]:
        """Return the steps of a body, and the storages it uses; its own are freed after their last use."""
        found: list[LoweredStep] = []
        used: list[Collection[Storage]] = []  # by each item
        for item in items:
            if isinstance(item, Loop):
                steps, inside = self.of(item.body, item.number)
                found.append(_step((_NOTHING, LoweredLoop(item, steps), _NOTHING)))
                used.append(inside)
                continue
            diagnostics = (
                self.diagnostics.get((self.core, self.position), _NOTHING) if self.diagnostics else _NOTHING
            )
            self.position += 1
            found.append(_step((diagnostics, item, _NOTHING)))
            if item.access.fixed:
                used.append([getattr(item, name).storage for name in item.access.views])
            else:
                used.append([view.storage for view in item.views()])
        for position, storages in last_uses(used).items():
            frees = tuple([s for s in storages if s.loop == loop and s not in self.outliving])
            if frees:
                found[position] = found[position]._replace(frees=frees)
        return found, dict.fromkeys(storage for storages in used for storage in storages)


@per_program
def lower(program: Program) -> Lowered:
    """Return the lowered form of a program."""
    return Lowered(program)
