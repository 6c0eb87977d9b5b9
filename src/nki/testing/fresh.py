"""Clear what earlier tests left in this process: programs and random states."""

from __future__ import annotations

from ..backends.reference import random
from ..kernel.cache import programs


def forget() -> None:
    """Clear the cache of programs and reset the random states."""
    programs.clear()
    random.reset()
