"""Findings about the engines waiting: for each other, for DMA, for PSUM, for a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...ir.dependences import WAR, WAW
from ..change import Change
from ..operation import SPACE, Operation
from ..timing_rules import KIND_NUMBERS, REASONS
from .formatting import NAMES, count, duration, joined, lines, lines_of, percent, site_of
from .limits import is_memory_bound
from .study import WORTH, Advice, Gain, Study

# ---- engine-idle ---------------------------------------------------------------------------------

IDLE = 0.05  # of the time: less is not reported
NO_DATA = (SPACE, WAR, WAW)  # reasons to wait other than data
TENSOR = KIND_NUMBERS["tensor"]


class EngineWait(NamedTuple):
    """A gap before an instruction, and the operation that ended it."""

    ns: float
    blocker: Operation
    why: str


def waits(study: Study, engine: str, behind: str = "end") -> list[EngineWait]:
    """Return when an engine waited for another or for DMA, on all cores: from the `end` of its previous bar,
    or from the moment it was `free`.
    """
    found = []
    for core in study.timeline.cores:
        kinds, start = np.frombuffer(core.kinds, np.uint8), np.frombuffer(core.start)
        (indices,) = np.nonzero(kinds == KIND_NUMBERS[engine])
        indices = indices[np.argsort(start[indices], kind="stable")]
        reach = np.maximum.accumulate(np.frombuffer(getattr(core, behind))[indices])
        begun = start.copy()
        for loaded, end, index in core.table_loads:
            begun[index] -= end - loaded
        gaps = begun[indices] - np.concatenate([[0.0], reach[:-1]])[: len(indices)]
        blockers = np.frombuffer(core.blocked_by, np.intc)[indices]
        wanted = (gaps > 0) & (blockers >= 0) & (kinds[blockers] != KIND_NUMBERS[engine])
        blockers = blockers[wanted]
        reasons = core.edges.reasons(indices[wanted], blockers)
        for gap, blocker, why in zip(gaps[wanted].tolist(), blockers.tolist(), reasons.tolist(), strict=True):
            found.append(EngineWait(gap, core.operations[blocker], REASONS[why] if why >= 0 else "engine"))
    return found


def engine_idle(study: Study) -> Iterator[Advice]:
    """Yield a finding when the busiest engine waits for others."""
    engine = study.busiest
    if engine is None or study.active[engine] > 1 - IDLE:
        return
    gaps = [(_source(wait.blocker), wait) for wait in waits(study, engine)]
    waited: Counter[str] = Counter()
    for source, wait in gaps:
        waited[source] += wait.ns  # type: ignore[assignment]
    gains = {source: study.gain(_overlapped(study, engine, source)) for source, _ in waited.most_common(3)}
    if not gains:
        return
    worst = max(gains, key=lambda source: (gains[source].worth and gains[source].us, waited[source]))
    if not gains[worst].worth and study.is_busy("dma") and (worst != "dma" or is_memory_bound(study)):
        return  # DMA decides
    if not gains[worst].worth and study.decisive not in (None, worst):
        return  # what decides is not what this engine waits for
    idle, cores = percent(1 - study.active[engine]), len(study.timeline.cores)
    parts = [f"{duration(waited[source] / cores / 1e3)} for {NAMES[source]}" for source in gains]
    yield Advice(
        "engine-idle",
        f"{NAMES[engine]} is idle {idle} of the time: it waits for {NAMES[worst]}",
        f"It waits {joined(parts)}. {_overlap(study, engine, worst, gains[worst])}{_overhead(study)}",
        lines((site_of(wait.blocker), wait.ns) for source, wait in gaps if source == worst),
        gains[worst].us,
        worst,
    )


def _source(op: Operation) -> str:
    return "dma" if op.is_dma else op.kind


def _overlapped(study: Study, engine: str, source: str) -> Change:
    """Return the change in which the engine never waits for the other."""
    kinds = np.concatenate([np.frombuffer(core.kinds, np.uint8) for core in study.timeline.cores])
    there = frozenset(np.nonzero(kinds == KIND_NUMBERS[source])[0].tolist())
    return Change(dropped={number: there for number, _ in study.on(engine)})


def _overlap(study: Study, engine: str, source: str, gain: Gain) -> str:
    if not gain.worth and study.is_busy(source):
        return (
            f"{NAMES[source]} is busy {percent(study.active[source])} of the time: it is not late, it has "
            "too much to do. To start earlier gains nothing, less work for it does."
        )
    if not gain.worth:
        return "To overlap the two alone gains nothing, for something else takes as long."
    if source == "dma":
        how = "Start loads earlier: with a new tile in each iteration, the next load runs meanwhile."
    else:
        how = f"Give {NAMES[engine]} another tile meanwhile: smaller tiles, each with buffers of its own."
    return f"{gain.text('If the two overlapped')} {how}"


def _overhead(study: Study) -> str:
    """Return a sentence about the fixed cost of a short kernel."""
    fixed = study.machine.kernel_overhead_ns / 1e3
    if fixed < 0.25 * study.total_us:
        return ""
    return f" {duration(fixed)} of the {duration(study.total_us)} are the start and end of any kernel."


# ---- psum-serial ---------------------------------------------------------------------------------


def psum_serial(study: Study) -> Iterator[Advice]:
    """Yield a finding when TensorE waits until PSUM has been read."""
    blocked = [wait for wait in waits(study, "tensor", behind="free") if wait.why in NO_DATA]
    if sum(wait.ns for wait in blocked) < WORTH * 1e3 * study.total_us:
        return
    gain = study.gain(Change(dropped=_without_banks(study)))
    if gain.worth:
        readers = sorted({NAMES[_source(wait.blocker)] for wait in blocked})
        read = f"{joined(readers)} {'has' if len(readers) == 1 else 'have'} read PSUM"
        full = sum(wait.ns for wait in blocked if wait.why == SPACE) > 0.5 * sum(wait.ns for wait in blocked)
        yield Advice(
            "psum-serial",
            f"TensorE waits until {read}",
            f"{_banks(study, full)} {gain.text('With space for every result')}",
            lines((site_of(wait.blocker), wait.ns) for wait in blocked),
            gain.us,
            "tensor",
        )


def _without_banks(study: Study) -> dict[int, list[int]]:
    """Return the waits of matmuls for what other engines do with PSUM."""
    dropped: dict[int, list[int]] = defaultdict(list)
    reasons = [REASONS.index(why) for why in NO_DATA]
    for first, core in zip(study.replay.first, study.timeline.cores, strict=True):
        kinds = np.frombuffer(core.kinds, np.uint8)
        producers, users, why = core.edges
        of_matmuls = (kinds[users] == TENSOR) & (kinds[producers] != TENSOR) & np.isin(why, reasons)
        pairs = (first + column[of_matmuls] for column in (users, producers))
        for user, producer in zip(*(column.tolist() for column in pairs), strict=True):
            dropped[user].append(producer)
    return dropped


def _banks(study: Study, full: bool) -> str:
    banks = study.machine.psum_banks
    if full:
        return (
            f"All {banks} banks hold results that have not been read yet: read them with fewer, wider "
            "instructions, or let VectorE and ScalarE take turns."
        )
    return (
        "Matmuls write a PSUM tile that is still being read: allocate it inside the loop, so that they can "
        f"go on in another of the {banks} banks."
    )


# ---- table-reload --------------------------------------------------------------------------------


def table_reload(study: Study) -> Iterator[Advice]:
    """Yield a finding when ScalarE loads tables that it had before."""
    repeated: dict[int, Operation] = {}
    functions = set()
    for core in study.timeline.cores:
        known = set()
        for _, _, index in core.table_loads:
            op = core.operations[index]
            function = op.instruction.activation_table()  # type: ignore[union-attr]
            if function in known:
                repeated[study.replay.number(op)] = op
                functions.add(function)
            known.add(function)
    if not repeated:
        return
    gain = study.gain(Change(tables=dict.fromkeys(repeated, 0.0)))
    if gain.worth:
        each = duration(study.machine.activation_table_ns / 1e3)
        yield Advice(
            "table-reload",
            f"ScalarE loads {count(len(repeated), 'table')} that it had before",
            f"It holds the table of one function and needs {each} to load another; "
            f"{joined(sorted(functions))} take turns here. {gain.text('Each loaded once')} Do all tiles with "
            "one function, then all with the next.",
            lines_of(repeated.values()),
            gain.us,
            "scalar",
        )
