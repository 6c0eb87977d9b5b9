"""The puzzles of `nki puzzles` as tasks: `nki grade puzzle-4 submissions/`."""

from ..puzzles.tasks import TASKS

__all__ = ["TASKS"]
