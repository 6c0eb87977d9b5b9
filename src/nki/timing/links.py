"""The time of a rank on its links to others, and how much of it compute hides."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..machine.machine import Machine
from .dma_transfer import RANKS
from .timeline import Timeline, union_length
from .timing_rules import ENGINES


class Communication(NamedTuple):
    """The times of one rank, in ns. `waiting` is for ranks that arrive later; it is not part of `total`."""

    total: float  # a transfer is under way
    exposed: float  # and no compute engine works meanwhile
    waiting: float
    nbytes: int

    @property
    def hidden_percent(self) -> float:
        return 100 * (1 - self.exposed / self.total) if self.total else 100.0


def communication(timeline: Timeline) -> Communication:
    """Return the link times of one rank's timeline."""
    wires, works, waits = [], [], []
    nbytes = 0
    for number, core in enumerate(timeline.cores):
        for index, transfer in core.transfers.items():
            if transfer.mode == RANKS:
                wires.append((core.start[index], core.done[index]))
                waits.append((core.ready[index], max(core.ready[index], core.triggered[index])))
                nbytes += transfer.nbytes
        works += [timeline.intervals(engine, number) for engine in ENGINES if engine != "sync"]
    if not wires:
        return Communication(0.0, 0.0, 0.0, 0)
    wire = np.array(sorted(wires))
    work = np.concatenate(works)
    work = work[np.argsort(work[:, 0], kind="stable")]
    both = np.concatenate([wire, work])
    both = both[np.argsort(both[:, 0], kind="stable")]
    exposed = union_length(both) - union_length(work)
    waiting = union_length(np.array(sorted(waits)))
    return Communication(union_length(wire), exposed, waiting, nbytes)


def launch_ms(machine: Machine, ranks: int) -> float:
    """Return what an execution costs the host, beside the time of the device (spec/machine.md 10, 11).

    One that holds collectives of more than two ranks pays for their number, however many collectives it has.
    """
    if ranks <= 2:
        return machine.launch_ms
    fixed, doubling = machine.collective_launch_ms
    return fixed + doubling * math.log2(ranks)
