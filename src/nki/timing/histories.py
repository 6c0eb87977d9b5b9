"""Histories of the accesses of one memory, which tell what the next one must wait for.

Accesses and boxes are numbered by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.boxes import Box
from ..ir.dependences import RAW, WAR, WAW, AccessHistory, Waits
from .edges import REASON_NUMBERS

FOR_DATA, TO_OVERWRITE, TO_REWRITE = (bytes([REASON_NUMBERS[why]]) for why in (RAW, WAR, WAW))


class WaitRows:
    """Reasons of accesses to wait for others, while they are found one access after the other."""

    def __init__(self) -> None:
        self.producers: list[int] = []
        self.reasons = bytearray()  # indices in REASONS
        self.apart = bytearray()  # whether the two share no byte
        self.ends: list[int] = []  # of the reasons of each access

    def end(self) -> None:
        """End the reasons of an access."""
        self.ends.append(len(self.producers))


class BoxHistory:
    """The accesses of a memory in which boxes are told apart."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes, self.history = boxes, AccessHistory()

    def read(self, number: int, box: int, rows: WaitRows) -> None:
        waits: Waits = {}
        self.history.read(number, self.boxes[box], waits)
        _add(waits, rows)

    def write(self, number: int, box: int, rows: WaitRows) -> None:
        waits: Waits = {}
        self.history.write(number, self.boxes[box], waits)
        _add(waits, rows)


def _add(waits: Waits, rows: WaitRows) -> None:
    rows.producers += waits
    rows.reasons += bytes(map(REASON_NUMBERS.__getitem__, waits.values()))
    rows.apart += bytes(len(waits))


class Overlaps:
    """Which boxes share a byte with one, and which lie in it; all by number."""

    def __init__(self, boxes: Sequence[Box]):
        self._boxes = np.array(boxes, np.int64).reshape(-1, 5)[:, :4].T
        self._known: dict[int, tuple[frozenset[int], frozenset[int]]] = {}

    def of(self, box: int) -> tuple[frozenset[int], frozenset[int]]:
        found = self._known.get(box)
        if found is None:
            first, last, start, stop = self._boxes
            top, bottom, left, right = self._boxes[:, box]
            near = (first < bottom) & (top < last) & (start < right) & (left < stop)
            inside = (top <= first) & (last <= bottom) & (left <= start) & (stop <= right)
            found = self._known[box] = _numbers(near), _numbers(inside)
        return found


def _numbers(chosen: np.ndarray) -> frozenset[int]:
    return frozenset(np.nonzero(chosen)[0].tolist())


class TensorHistory:
    """The accesses of a tensor whose slices a compiler does not tell apart.

    A read waits for every write before it, a write for every read; writes of two slices need no order.
    """

    def __init__(self, overlaps: Overlaps) -> None:
        self.overlaps = overlaps
        self.writes: dict[int, int] = {}  # by box
        self.reads: dict[int, list[int]] = {}
        self.is_written = False  # since the last read

    def read(self, number: int, box: int, rows: WaitRows) -> None:
        near, _ = self.overlaps.of(box)
        rows.producers += self.writes.values()
        rows.reasons += FOR_DATA * len(self.writes)
        rows.apart += bytes([other not in near for other in self.writes])
        if self.is_written:  # this read waits for writes, which waited for the reads before them
            self.reads, self.is_written = {}, False
        self.reads.setdefault(box, []).append(number)

    def write(self, number: int, box: int, rows: WaitRows) -> None:
        near, inside = self.overlaps.of(box)
        for other, readers in self.reads.items():
            rows.producers += readers
            rows.reasons += TO_OVERWRITE * len(readers)
            rows.apart += bytes([other not in near]) * len(readers)
        for other in [other for other in self.writes if other in near]:
            rows.producers.append(self.writes[other])
            rows.reasons += TO_REWRITE
            rows.apart.append(False)
            if other in inside:
                del self.writes[other]
        self.writes[box], self.is_written = number, True
