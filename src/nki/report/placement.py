"""Where tiles without an address are drawn: side by side, each as long as it is in use."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence


def first_fit(lives: Sequence[tuple[int, int, int, int | None]]) -> list[int]:
    """Return the byte at which each tile begins, given its first step, last step, bytes and chosen address.

    A tile with an address is there for the whole run; the others take the first gap when they are first used.
    """
    found = [0 if address is None else address for *_, address in lives]
    taken = sorted((found[i], found[i] + size) for i, (_, _, size, at) in enumerate(lives) if at is not None)
    ends: list[tuple[int, tuple[int, int]]] = []
    for i in sorted(range(len(lives)), key=lambda i: lives[i][0]):
        first, last, size, address = lives[i]
        if address is not None:
            continue
        while ends and ends[0][0] < first:
            taken.remove(heapq.heappop(ends)[1])
        found[i] = _gap(taken, size)
        part = (found[i], found[i] + size)
        insort(taken, part)
        heapq.heappush(ends, (last, part))
    return found


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the first byte from which `size` bytes are free."""
    reach = 0
    for begin, end in taken:
        if begin - reach >= size:
            break
        reach = max(reach, end)
    return reach
