"""The figures of a profile as plain data: what `--json` prints, what is saved, what the tables show.

Times are microseconds, sizes bytes. With several cores `active_us` is the mean of the cores, so that
`active_percent` is always `active_us` of `total_us`; instructions and `instruction_us` are sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from ..errors import Site
from ..ir.program import Diagnostic
from ..ir.statistics import Statistics
from ..ir.view import View
from ..timing.advice.study import Advice
from ..timing.compiler.stage import described
from ..timing.measures import (
    assumptions,
    bounds,
    ceilings,
    critical_path,
    hbm_traffic,
    hfu_percent,
    instruction_ns,
)
from ..timing.names import TileNames
from ..timing.operation import Operation
from ..timing.timeline import Timeline, matmul_flops
from ..timing.timing_rules import ENGINES
from ..timing.uncertainty import Uncertainty

Figures: TypeAlias = dict[str, Any]  # JSON: numbers, texts, lists and further figures, by name

TRACKS = (*ENGINES, "dma")
MOST_TILES = 4  # of a line, whose names are listed


class Profiled(Protocol):
    """A profile, as a report sees it."""

    kernel: str
    timeline: Timeline
    statistics: Statistics
    diagnostics: list[Diagnostic]
    uncertainty: Uncertainty | None

    @property
    def findings(self) -> list[Advice]: ...


def figures(profile: Profiled) -> Figures:
    """Return everything that a report shows of a profile, except the single instructions."""
    timeline = profile.timeline
    read, written = timeline.hbm_bytes
    found = {
        "kernel": profile.kernel,
        "target": timeline.machine.name,
        "cores": len(timeline.cores),
        "total_us": timeline.total_us,
        "work_us": timeline.work_ns / 1e3,
        "instructions": sum(op.instruction is not None for op in timeline.operations),
        "engines": {name: _engine(timeline, name, range(len(timeline.cores))) for name in TRACKS},
        "dma": _dma(timeline),
        "flops": timeline.flops,
        "mfu_percent": timeline.mfu_percent,
        "hfu_percent": hfu_percent(timeline),
        **_roofline(timeline),
        "mbu_percent": timeline.mbu_percent,
        "hbm_read_bytes": read,
        "hbm_write_bytes": written,
        "tensors": _tensors(timeline),
        "sbuf_peak_bytes": profile.statistics.sbuf_peak_bytes,
        "psum_peak_bytes": profile.statistics.psum_peak_bytes,
        "spill_bytes": timeline.spill_bytes,
        "transformations": [
            {"name": name, "changes": changes, "count": count}
            for name, changes, count in described([plan.transformations for plan in timeline.plans])
        ],
        "limits": _limits(timeline),
        "bounds": _bounds(timeline),
        "lines": lines(timeline),
        "assumptions": _assumptions(timeline),
        "diagnostics": [_diagnostic(d) for d in profile.diagnostics],
        "findings": [_finding(f) for f in profile.findings],
    }
    if profile.uncertainty is not None:
        found["uncertainty"] = _uncertainty(profile.uncertainty)
    if len(timeline.cores) > 1:
        found["per_core"] = [
            {"engines": {name: _engine(timeline, name, [core]) for name in TRACKS}}
            for core in range(len(timeline.cores))
        ]
    return _rounded(found)


def _engine(timeline: Timeline, name: str, cores: Sequence[int]) -> Figures:
    active = sum(timeline.active_ns(name, core) for core in cores) / len(cores)
    return {
        "active_percent": 100 * active / timeline.total_ns if timeline.total_ns else 0.0,
        "active_us": active / 1e3,
        "instruction_us": sum(instruction_ns(timeline, name, core) for core in cores) / 1e3,
        "instructions": sum(_runs_on(op, name) for core in cores for op in timeline.cores[core].operations),
    }


def _runs_on(op: Operation, name: str) -> bool:
    return op.is_dma if name == "dma" else op.kind == name


def _dma(timeline: Timeline) -> Figures:
    transfers = [t for core in timeline.cores for t in core.transfers.values()]
    moved, descriptors = sum(t.nbytes for t in transfers), sum(t.descriptors for t in transfers)
    queues: dict[str, int] = defaultdict(int)
    for transfer in transfers:
        queues[transfer.mode] += 1
    return {
        "packet_us": timeline.packet_ns / 1e3,
        "transfers": len(transfers),
        "bytes": moved,
        "descriptors": descriptors,
        "bytes_per_descriptor": moved / descriptors if descriptors else 0.0,
        "queues": dict(sorted(queues.items())),
    }


def _roofline(timeline: Timeline) -> Figures:
    """Return the kernel's place in the roofline, and the highest MFU that its HBM traffic allows."""
    peak = timeline.machine.peak_flops() * len(timeline.cores)
    ridge = peak / (timeline.machine.hbm_gbs * 1e9)
    moved = sum(timeline.hbm_bytes)
    intensity = timeline.flops / moved if moved else 0.0
    roofs = ceilings(timeline)
    allowed = min(1.0, intensity / ridge) if moved else float(timeline.flops > 0)
    return {
        "mfu_max_achievable_percent": 100 * allowed,
        "roofline": {
            "flops_per_byte": intensity,
            "ridge_flops_per_byte": ridge,
            "achieved_tflops": timeline.flops / timeline.total_ns / 1e3 if timeline.total_ns else 0.0,
            "attainable_tflops": peak * allowed / 1e12,
            "peak_tflops": peak / 1e12,
            "hbm_gbs": timeline.machine.hbm_gbs,
            "bound": roofs[0].name if roofs[0].ns else "none",
            "ceilings_us": {roof.name: roof.ns / 1e3 for roof in roofs if roof.ns},
        },
    }


