"""Findings about SBUF: spills, and how much space is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from functools import partial

from ...ir.effects import effects
from ...ir.liveness import Lifetime, Peak, peak
from ...ir.storage import Storage
from ..operation import Operation
from ..operation_plan import OperationPlan
from .formatting import amount, count, joined, lines
from .study import Advice, Study


def sbuf_peak(plan: OperationPlan, halved: Set[Storage] = frozenset()) -> Peak:
    """Return the peak of automatic tiles in program order; those of `halved` take half their size."""
    uses = plan.uses
    first, last = uses.sbuf.first.tolist(), uses.sbuf.last.tolist()
    lives = dict(zip(uses.sbuf_tiles(), map(Lifetime, first, last), strict=True))
    size = partial(Storage.taken, machine=plan.machine)
    return peak(lives, lambda storage: size(storage) // (2 if storage in halved else 1))


def sbuf_usable_bytes(study: Study) -> int:
    return study.machine.sbuf_usable_bytes * study.machine.partitions


def sbuf_peak_bytes(study: Study) -> int:
    """Return the peak of the core that needs most, explicit addresses included."""
    m, pools = study.machine, [plan.sbuf for plan in study.timeline.plans]
    needed = [pool.demand.most + m.sbuf_usable_bytes - pool.capacity for pool in pools]
    return max(needed, default=0) * m.partitions


def operand_tiles(matmuls: Iterable[Operation]) -> set[Storage]:
    """Return the storages that matmuls read."""
    read = (effects(op.instruction).reads for op in matmuls if op.instruction is not None)
    return {view.storage for views in read for view in views}


def spill(study: Study) -> Iterator[Advice]:
    """Yield a finding when more is live than SBUF holds."""
    timeline = study.timeline
    if not timeline.spill_bytes:
        return
    gain = study.gain_of_moving_less(study.without_spills)
    fullest = max((sbuf_peak(plan) for plan in timeline.plans), key=lambda p: p.nbytes)
    moved = [op for op in timeline.operations if op.instruction is None]
    where = lines((tile.site, tile.pitch) for tile in fullest.live)
    live = amount(sbuf_peak_bytes(study))
    yield Advice(
        "spill",
        f"SBUF overflows: {amount(timeline.spill_bytes)} are {_how(moved)}",
        f"Up to {live} are live at once, in {count(len(fullest.live), 'tile')} from "
        f"{joined(list(where[:3]))}; SBUF holds {amount(sbuf_usable_bytes(study))}. "
        f"{gain.text('Without the spills')} {_fix(study, moved)}",
        where,
        gain.us,
        "dma",
    )


def _how(moved: list[Operation]) -> str:
    """Say whether tiles are written to HBM, or only loaded again because they did not change."""
    return "spilled to HBM and back" if any(op.kind == "spill" for op in moved) else "loaded again"


def _fix(study: Study, spilled: list[Operation]) -> str:
    """Return what to do; where operands of matmuls overflow, the contraction can be blocked too."""
    operands = operand_tiles(op for _, op in study.on("tensor"))
    of_matmuls = sum(op.tile in operands for op in spilled)
    if 2 * of_matmuls >= len(spilled):
        return (
            "They are operands of matmuls: use smaller blocks, or blocks along the contraction dimension "
            "too, and add up their partial sums in SBUF."
        )
    return "Use smaller tiles, or do all the work on a tile before the next one, so that less is live."
