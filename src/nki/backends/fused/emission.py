"""Emission: turns nodes into steps, once every value has its address."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ...ir.caches import cached_property
from ...ir.layout import row_major
from ...ir.storage import Storage
from ..lowered import Lowered
from .chains import Chains, memory_of
from .products import Factor, Gemm, Pack
from .steps import (
    ARENA,
    COMMON,
    REGION,
    ArrayRef,
    GemmStep,
    InputRef,
    InstructionStep,
    Matrix,
    OutputRef,
    PackedTile,
    PackStep,
    ParallelSteps,
    PlanStep,
    StoredBlock,
)
from .tracking import Node
from .values import Elements, SSAValue, storage_elements

MAX_JOINED = 1 << 17  # elements of tiles that are joined


class Location(NamedTuple):
    """Elements in bytes of a storage, or of the arena or a region (None)."""

    storage: Storage | None
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def locate(elements: Elements) -> Location:
    """Return the location of elements, once every value has its address."""
    base, offset, shape, strides, dtype = elements
    width = dtype.itemsize
    storage: Storage | None = None
    start = 0
    if base.__class__ is not SSAValue:
        storage = base
    elif base.in_product is not None:
        buffer, first, pitch = base.in_product
        columns = base.size // base.view.shape[0]
        row, column = divmod(offset, columns)
        offset = first + row * pitch + column
        strides = tuple([s // columns * pitch + s % columns for s in strides])
        start = buffer.at
    else:
        start = base.at
    steps = tuple([s * width for s in strides])
    return tuple.__new__(Location, (storage, start + offset * width, shape, steps))  # there are many


def output_elements(value: SSAValue) -> Elements:
    """Return the elements that the producer of a value writes."""
    if value.stored_at is not None and value.in_product is None:
        return value.stored_at
    shape = tuple(value.view.shape)
    return Elements(value, 0, shape, row_major(shape), value.dtype)


class StepEmitter:
    """Emits the steps of one core."""

    def __init__(self, lowered: Lowered, core: int, outer: Collection[Any] = ()):
        self.storages = lowered.columns.numbers
        self.lowered, self.core = lowered, core
        self.outer = outer  # values and buffers of the steps before a unit
        self.steps: list[PlanStep] = []
        self.chains: dict[int, ParallelSteps] = {}

    @cached_property
    def items(self) -> dict[int, int]:
        """The number of each item of the core, by its identity."""
        return {id(item): number for number, item in enumerate(self.lowered.items[self.core])}

    def emit(self, steps: Sequence[Any]) -> None:
        for step in steps:
            if step.__class__ is Chains:
                self._chains(step)
            else:
                self.steps.append(self._step(step))

    def _step(self, step: Gemm | Pack | Node) -> PlanStep:
        if isinstance(step, Pack):
            factor = self._matrix(step.factor)._replace(transposed=False)
            return PackStep(factor, self.ref(step.value.whole()))
        return self._gemm(step) if isinstance(step, Gemm) else self._instruction(step)

    def _chains(self, step: Chains) -> None:
        first, ends = len(self.steps), []
        for chain in step.chains:
            self.steps += map(self._step, chain)
            ends.append(len(self.steps))
        refs = [ref for one in self.steps[first:] for ref in one.refs()]
        registers = [
            (which, next(i for i, chain in enumerate(step.chains) if node in chain))
            for which, node in step.last.items()
        ]
        self.chains[first] = ParallelSteps(
            tuple(ends), tuple({ref.storage for ref in refs}), tuple(registers)
        )

    def ref(self, elements: Elements) -> ArrayRef:
        storage, offset, shape, strides = locate(elements)
        if storage is not None:
            number = self.storages[storage]
        elif self.outer and memory_of(elements.base) in self.outer:
            number = COMMON
        else:
            number = REGION if elements.base.in_region else ARENA
        return tuple.__new__(ArrayRef, (number, offset, shape, strides, elements.dtype))  # there are many

    # ---- instructions ----------------------------------------------------------------------------

    def _instruction(self, node: Node) -> InstructionStep:
        instruction = node.instruction
        reads = [InputRef(i, self.ref(s) if s.__class__ is Elements else None) for i, s in node.reads]
        accumulates = instruction is not None and getattr(instruction, "accumulates", False)
        return InstructionStep(
            node.kind,
            -1 if instruction is None else self.items[id(instruction)],
            node.position,
            tuple(reads),
            tuple([self._output(node, *out) for out in node.outputs]) if node.kind != "gather" else (),
            tuple(self._parts(node)) if node.kind == "gather" else (),
            node.written if accumulates else False,
            node.order if node.order is None or node.order == "transpose" else tuple(node.order),
            sum([v.nbytes for _, v, _ in node.outputs if v.__class__ is SSAValue and v.stored_at is None]),
        )

    def _output(self, node: Node, number: int, out: Any, before: Elements | None) -> OutputRef:
        target: ArrayRef | None = None
        if out.__class__ is SSAValue:
            target = self.ref(output_elements(out))
        elif node.store is not None:
            target = self.ref(storage_elements(out))
        return OutputRef(number, target, None if before is None else self.ref(before))

    def _parts(self, node: Node) -> list[tuple[ArrayRef, ArrayRef]]:
        value: SSAValue = node.outputs[0][1]
        there = value if value.stored_at is None else value.relocated(value.stored_at)
        found = []
        for view, source in node.parts:
            target = there.locate(view)
            assert target is not None
            found.append((self.ref(target), self.ref(source)))
        return found

    # ---- products --------------------------------------------------------------------------------

    def _gemm(self, gemm: Gemm) -> GemmStep:
        copies = []
        for value, row, column in gemm.copies:
            assert value.stored_at is not None
            height = value.view.shape[0]
            copies.append(StoredBlock(row, height, column, value.size // height, self.ref(value.stored_at)))
        return GemmStep(
            self._matrix(gemm.left),
            self._matrix(gemm.right),
            None if gemm.target is None else self.ref(gemm.target),
            -1 if gemm.result is None else gemm.result.at,
            tuple(copies),
            len(gemm.nodes),
            gemm.products,
        )

    def _matrix(self, factor: Factor) -> Matrix:
        if factor.view is not None:
            return Matrix(factor.rows, factor.columns, self.ref(factor.view), (), False)
        step = factor.terms  # 1: one term after the other
        tiles = [
            PackedTile(row, step, tile.rows, tile.column, tile.columns, self.ref(elements))
            for tile, row, elements in factor.packed()
        ]
        tiles = tiles if step > 1 else _join_rows(tiles)
        return Matrix(factor.rows, factor.columns, None, tuple(tiles), _mostly_transposed(tiles))


def _join_rows(tiles: Sequence[PackedTile]) -> list[PackedTile]:
    """Join tiles whose rows follow each other, in the factor and in memory: each is a call of numpy."""
    found: dict[tuple[int, int], list[PackedTile]] = {}
    for tile in tiles:
        column = found.setdefault((tile.column, tile.columns), [])
        joined = _joined(column[-1], tile) if column else None
        if joined is None:
            column.append(tile)
        else:
            column[-1] = joined
    return [tile for column in found.values() for tile in column]


def _joined(above: PackedTile, tile: PackedTile) -> PackedTile | None:
    """Return two tiles as one, or None if they are apart, or large enough for a thread each."""
    first, second = above.source, tile.source
    rows = above.rows + tile.rows
    if (
        above.row + above.rows == tile.row
        and len(first.shape) == len(second.shape) == 2
        and (first.storage, first.strides, first.dtype) == (second.storage, second.strides, second.dtype)
        and second.offset == first.offset + above.rows * first.strides[0]
        and rows * tile.columns <= MAX_JOINED
    ):
        return above._replace(rows=rows, source=first._replace(shape=(rows, tile.columns)))
    return None


def _mostly_transposed(tiles: Sequence[PackedTile]) -> bool:
    """Return whether most elements are in tiles whose columns are contiguous."""
    transposed = 0
    for tile in tiles:
        shape, strides, width = tile.source.shape, tile.source.strides, tile.source.dtype.itemsize
        if len(shape) == 2 and tile.rows > 1 and tile.columns > 1:
            transposed += tile.rows * tile.columns * ((strides[0] == width) - (strides[1] == width))
    return transposed > 0
