"""Names for reports: the variable of a tile, the queue of a transfer."""

from __future__ import annotations

import re

from ..ir.storage import Storage
from .dma_transfer import RANKS, DmaTransfer
from .operation import Operation

# From top to bottom in reports. A queue is given by what triggers its transfers and how their descriptors are
# made (the DMA guide); spills have one of their own (spec/machine.md 9.5).
SPILL_QUEUE = "spill"
QUEUES = ("software", "hardware sync", "hardware scalar", "static", SPILL_QUEUE, RANKS)


def queue_of(op: Operation, transfer: DmaTransfer) -> str:
    """Return the DMA queue of a transfer, one of QUEUES."""
    if op.instruction is None:
        return SPILL_QUEUE
    if transfer.mode != "hardware":
        return transfer.mode
    trigger = getattr(op.instruction, "engine", None)
    return "hardware scalar" if getattr(trigger, "name", "") == "scalar" else "hardware sync"


class TileNames:
    """The name of a tensor, or the variable that its tile was first assigned to; "" where there is none."""

    def __init__(self) -> None:
        self.variables: dict[tuple, str] = {}

    def __call__(self, storage: Storage) -> str:
        site = storage.site
        if storage.name or site is None:
            return storage.name
        key = site.key
        if key not in self.variables:
            assigned = re.match(r"(?:self\.)?(\w+)\s*(?::[^=]+)?=[^=]", site.text)
            self.variables[key] = assigned.group(1) if assigned else ""
        return self.variables[key]
