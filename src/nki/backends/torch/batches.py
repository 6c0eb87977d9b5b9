"""Batches: the same instruction, move or gather for many operands, as one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...machine.dtypes import float32
from ..fused.emission import output_elements
from ..fused.tracking import Node
from ..fused.values import Elements, SSAValue, storage_elements
from .grids import GridCopy, OperandGrid, OperandLayout, grid_copies, layout_of, worthwhile_parts
from .repetitions import Repetitions, owner_of
from .schedule import AccumulatorValue, StepMember

LAUNCHES = 5  # of an instruction, about
SMALL = 16  # an operand so many times smaller than the largest is gathered without regard


class DeviceStep:
    """Equal instructions, or equal products."""

    def __init__(self, items: Sequence[Any], stage: tuple[int, int], times: int = 1):
        self.items: list[Any] = list(items)  # of one repetition
        self.stage = stage  # the window, and how many products precede the step there
        self.times = times  # repetitions that are computed together, at most
        self.count = len(items)
        self.lead: tuple[int, ...] = (self.count,)

    def outputs_of(self, item: Any) -> list[Any]:
        """Return what needs new memory in the arena for an item, the largest first."""
        raise NotImplementedError

    def inputs_of(self, item: Any) -> Iterable[Any]:
        """Iterate over the values and buffers in the arena that an item reads."""
        raise NotImplementedError

    def stored_at(self, item: Any) -> int:
        """Return the offset in HBM at which the results of an item begin; 0: they are in the arena."""
        raise NotImplementedError

    def finish(self, repetitions: Repetitions) -> Iterator[DeviceStep]:
        """Find the grids of the operands, once everything has its address; iterate over the final steps."""
        raise NotImplementedError


def owner(elements: object) -> Iterable[Any]:
    """Iterate over what has memory in the arena for these elements: one thing or none."""
    if elements.__class__ is Elements and elements.base.__class__ is SSAValue:
        value = elements.base
        if value.in_product is not None or value.stored_at is None:
            yield owner_of(elements)


class Batch(DeviceStep):
    """The same instruction, move or gather for many operands."""

    node: Node
    reads: list[tuple[int, OperandGrid]]
    outputs: list[tuple[int, OperandGrid, OperandGrid | None]]
    before: OperandGrid | None
    after: OperandGrid | None
    lanes: AccumulatorValue | None

    def outputs_of(self, item: StepMember) -> list[Any]:
        found: list[Any] = [
            out for _, out, _ in item.node.outputs if out.__class__ is SSAValue and out.stored_at is None
        ]
        found.sort(key=lambda value: -value.nbytes)
        return found if item.after is None else [*found, item.after]

    def inputs_of(self, item: StepMember) -> Iterable[Any]:
        node, before, _ = item
        for _, source in (*node.reads, *node.parts):
            yield from owner(source)
        for _, _, old in node.outputs:
            yield from owner(old)
        if before is not None:
            yield before

    def stored_at(self, item: StepMember) -> int:
        out = item.node.outputs[0][1] if item.node.outputs else None
        if out.__class__ is SSAValue:
            return 0 if out.stored_at is None else out.stored_at.offset
        return 0 if out is None else out.offset

    def finish(self, repetitions: Repetitions) -> Iterator[DeviceStep]:
        nodes, of = [m.node for m in self.items], repetitions.grid
        first: Node = nodes[0]
        self.node = first
        self.reads = [
            (i, of([_elements(t.reads[k][1]) for t in nodes])) for k, (i, _) in enumerate(first.reads)
        ]
        self.outputs = []
        for k, (i, _, old) in enumerate(first.outputs):
            grid = of([_written_elements(t.outputs[k][1]) for t in nodes])
            self.outputs.append((i, grid, None if old is None else of([t.outputs[k][2] for t in nodes])))
        self.before = self._registers([m.before for m in self.items], repetitions)
        self.after = self._registers([m.after for m in self.items], repetitions)
        self.lanes = self.items[0].before
        self.copies = _copies(nodes, repetitions) if first.kind == "gather" else []
        self.count *= repetitions.number
        self.lead = (self.count,)
        self.items = self.items[:1]  # the others are in the grids
        yield from self._parts()

    def operands(self) -> list[OperandGrid | None]:
        """Return the results, what was there before each, what is read, and registers before and after."""
        results = [grid for _, grid, _ in self.outputs]
        old = [grid for _, _, grid in self.outputs]
        return [*results, *old, *[grid for _, grid in self.reads], self.before, self.after]

    def place_of(self, grid: OperandGrid) -> tuple[OperandGrid, tuple[int, ...]]:
        """Return an operand and its leading dimensions: 1 for a result that all members write in turn."""
        is_result = any(grid is out for _, out, _ in self.outputs)
        if is_result and self.count > 1 and not any(grid.regular(self.lead) or (1,)):
            return grid.part(0, 1), (1,) * len(self.lead)
        return grid, self.lead

    @property
    def nbytes(self) -> int:
        """The bytes of all operands."""
        return sum(grid.nbytes for grid in self.operands() if grid is not None)

    def _parts(self) -> Iterator[Batch]:
        """Iterate over parts of the step in which all large operands are regular, if there are few."""
        grids = [grid for _, grid in self.reads] + [grid for _, grid, _ in self.outputs]
        large = [grid for grid in grids if SMALL * grid.nbytes >= max(g.nbytes for g in grids)]
        parts = worthwhile_parts(large, LAUNCHES) if large and self.node.kind != "gather" else []
        if len(parts) < 2:
            self.lead = parts[0].lead if parts else self.lead
            yield self
            return
        for part in parts:
            yield self._part(part.start, part.stop, part.lead)

    def _part(self, start: int, stop: int, lead: tuple[int, ...]) -> Batch:
        def cut(grid: OperandGrid | None) -> OperandGrid | None:
            return None if grid is None else grid.part(start, stop)

        found = Batch(self.items, self.stage)
        found.count, found.lead, found.node, found.lanes, found.copies = (
            stop - start,
            lead,
            self.node,
            self.lanes,
            [],
        )
        found.reads = [(i, grid.part(start, stop)) for i, grid in self.reads]
        found.outputs = [(i, grid.part(start, stop), cut(old)) for i, grid, old in self.outputs]
        found.before, found.after = cut(self.before), cut(self.after)
        return found

    @staticmethod
    def _registers(found: Sequence[AccumulatorValue | None], repetitions: Repetitions) -> OperandGrid | None:
        if found[0] is None:
            return None
        return repetitions.grid_of_owners(OperandLayout(None, (128,), (1,), float32), found)


def _elements(source: Any) -> Elements:
    return source if source.__class__ is Elements else storage_elements(source)


def _written_elements(out: Any) -> Elements:
    return output_elements(out) if out.__class__ is SSAValue else storage_elements(out)


def _copies(nodes: Sequence[Node], repetitions: Repetitions) -> list[GridCopy]:
    """Return the parts of gathers, those of equal layout together; later ones overwrite earlier ones."""
    found: dict[Any, tuple[list[Elements], list[Elements]]] = {}
    visible = _visible_parts(nodes[0])  # the parts of the others lie as these do
    apart = sum(nodes[0].parts[number][0].size for number in visible) <= nodes[0].outputs[0][1].size
    for node in nodes:
        value: SSAValue = node.outputs[0][1]
        there = value if value.stored_at is None else value.relocated(value.stored_at)
        for number in visible:
            view, source = node.parts[number]
            target = there.locate(view)
            assert target is not None
            key = (0 if apart else number, layout_of(target), layout_of(source))
            targets, sources = found.setdefault(key, ([], []))
            targets.append(target)
            sources.append(source)
    pairs = [map(repetitions.grid, pair) for pair in found.values()]
    return [copy for pair in pairs for copy in grid_copies(*pair)]


def _visible_parts(node: Node) -> list[int]:
    """Return the numbers of the parts of a gather that later ones do not cover."""
    value: SSAValue = node.outputs[0][1]
    covered = np.zeros(value.size, np.bool_)
    found = []
    for number in reversed(range(len(node.parts))):
        place = value.locate(node.parts[number][0])
        assert place is not None
        area: np.ndarray = np.ndarray(place.shape, np.bool_, covered, place.offset, place.strides)
        if not area.all():
            found.append(number)
            area[...] = True
    return found[::-1]
