"""Python's cycle collector, while kernels run.

A kernel makes many small objects that live as long as its program is recorded, and next to no cycles:
tiles are freed by reference counts. Repeated collections took a tenth of the time; where all objects stay
alive, in a trace, a plan and a profile, even one collection does.
"""

from __future__ import annotations

import gc

from .settings import WhileKernelsRun

YOUNG = 200_000  # new objects between two collections, instead of Python's 700


class fewer_collections(WhileKernelsRun):
    """Context: the collector runs less often while any kernel runs."""

    @classmethod
    def present(cls) -> tuple[int, int, int]:
        return gc.get_threshold()

    @classmethod
    def change(cls, before: tuple[int, int, int]) -> None:
        if 0 < before[0] < YOUNG:  # 0: it is disabled
            gc.set_threshold(YOUNG, *before[1:])

    @classmethod
    def restore(cls, before: tuple[int, int, int]) -> None:
        if gc.get_threshold()[0] == YOUNG:  # else it was changed meanwhile
            gc.set_threshold(*before)


class no_collections(WhileKernelsRun):
    """Context: the collector does not run while any kernel is traced, planned or profiled.

    New objects go to the oldest generation at once: only a full collection visits them.
    """

    @classmethod
    def present(cls) -> bool:
        return gc.isenabled()

    @classmethod
    def change(cls, before: bool) -> None:
        gc.disable()

    @classmethod
    def restore(cls, before: bool) -> None:
        if gc.get_freeze_count() == 0:  # else objects are frozen on purpose
            gc.freeze()
            gc.unfreeze()
        if before:
            gc.enable()
