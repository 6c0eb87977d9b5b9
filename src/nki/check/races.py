"""Races: two cores touch the same bytes of HBM, one of them writes, and no barrier lies between them.

Each core's sequence is cut at its barriers (`core_barrier`, `sendrecv`, collectives). A barrier orders what
both cores did before it and what both do after it, whatever tensor it names. By vector clocks, some
stretches of the two sequences are concurrent. Within those, all pairs of accesses are compared byte by byte
(`ir.boxes.ByteSet`). An address that only a run knows counts where it certainly overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..errors import Site
from ..ir.boxes import ByteSet, byte_layout, overlapping_pairs, share_bytes
from ..ir.effects import effects
from ..ir.instruction import Instruction
from ..ir.items import Diagnostic, Item, Loop
from ..ir.program import Program
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.memories import PRIVATE_HBM

LONGEST_LOOP = 100_000  # instructions of a loop with fixed trips that are unrolled
MOST_ACCESSES = 1_000_000  # of a core; later ones are not compared
MOST_TESTS = 200_000  # of pairs of strided views


class Access(NamedTuple):
    """One instruction that reads or writes HBM."""

    bytes: ByteSet
    written: bool
    site: Site | None
    instruction: str


Recorded = tuple[Any, ...]  # an access before it is compared: its layout, and the other fields of Access


class Barrier(NamedTuple):
    """The n-th time that a core arrives at a point."""

    point: Any
    number: int
    site: Site | None
    instruction: str


Stretch = dict[Storage, dict[Recorded, None]]  # what a core does between two barriers


class Watch:
    """Records the accesses of one core to HBM, cut at its barriers."""

    def __init__(self, core: int, value_of: Callable[[Any], int | None]):
        self.core = core
        self.value_of = value_of
        self.stretches: list[Stretch] = [{}]
        self.barriers: list[Barrier] = []
        self.visits: dict[Any, int] = {}
        self.count = 0

    def __call__(self, instruction: Instruction) -> None:
        if not instruction.reaches_hbm:
            return
        point = instruction.rendezvous_of(self.core)
        if point is not None:
            number = self.visits[point] = self.visits.get(point, 0) + 1
            self.barriers.append(Barrier(point, number, instruction.site, instruction.public))
            self.stretches.append({})
        elif self.count < MOST_ACCESSES:
            self._record(instruction)

    def _record(self, instruction: Instruction) -> None:
        """Record a transfer as plain tuples: this runs once per transfer, few are ever compared."""
        if instruction.partial or instruction.accumulates:
            done = effects(instruction)
            touched = [(view, False) for view in done.seen] + [(view, True) for view in done.written]
        else:
            operands = instruction.operands()
            touched = [(operands[i], False) for i in instruction.read_at]
            touched += [(operands[i], True) for i in instruction.write_at]
        for view, written in touched:
            storage = view.storage if isinstance(view, View) else None
            if storage is None or storage.on_chip or storage.constant:
                continue
            if storage.buffer is PRIVATE_HBM and not storage.parameter:
                continue  # each core has its own
            where = byte_layout(view, self.value_of)
            self.stretches[-1].setdefault(storage, {})[
                where, written, instruction.site, instruction.public
            ] = None
            self.count += 1


def _accesses(storage: Storage, recorded: dict[Recorded, None]) -> list[Access]:
    return [Access(ByteSet(storage, where), *rest) for where, *rest in recorded]


def races(program: Program) -> list[Diagnostic]:
    """Return the races of a program on two cores, one for each pair of lines."""
    if len(program.cores) < 2:
        return []
    watches = []
    for core, items in enumerate(program.cores):
        known: dict[Any, int] = {}
        watch = Watch(core, known.get)
        for instruction in walked(items, known):
            watch(instruction)
        watches.append(watch)
    return races_between(watches)


def walked(items: Sequence[Item], known: dict[Any, int]) -> Iterator[Instruction]:
    """Yield the instructions in the order of a run, with the counters of loops in `known`.

    A loop with an unknown number of trips is repeated twice: its body may follow its body.
    """
    for item in items:
        if not isinstance(item, Loop):
            yield item
            continue
        trips = item.fixed_trips
        if trips is not None and trips * max(1, len(item.body)) <= LONGEST_LOOP:
            for value in range(item.lower, item.upper, item.step):
                known[item.index] = value
                yield from walked(item.body, known)
        else:
            for _ in range(2 if trips is None else min(2, trips)):
                yield from walked(item.body, known)
        known.pop(item.index, None)


def races_between(watches: Sequence[Watch]) -> list[Diagnostic]:
    """Return the races between what two cores did."""
    if len(watches) < 2:
        return []
    first, second = watches
    tests = 0
    found: dict[tuple, Diagnostic] = {}
    for a, b in _concurrent(first, second):
        one, other = first.stretches[a], second.stretches[b]
        for storage in one.keys() & other.keys():
            if not any(written for _, written, *_ in chain(one[storage], other[storage])):
                continue  # both only read it
            mine, theirs = _accesses(storage, one[storage]), _accesses(storage, other[storage])
            for x, y in _conflicts(mine, theirs):
                lines = (storage, x.site, y.site, x.written, y.written)
                if lines in found or tests > MOST_TESTS:
                    continue
                tests += not (x.bytes.exact and y.bytes.exact)
                if share_bytes(x.bytes, y.bytes):
                    found[lines] = _race(x, y, first.barriers[:a])
    return [*found.values()]


def _concurrent(first: Watch, second: Watch) -> Iterator[tuple[int, int]]:
    """Yield the pairs of stretches of the two cores that no barrier orders, by vector clocks."""
    places = {(m.point, m.number): j for j, m in enumerate(second.barriers)}
    pairs = [(i, places[m.point, m.number]) for i, m in enumerate(first.barriers) if m[:2] in places]
    clock = [0] * len(first.stretches)  # of each stretch of the first core: what it knows of the second
    for i, j in pairs:
        clock[i + 1] = max(clock[i + 1], j + 1)
    other = [0] * len(second.stretches)
    for i, j in pairs:
        other[j + 1] = max(other[j + 1], i + 1)
    for times in (clock, other):
        for k in range(1, len(times)):
            times[k] = max(times[k], times[k - 1])
    for a, known in enumerate(clock):
        for b in range(known, len(other)):
            if other[b] > a:
                break
            yield a, b


def _conflicts(ones: list[Access], others: list[Access]) -> Iterator[tuple[Access, Access]]:
    """Yield the pairs that may overlap and of which one writes."""
    writes = [access for access in ones if access.written]
    reads = [access for access in ones if not access.written]
    for mine, theirs in ((writes, others), (reads, [access for access in others if access.written])):
        if mine and theirs:
            for i, j in overlapping_pairs([x.bytes for x in mine], [y.bytes for y in theirs]).tolist():
                yield mine[i], theirs[j]


# ---- messages ------------------------------------------------------------------------------------


def _race(one: Access, other: Access, passed: Iterable[Barrier]) -> Diagnostic:
    storage = one.bytes.storage
    what = f"'{storage.name}'" if storage.name else f"the tensor allocated at {storage.site}"
    both = one.written and other.written
    doing = f"both cores write {what}" if both else f"one core writes {what} while the other reads it"
    before = [*passed]
    last = (
        f"last synchronised at {before[-1].site} ({before[-1].instruction})"
        if before
        else "did not synchronise before"
    )
    if both and one.site == other.site:
        help = "let each core write its own part (nl.program_id(0)), or one core alone"
    elif storage.name and not storage.parameter:
        help = f"put a barrier between the two lines: nisa.core_barrier({storage.name}, (0, 1))"
    else:
        help = "put a barrier between the two lines: nisa.core_barrier(tensor, (0, 1))"
    notes = [_line(0, one), _line(1, other), _shared(one.bytes, other.bytes), f"the cores {last}"]
    site = one.site if one.written else other.site
    return Diagnostic("race", f"{doing}, and nothing orders them", notes, help, site)


def _line(core: int, access: Access) -> str:
    verb = "writes" if access.written else "reads"
    return f"core {core} {verb} {_part(access.bytes)} at {access.site}: {access.instruction}"


def _part(found: ByteSet) -> str:
    """Return `out[0:128, 0:512]`, with "part of" where the view does not touch all of it."""
    name, storage = found.storage.name or "tensor", found.storage
    if found.unknown:
        return f"{name} at a run-time address"
    width = storage.dtype.itemsize
    low, high = (*found.low[:-1], found.low[-1] // width), (*found.high[:-1], -(-found.high[-1] // width))
    index = ", ".join(f"{a}:{b}" for a, b in zip(low, high, strict=True))
    return f"{name}[{index}]" if found.exact else f"part of {name}[{index}]"


def _shared(one: ByteSet, other: ByteSet) -> str:
    if one.unknown or other.unknown:
        return "the bytes are known at run time; one of them touches all of the tensor"
    low = max(one.bounds[0], other.bounds[0])
    high = min(one.bounds[1], other.bounds[1])
    if one.exact and other.exact:
        shared = 1
        for x, y, p, q in zip(one.low, one.high, other.low, other.high, strict=True):
            shared *= min(y, q) - max(x, p)
        return f"{shared:,} bytes are touched by both, between bytes {low:,} and {high:,} of the tensor"
    return f"bytes touched by both lie between {low:,} and {high:,} of the tensor"
