"""Replica groups: which ranks take part in a collective, and in which order (collectives.md 1.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import NkiError, error
from ..program.reading import register_value
from ..tensors import is_int

RANK = 0  # a plain call is a world of one


@register_value("ReplicaGroup")
@dataclass(frozen=True)
class ReplicaGroup:
    """Lists of ranks; each list is a group of its own, its order that of gathers and scatters."""

    groups: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _checked(self.groups))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: Any) -> Any:
        return self.groups[index]


def _checked(groups: Any) -> tuple[tuple[int, ...], ...]:
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


def _wrong(groups: Any, why: str) -> NkiError:
    return error(
        "replica-group", f"ReplicaGroup({groups!r}): {why}", help="write ReplicaGroup([[0, 1], [2, 3]])"
    )


def as_group(group: Any, function: str) -> ReplicaGroup:
    """A ReplicaGroup of ranks that exist: today the one of a plain call."""
    if not isinstance(group, ReplicaGroup):
        group = ReplicaGroup(group)
    check_ranks(function, [rank for members in group for rank in members])
    return group


def check_ranks(function: str, ranks: list[int]) -> None:
    others = sorted(rank for rank in ranks if rank != RANK)
    if others:
        raise error(
            "not-implemented-yet",
            f"{function}: rank {others[0]} takes part, and only one rank is simulated yet",
            notes=["a kernel called plainly runs as rank 0 of a world of one"],
            help="pass ReplicaGroup([[0]])",
        )
