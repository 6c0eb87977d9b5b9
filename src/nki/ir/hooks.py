"""Hooks: what methods of Program and NkiTensor call in packages above `ir`.

`program.run()` or `tile[...] = x` are methods of classes in `ir`, and what they do is written above it. `nki`
sets each hook when it is imported, with a function that imports its package at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .program import Program
    from .tensor import NkiTensor


class Hooks:
    """The functions that packages above `ir` set."""

    run_program: Callable[[Program, Sequence[Any]], Any]
    profile_program: Callable[[Program], Any]
    assign: Callable[[NkiTensor, object], None]  # tile[...] = value
    move_across_partitions: Callable[[Any, Sequence[int]], Any]  # a reshape that needs a copy


hooks = Hooks()
