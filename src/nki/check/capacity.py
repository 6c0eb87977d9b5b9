"""Capacity: what is live at once in SBUF and PSUM (`ir.liveness`), against what the chip holds.

Tiles in PSUM take whole banks; in SBUF those of few partitions lie side by side, as the spills of a profile
assume (`Storage.taken`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..ir.items import Diagnostic
from ..ir.liveness import Lifetime, Peak, lifetimes, peak
from ..ir.program import Program
from ..ir.statistics import Statistics
from ..ir.storage import Storage
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion

LINES_SHOWN = 4


def capacity(program: Program, reserve_psum_bank: bool = False) -> list[Diagnostic]:
    """Return a diagnostic for each memory that is too small, with the lines that allocate what is live."""
    found = []
    for core, items in enumerate(program.cores):
        lives: dict[Storage, Lifetime] | None = None
        for memory in (SBUF, PSUM):
            limit = limit_of(program.machine, memory, reserve_psum_bank)
            if _fit_together(program, memory, limit):
                continue
            if lives is None:
                lives = lifetimes(items)
            mine = {storage: life for storage, life in lives.items() if storage.buffer is memory}
            most = peak(mine, lambda storage: storage.taken(program.machine))
            if most.nbytes > limit:
                found.append(_overflow(memory, most, limit, program.machine, core))
    return found[:1] if len({d.message for d in found}) == 1 else found


def capacity_of_counts(statistics: Statistics) -> list[Diagnostic]:
    """Return the same from the counts of a run without its Program; the tiles are not known."""
    machine, found = statistics.machine, []
    for memory in (SBUF, PSUM):
        limit = limit_of(machine, memory, False)
        most = statistics.peak_bytes(memory) // machine.partitions
        if most > limit:
            found.append(_overflow(memory, Peak(most, []), limit, machine, 0))
    return found


def limit_of(machine: Machine, memory: MemoryRegion, reserve_psum_bank: bool) -> int:
    """Return the bytes of a partition that tiles can have."""
    if memory is SBUF:
        return machine.sbuf_usable_bytes
    banks = machine.psum_banks_pe_dma_transpose if reserve_psum_bank else machine.psum_banks
    return banks * machine.psum_bank_bytes


def _fit_together(program: Program, memory: MemoryRegion, limit: int) -> bool:
    """True when all tiles together fit, whatever their lifetimes."""
    total = 0
    for storage in program.storages:
        if storage.buffer is memory:
            total += storage.taken(program.machine)
            if total > limit:
                return False
    return True


def _overflow(memory: MemoryRegion, peak: Peak, limit: int, machine: Machine, core: int) -> Diagnostic:
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
