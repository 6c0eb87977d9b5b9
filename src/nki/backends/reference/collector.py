"""Python's cycle collector, while kernels run.

A kernel makes many small objects that live as long as its program is recorded, and next to no cycles:
tiles are freed by reference counts. Walking all of them again and again took a tenth of the time; and of a
profile, where all that is made stays, even walking each of them once does.
"""

from __future__ import annotations

import gc
from typing import ClassVar

from .settings import WhileKernelsRun

YOUNG = 200_000  # new objects between two collections, instead of Python's 700


class fewer_collections(WhileKernelsRun):
    """Context: cycles are looked for less often while any kernel runs."""

    before: ClassVar[tuple[int, int, int]]

    @classmethod
    def begin(cls) -> None:
        cls.before = gc.get_threshold()
        if 0 < cls.before[0] < YOUNG:  # 0: somebody switched it off
            gc.set_threshold(YOUNG, *cls.before[1:])

    @classmethod
    def end(cls) -> None:
        if gc.get_threshold()[0] == YOUNG:  # else somebody chose another meanwhile
            gc.set_threshold(*cls.before)


class no_collections(WhileKernelsRun):
    """Context: cycles are not looked for while any kernel is profiled.

    What was made meanwhile is old at once: the next look at all there is will find it, none before.
    """

    before: ClassVar[bool]

    @classmethod
    def begin(cls) -> None:
        cls.before = gc.isenabled()
        gc.disable()

    @classmethod
    def end(cls) -> None:
        if gc.get_freeze_count() == 0:  # else somebody wants things frozen
            gc.freeze()
            gc.unfreeze()
        if cls.before:
            gc.enable()
