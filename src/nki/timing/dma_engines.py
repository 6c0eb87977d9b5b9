"""The DMA engines of a core, while it is simulated."""

from __future__ import annotations

from ..machine.machine import Machine
from .timing_rules import deal

DmaWork = tuple[tuple[int, float], ...]  # [(engine, ns)]
ROUNDING = 2.0**-51  # the relative error of a sum of two floats, and as much again


class DmaEngines:
    """When each DMA engine, and the link to other ranks, is free.

    Most transfers give all engines the same work, so that all are free at one time, each its skew later. Then
    the first engine begins first and the last one ends last: only these two are followed, and the others when
    a transfer differs. The results are those of `deal`, bit by bit, since rounding preserves the order.
    """

    def __init__(self, machine: Machine, share: float):
        self.share = share
        self.count = machine.dma_engines
        self.skew = machine.dma_skew_ns
        self.free = [0.0] * (self.count + 1)  # unless they are level
        self.arrival = 0.0  # of the transfer that made them level
        self.equal: list[float] = []  # the work of all engines since then
        self.are_level = False  # all are free at one time, each its skew later
        self.first = self.last = 0.0  # when the first and the last engine are free, if so
        self.sums = 0  # roundings of these times
        self.known: dict[int, tuple[DmaWork, float]] = {}  # by identity of the work: the equal part, or 0

    def move(self, arrival: float, work: DmaWork) -> tuple[float, float]:
        """Return the first begin and the last end of a transfer."""
        known = self.known.get(id(work))
        ns = self._equal_ns(work) if known is None else known[1]
        if ns and self.are_level:
            doubt = self.sums * ROUNDING * self.last
            if arrival + doubt <= self.first:  # all engines are busy
                begin = self.first
                self.first += ns
                self.last += ns
                self.sums += 1
                self.equal.append(ns)
                return begin, self.last
            if arrival - doubt >= self.first:  # all engines are idle
                return self._begin_level(arrival, ns)
        elif ns and arrival >= max(self.free[: self.count]):
            return self._begin_level(arrival, ns)
        self._leave_level()
        return deal(self.free, arrival, work, self.skew, self.share)

    def _begin_level(self, arrival: float, ns: float) -> tuple[float, float]:
        """Begin a transfer on idle engines."""
        self.arrival, self.equal = arrival, [ns]
        self.first = arrival + ns
        self.last = arrival + (self.count - 1) * self.skew + ns
        self.are_level, self.sums = True, 4
        return arrival, self.last

    def _leave_level(self) -> None:
        """Add the work of all engines to each, one transfer after the other, as `deal` does."""
        if self.are_level:
            for engine in range(self.count):
                free = self.arrival + engine * self.skew
                for ns in self.equal:
                    free += ns
                self.free[engine] = free
        self.are_level = False

    def _equal_ns(self, work: DmaWork) -> float:
        """Return the ns of a transfer on each engine if all have the same, else 0."""
        share = {ns / self.share for _, ns in work}
        equal = len(share) == 1 and [engine for engine, _ in work] == [*range(self.count)]
        self.known[id(work)] = (work, share.pop() if equal else 0.0)
        return self.known[id(work)][1]
