"""Capacity: what is live at once in SBUF and PSUM (`ir.liveness`), against what the chip holds.

Tiles in PSUM take whole banks; in SBUF those of few partitions lie side by side, as the spills of a profile
assume (`Storage.taken`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..ir.columns import Columns, Numbers
from ..ir.items import Diagnostic
from ..ir.liveness import Lifetime, Peak, lifetimes, live_bytes, peak
from ..ir.program import Program
from ..ir.statistics import Statistics
from ..ir.storage import Storage
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF, MemoryRegion

LINES_SHOWN = 4


def capacity(program: Program, reserve_psum_bank: bool = False) -> list[Diagnostic]:
    """Return a diagnostic for each memory that is too small, with the lines that allocate what is live."""
    machine = program.machine
    peaks: dict[MemoryRegion, list[Peak]] = {}
    lives: list[dict[Storage, Lifetime]] | None = None
    for memory in (SBUF, PSUM):
        limit = limit_of(machine, memory, reserve_psum_bank)
        if not _fit_together(program, memory, limit) and not _fit_at_once(program, memory, limit):
            lives = lives or [lifetimes(items) for items in program.cores]
            mine = [{s: life for s, life in core.items() if s.buffer is memory} for core in lives]
            peaks[memory] = [peak(core, lambda storage: storage.taken(machine)) for core in mine]
    return _overflows(peaks, machine, reserve_psum_bank)


def capacity_of_run(statistics: Statistics, reserve_psum_bank: bool = False) -> list[Diagnostic]:
    """Return the same of a run whose instructions ran as they were issued."""
    peaks = {memory: statistics.peaks(memory) for memory in (SBUF, PSUM)}
    return _overflows(peaks, statistics.machine, reserve_psum_bank)


def _overflows(
    peaks: dict[MemoryRegion, list[Peak]], machine: Machine, reserve_psum_bank: bool
) -> list[Diagnostic]:
    """Return a diagnostic for each core and memory; one for both cores where they are equal."""
    found: dict[str, Diagnostic] = {}
    for memory, of_cores in peaks.items():
        limit = limit_of(machine, memory, reserve_psum_bank)
        for core, most in enumerate(of_cores):
            if most.nbytes > limit:
                overflow = _overflow(memory, most, limit, machine, core)
                found.setdefault(overflow.message, overflow)
    return [*found.values()]


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


def _fit_at_once(program: Program, memory: MemoryRegion, limit: int) -> bool:
    """True when no more is live at once than fits; decided fast, and False where that is not possible."""
    columns, cores = program.columns, range(len(program.cores))
    if not all(map(columns.pays, cores)):
        return False
    kinds, _ = columns.storage_kinds
    samples = [columns.storages[index] for index in np.unique(kinds, return_index=True)[1]]
    taken = [s.taken(program.machine) if s.buffer is memory else 0 for s in samples]
    sizes = np.array(taken, np.int64)[kinds]
    always = np.array([s.address is not None for s in samples], np.bool_)[kinds]
    return all(_live(columns.of(core), sizes, always) <= limit for core in cores)


def _live(columns: Columns, sizes: Numbers, always: np.ndarray) -> int:
    """Return the most bytes that are live at once, or more: tiles with addresses count one by one."""
    length = len(columns.signature)
    first, last = np.full_like(sizes, length), np.full_like(sizes, length - 1)
    positions = columns.positions()
    first[columns.storage[::-1]], last[columns.storage] = positions[::-1], positions
    first[always] = 0
    last[always] = length - 1
    return int(live_bytes(first, last, sizes, length + 1).max())


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
