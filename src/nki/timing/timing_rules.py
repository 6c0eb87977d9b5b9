"""The timing rules: when an operation may begin, how long it holds its engine, when its result is visible.

Pure functions of machine numbers (spec/machine.md 4, 5, 9). The simulation and the replay share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..ir.dependences import RAW, WAR, WAW
from ..ir.instruction import InstructionCost
from ..machine.machine import Machine
from .operation import ORDER, SPACE, TRANSFERS

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
RIVALS = {"vector": ("gpsimd", "scalar"), "gpsimd": ("vector",), "scalar": ("vector",)}  # on a shared port

BEGUN, FREE, DONE, SEEN = range(4)  # moments of an operation; SEEN: its own engine can use the result


def releases(producer_is_dma: bool, same_engine: bool, why: str) -> int:
    """Return the moment of a producer from which it no longer blocks a consumer.

    An engine tells others that it is done, never that it has read its operands: in device traces every
    semaphore is set "@complete", and a matmul overwrites a bank 53 to 57 ns after the bar of its last reader.
    """
    if producer_is_dma:
        return BEGUN if why == ORDER else DONE
    if same_engine:
        return SEEN if why == RAW else FREE
    return DONE


def latency(machine: Machine, moment: int, producer_is_dma: bool, same_engine: bool, to_dma: bool) -> float:
    """Return ns from that moment to the consumer's start."""
    if producer_is_dma:
        return 0.0  # the notification is part of its own time
    if same_engine:
        return machine.same_engine_gap_ns if moment == SEEN else 0.0
    return machine.compute_to_dma_ns if to_dma else machine.semaphore_ns


REASONS = (RAW, WAR, WAW, SPACE, ORDER)
KINDS = (*ENGINES, "dma")  # what the number of a kind of operation stands for
DMA = len(ENGINES)
KIND_NUMBERS = {**{name: number for number, name in enumerate(KINDS)}, **dict.fromkeys(TRANSFERS, DMA)}


def release_moments() -> list[list[dict[str, int]]]:
    """Return the moment of a producer that a consumer waits for, by numbers of kinds and by reason."""
    numbers = range(len(KINDS))
    return [[{why: releases(p == DMA, p == c, why) for why in REASONS} for c in numbers] for p in numbers]


def done_waits(machine: Machine) -> list[list[float]]:
    """Return ns from the moment a producer is done to a consumer's start; by the numbers of their kinds.

    They are the same for all reasons to wait.
    """
    moments = (DONE, SEEN)
    found: list[list[float]] = []
    for p, row in enumerate(release_moments()):
        found.append([])
        for c, by_reason in enumerate(row):
            seen = {m for m in by_reason.values() if m in moments}
            (wait,) = {latency(machine, m, p == DMA, p == c, c == DMA) for m in seen}
            found[-1].append(wait)
    return found


def service_times(cost: InstructionCost, cycles: float, clock: float, slow: float) -> tuple[float, float]:
    """Return how long an engine works on `cycles` cycles, and how long until it takes the next one."""
    service = slow * cycles / clock
    return service, max(service + cost.gap / clock, cost.shortest / clock)


def deal(
    free: list[float], arrival: float, payload: Sequence[tuple[int, float]], skew: float, share: float = 1.0
) -> tuple[float, float]:
    """Return the first begin and the last end of a transfer; each DMA engine works in order of arrival."""
    first, last = inf, arrival
    for engine, ns in payload:
        begin = arrival + engine * skew
        if begin < free[engine]:
            begin = free[engine]
        if begin < first:
            first = begin
        free[engine] = finish = begin + ns / share
        if finish > last:
            last = finish
    return first if payload else arrival, last


class Activity:
    """The clock of the PE array: full after a window with enough work, else half (spec/machine.md 5.3).

    Work is what the array did as a part of what it can do in a window at the full rate, rows of the array
    included. Matmuls come in the order of their starts; one has the rate of the window it starts in.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.is_ruled, self.window_ns = machine.half_rate_rule, machine.half_rate_window_ns
        self.window = 0  # number of the current one
        self.border = self.window_ns  # when it ends
        self.work = [0.0, 0.0]  # ns at the full rate in this window and in the next
        self.is_full = False

    def slowdown(self, now: float) -> float:
        """Return by how much a matmul that starts now is slower than at the full rate."""
        if not self.is_ruled:
            return 1.0
        window = int(now // self.window_ns)
        if window > self.window:
            self._advance(window)
        return 1.0 if self.is_full else self.machine.half_rate_slowdown

    def _advance(self, window: int) -> None:
        for _ in range(min(window - self.window, 3)):  # three windows later all of this is forgotten
            self.is_full = self.work[0] >= self.machine.half_rate_threshold * self.machine.half_rate_window_ns
            self.work = [self.work[1], 0.0]
        self.window, self.border = window, (window + 1) * self.window_ns

    def add(self, start: float, end: float, rows: int, slow: float) -> None:
        """Record the work of a matmul that `slowdown` was asked for."""
        if self.is_ruled and end > start:
            work = (end - start) * rows / self.machine.partitions / slow
            if end <= self.border:
                self.work[0] += work
                return
            later = min(1.0, (end - self.border) / (end - start))
            self.work[0] += work * (1 - later)
            self.work[1] += work * later
