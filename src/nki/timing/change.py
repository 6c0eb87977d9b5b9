"""A change to a modelled run, as a what-if asks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..machine.engines import engine

Payload = float | list[tuple[int, float]]  # ns, equal on all DMA engines, or [(engine, ns)]


@dataclass(frozen=True)
class Change:
    """What is different in a what-if. Operations are numbered over all cores."""

    removed: Mapping[int, int] = field(default_factory=dict)  # -> its substitute, or itself
    work: Mapping[int, float] = field(default_factory=dict)  # -> factor of its work on the engine
    tables: Mapping[int, float] = field(default_factory=dict)  # -> ns of the table load before it
    issue: Mapping[int, float] = field(default_factory=dict)  # -> ns for which the trigger is held
    payload: Mapping[int, Payload] = field(default_factory=dict)  # -> work of the DMA engines
    dropped: Mapping[int, Collection[int]] = field(default_factory=dict)  # -> waits that it drops
    on: Mapping[int, engine] = field(default_factory=dict)  # -> the engine that runs it; needs a new order

    def __or__(self, other: Change) -> Change:
        """Return both changes; the other one takes precedence."""
        return Change(
            *({**mine, **theirs} for mine, theirs in zip(self.fields(), other.fields(), strict=True))
        )

    def fields(self) -> list[Mapping[int, Any]]:
        return [getattr(self, one.name) for one in fields(self)]
