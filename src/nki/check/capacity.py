"""Capacity: what is live at once in SBUF and PSUM, against what the chip holds.

A tile lives from the first instruction that uses it to the last, in the order of the program; one that a loop
uses and did not make lives as long as the loop. Tiles in PSUM take whole banks; in SBUF those of few
partitions lie side by side, as the spills of a profile suppose (`Storage.taken`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..ir.instruction import Instruction
from ..ir.program import Diagnostic, Item, Loop, Program
from ..ir.statistics import Statistics, union
from ..ir.storage import Storage
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion

LINES_SHOWN = 4


class Peak(NamedTuple):
    """The moment when most of a memory is needed, in bytes per partition."""

    nbytes: int
    live: list[Storage]


def capacity(program: Program, reserve_psum_bank: bool = False) -> list[Diagnostic]:
    """Says of each memory that is too small: what is live at once, and the lines that made it."""
    found = []
    for core, items in enumerate(program.cores):
        lives: dict[Storage, tuple[int, int]] | None = None
        for memory in (SBUF, PSUM):
            limit = limit_of(program.machine, memory, reserve_psum_bank)
            if _fit_together(program, memory, limit):
                continue
            if lives is None:
                lives = _lives(items)
            peak = _peak(lives, memory, program.machine)
            if peak.nbytes > limit:
                found.append(_told(memory, peak, limit, program.machine, core))
    return found[:1] if len({d.message for d in found}) == 1 else found


def counted(statistics: Statistics) -> list[Diagnostic]:
    """The same from the counts of a run whose program nobody kept; the tiles are not known."""
    machine, found = statistics.machine, []
    for memory in (SBUF, PSUM):
        limit = limit_of(machine, memory, False)
        peak = statistics.peak_bytes(memory) // machine.partitions
        if peak > limit:
            found.append(_told(memory, Peak(peak, []), limit, machine, 0))
    return found


def limit_of(machine: Machine, memory: MemoryRegion, reserve_psum_bank: bool) -> int:
    """Bytes of a partition that tiles can have."""
    if memory is SBUF:
        return machine.sbuf_usable_bytes
    banks = machine.psum_banks_pe_dma_transpose if reserve_psum_bank else machine.psum_banks
    return banks * machine.psum_bank_bytes


def _fit_together(program: Program, memory: MemoryRegion, limit: int) -> bool:
    """If even everything together fits, nobody needs to look when it lives."""
    total = 0
    for storage in program.storages:
        if storage.buffer is memory:
            total += storage.taken(program.machine)
            if total > limit:
                return False
    return True


def _lives(items: Sequence[Item]) -> dict[Storage, tuple[int, int]]:
    lives: dict[Storage, tuple[int, int]] = {}
    position = 0

    def walk(items: Sequence[Item]) -> Iterator[Instruction]:
        nonlocal position
        for item in items:
            if not isinstance(item, Loop):
                position += 1
                yield item
                continue
            begin = position + 1
            inside: set[Storage] = set()
            for instruction in walk(item.body):
                inside.update(v.storage for v in instruction.views() if v.storage.on_chip)
                yield instruction
            for storage in inside:
                if storage.loop != item.number:
                    first, last = lives.get(storage, (begin, position))
                    lives[storage] = min(first, begin), max(last, position)

    begins: dict[Storage, int] = {}
    ends: dict[Storage, int] = {}
    for instruction in walk(items):
        access = instruction.access
        if access.fixed:  # its views are its operands, and nothing else
            for name in access.views:
                storage = getattr(instruction, name).storage
                if storage not in begins:
                    begins[storage] = position
                ends[storage] = position
            continue
        for view in instruction.views():
            begins.setdefault(view.storage, position)
            ends[view.storage] = position
    for storage, begin in begins.items():
        if storage.on_chip:
            first, last = lives.get(storage, (begin, begin))
            lives[storage] = min(first, begin), max(last, ends[storage])
    return lives


def _peak(lives: dict[Storage, tuple[int, int]], memory: MemoryRegion, machine: Machine) -> Peak:
    placed: set[tuple[int, int]] = set()
    changes: Counter[int] = Counter()
    mine = {storage: life for storage, life in lives.items() if storage.buffer is memory}
    for storage, (first, last) in mine.items():
        if storage.address is not None:
            placed.add((storage.address[1], storage.address[1] + storage.pitch))
        else:
            size = storage.taken(machine)
            changes[first] += size
            changes[last + 1] -= size
    most = now = at = 0
    for position in sorted(changes):
        now += changes[position]
        if now > most:
            most, at = now, position
    live = [s for s, (first, last) in mine.items() if s.address is not None or first <= at <= last]
    return Peak(most + union(placed), live)


def _told(memory: MemoryRegion, peak: Peak, limit: int, machine: Machine, core: int) -> Diagnostic:
    by_line: dict[str, list[Storage]] = {}
    for storage in peak.live:
        by_line.setdefault(str(storage.site), []).append(storage)
    lines = sorted(by_line.items(), key=lambda line: -sum(s.taken(machine) for s in line[1]))
    notes = [_line(where, tiles, machine) for where, tiles in lines[:LINES_SHOWN]]
    if lines[LINES_SHOWN:]:
        rest = [s for _, tiles in lines[LINES_SHOWN:] for s in tiles]
        notes.append(f"{_bytes(rest, machine):,} bytes per partition in {len(rest)} tiles of other lines")
    tiles = f" in {len(peak.live)} tiles" if peak.live else ""
    name, unit = ("SBUF", 0) if memory is SBUF else ("PSUM", machine.psum_bank_bytes)
    needed, has = f"{peak.nbytes:,} bytes per partition", f"{limit:,}"
    if unit:
        needed, has = f"{-(-peak.nbytes // unit)} banks", f"{limit // unit}"
        help = "copy a result out of PSUM before the next one is begun, or use fewer or smaller tiles"
    else:
        help = "use smaller tiles, or finish the work on one before the next is loaded"
    return Diagnostic(
        "capacity",
        f"{name} overflows: {needed} are live at once{tiles}, {machine.name} has {has}",
        notes,
        help,
        lines[0][1][0].site if lines else None,
        core,
    )


def _bytes(tiles: Sequence[Storage], machine: Machine) -> int:
    return sum(s.taken(machine) for s in tiles)


def _line(where: str, tiles: Sequence[Storage], machine: Machine) -> str:
    shapes = Counter(f"{s.dtype}{list(s.shape)}" for s in tiles)
    shown = ", ".join(f"{n} x {shape}" if n > 1 else shape for shape, n in shapes.most_common(2))
    more = " and others" if len(shapes) > 2 else ""
    return f"{_bytes(tiles, machine):,} bytes per partition from {where}: {shown}{more}"
