"""Replica groups: which ranks take part in a collective, and in which order (spec/collectives.md 1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import NkiError, error
from ..ir.context import running
from ..ir.layout import Int, is_int
from ..ir.parser_values import register_value
from ..launch.world import World, current_world


@register_value("ReplicaGroup")
@dataclass(frozen=True)
class ReplicaGroup:
    """Lists of ranks; each list is a group of its own, its order that of gathers and scatters.

    Members:

    - `groups`: tuple of tuples of ranks, of one length; no rank occurs twice.

    Example:

    ```python
    print(ncc.ReplicaGroup([[0, 1], [2, 3]]).groups)
    ```

    ```output
    ((0, 1), (2, 3))
    ```

    See also: `all_reduce`, `all_gather`.
    """

    groups: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _checked(self.groups))

    @property
    def size(self) -> int:
        """Ranks of each list."""
        return len(self.groups[0])

    def members(self, rank: int) -> tuple[int, ...]:
        """The list with this rank, in its order; empty for a rank that is in none."""
        return next((members for members in self.groups if rank in members), ())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: object) -> Any:
        return self.groups[index]


def _checked(groups: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(groups, (list, tuple)) or not groups:
        raise _wrong(groups, "a group is a list of lists of ranks")
    for members in groups:
        if not isinstance(members, (list, tuple)) or not members:
            raise _wrong(groups, f"{members!r} is not a list of ranks")
        for rank in members:
            if not is_int(rank) or rank < 0:
                raise _wrong(groups, f"{rank!r} is not a rank number")
    ranks = [int(rank) for members in groups for rank in members]
    if len(set(ranks)) != len(ranks):
        raise _wrong(groups, "a rank occurs twice")
    if len({len(members) for members in groups}) != 1:
        raise _wrong(groups, "the lists must have equal lengths")
    return tuple(tuple(int(rank) for rank in members) for members in groups)


def _wrong(groups: object, why: str) -> NkiError:
    return error(
        "replica-group", f"ReplicaGroup({groups!r}): {why}", help="write ReplicaGroup([[0, 1], [2, 3]])"
    )


# What the collectives take for a group: a ReplicaGroup, or the lists of ranks to make one of.
GroupLike: TypeAlias = ReplicaGroup | Sequence[Sequence[Int]]


def as_group(group: object, function: str) -> ReplicaGroup:
    """A ReplicaGroup of ranks that exist."""
    if not isinstance(group, ReplicaGroup):
        group = ReplicaGroup(group)
    check_ranks(function, [rank for members in group for rank in members])
    return group


def world() -> World:
    """The world of the running kernel, or the one a call would belong to."""
    core = running()
    return current_world() if core is None else core.execution.world


def check_ranks(function: str, ranks: list[int]) -> None:
    """All these ranks are in the world."""
    size = world().size
    highest = max(ranks, default=0)
    if highest >= size:
        have = "a kernel called plainly is rank 0 of a world of one" if size == 1 else f"the world has {size}"
        raise error(
            "rank-out-of-world",
            f"{function}: rank {highest} takes part, and there is no such rank",
            notes=[have],
            help=f"nki.ranks.run_ranks(kernel, {highest + 1}, inputs) runs it on {highest + 1} ranks",
        )
