"""Repetitions: the equal units of a program, such as the heads of attention, computed by the same steps.

One unit is tracked, scheduled and placed. A step then has the operands of every unit: in HBM moved by the
distance of the unit, on chip side by side. Repetitions come last in the order of the members of a step, so
that a step may be split into some members, each with all repetitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...ir.storage import Storage
from ..fused.values import Elements, SSAValue
from ..units import Unit
from .grids import OperandGrid, OperandLayout, layout_of, offset_of


class Repetitions(NamedTuple):
    """Where the operands of each repetition of a unit are."""

    number: int
    shifts: Mapping[Storage, np.ndarray]  # of each repetition, in bytes of HBM
    own: Collection[Any]  # what has memory in the arena for each repetition; others have it for all

    @staticmethod
    def of(unit: Unit) -> Repetitions:
        """Return the repetitions of a unit whose values have no memory yet."""
        shifts = {storage: np.array([row[storage] for row in unit.shifts]) for storage in unit.shifts[0]}
        return Repetitions(len(unit.shifts), shifts, ())

    def part(self, start: int, stop: int) -> Repetitions:
        """Return some of them."""
        shifts = {storage: moves[start:stop] for storage, moves in self.shifts.items()}
        return Repetitions(min(stop, self.number) - start, shifts, self.own)

    def grid(self, operands: Sequence[Elements]) -> OperandGrid:
        """Return the grid of operands of one layout in all repetitions."""
        layout = layout_of(operands[0])
        offsets = [offset_of(elements) for elements in operands]
        if isinstance(layout.memory, Storage):
            moves = self.shifts.get(layout.memory, np.zeros(self.number, np.int64))
            return OperandGrid(layout, np.add.outer(offsets, moves // layout.dtype.itemsize).reshape(-1))
        return self._in_arena(layout, offsets, [owner_of(elements) for elements in operands])

    def grid_of_owners(self, layout: OperandLayout, owners: Sequence[Any]) -> OperandGrid:
        """Return the grid of what has memory in the arena, each from its first element on."""
        return self._in_arena(layout, [owner.at // layout.dtype.itemsize for owner in owners], owners)

    def _in_arena(self, layout: OperandLayout, offsets: Sequence[int], owners: Sequence[Any]) -> OperandGrid:
        width = layout.dtype.itemsize
        steps = [owner.nbytes // width if owner in self.own else 0 for owner in owners]
        moves = np.multiply.outer(steps, np.arange(self.number))
        return OperandGrid(layout, (np.array(offsets)[:, None] + moves).reshape(-1))

    def share(self, elements: Elements) -> bool:
        """Return whether several repetitions read the same elements."""
        if elements.base.__class__ is SSAValue:
            return bool(elements.base.producers[0].unit == 0)
        moves = self.shifts.get(elements.base)
        return moves is None or len(np.unique(moves)) < len(moves)


ONCE = Repetitions(1, {}, ())


def owner_of(elements: Elements) -> Any:
    """Return what has memory in the arena for elements of a value."""
    value = elements.base
    return value if value.in_product is None else value.in_product[0]
