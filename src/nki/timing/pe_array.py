"""Parts of the PE array: matmuls on separate ones run at the same time (machine.md 5.2)."""

from __future__ import annotations

from typing import Any, NamedTuple


class PeTile(NamedTuple):
    """The rows and columns of the PE array that a matmul works on."""

    rows: range
    columns: range

    @staticmethod
    def of(instruction: Any) -> PeTile:
        if not getattr(instruction, "tile_size", ()):
            return WHOLE_ARRAY
        (row, column), (rows, columns) = instruction.tile_position, instruction.tile_size
        return PeTile(range(row, row + rows), range(column, column + columns))

    def overlaps(self, other: PeTile) -> bool:
        return _meet(self.rows, other.rows) and _meet(self.columns, other.columns)


WHOLE_ARRAY = PeTile(range(128), range(128))


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
