"""Findings about the links between ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ..dma_transfer import RANKS
from ..links import communication
from .formatting import amount, duration, lines, percent
from .study import WORTH, Advice, Study


def exposed_communication(study: Study) -> Iterator[Advice]:
    """Yield a finding when ranks wait for transfers with nothing else to do."""
    spent = communication(study.timeline)
    exposed_us = spent.exposed / 1e3
    if exposed_us < WORTH * study.total_us:
        return
    weights = (
        (core.operations[i].site, core.done[i] - core.start[i])
        for core in study.timeline.cores
        for i, t in core.transfers.items()
        if t.mode == RANKS
    )
    yield Advice(
        "exposed-communication",
        f"Communication is exposed: {duration(exposed_us)} of the {duration(spent.total / 1e3)} "
        "that data is on its way between ranks, nothing is computed",
        f"{amount(spent.nbytes)} travel, {percent(1 - spent.exposed / spent.total)} of the time behind "
        "compute. Cut the data into chunks, and work on the one that has arrived while the next one travels "
        "(collective_permute_implicit round a ring; allgather_compute_matmul does so).",
        lines(weights),
        exposed_us,
        "dma",
    )
