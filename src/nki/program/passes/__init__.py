"""Passes: pure functions from a Program to a Program that does the same, written on `effects` alone.

    without_dead_code(program)   leaves out instructions whose writes nobody sees
    renamed(program)             gives each overwritten tile a storage of its own
    reordered(program, seed)     one of the orders that the dependences allow

What may change: diagnostics of instructions that are gone or moved, and everything about time.
"""

from .dead_code import without_dead_code
from .dependences import Reason, dependences
from .renaming import renamed
from .reordering import reordered

__all__ = ["Reason", "dependences", "renamed", "reordered", "without_dead_code"]
