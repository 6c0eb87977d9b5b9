"""The advisor: what holds a kernel back, and what a change would gain."""

from __future__ import annotations

from dataclasses import dataclass

from .timeline import Timeline


@dataclass(frozen=True)
class Finding:
    """One thing to change, in plain words."""

    kind: str  # a stable name
    title: str
    detail: str
    lines: tuple[str, ...]  # `kernels.py:72`
    gain_us: float  # of the kernel's time


def advise(timeline: Timeline) -> list[Finding]:
    """Findings about a timeline, most expensive first."""
    return []
