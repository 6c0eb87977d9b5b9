"""Forgetting what earlier tests left: programs and random states."""

from __future__ import annotations

from ..backends.reference import random
from ..kernel.cache import programs


def forget() -> None:
    """As if nothing had run in this process."""
    programs.clear()
    random.reset()
