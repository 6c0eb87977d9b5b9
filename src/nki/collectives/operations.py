"""The collectives of fixed sizes (spec/collectives.md 2.1 to 2.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import error
from ..ir.context import warn
from ..ir.instruction import In, Out
from ..ir.layout import Int, is_int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..isa import rules
from ..isa.sync import refuse_overlap
from ..launch.core import issue
from ..machine import dtypes
from ..machine.machine import Machine
from ..machine.memories import SBUF
from ..machine.operators import Operator
from ..typing import OperatorLike
from .groups import GroupLike, ReplicaGroup, as_group, check_ranks
from .instruction import Collective, Received, check_tensors, paired, reading, reduction, writing

EXACT_IN_FLOAT32 = 1 << 24
MAX_CHANNELS = 4  # for a group that holds all ranks of a node


def issue_each(cls: type[Collective], srcs: Any, dsts: Any, *options: object) -> None:
    """Issue one instruction for each pair of the two lists of a call."""
    for dst, src in paired(cls.public, srcs, dsts, several=True):
        issue(cls(dst, src, *options))


# ---- all_reduce ----------------------------------------------------------------------------------


def all_reduce(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: GroupLike,
    op: OperatorLike,
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst = op over the ranks of src."""
    group, op = as_group(replica_group, "all_reduce"), reduction(op, "all_reduce")
    issue_each(AllReduce, srcs, dsts, group, op, priority, name)


class AllReduce(Collective):
    public = "all_reduce"

    dst: Out
    src: In
    replica_group: ReplicaGroup
    op: Operator
    priority: Any

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.equal_shapes("src")

    def traffic(self) -> tuple[float, float, int]:
        n = self.replica_group.size
        return self.src.nbytes, 2 * self.src.nbytes * (n - 1) / n, 2

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        if len(members) == 1:
            self.land(self.dst, received.array(0))
            return
        arrays = [received.array(j) for j in range(len(members))]
        result = received.parts.once("reduced", lambda: reduced(self, arrays, self.op))
        dtypes.store(writing(self.dst), result.reshape(self.dst.shape), self.dst.dtype)


def reduced(ins: Collective, arrays: list[np.ndarray], op: Operator) -> np.ndarray:
    """((a0 op a1) op a2) ... in float32."""
    formula, dtype = op.formula, ins.dst.dtype  # type: ignore[attr-defined]
    assert formula is not None
    values = [dtypes.f32(array, dtype) for array in arrays]
    result = formula(values[0], values[1])
    for value in values[2:]:
        result = (
            formula(result, value, out=result) if isinstance(formula, np.ufunc) else formula(result, value)
        )
    if dtype in ("int32", "uint32") and any(_beyond_float32(a) for a in (*arrays, result)):
        warn("int-precision", f"{ins.public}: integers beyond 2^24 are rounded, it computes in float32")
    return result


# ---- all_gather ----------------------------------------------------------------------------------


