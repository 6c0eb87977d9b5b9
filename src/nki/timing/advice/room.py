"""Findings about SBUF: spills, and how much room there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from ...ir.effects import effects
from ...ir.storage import Storage
from ..operations import Planner
from ..regions import Operation
from .study import Finding, Study
from .words import amount, count, joined, lines


class Peak(NamedTuple):
    """The moment when most of SBUF is needed."""

    nbytes: int  # per partition
    live: list[Storage]  # then


def peak(planner: Planner, halved: Set[Storage] = frozenset()) -> Peak:
    """The most that automatic tiles need at once, in the order of the program; `halved` ones half as much."""
    lives = planner.sbuf.lives
    changes: Counter[int] = Counter()
    for tile, (first, last) in lives.items():
        size = planner.sbuf.size(tile) // (2 if tile in halved else 1)
        changes[first] += size
        changes[last + 1] -= size
    most = now = at = 0
    for position in sorted(changes):
        now += changes[position]
        if now > most:
            most, at = now, position
    return Peak(most, [tile for tile, (first, last) in lives.items() if first <= at <= last])


def sbuf_usable_bytes(study: Study) -> int:
    return study.machine.sbuf_usable_bytes * study.machine.partitions


def sbuf_peak_bytes(study: Study) -> int:
    """Of the core that needs most, explicit addresses included."""
    m, pools = study.machine, [planner.sbuf for planner in study.timeline.planners]
    needed = [max(pool.demand.levels[0]) + m.sbuf_usable_bytes - pool.capacity for pool in pools]
    return max(needed, default=0) * m.partitions


def operand_tiles(matmuls: Iterable[Operation]) -> set[Storage]:
    """The storages that matmuls read."""
    read = (effects(op.instruction).reads for op in matmuls if op.instruction is not None)
    return {view.storage for views in read for view in views}


def spill(study: Study) -> Iterator[Finding]:
    """More is live than SBUF holds."""
    timeline = study.timeline
    if not timeline.spill_bytes:
        return
    gain = study.gain_of_moving_less(study.without_spills)
    fullest = max((peak(planner) for planner in timeline.planners), key=lambda p: p.nbytes)
    moved = [op for op in timeline.operations if op.instruction is None]
    where = lines((tile.site, tile.pitch) for tile in fullest.live)
    live = amount(sbuf_peak_bytes(study))
    yield Finding(
        "spill",
        f"SBUF overflows: {amount(timeline.spill_bytes)} are {_how(moved)}",
        f"Up to {live} are live at once, in {count(len(fullest.live), 'tile')} from "
        f"{joined(list(where[:3]))}; SBUF holds {amount(sbuf_usable_bytes(study))}. "
        f"{gain.told('Without the spills')} {_mend(study, moved)}",
        where,
        gain.us,
    )


def _how(moved: list[Operation]) -> str:
    """What was loaded and not changed is dropped, the rest is written to HBM before."""
    return "spilled to HBM and back" if any(op.kind == "spill" for op in moved) else "loaded again"


def _mend(study: Study, spilled: list[Operation]) -> str:
    """Where the operands of matmuls overflow, the contraction can be cut too."""
    operands = operand_tiles(op for _, op in study.on("tensor"))
    of_matmuls = sum(op.tile in operands for op in spilled)
    if 2 * of_matmuls >= len(spilled):
        return (
            "They are operands of matmuls: use smaller blocks, or blocks along the contraction dimension "
            "too, and add up their partial sums in SBUF."
        )
    return "Use smaller tiles, or do all the work on a tile before the next one, so that less is live."
