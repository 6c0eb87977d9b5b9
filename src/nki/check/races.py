"""Races: two cores that touch the same bytes of HBM, one of them writing, with no meeting between them.

Each core's sequence is cut at its meetings (`core_barrier`, `sendrecv`, collectives). A meeting orders what
both cores did before it and what both do after it, whatever tensor it names. Which stretches of the two
sequences nothing orders follows from vector clocks; within those, all pairs of accesses are compared byte by
byte (`spans`). Addresses that only a run knows count where they meet for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import Site
from ..ir.effects import effects
from ..ir.instruction import Instruction
from ..ir.program import Diagnostic, Item, Loop, Program
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.memories import PRIVATE_HBM
from .spans import Span, meeting_pairs, plain_span, share_bytes, span

LONGEST_LOOP = 100_000  # instructions of a loop with fixed trips that are gone through one by one
MOST_ACCESSES = 1_000_000  # of a core: beyond, nobody watches
MOST_TESTS = 200_000  # of pairs of strided views


class Access(NamedTuple):
    """One instruction that reads or writes HBM."""

    span: Span
    written: bool
    site: Site | None
    instruction: str


Noted = tuple[Any, ...]  # an access before anybody asks: the fields of its span, and those of Access


class Meeting(NamedTuple):
    """The n-th time that a core comes to a point."""

    point: Any
    number: int
    site: Site | None
    instruction: str


Stretch = dict[Storage, dict[Noted, None]]  # what a core does between two meetings


class Watch:
    """Keeps what one core does to HBM, cut at its meetings."""

    def __init__(self, core: int, value_of: Callable[[Any], int | None]):
        self.core = core
        self.value_of = value_of
        self.stretches: list[Stretch] = [{}]
        self.meetings: list[Meeting] = []
        self.visits: dict[Any, int] = {}
        self.count = 0

    def __call__(self, instruction: Instruction) -> None:
        if not instruction.reaches_hbm:
            return
        point = instruction.rendezvous_of(self.core)
        if point is not None:
            number = self.visits[point] = self.visits.get(point, 0) + 1
            self.meetings.append(Meeting(point, number, instruction.site, instruction.public))
            self.stretches.append({})
        elif self.count < MOST_ACCESSES:
            self._note(instruction)

    def _note(self, instruction: Instruction) -> None:
        """Runs once per transfer: what is kept is a tuple, and it is looked at where two cores meet."""
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
            where: Any
            if view.indirection is None:
                where = (view.offset, view.shape, view.strides, view.dtype.itemsize)
            else:
                where = span(view, self.value_of)
            self.stretches[-1].setdefault(storage, {})[
                where, written, instruction.site, instruction.public
            ] = None
            self.count += 1


def _accesses(storage: Storage, noted: dict[Noted, None]) -> list[Access]:
    found = []
    for where, written, site, name in noted:
        touched = where if isinstance(where, Span) else plain_span(storage, *where)
        found.append(Access(touched, written, site, name))
    return found


def races(program: Program) -> list[Diagnostic]:
    """The races of a program on two cores, one for each pair of lines."""
    if len(program.cores) < 2:
        return []
    watches = []
    for core, items in enumerate(program.cores):
        known: dict[Any, int] = {}
        watch = Watch(core, known.get)
        for instruction in _walked(items, known):
            watch(instruction)
        watches.append(watch)
    return found(watches)


def _walked(items: Sequence[Item], known: dict[Any, int]) -> Iterator[Instruction]:
    """The instructions as a core meets them, with the counters of loops in `known`.

    A loop whose trips nobody knows is gone through twice: what follows its body may be its body.
    """
    for item in items:
        if not isinstance(item, Loop):
            yield item
            continue
        trips = item.fixed_trips
        if trips is not None and trips * max(1, len(item.body)) <= LONGEST_LOOP:
            for value in range(item.lower, item.upper, item.step):
                known[item.index] = value
                yield from _walked(item.body, known)
        else:
            for _ in range(2 if trips is None else min(2, trips)):
                yield from _walked(item.body, known)
        known.pop(item.index, None)


def found(watches: Sequence[Watch]) -> list[Diagnostic]:
    """The races between what two cores did."""
    if len(watches) < 2:
        return []
    first, second = watches
    tests = 0
    said: dict[tuple, Diagnostic] = {}
    for a, b in _concurrent(first, second):
        one, other = first.stretches[a], second.stretches[b]
        for storage in one.keys() & other.keys():
            if not any(noted[1] for noted in one[storage]) and not any(noted[1] for noted in other[storage]):
                continue  # both only read it
            mine, theirs = _accesses(storage, one[storage]), _accesses(storage, other[storage])
            for x, y in _conflicts(mine, theirs):
                lines = (storage, x.site, y.site, x.written, y.written)
                if lines in said or tests > MOST_TESTS:
                    continue
                tests += not (x.span.box.exact and y.span.box.exact)
                if share_bytes(x.span, y.span):
                    said[lines] = _told(x, y, first.meetings[:a])
    return [*said.values()]


def _concurrent(first: Watch, second: Watch) -> Iterator[tuple[int, int]]:
    """The stretches of the two cores that no meeting orders, by vector clocks."""
    places = {(m.point, m.number): j for j, m in enumerate(second.meetings)}
    pairs = [(i, places[m.point, m.number]) for i, m in enumerate(first.meetings) if m[:2] in places]
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
    """The pairs whose boxes meet and of which one writes."""
    writes = [access for access in ones if access.written]
    reads = [access for access in ones if not access.written]
    for mine, theirs in ((writes, others), (reads, [access for access in others if access.written])):
        if mine and theirs:
            for i, j in meeting_pairs([x.span for x in mine], [y.span for y in theirs]).tolist():
                yield mine[i], theirs[j]


# ---- in words ------------------------------------------------------------------------------------


def _told(one: Access, other: Access, met: Iterable[Meeting]) -> Diagnostic:
    storage = one.span.storage
    what = f"'{storage.name}'" if storage.name else f"the tensor allocated at {storage.site}"
    both = one.written and other.written
    doing = f"both cores write {what}" if both else f"one core writes {what} while the other reads it"
    before = [*met]
    last = f"last met at {before[-1].site} ({before[-1].instruction})" if before else "did not meet before"
    if both and one.site == other.site:
        help = "let each core write its own part (nl.program_id(0)), or one core alone"
    elif storage.name and not storage.parameter:
        help = f"meet between the two lines: nisa.core_barrier({storage.name}, (0, 1))"
    else:
        help = "meet between the two lines: nisa.core_barrier(tensor, (0, 1))"
    notes = [_line(0, one), _line(1, other), _bytes(one.span, other.span), f"the cores {last}"]
    site = one.site if one.written else other.site
    return Diagnostic("race", f"{doing}, and nothing orders them", notes, help, site)


def _line(core: int, access: Access) -> str:
    verb = "writes" if access.written else "reads"
    return f"core {core} {verb} {_part(access.span)} at {access.site}: {access.instruction}"


def _part(span: Span) -> str:
    """`out[0:128, 0:512]`, as far as the box of a span is all there is to say."""
    name, storage = span.storage.name or "tensor", span.storage
    if span.somewhere:
        return f"{name} at a run-time address"
    low, high, exact = span.box
    width = storage.dtype.itemsize
    low, high = (*low[:-1], low[-1] // width), (*high[:-1], -(-high[-1] // width))
    index = ", ".join(f"{a}:{b}" for a, b in zip(low, high, strict=True))
    return f"{name}[{index}]" if exact else f"part of {name}[{index}]"


def _bytes(one: Span, other: Span) -> str:
    if one.somewhere or other.somewhere:
        return "the bytes are known at run time; one of them touches all of the tensor"
    low = max(one.bounds[0], other.bounds[0])
    high = min(one.bounds[1], other.bounds[1])
    a, b = one.box, other.box
    if a.exact and b.exact:
        shared = 1
        for x, y, p, q in zip(a.low, a.high, b.low, b.high, strict=True):
            shared *= min(y, q) - max(x, p)
        return f"{shared:,} bytes are touched by both, between bytes {low:,} and {high:,} of the tensor"
    return f"bytes touched by both lie between {low:,} and {high:,} of the tensor"
