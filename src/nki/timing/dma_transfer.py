"""What a DMA costs: its trigger, and how long each of the sixteen engines works (spec/machine.md 9)."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import fsum
from typing import Any, NamedTuple

from ..ir.descriptors import kind
from ..ir.instruction import State
from ..ir.storage import Storage
from ..machine.machine import Machine
from .operation import Operation


class DmaTransfer:
    """One DMA in the simulation."""

    __slots__ = (
        "mode",
        "issue_ns",
        "dispatch_ns",
        "notify_ns",
        "payload_ns",
        "nbytes",
        "descriptors",
        "_packet_ns",
    )

    def __init__(
        self,
        mode: str,
        issue_ns: float,
        dispatch_ns: float,
        notify_ns: float,
        payload_ns: tuple[tuple[int, float], ...],
        nbytes: int,
        descriptors: int,
    ):
        self.mode = mode  # "software", "hardware", "static" or "ranks"
        self.issue_ns = issue_ns  # the trigger is held
        self.dispatch_ns = dispatch_ns
        self.notify_ns = notify_ns
        self.payload_ns = payload_ns  # [(engine, ns)]
        self.nbytes = nbytes
        self.descriptors = descriptors
        self._packet_ns: float | None = None

    @property
    def packet_ns(self) -> float:
        """The work of all DMA engines on it; added up once for all transfers of one signature."""
        if self._packet_ns is None:
            moved = self.payload_ns[:-1] if self.mode == RANKS else self.payload_ns
            self._packet_ns = fsum(ns for _, ns in moved)
        return self._packet_ns


RANKS = "ranks"  # the queue of transfers between ranks


def transfer_of(op: Operation, machine: Machine, cores: int = 1, share: float = 1.0) -> DmaTransfer:
    """Return a DMA of one of `cores` cores, whose engines have this share of their rate."""
    instruction: Any = op.instruction or op.reloads
    if instruction is None:
        assert op.tile is not None
        return _spill(op.tile, machine, load=op.kind == "reload")
    pieces = tuple(instruction.descriptors(machine))
    load = instruction.operands()[0].on_chip
    mode = instruction.generated_by(machine)
    payload, count, nbytes = _payload(pieces, engine_numbers(machine), instruction.rate_fraction(machine))
    found = _make(mode, payload, nbytes, count, load, machine)
    found.issue_ns = max(found.issue_ns, address_ns(instruction, machine))
    wire = instruction.wire(machine, cores)
    if wire is not None:  # the link works in parallel to the DMA engines, and is listed last
        parts = cores if State.peer in instruction.touches() else 1  # both cores move it
        moved = ((engine, ns / parts) for engine, ns in payload)
        found.mode, found.nbytes, found.issue_ns = RANKS, nbytes // parts, machine.static_trigger_ns
        found.payload_ns = (*moved, (machine.dma_engines, wire.busy_ns * share))
        found.notify_ns += wire.latency_ns
    return found


def _make(
    mode: str, payload: tuple[tuple[int, float], ...], nbytes: int, count: int, load: bool, m: Machine
) -> DmaTransfer:
    issue = {"software": m.swdge_spacing_ns, "hardware": m.hwdge_ns, "static": m.static_trigger_ns}[mode]
    dispatch = m.dma_dispatch_load_ns if load else m.dma_dispatch_store_ns
    if mode == "software" and not load:
        dispatch += m.swdge_wait_ns
    if mode == "hardware":  # the unit makes the descriptors first: 1,330 ns from the trigger in the traces
        dispatch += m.hwdge_ns
    notify = m.dma_notify_load_ns if load else m.dma_notify_store_ns
    return DmaTransfer(mode, issue, dispatch, notify, payload, nbytes, count)


def address_ns(instruction: Any, m: Machine) -> float:
    """Return how long addresses that are read at run time hold a trigger (spec/machine.md 9.3)."""
    views = [view for pair in instruction.transfers() for view in pair if kind(view) is not None]
    rows = sum(view.shape[0] for view in views if kind(view) == "vector")
    return max(m.dma_address_ns, rows * m.swdge_descriptor_ns) if views else 0.0


class EngineNumbers(NamedTuple):
    """The machine numbers that decide how long the DMA engines work on a descriptor."""

    dma_engines: int
    dma_partitions_per_engine: int
    dma_bytes_per_ns: float
    dma_descriptor_ns: float
    dma_min_descriptor_ns: float
    dma_semaphore_ns: float


def engine_numbers(machine: Machine) -> EngineNumbers:
    return EngineNumbers(*(getattr(machine, name) for name in EngineNumbers._fields))


@lru_cache(maxsize=4096)
def _payload(
    pieces: tuple, m: EngineNumbers, fraction: float
) -> tuple[tuple[tuple[int, float], ...], int, int]:
    """Return the time per DMA engine: engine e moves partitions 8e to 8e+7; HBM rows go round robin.

    Each engine ends with a descriptor of its own, which counts a semaphore up.
    """
    work = [0.0] * m.dma_engines
    count = nbytes = 0
    for first, partitions, size, per_partition, joined in pieces:
        share = Counter(
            p // m.dma_partitions_per_engine % m.dma_engines for p in range(first, first + partitions)
        )
        for engine, rows in share.items():
            runs = -(-rows // joined) * per_partition  # the fixed part is paid where HBM addresses jump
            moving = rows * per_partition * size / (m.dma_bytes_per_ns * fraction)
            floor = rows * per_partition * m.dma_min_descriptor_ns
            work[engine] += max(floor, runs * m.dma_descriptor_ns + moving)
        count += partitions * per_partition
        nbytes += partitions * per_partition * size
    return tuple((e, ns + m.dma_semaphore_ns) for e, ns in enumerate(work) if ns), count, nbytes


def _spill(tile: Storage, machine: Machine, load: bool) -> DmaTransfer:
    """Return the transfer of a spilled tile: row by row, at the cost of a store or a load."""
    pieces = ((0, tile.partitions, tile.pitch, 1, 1),)
    payload, count, nbytes = _payload(pieces, engine_numbers(machine), 1.0)
    return _make(machine.dma_default_mode, payload, nbytes, count, load, machine)
