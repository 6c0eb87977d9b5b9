"""Findings about SBUF: spills, and how much room there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import NamedTuple

from ...storage import SBUF, Storage
from ..operations import SPACE, Operation, Planner
from ..what_if import Change
from .study import Finding, Study
from .words import amount, count, joined, lines


class Peak(NamedTuple):
    """The moment when most of SBUF is needed."""

    nbytes: int  # per partition
    live: list[Storage]  # then


def peak(planner: Planner, halved: Set[int] = frozenset()) -> Peak:
    """The most that automatic tiles need at once, in the order of the program; `halved` ones half as much."""
    lives: dict[int, list] = {}  # storage -> [it, first use, last use]
    for position, access in enumerate(planner.accesses):
        for view in (*access.reads, *access.writes):
            storage = view.storage
            if storage.buffer is SBUF and storage.address is None:
                lives.setdefault(id(storage), [storage, position, position])[2] = position
    changes: Counter[int] = Counter()
    for key, (storage, first, last) in lives.items():
        size = storage.pitch // 2 if key in halved else storage.pitch
        changes[first] += size
        changes[last + 1] -= size
    most = now = at = 0
    for position in sorted(changes):
        now += changes[position]
        if now > most:
            most, at = now, position
    return Peak(most, [storage for storage, first, last in lives.values() if first <= at <= last])


def sbuf_usable_bytes(study: Study) -> int:
    return study.machine.sbuf_usable_bytes * study.machine.partitions


def sbuf_peak_bytes(study: Study) -> int:
    """Of the core that needs most, explicit addresses included."""
    m = study.machine
    needed = [max(p.sbuf.demand.levels[0]) + m.sbuf_usable_bytes - p.sbuf.capacity for p in study.timeline.planners]
    return max(needed, default=0) * m.partitions


def without_spills(study: Study) -> Change:
    """SBUF without end: nothing is spilled, nothing waits for its room."""
    gone, dropped = {}, {}
    for number, op in enumerate(study.timeline.operations):
        if op.instruction is None:
            gone[number] = number
        if SPACE in op.waits.values() and _waits_for_sbuf(study, op):
            base = study.replay.first[op.core]
            dropped[number] = {base + other for other, why in op.waits.items() if why == SPACE}
    return Change(gone=gone, dropped=dropped)


def _waits_for_sbuf(study: Study, op: Operation) -> bool:
    if op.instruction is None:
        return True
    writes = study.timeline.planners[op.core].accesses[op.position].writes
    return any(view.buffer is SBUF for view in writes)


def spill(study: Study) -> Iterator[Finding]:
    """More is live than SBUF holds."""
    timeline = study.timeline
    if not timeline.spill_bytes:
        return
    gain = study.gain(without_spills(study))
    fullest = max((peak(planner) for planner in timeline.planners), key=lambda p: p.nbytes)
    moved = [op for op in timeline.operations if op.instruction is None]
    where = lines((tile.site, tile.pitch) for tile in fullest.live)
    live = amount(sbuf_peak_bytes(study))
    yield Finding(
        "spill",
        f"SBUF overflows: {amount(timeline.spill_bytes)} are spilled to HBM and back",
        f"Up to {live} are live at once, in {count(len(fullest.live), 'tile')} from "
        f"{joined(list(where[:3]))}; SBUF holds {amount(sbuf_usable_bytes(study))}. "
        f"{gain.told('Without the spills')} {_mend(study, moved)}",
        where,
        gain.us,
    )


def _mend(study: Study, spilled: list[Operation]) -> str:
    """Where the operands of matmuls overflow, the contraction can be cut too."""
    operands = {
        id(view.storage)
        for _, op in study.on("tensor")
        for view in op.instruction.operands()[1:]  # type: ignore[union-attr]
    }
    of_matmuls = sum(id(op.tile) in operands for op in spilled)
    if 2 * of_matmuls >= len(spilled):
        return (
            "They are operands of matmuls: use smaller blocks, or blocks along the contraction dimension too, "
            "adding up their partial sums in SBUF."
        )
    return "Use smaller tiles, or do all the work on a tile before the next one, so that less is live."
