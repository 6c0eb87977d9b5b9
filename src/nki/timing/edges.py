"""Who waits for whom: the waits of all operations of a core as arrays, and the users of each moment."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .timing_rules import BEGUN, DMA, FREE, RAW, REASONS, SPACE, release_moments

REASON_NUMBERS = {why: number for number, why in enumerate(REASONS)}


class Edges(NamedTuple):
    """The waits of operations, one element for each, in the order of the operations that wait."""

    producer: np.ndarray
    user: np.ndarray
    why: np.ndarray  # index in REASONS

    def with_space(self, found: Sequence[tuple[int, int]]) -> Edges:
        """Return the edges, and after them those of operations that wait for space that others free."""
        users, producers = np.array(found, np.int32).reshape(-1, 2).T
        reasons = np.full(len(found), REASON_NUMBERS[SPACE], np.int8)
        return Edges(*map(np.append, self, (producers, users, reasons)))

    def reasons(self, users: np.ndarray, producers: np.ndarray) -> np.ndarray:
        """Return why each of these users waits for its producer, as an index in REASONS, or -1."""
        keys, wanted = (
            u.astype(np.int64) << 32 | p for u, p in ((self.user, self.producer), (users, producers))
        )
        order = np.argsort(keys, kind="stable")  # of several reasons, the first
        at = np.searchsorted(keys[order], wanted)
        found, why = np.append(keys[order], -1)[at], np.append(self.why[order], -1)[at]
        return np.where(found == wanted, why, -1)

    def changed(self, dropped: Mapping[int, Collection[int]], instead: Mapping[int, int]) -> Edges:
        """Return the edges without some waits of users; those in `instead` wait for another result only."""
        if not (dropped or instead):
            return self
        keep = np.ones(len(self.user), bool)
        first = np.searchsorted(self.user, [*dropped, *instead]).tolist()
        last = np.searchsorted(self.user, [*dropped, *instead], "right").tolist()
        for others, begin, end in zip(dropped.values(), first, last, strict=False):
            keep[begin:end] = [other not in others for other in self.producer[begin:end].tolist()]
        for begin, end in zip(first[len(dropped) :], last[len(dropped) :], strict=True):
            keep[begin:end] = False
        users, producers = np.array([*instead], np.int32), np.array([*instead.values()], np.int32)
        reasons = np.full(len(instead), REASON_NUMBERS[RAW], np.int8)
        added = (producers, users, reasons)
        joined = [np.concatenate([old[keep], new]) for old, new in zip(self, added, strict=True)]
        order = np.argsort(joined[1], kind="stable")
        return Edges(*(column[order] for column in joined))


def moments_of(kinds: np.ndarray, producer: np.ndarray, user: np.ndarray, why: np.ndarray) -> np.ndarray:
    """Return the moment of its producer that each edge waits for, given the kinds of all operations."""
    table = np.array([[list(by_reason.values()) for by_reason in row] for row in release_moments()])
    return table[kinds[producer], kinds[user], why]


class MomentUsers(NamedTuple):
    """The operations that wait for one moment of each, in program order.

    Those of operation i are users[first[i] : first[i + 1]].
    """

    first: Sequence[int]
    users: Sequence[int]

    def of(self, index: int) -> Sequence[int]:
        return self.users[self.first[index] : self.first[index + 1]]


def moment_users(producer: np.ndarray, user: np.ndarray, size: int) -> MomentUsers:
    """Return the users of one moment of so many operations."""
    order = np.argsort(producer, kind="stable")
    counts = np.bincount(producer, minlength=size)
    columns = np.concatenate([[0], np.cumsum(counts)]), user[order]
    return MomentUsers(*(array("i", column.astype(np.intc).tobytes()) for column in columns))


class Users:
    """The operations that wait for each one, by the moment they wait for."""

    def __init__(self, edges: Edges, kinds: bytearray):
        size, numbers = len(kinds), np.frombuffer(kinds, np.uint8)
        producers, users, _ = edges
        moment = moments_of(numbers, *edges)
        begun, free = moment == BEGUN, moment == FREE
        seen = ~(begun | free)
        self.of_begin = moment_users(producers[begun], users[begun], size)
        self.of_engine = moment_users(producers[free], users[free], size)
        self.of_result = moment_users(producers[seen], users[seen], size)


def priorities(edges: Edges, kinds: bytearray) -> array[int]:
    """Return priorities: program order; a transfer has that of the first one that waits for it."""
    is_dma = np.frombuffer(kinds, np.uint8) == DMA
    found = np.arange(len(kinds), dtype=np.intc)
    from_dma = is_dma[edges.producer]
    producers, users = edges.producer[from_dma], edges.user[from_dma]
    found[producers] = len(kinds)
    to_dma = is_dma[users]
    np.minimum.at(found, producers[~to_dma], users[~to_dma])
    result = array("i", found.tobytes())
    order = np.argsort(-producers[to_dma], kind="stable")  # a user that is a transfer comes before
    for producer, user in zip(producers[to_dma][order].tolist(), users[to_dma][order].tolist(), strict=True):
        first = result[user] if user > producer else user
        if first < result[producer]:
            result[producer] = first
    return result