def all_gather(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: GroupLike,
    collective_dim: Int,
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst = the ranks' src, one after the other along collective_dim."""
    group = as_group(replica_group, "all_gather")
    issue_each(AllGather, srcs, dsts, group, collective_dim, priority, name)


class AlongDimension(Collective):
    """Parts of a dimension of the operands belong to the members."""

    dst: Out
    src: In
    replica_group: ReplicaGroup
    collective_dim: int
    priority: Any


class AllGather(AlongDimension):
    public = "all_gather"

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.along(self.collective_dim, (0, 1) if self.dst.buffer is SBUF else (0,))
        self.scaled(self.collective_dim, self.replica_group.size, "dst", "src")

    def traffic(self) -> tuple[float, float, int]:
        return self.dst.nbytes, self.src.nbytes * (self.replica_group.size - 1), 1

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        for index, slot in enumerate(chunks(self.dst, self.collective_dim, len(members))):
            self.land(slot, received.array(index))


def chunks(view: View, dim: int, count: int) -> list[View]:
    """Equal parts of a view along a dimension."""
    length = view.shape[dim] // count
    before = (slice(None),) * dim
    keys = [(*before, slice(j * length, (j + 1) * length)) for j in range(count)]
    return [view[key] for key in keys]


# ---- reduce_scatter ------------------------------------------------------------------------------


def reduce_scatter(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: GroupLike,
    collective_dim: Int,
    op: OperatorLike,
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst = this rank's part, along collective_dim, of op over the ranks of src."""
    group, op = as_group(replica_group, "reduce_scatter"), reduction(op, "reduce_scatter")
    issue_each(ReduceScatter, srcs, dsts, group, collective_dim, op, priority, name)


class ReduceScatter(Collective):
    public = "reduce_scatter"

    dst: Out
    src: In
    replica_group: ReplicaGroup
    collective_dim: int
    op: Operator
    priority: Any

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.along(self.collective_dim, (0,))
        self.scaled(self.collective_dim, self.replica_group.size, "src", "dst")

    def traffic(self) -> tuple[float, float, int]:
        return self.src.nbytes, self.dst.nbytes * (self.replica_group.size - 1), 1

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        mine = members.index(rank)
        size = self.dst.size
        arrays = [received.array(j).reshape(-1)[mine * size : (mine + 1) * size] for j in range(len(members))]
        if len(arrays) == 1:
            self.land(self.dst, arrays[0])
        else:
            result = reduced(self, arrays, self.op).reshape(self.dst.shape)
            dtypes.store(writing(self.dst), result, self.dst.dtype)


# ---- all_to_all ----------------------------------------------------------------------------------


def all_to_all(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: GroupLike,
    collective_dim: Int,
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """Part j of dst = this rank's part of rank j's src, along collective_dim."""
    group = as_group(replica_group, "all_to_all")
    issue_each(AllToAll, srcs, dsts, group, collective_dim, priority, name)


class AllToAll(AlongDimension):
    public = "all_to_all"

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.in_hbm("dst", "src")
        self.along(self.collective_dim, (0,))
        self.equal_shapes("src")
        if self.dst.shape[0] % self.replica_group.size:
            raise rules.fail(
                self,
                "shape",
                f"{self.dst.shape[0]} rows are not for {self.replica_group.size} ranks",
                ["dst"],
            )

    def traffic(self) -> tuple[float, float, int]:
        n = self.replica_group.size
        return self.src.nbytes, self.src.nbytes * (n - 1) / n, 1

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        mine = members.index(rank)
        slots = chunks(self.dst, 0, len(members))
        size = slots[0].size
        for index, slot in enumerate(slots):
            self.land(slot, received.array(index).reshape(-1)[mine * size : (mine + 1) * size])


# ---- collective_permute --------------------------------------------------------------------------


def collective_permute(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    source_target_pairs: Sequence[Sequence[Int]],
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst of rank t = src of rank s, for each pair (s, t)."""
    pairs = _as_pairs(source_target_pairs)
    check_ranks("collective_permute", [rank for pair in pairs for rank in pair])
    for dst, src in paired("collective_permute", srcs, dsts):
        if pairs:  # a rank in no pair does not take part
            issue(CollectivePermute(dst, src, pairs, priority, name))


def _as_pairs(pairs: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(pairs, (list, tuple)) or not all(_is_pair(pair) for pair in pairs):
        raise error(
            "replica-group", f"collective_permute: pairs are (source, target) rank numbers, got {pairs!r}"
        )
    for what, ranks in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        if len(set(ranks)) != len(ranks):
            raise error("replica-group", f"collective_permute: a rank is {what} twice in {pairs!r}")
    if {s for s, _ in pairs} != {t for _, t in pairs}:
        warn("permute-not-circular", "collective_permute: the runtime supports circular patterns only")
    return tuple((int(s), int(t)) for s, t in pairs)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and all(is_int(r) and r >= 0 for r in pair)


class CollectivePermute(Collective):
    public = "collective_permute"

    dst: Out
    src: In
    source_target_pairs: tuple[tuple[int, int], ...]
    priority: Any

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.in_hbm("dst", "src")
        self.equal_shapes("src")

    def members(self, rank: int) -> tuple[int, ...]:
        ranks = tuple(sorted({r for pair in self.source_target_pairs for r in pair}))
        return ranks if rank in ranks else ()

    def left_out(self, rank: int) -> None:
        """Do nothing: a rank in no pair does not take part."""

    def groups(self) -> Any:
        return self.source_target_pairs if any(s != t for s, t in self.source_target_pairs) else ((0,),)

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        for source, target in self.source_target_pairs:
            if target == rank:
                self.land(self.dst, received.array(members.index(source)))


# ---- rings ---------------------------------------------------------------------------------------


def collective_permute_implicit(
    srcs_by_channel: Sequence[Sequence[NkiTensor]],
    dsts_by_channel: Sequence[Sequence[NkiTensor]],
    replica_group: GroupLike,
    channel_ids: Sequence[int] = [0],  # noqa: B006  the documented default, never changed
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst = src of the rank before this one in the ring of its group, for every channel."""
    function = "collective_permute_implicit"
    group = as_group(replica_group, function)
    _check_channels(function, channel_ids, srcs_by_channel, dsts_by_channel)
    for channel, srcs, dsts in zip(channel_ids, srcs_by_channel, dsts_by_channel, strict=True):
        for dst, src in paired(function, srcs, dsts):
            issue(CollectivePermuteImplicit(dst, src, group, int(channel), priority, name))


def _check_channels(function: str, channel_ids: object, *lists: object) -> None:
    if not isinstance(channel_ids, (list, tuple)) or list(channel_ids) != list(range(len(channel_ids))):
        raise error("channel", f"{function}: channel_ids must be 0, 1, 2, ..., got {channel_ids!r}")
    for tensors in lists:
        if not isinstance(tensors, (list, tuple)) or any(isinstance(inner, View) for inner in tensors):
            raise error(
                "argument", f"{function}: give a list of tensors for each channel", help="write [[tensor]]"
            )
        if len(tensors) != len(channel_ids):
            raise error(
                "channel", f"{function}: {len(tensors)} lists of tensors for {len(channel_ids)} channels"
            )
    if len(channel_ids) > MAX_CHANNELS:
        warn("channel-limit", f"{function}: {len(channel_ids)} channels, hardware has up to {MAX_CHANNELS}")


class CollectivePermuteImplicit(Collective):
    public = "collective_permute_implicit"

    dst: Out
    src: In
    replica_group: ReplicaGroup
    channel_id: int
    priority: Any

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src")
        self.equal_shapes("src")

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        self.land(self.dst, received.array(members.index(rank) - 1))


def collective_permute_implicit_reduce(
    srcs0_by_channel: Sequence[Sequence[NkiTensor]],
    srcs1_by_channel: Sequence[Sequence[NkiTensor]],
    dsts_by_channel: Sequence[Sequence[NkiTensor]],
    replica_group: GroupLike,
    op: OperatorLike,
    channel_ids: Sequence[int] = [0],  # noqa: B006  the documented default, never changed
    priority: Int | None = None,
    name: str | None = None,
) -> None:
    """dst = op(src0, src1) of the rank before this one in the ring of its group, for every channel."""
    function = "collective_permute_implicit_reduce"
    group, op = as_group(replica_group, function), reduction(op, function)
    _check_channels(function, channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel)
    channels = zip(channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel, strict=True)
    for channel, srcs0, srcs1, dsts in channels:
        check_tensors(function, "srcs1_by_channel", srcs1)
        for (dst, src0), src1 in zip(paired(function, srcs0, dsts), srcs1, strict=True):
            refuse_overlap(function, "collective-overlap", ("srcs1", src1), ("dsts", dst))
            issue(CollectivePermuteImplicitReduce(dst, src0, src1, group, op, int(channel), priority, name))


class CollectivePermuteImplicitReduce(Collective):
    public = "collective_permute_implicit_reduce"

    dst: Out
    src0: In
    src1: In
    replica_group: ReplicaGroup
    op: Operator
    channel_id: int
    priority: Any

    def check(self, machine: Machine) -> None:
        self.check_operands(machine, "src0", "src1")
        self.equal_shapes("src0", "src1")

    def traffic(self) -> tuple[float, float, int]:
        return self.dst.nbytes, self.dst.nbytes, 0

    def transfers(self) -> list[tuple[View, View]]:
        return [(self.dst, self.src0), (self.dst, self.src1)]

    def sources(self, rank: int, members: tuple[int, ...]) -> list[np.ndarray]:
        """op(src0, src1), rounded to what is sent."""
        result = reduced(self, [reading(self.src0), reading(self.src1)], self.op)
        sent = np.empty_like(result, self.dst.dtype.storage)
        dtypes.store(sent, result, self.dst.dtype)
        return [sent]

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        self.land(self.dst, received.array(members.index(rank) - 1))


def _beyond_float32(array: np.ndarray) -> bool:
    return bool((np.abs(array.astype(np.float64)) > EXACT_IN_FLOAT32).any())
