"""Ranks that share the caches of the attention block of decode, by sequences (KVDP) or by keys (CP).

Every rank projects all tokens with the weights of its own N heads. Each rank then attends to its own keys for
the heads of all ranks, and receives the results of its own heads.
"""

from __future__ import annotations

import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.projection_results import store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.collectives.rings import named_tensor, rank_table
from nkilib.experimental.transformer.attention_block_parameters import BlockSizes, RankShare
from nkilib.experimental.transformer.attention_block_tkg_sharding import CPCollectiveMode, KVDPCollectiveMode

LARGEST_EXPONENT = 80.0  # e^80 is finite, and every sum of probabilities is negligible compared to it
SMALLEST_SUM = 1.0e-30


class Sharing(nl.NKIObject):
    """The ranks of a group and their share of the caches: some sequences, or some keys of all sequences."""

    def __init__(self, kvdp: RankShare, cp: RankShare, n_prgs: int, core: int):
        self.by_batch = kvdp.ranks > 1
        share = kvdp if self.by_batch else cp
        self.ranks = share.ranks
        self.mode = share.mode
        self.given_place = share.place
        name = "KVDP" if self.by_batch else "CP"
        kernel_assert(
            kvdp.ranks == 1 or cp.ranks == 1,
            f"KVDP, CP: got {kvdp.ranks} and {cp.ranks}, one of the two must be 1",
        )
        kernel_assert(
            share.groups is not None, f"{name}_replica_group: got None, needed by {name}={self.ranks}"
        )
        self.group = ncc.ReplicaGroup(share.groups)
        kernel_assert(
            len(self.group[0]) == self.ranks,
            f"{name}: got {self.ranks}, allowed is the size of the replica groups, {len(self.group[0])}",
        )
        self.n_prgs = n_prgs
        self.core = core
        self.place: Tensor | None = None  # [1, 1] int32 in SBUF: the number of this rank in its group

    def find_place(self) -> Tensor:
        """Load the rank's index in its group from a tensor, or look it up by the rank's global number."""
        if self.place is None:
            self.place = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
            if self.given_place is not None:
                nisa.dma_copy(self.place, self.given_place.reshape((1, 1)).view(nl.int32))
            else:
                table = rank_table(self.group, list(range(self.ranks)))
                nisa.dma_copy(self.place, table[:, nl.ds(ncc.rank_id(), 1)])
        return self.place

    def attended_here(self, n: BlockSizes) -> BlockSizes:
        """Return the sizes of attention on one rank: the heads of all ranks, and its own batches."""
        kernel_assert(
            not self.by_batch or n.batch % self.ranks == 0,
            f"KVDP: got {self.ranks} ranks for a batch of {n.batch}, allowed are divisors of it",
        )
        batch = n.batch // self.ranks if self.by_batch else n.batch
        return BlockSizes(batch, n.active, n.heads * self.ranks, n.depth, n.window, n.room, n.block_len)

    # ---- sequences over ranks ----------------------------------------------------------------------

    def own_rows(self, tiles: list, count: int) -> list:
        """Return the `count` rows of this rank's sequences from rows of all tokens, tiles [<= 128, d]."""
        depth, total = tiles[0].shape[1], count * self.ranks
        stored = nl.ndarray((total, depth), tiles[0].dtype, buffer=nl.private_hbm)
        store_rows(stored, tiles, 0, 0, 0, depth)
        by_rank = stored.reshape((self.ranks, count, depth))
        found: list = []
        for part in TiledRange(count, PMAX):
            rows = nl.ndarray((part.size, depth), tiles[0].dtype, buffer=nl.sbuf)
            mine = by_rank.ap(
                [[depth, part.size], [1, depth]],
                offset=part.start_offset * depth,
                scalar_offset=self.find_place(),
                indirect_dim=0,
            )
            nisa.dma_copy(rows, mine)
            found.append(rows)
        return found

    def queries_of_batches(self, q: Tensor, inner: BlockSizes) -> Tensor:
        """Exchange queries of own heads, [d, B, N, S], for all heads of own sequences.

        The result is [d, B / ranks, N ranks, S].
        """
        batch, heads, active = inner.batch, inner.heads // self.ranks, inner.active
        came = self.swapped(q.reshape((inner.depth, self.ranks, batch * heads * active)), "queries")
        found = nl.ndarray((inner.depth, batch, self.ranks, heads, active), q.dtype, buffer=nl.sbuf)
        by_rank = came.reshape_dim(2, (batch, heads, active))
        nisa.tensor_copy(found, by_rank.permute((0, 2, 1, 3, 4)))
        return found.reshape((inner.depth, batch, inner.heads, active))

    def results_of_batches(self, attended: Tensor, inner: BlockSizes) -> Tensor:
        """Exchange all heads of its own sequences for own heads of all, [d, B, N, S]."""
        batch, heads, active = inner.batch, inner.heads // self.ranks, inner.active
        columns = batch * heads * active
        by_rank = by_owner(attended, self.ranks)
        came = self.swapped(by_rank.reshape((inner.depth, self.ranks, columns)), "results")
        return came.reshape((inner.depth, batch * self.ranks, heads, active))

    def swapped(self, parts: Tensor, name: str) -> Tensor:
        """Exchange parts [d, ranks, columns]: part j of rank i becomes part i of rank j."""
        depth, ranks, columns = parts.shape
        came = nl.ndarray((depth, ranks, columns), parts.dtype, buffer=nl.sbuf)
        if self.mode == KVDPCollectiveMode.ALL_GATHER_SLICE:
            mine = named_tensor((depth, ranks, columns), parts.dtype, f"kvdp_{name}")
            everything = named_tensor((ranks * depth, ranks, columns), parts.dtype, f"kvdp_all_{name}")
            if self.core == 0:
                nisa.dma_copy(mine, parts)
            ncc.all_gather([mine], [everything], self.group, 0)
            row = ranks * columns
            own = everything.ap(
                [[row, depth], [depth * row, ranks], [1, columns]],
                scalar_offset=self.find_place(),
                indirect_dim=1,
            )
            nisa.dma_copy(came, own)
            return came
        sent = named_tensor((ranks, depth, columns), parts.dtype, f"kvdp_{name}_sent")
        arrived = named_tensor((ranks, depth, columns), parts.dtype, f"kvdp_{name}_arrived")
        if self.core == 0:
            nisa.dma_copy(sent.permute((1, 0, 2)), parts)
        ncc.all_to_all([sent], [arrived], self.group, 0)
        nisa.dma_copy(came, arrived.permute((1, 0, 2)))
        return came

    def gathered_sinks(self, sink: Tensor | None, heads: int) -> Tensor | None:
        """Gather the sinks of all heads, [N ranks, 1]; return them unchanged if they are complete."""
        if sink is None or sink.shape[0] != heads:
            return sink
        mine = named_tensor((heads, 1), sink.dtype, "kvdp_sinks")
        gathered = named_tensor((heads * self.ranks, 1), sink.dtype, "kvdp_all_sinks")
        if self.core == 0:
            nisa.dma_copy(mine, sink)
        ncc.all_gather([mine], [gathered], self.group, 0)
        return gathered

    # ---- keys over ranks ---------------------------------------------------------------------------

    def queries_of_all(self, q: Tensor, inner: BlockSizes) -> Tensor:
        """Gather [d, B, N, S] of this rank's heads as [d, B, N ranks, S] of all."""
        batch, heads, active = inner.batch, inner.heads // self.ranks, inner.active
        columns = batch * heads * active
        came = nl.ndarray((inner.depth, self.ranks * columns), q.dtype, buffer=nl.sbuf)
        ncc.all_gather([q.reshape((inner.depth, columns))], [came], self.group, 1)
        found = nl.ndarray((inner.depth, batch, self.ranks, heads, active), q.dtype, buffer=nl.sbuf)
        by_rank = came.reshape_dim(1, (self.ranks, batch, heads, active))
        nisa.tensor_copy(found, by_rank.permute((0, 2, 1, 3, 4)))
        return found.reshape((inner.depth, batch, inner.heads, active))

    def joined(self, part: Partial, inner: BlockSizes, sink: Tensor | None, dtype: DTypeLike) -> Tensor:
        """Return the combined result of all ranks for this rank's heads, [d, B, N, S]."""
        if self.mode == CPCollectiveMode.REDUCE_SCATTER:
            found = self.summed(part, inner, sink is not None)
        else:
            found = self.merged(part, inner)
        heads = inner.heads // self.ranks
        out = nl.ndarray((inner.depth, inner.batch, heads, inner.active), dtype, buffer=nl.sbuf)
        normalise(out, found[0], found[1], found[2], sink)
        return out

    def merged(self, part: Partial, inner: BlockSizes) -> tuple:
        """Return (results, sums, -maxima) of this rank's heads, merged from the parts of all ranks."""
        depth, columns = inner.depth, inner.tokens() * inner.heads // self.ranks
        shape = (self.ranks, depth + 2, inner.batch, inner.heads // self.ranks, inner.active)
        sent, arrived = (
            named_tensor(shape, nl.float32, "cp_sent"),
            named_tensor(shape, nl.float32, "cp_arrived"),
        )
        if part.batches > 0:
            part.store(sent, 0, depth, part.out, self.ranks)
            part.store(sent, depth, 1, part.sums, self.ranks)
            part.store(sent, depth + 1, 1, part.neg_max, self.ranks)
        ncc.all_to_all([sent], [arrived], self.group, 0)
        rows = arrived.reshape((self.ranks, depth + 2, columns))
        out = nl.ndarray((depth, self.ranks, columns), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(out, rows[:, 0:depth, :].permute((1, 0, 2)))
        sums, neg_max = in_every_partition(rows, depth, depth), in_every_partition(rows, depth + 1, depth)
        least = nl.ndarray((depth, columns), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(least, nl.minimum, neg_max.permute((0, 2, 1)), axis=2)
        nisa.tensor_tensor(neg_max, least.expand_dim(1).broadcast(1, self.ranks), neg_max, nl.subtract)
        nisa.activation(neg_max, nl.exp, neg_max)
        found = []
        for values in (out, sums):
            total = nl.ndarray((depth, columns), nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(values, values, neg_max, nl.multiply)
            nisa.tensor_reduce(total, nl.add, values.permute((0, 2, 1)), axis=2)
            found.append(total)
        return found[0], found[1], least

    def summed(self, part: Partial, inner: BlockSizes, keep_maxima: bool) -> tuple:
        """Compute the same by scaling parts to the common maxima before a reduce-scatter."""
        depth, columns = inner.depth, inner.tokens() * inner.heads // self.ranks
        least = nl.ndarray(part.neg_max.shape, nl.float32, buffer=nl.sbuf)
        ncc.all_reduce([part.neg_max], [least], self.group, nl.minimum)
        factor = nl.ndarray(least.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(factor, least, part.neg_max, nl.subtract)
        nisa.activation(factor, nl.exp, factor)
        heads = inner.heads // self.ranks
        shape = (self.ranks, depth + 1, inner.batch, heads, inner.active)
        sent = named_tensor(shape, nl.float32, "cp_sent")
        arrived = named_tensor((1,) + shape[1:], nl.float32, "cp_arrived")
        maxima = named_tensor((self.ranks, 1) + shape[2:], nl.float32, "cp_maxima")
        if part.batches > 0:
            scaled = nl.ndarray(factor.shape, nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(scaled, part.out, factor, nl.multiply)
            part.store(sent, 0, depth, scaled, self.ranks)
            nisa.tensor_tensor(factor, part.sums, factor, nl.multiply)
            part.store(sent, depth, 1, factor, self.ranks)
            if keep_maxima:
                part.store(maxima, 0, 1, least, self.ranks)
        ncc.reduce_scatter([sent], [arrived], self.group, 0, nl.add)
        rows = arrived.reshape((1, depth + 1, columns))
        out = nl.ndarray((depth, columns), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(out, rows[0, 0:depth])
        sums = in_every_partition(rows, depth, depth).reshape((depth, columns))
        own = None
        if keep_maxima:
            own = nl.ndarray((depth, columns), nl.float32, buffer=nl.sbuf)
            place = self.find_place()
            by_rank = maxima.reshape((self.ranks, columns))
            nisa.dma_copy(own, by_rank.ap([[0, depth], [1, columns]], scalar_offset=place, indirect_dim=0))
        return out, sums, own


class Partial(nl.NKIObject):
    """Attention over the keys of one rank, not normalised, for the batches that this core reports."""

    def __init__(self, out: Tensor, statistics: dict, inner: BlockSizes, core: int):
        width = inner.heads * inner.active
        columns_here = statistics["sum"].shape[1]  # the columns of this core's batches; out has all
        self.sums = statistics["sum"]
        self.neg_max = statistics["neg_max"]
        split = columns_here < inner.batch * width
        self.first = core * columns_here // width if split else 0
        self.batches = columns_here // width if split or core == 0 else 0  # else the other core has the same
        columns = out.reshape((inner.depth, inner.batch * width))
        self.out = columns[:, self.first * width : self.first * width + columns_here]
        self.heads = inner.heads
        self.active = inner.active

    def store(self, place: Tensor, row: int, rows: int, columns: Tensor, ranks: int) -> None:
        """Store partitions 0 ... of columns [d, B, N ranks, S] to rows of place [ranks, rows, B, N, S]."""
        by_batch = columns[0:rows].reshape_dim(1, (self.batches, self.heads, self.active))
        by_rank = by_owner(by_batch, ranks)
        last = self.first + self.batches
        target = place[:, row : row + rows, self.first : last].permute((1, 0, 2, 3, 4))
        nisa.dma_copy(target, by_rank)


def by_owner(x: Tensor, ranks: int) -> Tensor:
    """Return [d, B, N ranks, S] as [d, ranks, B, N, S]."""
    depth, batch, heads, active = x.shape
    found = nl.ndarray((depth, ranks, batch, heads // ranks, active), x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(found, x.reshape_dim(2, (ranks, heads // ranks)).permute((0, 2, 1, 3, 4)))
    return found


def in_every_partition(rows: Tensor, row: int, partitions: int) -> Tensor:
    """Return one row of each rank, of [ranks, rows, columns], as [partitions, ranks, columns]."""
    ranks, height, columns = rows.shape
    tile = nl.ndarray((partitions, ranks, columns), rows.dtype, buffer=nl.sbuf)
    pattern = [[0, partitions], [height * columns, ranks], [1, columns]]
    nisa.dma_copy(tile, rows.ap(pattern, offset=row * columns))
    return tile


def normalise(
    out: Tensor, results: Tensor, sums: Tensor, neg_max: Tensor | None, sink: Tensor | None
) -> None:
    """out [d, B, N, S] = results / (sums + e^(sink - maximum)); sink [N, 1] in HBM, or None."""
    depth, batch, heads, active = out.shape
    by_head = (batch, heads, active)
    if sink is not None and neg_max is not None:
        logits = nl.ndarray((depth, heads), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(logits, sink.ap([[0, depth], [1, heads]]))
        spread = logits.expand_dim(1).broadcast(1, batch).expand_dim(3).broadcast(3, active)
        more = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(more.reshape_dim(1, by_head), spread, neg_max.reshape_dim(1, by_head), nl.add)
        nisa.tensor_scalar(more, more, nl.minimum, LARGEST_EXPONENT)
        nisa.activation(more, nl.exp, more)
        nisa.tensor_tensor(sums, sums, more, nl.add)
    factor = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(factor, sums, nl.maximum, SMALLEST_SUM)
    nisa.reciprocal(factor, factor)
    nisa.tensor_tensor(out, results.reshape_dim(1, by_head), factor.reshape_dim(1, by_head), op=nl.multiply)
