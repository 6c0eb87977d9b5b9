"""Forgetting what earlier tests left: programs and random states."""

from __future__ import annotations

from ..call.cache import programs
from ..execute import random


def forget() -> None:
    """As if nothing had run in this process."""
    programs.clear()
    random.reset()
