"""Hooks: what methods of Program and NkiTensor call in packages above `ir`.

`program.run()` or `tile[...] = x` are methods of classes in `ir`, and what they do is written above it. `nki`
sets each hook when it is imported, with a function that imports its package at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Hooks:
    """The functions that packages above `ir` set."""

    run_program: Callable[[Any, Sequence[Any]], Any]
    profile_program: Callable[[Any], Any]
    assign: Callable[[Any, object], None]  # tile[...] = value
    is_language_function: Callable[[str], bool]  # whether nl has a function of this name
    move_across_partitions: Callable[[Any, Sequence[int]], Any]  # a reshape that needs a copy


hooks = Hooks()
