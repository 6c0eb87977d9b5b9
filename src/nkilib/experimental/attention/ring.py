"""Shared parts of ring attention: the ring, and which worker's tokens a rank holds at a step."""

from __future__ import annotations

import numpy as np

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups, rank_table


class Ring(nl.NKIObject):
    """The workers of each replica group in order. At step i, worker w holds the data of worker w - i."""

    def __init__(self, replica_groups: ReplicaGroups | None, num_workers: int):
        groups = [list(range(num_workers))] if replica_groups is None else replica_groups
        self.group = ncc.ReplicaGroup(groups)
        self.workers = num_workers
        kernel_assert(
            len(self.group[0]) == num_workers,
            f"num_workers: got {num_workers}, allowed is the size of the groups, {len(self.group[0])}",
        )
        if num_workers > 1:
            self.rank = ncc.rank_id()

    def send_on(self, buffers: list, step: int) -> None:
        """Send every tensor of this step's buffers to the next worker, each on its own channel."""
        here, there = buffers[step % 2], buffers[(step + 1) % 2]
        ncc.collective_permute_implicit(
            by_channel(here), by_channel(there), self.group, channel_ids=list(range(len(here)))
        )

    def offset_at(self, step: int, tokens: int, striped: bool) -> Tensor:
        """Return [1, 1] int32: the position of this worker's first query, relative to the first key it holds.

        Contiguous: (w - w') tokens. Striped: 0, or -1 where the keys come after the queries.
        """
        by_place: list = []
        for place in range(self.workers):
            behind = step > place  # the keys belong to a later worker
            distance = step - self.workers if behind else step
            by_place.append((-1 if behind else 0) if striped else distance * tokens)
        return self.own_entry(by_place)

    def first_key_at(self, step: int, tokens: int) -> Tensor:
        """Return [1, 1] int32: the position of the first key this worker holds, for contiguous tokens."""
        by_place: list = []
        for place in range(self.workers):
            by_place.append((place - step) % self.workers * tokens)
        return self.own_entry(by_place)

    def own_entry(self, by_place: list) -> Tensor:
        """Return this worker's entry of `by_place`, [1, 1] int32 in HBM; the rank is a run-time value."""
        entry = nl.ndarray((1, 1), nl.int32, buffer=nl.private_hbm)
        nisa.dma_copy(entry, rank_table(self.group, by_place)[:, nl.ds(self.rank, 1)])
        return entry


def check_softmax_scale(scale: float | None) -> None:
    kernel_assert(
        scale is None or scale > 0, f"softmax_scale: got {scale}, allowed are None and positive numbers"
    )


class RingBounds(nl.NKIObject):
    """Packed sequences: each of a worker's queries sees keys bound_min <= c < bound_max.

    A key index counts from the start of the whole sequence. For striped tokens, whose sequences begin at
    multiples of num_workers, it counts among the keys of a worker.
    """

    def __init__(self, bound_min: Tensor, bound_max: Tensor, batch: int, heads: int, tokens: int):
        kernel_assert(
            bound_min is not None and bound_max is not None,
            "bound_min, bound_max: got one of them, allowed are both or none",
        )
        self.low = for_heads(bound_min, "bound_min", batch, heads, tokens)
        self.high = for_heads(bound_max, "bound_max", batch, heads, tokens)

    def at(self, ring: Ring, step: int, tokens: int, striped: bool) -> tuple:
        """Return both bounds, [1 or heads, S] in HBM, relative to the first key that this worker holds."""
        if striped or ring.workers == 1:
            return self.low, self.high
        first = ring.first_key_at(step, tokens)
        return shifted(self.low, first), shifted(self.high, first)


def for_heads(bound: Tensor, name: str, batch: int, heads: int, tokens: int) -> Tensor:
    """Return a bound as [1 or b h, S].

    It may come as [b, S], [b h, S], or shared as [1, S], [S] or [S, 1].
    """
    shape, common = tuple(bound.shape), ((1, tokens), (tokens,), (tokens, 1))
    allowed = common + ((batch, tokens), (batch * heads, tokens), (batch, heads, tokens))
    kernel_assert(shape in allowed, f"{name}: got shape {shape}, allowed are {allowed}")
    if shape in common:
        return bound.reshape((1, tokens))
    if bound.size == batch * heads * tokens:
        return bound.reshape((batch * heads, tokens))
    each = nl.ndarray((batch, heads, tokens), bound.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(each, bound.reshape((batch, 1, tokens)).broadcast(1, heads))
    return each.reshape((batch * heads, tokens))


def shifted(bound: Tensor, first: Tensor) -> Tensor:
    """Return bound - first in HBM; `first` is a single number."""
    columns = bound.size // PMAX
    tile = nl.ndarray((PMAX, columns), nl.float32)
    nisa.dma_copy(tile, bound.reshape((PMAX, columns)))
    shift = nl.ndarray((PMAX, 1), nl.float32)
    nisa.dma_copy(shift, first.ap([[0, PMAX], [1, 1]]))
    nisa.tensor_scalar(tile, tile, nl.subtract, shift)
    result = nl.ndarray(bound.shape, nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(result.reshape((PMAX, columns)), tile)
    return result


def by_channel(tensors: list) -> list:
    """Return one list for each tensor: one channel each."""
    found = []
    for tensor in tensors:
        found.append([tensor])
    return found


def copy_rows(dst: Tensor, src: Tensor) -> None:
    """Copy src to dst, [n, rows, columns]; each core copies its share of the rows."""
    count = src.shape[0] * src.shape[1]
    first, end = program_share(count)
    rows = (count, src.shape[2])
    if first < end:
        nisa.dma_copy(dst.reshape(rows)[first:end], src.reshape(rows)[first:end])


def visible_scores_ref(
    q: np.ndarray,
    k: np.ndarray,
    scale: float,
    causal: bool,
    bound_min: np.ndarray | None,
    bound_max: np.ndarray | None,
) -> np.ndarray:
    """Return scale q k^T of [b, h, S, d], -inf where a query does not see a key; bounds are [b, S]."""
    scores = scale * q @ k.swapaxes(2, 3)
    if causal:
        scores = np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf)
    if bound_min is not None and bound_max is not None:
        key, low, high = np.arange(q.shape[2]), bound_min[:, None, :, None], bound_max[:, None, :, None]
        scores = np.where((low <= key) & (key < high), scores, -np.inf)
    return scores
