"""Findings about the limit that a kernel has reached: compute or memory."""

from __future__ import annotations

from collections.abc import Iterator

from ..measures import adjusted_flops, critical_path, necessary_bytes, path_shares
from .formatting import NAMES, amount, lines, percent, site_of
from .study import Advice, Study

FULL = 0.75  # of the rate DMA can reach


def compute_bound(study: Study) -> Iterator[Advice]:
    """Yield a finding when one engine works all the time, and DMA does not."""
    engine = study.busiest
    if engine is None or not study.is_busy(engine) or study.is_busy("dma"):
        return
    if study.decisive not in (None, engine):
        return
    weights = ((op.site, study.held_ns(number)) for number, op in study.on(engine))
    yield Advice(
        "compute-bound",
        f"Compute-bound: {NAMES[engine]} is busy {percent(study.active[engine])} of the time",
        _roof(study) if engine == "tensor" else _less_work(engine),
        lines(weights),
        0.0,
        engine,
    )


def _roof(study: Study) -> str:
    timeline, m = study.timeline, study.machine
    peak = m.peak_flops() * len(timeline.cores)
    reached = timeline.flops / timeline.total_ns / 1e3
    of_dtypes = adjusted_flops(timeline) / (peak * timeline.total_ns * 1e-9)
    return (
        f"It does {reached:.1f} TFLOP/s: {timeline.mfu_percent:.1f} % of the bfloat16 peak, and "
        f"{percent(of_dtypes)} of what matmuls of these dtypes can reach. Nothing keeps it waiting: only "
        "less or cheaper work makes the kernel faster."
    )


def _less_work(engine: str) -> str:
    return (
        "Nothing keeps it waiting: only less work makes the kernel faster. One instruction can do several "
        f"steps, 16-bit tiles pass faster, and another engine may take some of what {NAMES[engine]} does."
    )


def critical_resource(study: Study, resource: str) -> Advice:
    """Return the finding that a resource has most of the critical path, where no change to it is known."""
    steps = [
        (study.timeline.cores[step.core].operations[step.operation], step.ns)
        for step in critical_path(study.timeline)
    ]
    return Advice(
        "critical-path",
        f"{NAMES[resource]} has {percent(path_shares(study.timeline)[resource])} of the critical path",
        f"What {NAMES[resource]} does there comes one after the other, each step waiting for the one before: "
        f"only less of it, or starting it earlier, makes the kernel faster.",
        lines((site_of(op), ns) for op, ns in steps if resource in (op.kind, "dma" if op.is_dma else "")),
        0.0,
        resource,
    )


def _rates(study: Study) -> tuple[float, float]:
    """Return GB/s that DMA moves while the kernel works, and that it could reach."""
    timeline, m = study.timeline, study.machine
    moved = sum(t.nbytes for core in timeline.cores for t in core.transfers.values())
    reachable = min(m.dma_engines * m.dma_bytes_per_ns * len(timeline.cores), m.hbm_gbs)
    return moved / timeline.work_ns, reachable


def is_memory_bound(study: Study) -> bool:
    """True when DMA works all the time and moves nearly what it can."""
    rate, reachable = _rates(study)
    return study.is_busy("dma") and rate >= FULL * reachable


def memory_bound(study: Study) -> Iterator[Advice]:
    """Yield a finding when DMA moves bytes as fast as it can."""
    if not is_memory_bound(study) or study.decisive not in (None, "dma"):
        return
    timeline = study.timeline
    rate, reachable = _rates(study)
    moved = sum(t.nbytes for core in timeline.cores for t in core.transfers.values())
    weights = (
        (site_of(core.operations[i]), t.nbytes) for core in timeline.cores for i, t in core.transfers.items()
    )
    needed = min(moved, necessary_bytes(timeline))
    yield Advice(
        "memory-bound",
        f"Memory-bound: DMA moves {rate:.0f} of the {reachable:.0f} GB/s it can reach",
        f"{amount(moved)} travel. {_needed(needed, moved)}",
        lines(weights),
        0.0,
        "dma",
    )


def _needed(needed: int, moved: int) -> str:
    if needed < 0.9 * moved:
        return (
            f"Each input and each result once are {amount(needed)}: the rest is loaded again, spilled or "
            "intermediate, and every byte less makes the kernel faster."
        )
    return (
        "These are the inputs and the result, each once: only smaller dtypes, or more work on what has been "
        "loaded, make the kernel faster."
    )
