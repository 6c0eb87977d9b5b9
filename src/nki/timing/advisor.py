"""The advisor: what limits a kernel, and what a change would gain.

Every finding rests on a what-if: the same schedule, run again with one thing changed (what_if.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .advice.engine_choice import dma_transpose, other_engine
from .advice.engines import engine_idle, psum_serial, table_reload
from .advice.fusion import short_instructions, two_passes
from .advice.limits import compute_bound, memory_bound
from .advice.ranks import exposed_communication
from .advice.sbuf import spill
from .advice.study import Advice, Study
from .advice.transfers import dma_issue, reloaded_data, small_dma
from .advice.work import fp32_matmul, unused_partitions
from .timeline import Timeline

__all__ = ["Advice", "advise"]

# In this order where they gain the same: causes before symptoms, limits last.
FINDERS: tuple[Callable[[Study], Iterator[Advice]], ...] = (
    reloaded_data,
    spill,
    dma_transpose,
    small_dma,
    dma_issue,
    exposed_communication,
    two_passes,
    other_engine,
    psum_serial,
    unused_partitions,
    short_instructions,
    table_reload,
    fp32_matmul,
    engine_idle,
    memory_bound,
    compute_bound,
)


def advise(timeline: Timeline) -> list[Advice]:
    """Return the findings about a timeline, the largest gain first."""
    if not timeline.operations:
        return []
    study = Study(timeline)
    found = [finding for find in FINDERS for finding in find(study)]
    return sorted(found, key=lambda finding: -finding.gain_us)