def _tensors(timeline: Timeline) -> list[Figures]:
    """List HBM tensors and how often their bytes are read and written."""
    return [
        {
            "name": storage.name or (str(storage.site) if storage.site else "hbm"),
            "bytes": storage.nbytes,
            "read_bytes": read,
            "write_bytes": written,
        }
        for storage, read, written in hbm_traffic(timeline)
    ]


def _limits(timeline: Timeline) -> dict[str, int]:
    m = timeline.machine
    return {"sbuf_usable_bytes": m.sbuf_usable_bytes * m.partitions, "psum_bytes": m.psum_size_bytes}


def _bounds(timeline: Timeline) -> Figures:
    ladder = bounds(timeline)
    memory, compute = ([ns / 1e3 for ns in steps] for steps in (ladder.memory, ladder.compute))
    return {
        "memory": {
            "dma_active_us": memory[0],
            "all_bytes_us": memory[1],
            "necessary_bytes_us": memory[2],
        },
        "compute": {
            "tensor_active_us": compute[0],
            "adjusted_flops_us": compute[1],
            "without_transposes_us": compute[2],
        },
        "pipeline": {"busiest_engine_us": ladder.pipeline / 1e3},
    }


# ---- by source line ------------------------------------------------------------------------------


def lines(timeline: Timeline) -> list[Figures]:
    """Time and work of every source line, those that decide the kernel's time first.

    `critical_us` is the line's part of the critical path and adds up to the time of the work;
    `instruction_us` is the sum of its instructions and may exceed it, because engines overlap. Spills
    count for the line that allocated the tile.
    """
    critical = {(step.core, step.operation): step.ns for step in critical_path(timeline)}
    rows: dict[tuple[str, int], Figures] = {}
    of_site: dict[tuple, Figures] = {}
    names = TileNames()
    for number, core in enumerate(timeline.cores):
        for op in core.operations:
            site = site_of(op)
            key = site.key if site is not None else (0, 0)
            row = of_site.get(key)
            if row is None:
                row = of_site[key] = rows.setdefault(_place(site), _new_line(site))
            _count(row, op, core, critical.get((number, op.index), 0.0))
            _note_iteration(row, timeline, op, names)
    total = timeline.work_ns / 1e3
    for row in rows.values():
        row["instruction_us"] = sum(row["engines"].values())
        row["loops"] = {name: sorted(ends) for name, ends in row["loops"].items()}
        row["tiles"] = list(row["tiles"])
        row["critical_percent"] = 100 * row["critical_us"] / total if total else 0.0
    return sorted(
        rows.values(), key=lambda r: (-r["critical_us"], -r["instruction_us"], r["file"], r["number"])
    )


