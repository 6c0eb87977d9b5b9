"""Settling: once every value has its memory, a plan is numbers (`steps`), and its values are forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...ir.layout import row_major
from ...ir.storage import Storage
from ..lowered import Lowered
from .products import Factor, Gemm
from .steps import ARENA, Made, Matrix, Operand, Packing, Part, Product, Spot, Step, Work
from .tracking import Task
from .values import Place, Value, of_storage


class Located(NamedTuple):
    """Where a place is, in bytes: of the arena (None), or of a storage."""

    storage: Storage | None
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def located(place: Place) -> Located:
    """Where a place is, once every value has its own."""
    base, offset, shape, strides, dtype = place
    width = dtype.itemsize
    storage: Storage | None = None
    start = 0
    if base.__class__ is not Value:
        storage = base
    elif base.placed is not None:
        buffer, first, pitch = base.placed
        columns = base.size // base.view.shape[0]
        row, column = divmod(offset, columns)
        offset = first + row * pitch + column
        strides = tuple([s // columns * pitch + s % columns for s in strides])
        start = buffer.at
    else:
        start = base.at
    return Located(storage, start + offset * width, shape, tuple([s * width for s in strides]))


def made_at(value: Value) -> Place:
    """Where the task that makes a value writes it."""
    if value.sunk is not None and value.placed is None:
        return value.sunk
    shape = tuple(value.view.shape)
    return Place(value, 0, shape, row_major(shape), value.dtype)


class Settler:
    """Settles the steps of one core."""

    def __init__(self, lowered: Lowered, core: int):
        self.storages = lowered.storage_numbers
        self.items = {id(item): number for number, item in enumerate(lowered.items[core])}

    def settled(self, steps: Sequence[Any]) -> tuple[Step, ...]:
        return tuple([self._gemm(s) if s.__class__ is Gemm else self._work(s) for s in steps])

    def spot(self, place: Place) -> Spot:
        storage, offset, shape, strides = located(place)
        return Spot(ARENA if storage is None else self.storages[storage], offset, shape, strides, place.dtype)

    # ---- what is done by itself ------------------------------------------------------------------

    def _work(self, task: Task) -> Work:
        instruction = task.instruction
        reads = [Operand(i, self.spot(s) if s.__class__ is Place else None) for i, s in task.reads]
        accumulates = instruction is not None and getattr(instruction, "accumulates", False)
        return Work(
            task.kind,
            -1 if instruction is None else self.items[id(instruction)],
            task.position,
            tuple(reads),
            tuple([self._made(task, *out) for out in task.outs]) if task.kind != "gather" else (),
            tuple(self._pieces(task)) if task.kind == "gather" else (),
            task.written if accumulates else False,
            task.order if task.order is None or task.order == "transpose" else tuple(task.order),
            sum([v.nbytes for _, v, _ in task.outs if v.__class__ is Value and v.sunk is None]),
        )

    def _made(self, task: Task, number: int, out: Any, before: Place | None) -> Made:
        target: Spot | None = None
        if out.__class__ is Value:
            target = self.spot(made_at(out))
        elif task.store is not None:
            target = self.spot(of_storage(out))
        return Made(number, target, None if before is None else self.spot(before))

    def _pieces(self, task: Task) -> list[tuple[Spot, Spot]]:
        value: Value = task.outs[0][1]
        there = value if value.sunk is None else value.within(value.sunk)
        found = []
        for view, source in task.parts:
            target = there.part(view)
            assert target is not None
            found.append((self.spot(target), self.spot(source)))
        return found

    # ---- products --------------------------------------------------------------------------------

    def _gemm(self, gemm: Gemm) -> Product:
        copies = []
        for value, row, column in gemm.copies:
            assert value.sunk is not None
            height = value.view.shape[0]
            copies.append(Part(row, height, column, value.size // height, self.spot(value.sunk)))
        return Product(
            self._matrix(gemm.left),
            self._matrix(gemm.right),
            None if gemm.target is None else self.spot(gemm.target),
            -1 if gemm.result is None else gemm.result.at,
            tuple(copies),
            len(gemm.tasks),
            gemm.products,
        )

    def _matrix(self, factor: Factor) -> Matrix:
        if factor.there is not None:
            return Matrix(factor.rows, factor.columns, self.spot(factor.there), (), False)
        step = factor.terms  # 1: one term behind the other
        tiles = [
            Packing(row, step, tile.rows, tile.column, tile.columns, self.spot(place))
            for tile, row, place in factor.packed()
        ]
        return Matrix(factor.rows, factor.columns, None, tuple(tiles), _lie_turned(tiles))


def _lie_turned(tiles: Sequence[Packing]) -> bool:
    """Most of the tiles have the elements of a column side by side."""
    turned = 0
    for tile in tiles:
        shape, strides, width = tile.source.shape, tile.source.strides, tile.source.dtype.itemsize
        if len(shape) == 2 and tile.rows > 1 and tile.columns > 1:
            turned += tile.rows * tile.columns * ((strides[0] == width) - (strides[1] == width))
    return turned > 0


__all__ = ["Located", "Settler", "located", "made_at"]
