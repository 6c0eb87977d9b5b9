"""Steps: what a device does at once, with the memory of its operands.

`device_plan_of` makes the steps of a program. The values of a step lie side by side in one arena (a buffer
for each output), so that the next step finds them at regular distances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...ir.caches import per_program
from ...ir.liveness import allocate
from ...ir.program import Loop
from ...ir.storage import Storage
from ...machine.dtypes import DType, float32
from ..fused.emission import output_elements
from ..fused.fusion import fuse
from ..fused.products import Factor, Gemm
from ..fused.storages import Storages
from ..fused.tiles import Untrackable
from ..fused.tracking import Node, Tracker
from ..fused.values import Elements, SSAValue, storage_elements
from ..lowered import UNPLANNED, Lowered
from .grids import OperandGrid, OperandLayout, common_lead, layout_of
from .schedule import AccumulatorValue, LevelScheduler, Refused, StepMember, groups

if TYPE_CHECKING:
    from torch import device as TorchDevice

WINDOW = 8 << 30  # bytes of the values of a window
NARROW = ("bfloat16", "float16")  # that GPUs multiply and sum in float32


class StepBuffer:
    """Memory for one output of all members of a step."""

    __slots__ = ("nbytes", "at", "owners")

    def __init__(self, owners: Sequence[Any]):
        self.owners = owners
        self.nbytes = sum(owner.nbytes for owner in owners)
        self.at = -1

    def finish(self, at: int) -> None:
        self.at = at
        for owner in self.owners:
            owner.at = at
            at += owner.nbytes


class DeviceStep:
    """Equal instructions, or equal products."""

    def __init__(self, items: Sequence[Any]):
        self.items = items
        self.count = len(items)
        self.lead: tuple[int, ...] = (self.count,)

    def buffers(self) -> list[StepBuffer]:
        """Return new buffers for the outputs."""
        raise NotImplementedError

    def owners(self) -> Iterable[Any]:
        """Iterate over the values and buffers in the arena that the step reads."""
        raise NotImplementedError

    def finish(self) -> None:
        """Find the grids of the operands, once everything has its address."""
        raise NotImplementedError


def _owner(elements: object) -> Iterable[Any]:
    if elements.__class__ is Elements and elements.base.__class__ is SSAValue:
        value = elements.base
        if value.in_product is not None:
            yield value.in_product[0]
        elif value.stored_at is None:
            yield value


class Batch(DeviceStep):
    """The same instruction, move or gather for many operands."""

    items: Sequence[StepMember]

    def buffers(self) -> list[StepBuffer]:
        found = []
        for k, (_, out, _) in enumerate(self.items[0].node.outputs):
            if out.__class__ is SSAValue and out.stored_at is None:
                found.append(StepBuffer([m.node.outputs[k][1] for m in self.items]))
        if self.items[0].after is not None:
            found.append(StepBuffer([m.after for m in self.items]))
        return found

    def owners(self) -> Iterable[Any]:
        for node, before, _ in self.items:
            for _, source in (*node.reads, *node.parts):
                yield from _owner(source)
            for _, _, old in node.outputs:
                yield from _owner(old)
            if before is not None:
                yield before

    def finish(self) -> None:
        nodes = [m.node for m in self.items]
        first: Node = nodes[0]
        self.node = first
        self.reads = [
            (i, OperandGrid.of([_elements(t.reads[k][1]) for t in nodes]))
            for k, (i, _) in enumerate(first.reads)
        ]
        self.outputs = []
        for k, (i, _, old) in enumerate(first.outputs):
            grid = OperandGrid.of([_written_elements(t.outputs[k][1]) for t in nodes])
            self.outputs.append(
                (i, grid, None if old is None else OperandGrid.of([t.outputs[k][2] for t in nodes]))
            )
        self.before = self._registers([m.before for m in self.items])
        self.after = self._registers([m.after for m in self.items])
        self.lanes = self.items[0].before
        self.copies = _copies(nodes) if first.kind == "gather" else []
        grids = [grid for _, grid in self.reads] + [grid for _, grid, _ in self.outputs]
        self.lead = common_lead(grids, self.count)
        self.items = self.items[:1]  # the others are in the grids

    @staticmethod
    def _registers(found: Sequence[AccumulatorValue | None]) -> OperandGrid | None:
        if found[0] is None:
            return None
        return OperandGrid(
            OperandLayout(None, (128,), (1,), float32), [r.at // 4 for r in found if r is not None]
        )


def _elements(source: Any) -> Elements:
    return source if source.__class__ is Elements else storage_elements(source)


def _written_elements(out: Any) -> Elements:
    return output_elements(out) if out.__class__ is SSAValue else storage_elements(out)


def _copies(nodes: Sequence[Node]) -> list[tuple[OperandGrid, OperandGrid]]:
    """Return the parts of gathers, those of equal layout together; later ones overwrite earlier ones."""
    found: dict[Any, tuple[list[Elements], list[Elements]]] = {}
    for node in nodes:
        value: SSAValue = node.outputs[0][1]
        there = value if value.stored_at is None else value.relocated(value.stored_at)
        apart = sum(view.size for view, _ in node.parts) <= value.size  # no part covers another
        for number, (view, source) in enumerate(node.parts):
            target = there.locate(view)
            assert target is not None
            key = (0 if apart else number, layout_of(target), layout_of(source))
            targets, sources = found.setdefault(key, ([], []))
            targets.append(target)
            sources.append(source)
    return [(OperandGrid.of(targets), OperandGrid.of(sources)) for targets, sources in found.values()]


# ---- products ------------------------------------------------------------------------------------


class BatchedGemm(DeviceStep):
    """Products of one shape, with factors of equal layouts."""

    items: Sequence[Gemm]

    def buffers(self) -> list[StepBuffer]:
        return [] if self.items[0].result is None else [StepBuffer([g.result for g in self.items])]

    def owners(self) -> Iterable[Any]:
        for gemm in self.items:
            for factor in (gemm.left, gemm.right):
                yield from _owner(factor.view)
                for tile in factor.tiles:
                    yield from _owner(tile.elements)

    def finish(self) -> None:
        gemms = self.items
        first = gemms[0]
        self.left = BatchedFactor([g.left for g in gemms])
        self.right = BatchedFactor([g.right for g in gemms])
        self.dtype = _common_dtype(self.left, self.right)
        self.rows, self.columns = first.left.columns, first.right.columns
        self.target: OperandGrid | None = None
        if first.target is not None:
            self.target = OperandGrid.of([g.target for g in gemms if g.target is not None])
        self.result: OperandGrid | None = None
        if first.result is not None:
            layout = OperandLayout(None, (self.rows, self.columns), (self.columns, 1), float32)
            self.result = OperandGrid(layout, [g.result.at // 4 for g in gemms if g.result is not None])
        self.copies = []
        for k, (value, row, column) in enumerate(first.copies):
            height = value.view.shape[0]
            window = slice(row, row + height), slice(column, column + value.size // height)
            places = [elements for g in gemms if (elements := g.copies[k][0].stored_at) is not None]
            self.copies.append((window, OperandGrid.of(places)))
        self.products = sum(g.products for g in gemms)
        self.items = gemms[:1]


class BatchedFactor:
    """A factor of every product of a step: a view, a stack of tiles, or packed tiles."""

    def __init__(self, factors: Sequence[Factor]):
        first = factors[0]
        self.count, self.rows, self.columns = len(factors), first.rows, first.columns
        self.terms, self.tiles = 1, 1
        self.stack: OperandGrid | None = None
        self.pieces: list[tuple[OperandGrid, OperandGrid]] = []
        if first.view is not None:
            self.stack = OperandGrid.of([f.view for f in factors if f.view is not None])
            return
        kinds: dict[Any, tuple[list[int], list[Elements]]] = {}
        for number, factor in enumerate(factors):
            base = number * factor.rows * factor.columns
            for tile, row, elements in factor.packed():
                key = (tile.rows, tile.columns, layout_of(elements))
                offsets, places = kinds.setdefault(key, ([], []))
                offsets.append(base + row * factor.columns + tile.column)
                places.append(elements)
        if len(kinds) == 1 and all(t.columns == first.columns for t in first.tiles):
            ((_, places),) = kinds.values()
            self.stack, self.terms, self.tiles = OperandGrid.of(places), first.terms, len(first.tiles)
            return
        pitch = first.columns * first.terms
        for (rows, columns, _), (offsets, places) in kinds.items():
            layout = OperandLayout("pack", (rows, columns), (pitch, 1), float32)
            self.pieces.append((OperandGrid(layout, offsets), OperandGrid.of(places)))

    @property
    def dtypes(self) -> set[DType]:
        """The dtypes of all its tiles."""
        return {grid.layout.dtype for grid in (self.stack, *[source for _, source in self.pieces]) if grid}


def _common_dtype(left: BatchedFactor, right: BatchedFactor) -> DType:
    """Return the dtype to multiply in: that of all tiles, where their products are exact in float32."""
    (first, *others) = left.dtypes | right.dtypes
    return first if not others and first in NARROW else float32


# ---- all of a program ----------------------------------------------------------------------------


class DevicePlan:
    """A program as steps on a device. It never changes; calls share it, and what it needs on each device."""

    def __init__(
        self, lowered: Lowered, steps: list[Any], arena: int, written: list[Storage], partly: set[Storage]
    ):
        self.machine, self.steps, self.arena = lowered.machine, steps, arena
        self.written = written  # in HBM
        self.partly = partly  # of these, those whose old contents matter
        self.constants = lowered.constants
        self.numbers: dict[Any, dict[tuple, Any]] = defaultdict(dict)  # by device: constants of instructions
        self._constants: dict[Any, dict[Storage, Any]] = {}

    def constants_on(self, torch: ModuleType, where: TorchDevice) -> dict[Storage, Any]:
        """Return the constants of the program as tensors of bytes on a device."""
        if where not in self._constants:
            self._constants[where] = {s: torch.from_numpy(raw.copy()).to(where) for s, raw in self.constants}
        return self._constants[where]


@per_program
def device_plan_of(lowered: Lowered) -> DevicePlan | Refused:
    """Return the steps of a program on a device, or why it has none."""
    try:
        return _planned(lowered)
    except Refused as why:
        return Refused(*why.args)  # without its traceback, which refers to the program


def _planned(lowered: Lowered) -> DevicePlan:
    if len(lowered.items) > 1:
        raise Refused("it runs on two cores")
    for item in lowered.items[0]:
        if lowered.is_fence(item):
            what = "a dynamic loop" if isinstance(item, Loop) else item.public
            raise Refused(f"{what} depends on values at run time")
    if not lowered.states.isdisjoint(UNPLANNED):
        raise Refused("it prints, generates random numbers or communicates with other ranks")
    storages = Storages(lowered)
    tracker = Tracker(storages, lowered)
    try:
        tracker.track(lowered.items[0])
    except Untrackable as problem:
        raise Refused(f"a tile is not tracked value by value: {problem.why}") from None
    return _steps(lowered, storages, fuse(tracker.nodes, tracker.fused))


def _steps(lowered: Lowered, storages: Storages, nodes: Sequence[Node]) -> DevicePlan:
    order = LevelScheduler(storages)
    steps: list[Any] = []
    open_nodes: list[Any] = []
    held = 0

    def close() -> None:
        nonlocal open_nodes, held
        for group in groups(open_nodes):
            steps.append(BatchedGemm(group) if group[0].__class__ is Gemm else Batch(group))
        open_nodes, held = [], 0
        order.next_window()

    for node in nodes:
        if node.kind == "memory":
            raise Refused(f"{node.instruction.public} is not supported there")
        new = sum(v.nbytes for _, v, _ in node.outputs if v.__class__ is SSAValue and v.stored_at is None)
        if held + new > WINDOW and open_nodes:
            close()
        held += new
        open_nodes.append(order.elements(node))
    close()
    written = sorted(storages.written, key=lambda storage: storage.number)
    arena = _allocate_slabs(steps)
    for step in steps:
        step.finish()
    partly = {s for s in written if not order.is_complete(s) or (s.parameter and s in storages.read)}
    return DevicePlan(lowered, steps, arena, written, partly)


def _allocate_slabs(steps: Sequence[DeviceStep]) -> int:
    """Set the address of every buffer in the arena; return the bytes that it needs."""
    buffer_of: dict[Any, StepBuffer] = {}
    new = [step.buffers() for step in steps]
    for buffers in new:
        for buffer in buffers:
            buffer_of.update(dict.fromkeys(buffer.owners, buffer))
    used = (
        (*buffers, *[buffer_of[owner] for owner in step.owners()])
        for step, buffers in zip(steps, new, strict=True)
    )
    return allocate(used, StepBuffer.finish)