def site_of(op: Operation) -> Site | None:
    """Return the user's line of an operation; of a spill, where the tile was allocated."""
    return op.tile.site if op.site is None and op.tile is not None else op.site


def _place(site: Site | None) -> tuple[str, int]:
    return (site.filename, site.lineno) if site is not None else ("", 0)


def _new_line(site: Site | None) -> Figures:
    file, number = _place(site)
    return {
        "line": str(site) if site is not None else "unknown",
        "file": file,
        "number": number,
        "source": site.text if site is not None else "",
        "instructions": 0,
        "critical_us": 0.0,
        "engines": defaultdict(float),
        "dma_bytes": 0,
        "spill_bytes": 0,
        "flops": 0,
        "loops": {},  # the variables of the loops around it: the lowest value, the highest
        "tiles": {},  # the names of what it writes
    }


def _count(row: Figures, op: Operation, core: Any, critical_ns: float) -> None:
    row["instructions"] += op.instruction is not None
    row["critical_us"] += critical_ns / 1e3
    row["engines"]["dma" if op.is_dma else op.kind] += (core.end[op.index] - core.start[op.index]) / 1e3
    if op.is_dma:
        row["dma_bytes" if op.instruction is not None else "spill_bytes"] += core.transfers[op.index].nbytes
    else:
        row["flops"] += matmul_flops(op)


def _note_iteration(row: Figures, timeline: Timeline, op: Operation, name: TileNames) -> None:
    """Note the values of the loop variables around a line, and which tiles it writes."""
    for variable, value in timeline.iteration(op):
        if isinstance(value, int):
            ends = row["loops"].setdefault(variable, (value, value))
            if not ends[0] <= value <= ends[1]:
                row["loops"][variable] = (min(value, ends[0]), max(value, ends[1]))
    if op.instruction is not None and len(row["tiles"]) < MOST_TILES:
        for at in op.instruction.write_at:
            view = op.instruction.operands()[at]
            written = name(view.storage) if isinstance(view, View) else ""
            if written:
                row["tiles"][written] = None


# ---- diagnostics and assumptions -----------------------------------------------------------------


def _assumptions(timeline: Timeline) -> list[Figures]:
    """Return the assumed constants behind the times, with the lines that rest on each."""
    reasons = timeline.machine.assumptions
    return [
        {
            "field": field,
            "value": _plain(getattr(timeline.machine, field)),
            "reason": reasons[field],
            "instructions": len(operations),
            "lines": _lines_of(operations),
        }
        for field, operations in assumptions(timeline).items()
    ]


def _uncertainty(found: Uncertainty) -> Figures:
    movers = [{k: _plain(v) for k, v in m._asdict().items()} for m in found.movers if m.moves_us]
    return {"low_us": found.low_us, "high_us": found.high_us, "movers": movers}


def _lines_of(operations: list[Operation]) -> list[str]:
    sites = {s.key: s for s in map(site_of, operations) if s is not None}
    places = {(s.filename, s.lineno): str(s) for s in sites.values()}
    return [places[key] for key in sorted(places)]


def _diagnostic(diagnostic: Diagnostic) -> Figures:
    return {
        "kind": diagnostic.kind,
        "message": diagnostic.message,
        "line": str(diagnostic.site) if diagnostic.site is not None else "",
        "notes": list(diagnostic.notes),
        "help": diagnostic.help or "",
    }


def _finding(finding: Advice) -> Figures:
    return {
        "kind": finding.kind,
        "title": finding.title,
        "detail": finding.detail,
        "lines": list(finding.lines),
        "gain_us": finding.gain_us,
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _rounded(value: object) -> Any:
    """Plain dicts and lists, with floats of four decimals: a tenth of a nanosecond."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
