"""In which iteration of the kernel's loops each instruction was issued."""

from __future__ import annotations

from typing import Any

Iteration = tuple[tuple[str, Any], ...]  # (variable, value) of the loops around, outermost first
Row = tuple[tuple[str, ...], tuple[Any, ...]]  # the same as two tuples, of which instructions share the first
OUTSIDE: Row = ((), ())  # of any loop


class IterationTable:
    """The iteration of each instruction, by core: a reference for each, since a trace may have millions."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Row]] = {}

    def add(self, core: int, handle: int, row: Row) -> None:
        """Set the iteration of an instruction. One that failed is followed by another of the same number."""
        rows = self._rows.get(core)
        if rows is None:
            rows = self._rows[core] = []
        if len(rows) != handle - 1:
            del rows[handle - 1 :]
            rows += [OUTSIDE] * (handle - 1 - len(rows))
        rows.append(row)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def of(self, core: int, handle: int) -> Iteration:
        """Return the iteration of an instruction; () if none is known, or if no loop is around it."""
        rows = self._rows.get(core, ())
        return tuple(zip(*rows[handle - 1], strict=True)) if 0 < handle <= len(rows) else ()
