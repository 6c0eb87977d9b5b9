"""The advisor: what limits a kernel, and what a change would gain.

Every finding rests on a what-if: the same schedule, run again with one thing changed (what_if.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .advice.engine_choice import dma_transpose, other_engine
from .advice.engines import engine_idle, psum_serial, table_reload
from .advice.fusion import short_instructions, two_passes
from .advice.limits import compute_bound, critical_resource, memory_bound
from .advice.ranks import exposed_communication
from .advice.repeats import repeated_work
from .advice.sbuf import spill
from .advice.slices import shared_tensor
from .advice.study import WORTH, Advice, Study
from .advice.transfers import dma_issue, reloaded_data, small_dma
from .advice.work import fp32_matmul, unused_partitions
from .timeline import Timeline

__all__ = ["Advice", "advise"]

MUCH = 0.1  # of the time

# In this order where they gain the same: causes before symptoms, limits last.
FINDERS: tuple[Callable[[Study], Iterator[Advice]], ...] = (
    repeated_work,
    reloaded_data,
    spill,
    dma_transpose,
    small_dma,
    dma_issue,
    exposed_communication,
    two_passes,
    other_engine,
    shared_tensor,
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
    """Return the findings about a timeline: first those on what decides its time, then by gain."""
    if not timeline.operations:
        return []
    study = Study(timeline)
    found = [finding for find in FINDERS for finding in find(study)]
    return _ranked(study, found)


def _ranked(study: Study, found: list[Advice]) -> list[Advice]:
    """Return the findings in order; if none relieves what has most of the critical path, one more names it.

    It comes first unless another change gains much. An engine that waits is a symptom: a cause of half its
    gain comes before it.
    """
    decisive = study.decisive
    relieves = {one for one in found if one.resource == decisive and one.gain_us >= WORTH * study.total_us}
    by_gain = sorted(found, key=lambda one: -one.gain_us * (0.5 if one.kind == "engine-idle" else 1.0))
    if decisive is not None and not any(one.resource == decisive for one in found):
        named = critical_resource(study, decisive)
        much = bool(by_gain) and by_gain[0].gain_us >= MUCH * study.total_us
        return [*by_gain, named] if much else [named, *by_gain]
    return sorted(by_gain, key=lambda one: one not in relieves)
