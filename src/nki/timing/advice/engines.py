"""Findings about the engines: what they wait for, and work they could do in less time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...view import View
from ..measures import is_transpose
from ..operations import RAW, SPACE, WAR, WAW, Operation
from ..transfer import Transfer
from ..what_if import Change, Payload
from .room import peak, without_spills
from .study import Finding, Gain, Study
from .words import NAMES, count, duration, joined, lines, lines_of, percent, site_of

# ---- engine-idle ---------------------------------------------------------------------------------

IDLE = 0.05  # of the time: less is not told


class Wait(NamedTuple):
    """A gap before an instruction."""

    ns: float
    waiter: Operation
    blocker: Operation | None
    why: str


def waits(study: Study, engine: str) -> list[Wait]:
    """The gaps between the bars of an engine, on all cores."""
    found = []
    for core in study.timeline.cores:
        tables = {index: end - start for start, end, index in core.table_loads}
        indices = [op.index for op in core.operations if op.kind == engine]
        reach = 0.0
        for index in sorted(indices, key=core.start.__getitem__):
            begin = core.start[index] - (tables.get(index, 0.0) if engine == "scalar" else 0.0)
            if begin > reach:
                op, blocker = core.operations[index], core.blocked_by[index]
                why = op.waits.get(blocker, "engine")
                found.append(Wait(begin - reach, op, core.operations[blocker] if blocker >= 0 else None, why))
            reach = max(reach, core.end[index])
    return found


def engine_idle(study: Study) -> Iterator[Finding]:
    """The busiest engine waits for another."""
    engine = study.busiest
    if engine is None or study.active[engine] > 1 - IDLE:
        return
    gaps = waits(study, engine)
    by_source: Counter[str] = Counter()
    for gap in gaps:
        if gap.blocker is not None and gap.blocker.kind != engine:
            by_source["dma" if gap.blocker.is_dma else gap.blocker.kind] += gap.ns  # type: ignore[assignment]
    if not by_source:
        return
    source = max(by_source, key=by_source.__getitem__)
    blocking = [g for g in gaps if g.blocker is not None and _comes_from(g.blocker, source)]
    gain = Gain(us := study.gain_us(_overlapped(study, engine, source)), us, study.total_us)
    idle = 1 - study.active[engine]
    yield Finding(
        "engine-idle",
        f"{NAMES[engine]} is idle {percent(idle)} of the time: it waits for {NAMES[source]}",
        f"{_waited(by_source, study)} {_overlap_advice(study, engine, source, gain)}",
        lines((site_of(g.blocker), g.ns) for g in blocking if g.blocker is not None),
        gain.us,
    )


def _comes_from(op: Operation, source: str) -> bool:
    return op.is_dma if source == "dma" else op.kind == source


def _overlapped(study: Study, engine: str, source: str) -> Change:
    """The engine finds what it needs from the other: both work, neither waits."""
    dropped = {}
    for number, op in study.on(engine):
        base = study.replay.first[op.core]
        there = {base + i for i in op.waits if _comes_from(study.timeline.operations[base + i], source)}
        if there:
            dropped[number] = there
    return Change(dropped=dropped)


def _waited(by_source: Counter[str], study: Study) -> str:
    cores = len(study.timeline.cores)
    parts = [f"{duration(ns / cores / 1e3)} for {NAMES[source]}" for source, ns in by_source.most_common(3)]
    return f"It waits {joined(parts)}."


def _overlap_advice(study: Study, engine: str, source: str, gain: Gain) -> str:
    if not gain.worth and study.is_busy(source):
        return (
            f"{NAMES[source]} is busy {percent(study.active[source])} of the time, so it is not late but has too "
            "much to do: an earlier start gains nothing, less work for it does."
        )
    if source == "dma":
        how = "Start loads earlier: a new tile for each turn of the loop lets the next load run meanwhile."
    else:
        how = f"Give {NAMES[engine]} the next tile to work on meanwhile: smaller tiles, each in its own buffer."
    return f"{gain.told('If the two overlapped')} {how}"


# ---- psum-serial ---------------------------------------------------------------------------------


def psum_serial(study: Study) -> Iterator[Finding]:
    """TensorE waits until a PSUM bank has been read."""
    operations, dropped, reused = study.timeline.operations, {}, 0
    for number, op in study.on("tensor"):
        base = study.replay.first[op.core]
        readers = {
            base + i: why
            for i, why in op.waits.items()
            if why in (SPACE, WAR, WAW) and operations[base + i].kind != "tensor"
        }
        if readers:
            dropped[number] = set(readers)
            reused += SPACE not in readers.values()
    if not dropped:
        return
    us = study.gain_us(Change(dropped=dropped))
    gain = Gain(us, us, study.total_us)
    if not gain.worth:
        return
    m = study.machine
    blocked = [g for g in waits(study, "tensor") if g.why in (SPACE, WAR, WAW) and g.blocker is not None]
    yield Finding(
        "psum-serial",
        "TensorE waits for PSUM to be read",
        f"{_why_full(2 * reused > len(dropped), m)} {gain.told('With room for every result')} "
        "Let VectorE and ScalarE take turns at reading, if one of them is the slower part.",
        lines((site_of(g.blocker), g.ns) for g in blocked if g.blocker is not None),
        gain.us,
    )


def _why_full(reused: bool, m: Any) -> str:
    if reused:
        return (
            "Matmuls write a PSUM tile that is still being read: allocate it inside the loop, so that they go on "
            f"in another of the {m.psum_banks} banks."
        )
    return f"All {m.psum_banks} banks hold results that have not been read yet."


# ---- fp32-matmul ---------------------------------------------------------------------------------


def fp32_matmul(study: Study) -> Iterator[Finding]:
    """Matmuls in float32 take four times as long as in bfloat16."""
    matmuls = study.float32_matmuls
    if not matmuls:
        return
    speed = study.gain_us(study.faster_matmuls)
    halved = study.gain_us(study.faster_matmuls | _half_as_large(study))
    gain = speed if study.is_busy("dma") else halved
    if gain < 0.01 * study.total_us:
        return
    left = study.total_us - halved
    after = f"{duration(left)} instead of {duration(study.total_us)}, {study.total_us / left:.1f} times as fast"
    yield Finding(
        "fp32-matmul",
        f"{count(len(matmuls), 'matmul')} in float32: bfloat16 takes a quarter of the time",
        f"With bfloat16 operands the kernel would take {after}: TensorE passes float32 through "
        f"{study.machine.fp32_matmul_factor} times, and tiles and loads are half as large."
        + (f" With the loads as they are it gains {duration(speed)}." if gain == speed != halved else "")
        + " Sums stay float32 in PSUM, but operands keep 8 bits of their 24: check that this is enough.",
        lines_of(matmuls.values()),
        gain,
    )


def _half_as_large(study: Study) -> Change:
    """The operands of float32 matmuls in half the bytes, on the way and in SBUF."""
    operands = {
        id(view.storage)
        for op in study.float32_matmuls.values()
        for view in op.instruction.operands()[1:]  # type: ignore[union-attr]
    }
    payload = {}
    for number, transfer in study.transfers():
        op = study.timeline.operations[number]
        tile = op.tile if op.instruction is None else op.instruction.operands()[0].storage
        if id(tile) in operands:
            payload[number] = _halved(study.replay.payload(number), transfer, study)
    fits = all(peak(p, operands).nbytes <= p.sbuf.capacity for p in study.timeline.planners)
    change = Change(payload=payload)
    return without_spills(study) | change if study.timeline.spill_bytes and fits else change


def _halved(payload: Payload, transfer: Transfer, study: Study) -> Payload:
    engines = max(1, len(transfer.payload_ns))
    saved = transfer.nbytes / 2 / engines / study.machine.dma_bytes_per_ns / study.bandwidth_share
    if isinstance(payload, float):
        return max(0.0, payload - saved)
    return [(engine, max(0.0, ns - saved)) for engine, ns in payload]


# ---- unused-partitions ---------------------------------------------------------------------------


def unused_partitions(study: Study) -> Iterator[Finding]:
    """Instructions that leave lanes of their engine without work."""
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        if engine in study.active:
            yield from _unused(study, engine)


def _unused(study: Study, engine: str) -> Iterator[Finding]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for number, op in study.on(engine):
        part = _used(op, study.machine)
        if part < 1:
            groups[op.site, part].append(number)
    work = {}
    wasted: dict[Any, float] = {}
    for key, numbers in groups.items():
        needed = math.ceil(len(numbers) * key[1]) / len(numbers)
        work.update(dict.fromkeys(numbers, needed))
        wasted[key] = (1 - needed) * sum(map(study.held_ns, numbers))
    if sum(wasted.values()) < 1e3 * 0.01 * study.total_us:
        return
    us = study.gain_us(Change(work=work))
    gain = Gain(us, us, study.total_us)
    if gain.worth:
        worst = max(wasted, key=wasted.__getitem__)
        example = study.timeline.operations[groups[worst][0]]
        yield Finding(
            "unused-partitions",
            f"{count(len(work), 'instruction')} use part of {NAMES[engine]}",
            f"{_lanes(example, study.machine)} An instruction takes as long with few as with all. "
            f"{gain.told('Filled up, as few as can do the work')} {FILL[engine == 'tensor']}",
            lines((site, ns) for (site, _), ns in wasted.items()),
            gain.us,
        )


FILL = {
    True: "Contract more rows at once, make the wider operand stationary, or run several products side by side "
    "with tile_position.",
    False: "Put several tiles side by side in the partitions and work on them with one instruction.",
}


def _used(op: Operation, m: Any) -> float:
    """The part of the lanes, or of the PE array, that an instruction uses."""
    ins: Any = op.instruction
    if op.kind == "tensor":
        return 1.0 if is_transpose(op) else math.prod(_array(op)) / (m.partitions * m.matmul_stationary_max)
    rows = [view.shape[0] for view in ins.operands() if isinstance(view, View) and view.on_chip]
    return max(rows) / m.partitions if rows else 1.0


def _array(op: Operation) -> tuple[int, int]:
    """(rows, columns) of the PE array that a matmul uses."""
    ins: Any = op.instruction
    halves = 2 if getattr(ins, "is_double_row", False) else 1
    return ins.stationary.shape[0], ins.stationary.free_elements // halves


def _lanes(op: Operation, m: Any) -> str:
    if op.kind == "tensor":
        rows, columns = _array(op)
        return f"{site_of(op)} uses {rows} of {m.partitions} rows and {columns} of {m.matmul_stationary_max} columns of the PE array."
    return f"{site_of(op)} works on {round(_used(op, m) * m.partitions)} of {m.partitions} partitions."


# ---- table-reload --------------------------------------------------------------------------------


def table_reload(study: Study) -> Iterator[Finding]:
    """ScalarE loads tables of functions it had before."""
    again: dict[int, Operation] = {}
    functions = set()
    for core in study.timeline.cores:
        known: set[str] = set()
        for _, _, index in core.table_loads:
            op = core.operations[index]
            function = op.instruction.op.name  # type: ignore[union-attr]
            functions.add(function)
            if function in known:
                again[study.replay.number(op)] = op
            known.add(function)
    us = study.gain_us(Change(tables=dict.fromkeys(again, 0.0)))
    gain = Gain(us, us, study.total_us)
    if gain.worth:
        each = duration(study.machine.activation_table_ns / 1e3)
        yield Finding(
            "table-reload",
            f"ScalarE loads {count(len(again), 'table')} of functions again",
            f"It holds one function at a time ({joined(sorted(functions))} take turns) and loads the next in "
            f"{each}. {gain.told('Each loaded once')} Do all tiles with one function before the next.",
            lines_of(again.values()),
            gain.us,
        )
