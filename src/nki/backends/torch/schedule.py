"""The order of a program on a device: steps of many equal instructions that do not depend on each other.

Products come as early as the products before them allow, so that many of them share a step; between two such
stages the other instructions go in levels. Instructions that differ in addresses alone are in one step. The
accumulator registers are values like any other: what reads them waits for what wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...ir.dependences import AccessLevels
from ...ir.instruction_class import option_key
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.machine import Machine
from ..fused.products import Factor, Gemm, merge_products, single_product
from ..fused.storages import Storages
from ..fused.tracking import Node, node_inputs
from ..fused.values import Elements, SSAValue, storage_elements
from ..lowered import REGISTERS, lanes_of, register_use
from .indirect import IndexedWrite
from .narrowing import narrowed

MERGED = 4.0  # how many times smaller than all its tiles the factors of a merged product must be
LAST = 1 << 30  # the level after which what only products read is computed, all of a stage together


class Refused(Exception):
    """Why a program runs on the host."""


class AccumulatorValue:
    """A set of accumulator registers after an instruction: a value of 128 float32 numbers."""

    __slots__ = ("size", "lanes", "user", "at", "order", "stage")
    nbytes = 512

    def __init__(self, size: int, lanes: int, user: str):
        self.size = size  # lanes that this value holds
        self.lanes, self.user = lanes, user  # lanes that hold a value, and who wrote them
        self.at = -1
        self.order, self.stage = (0, 0), -1


class StepMember(NamedTuple):
    """An instruction of a step, with the accumulator registers before and after it."""

    node: Node
    before: AccumulatorValue | None
    after: AccumulatorValue | None


class LevelScheduler:
    """Gives every node its order: (products before it, level)."""

    def __init__(self, storages: Storages):
        self.storages = storages
        self.core = 0  # whose nodes come now; each has registers of its own
        self.registers: dict[tuple[int, str], AccumulatorValue] = {}
        self.orders: dict[SSAValue, tuple[int, tuple[int, int]]] = {}  # window and order of its producer
        self.memory: AccessLevels[tuple[int, int]] = AccessLevels()
        self.scatters: dict[Storage, tuple[tuple[int, int], tuple]] = {}  # the last one: order, signature
        self.written: dict[Storage, np.ndarray] = {}
        self.window = 0

    def next_window(self) -> None:
        self.window += 1
        self.memory = AccessLevels()
        self.scatters.clear()

    def elements(self, node: Node) -> tuple[tuple[int, int], StepMember]:
        before, after = self._registers(node)
        depth, level = 0, 0
        for elements in node_inputs(node):
            if elements.base.__class__ is SSAValue:
                window, order = self.orders.get(elements.base, (-1, (0, 0)))
                if window == self.window and order > (depth, level):
                    depth, level = order
        if before is not None and before.stage == self.window:
            depth, level = max((depth, level), before.order)
        if node.kind == "product":
            order = (depth + 1, 0)
        elif after is None and _feeds_products(node):
            order = (depth, max(level, LAST) + 1)
        else:
            order = self._after_memory(node, (depth, level))
        for _, value, _ in node.outputs:
            if value.__class__ is SSAValue:
                self.orders[value] = self.window, order
        if after is not None:
            after.order, after.stage = order, self.window
        return order, StepMember(node, before, after)

    # ---- registers -------------------------------------------------------------------------------

    def _registers(self, node: Node) -> tuple[AccumulatorValue | None, AccumulatorValue | None]:
        if node.instruction is None or node.kind == "product" or not node.instruction.state:
            return None, None
        touched = node.instruction.touches()
        if not touched:
            return None, None
        (state,) = touched
        if state not in REGISTERS:
            raise Refused(f"{node.instruction.public} touches {state.value}")
        instruction = node.instruction
        (which, begins), lanes = register_use(instruction, state), lanes_of(instruction)
        known = self.registers.get((self.core, which))
        defined = 0 if known is None else known.lanes
        user = "" if known is None else known.user
        if begins:
            after = AccumulatorValue(lanes, max(defined, lanes), instruction.public)
            self.registers[self.core, which] = after
            return None, after
        if begins is None:
            after = AccumulatorValue(lanes, 0, user)
            self.registers[self.core, which] = after
            return None, after
        if known is None or known.size < lanes:
            raise Refused(f"{instruction.public} continues registers of several instructions")
        after = AccumulatorValue(known.size, defined, instruction.public if which == "vector" else user)
        self.registers[self.core, which] = after
        return known, after

    # ---- HBM that is read and written ------------------------------------------------------------

    def _after_memory(self, node: Node, order: tuple[int, int]) -> tuple[int, int]:
        """Return the order of a node that comes after `order` and after what it depends on in HBM."""
        reads, writes = self._read_views(node), self._written_views(node)
        for view in reads:
            self._check_written(view)
        storages = [view.storage for view in reads], [view.storage for view in writes]
        depth, level = self.memory.after(*storages, order)
        if node.instruction.__class__ is IndexedWrite:
            level -= self._continues_scatter(node, order, (depth, level))
            self.scatters[writes[0].storage] = (depth, level + 1), _scatter_signature(node)
        self.memory.add(*storages, (depth, level + 1))
        for view in writes:
            self._mark(view)
        return depth, level + 1

    def _continues_scatter(self, node: Node, inputs: tuple[int, int], before: tuple[int, int]) -> bool:
        """Return whether the last access to the table of a scatter is an equal one: they are one step then.

        The members of that step are in program order, because they write to one place.
        """
        last = self.scatters.get(node.outputs[0][1].storage)
        return last == (before, _scatter_signature(node)) and inputs < before

    def _read_views(self, node: Node) -> list[View]:
        found = [source for _, source in node.reads if source.__class__ is not Elements]
        if any(view.storage.on_chip for view in found):
            raise Refused("a tile is not tracked value by value")
        return found

    def _written_views(self, node: Node) -> list[View]:
        found = [out for _, out, _ in node.outputs if out.__class__ is not SSAValue]
        if any(view.storage.on_chip for view in found):
            raise Refused("a tile is not tracked value by value")
        return [view for view in found if view.storage not in self.storages.write_once]

    def _flags(self, view: View) -> np.ndarray:
        storage = view.storage
        if view.dtype is not storage.dtype:
            raise Refused("HBM is seen as another dtype")
        flags = self.written.get(storage)
        if flags is None:
            count = storage.nbytes // storage.dtype.itemsize
            flags = self.written[storage] = np.zeros(count, np.bool_)
        return np.ndarray(tuple(view.shape), np.bool_, flags, view.offset, tuple(view.strides))

    def _mark(self, view: View) -> None:
        self._flags(view)[...] = True

    def _check_written(self, view: View) -> None:
        if not view.storage.parameter and not self._flags(view).all():
            raise Refused("HBM is read before it was written")

    def is_complete(self, storage: Storage) -> bool:
        """Return whether every element of a storage was written."""
        if storage in self.storages.write_once:
            return storage in self.storages.complete
        flags = self.written.get(storage)
        return flags is not None and bool(flags.all())


def _feeds_products(node: Node) -> bool:
    """Return whether only products read what a node writes, and it reads no memory in place."""
    values = [value for _, value, _ in node.outputs]
    if any(value.__class__ is not SSAValue or value.stored_at is not None for value in values):
        return False
    if any(source.__class__ is not Elements for _, source in node.reads):
        return False
    readers = [reader for value in values for reader in value.readers]
    return bool(readers) and all(reader.kind == "product" for reader in readers)


# ---- what may be done together -------------------------------------------------------------------


def signature(member: StepMember) -> tuple:
    """Return what the members of a step have in common."""
    node = member.node
    registers = member.before and (member.before.lanes, member.before.user)
    parts = tuple([_layout(part) for _, part in node.parts])
    reads = tuple([(i, _layout(source)) for i, source in node.reads])
    outputs = tuple([(i, _output_layout(out), before and _layout(before)) for i, out, before in node.outputs])
    if node.instruction is None:
        frames = tuple(
            [(v.offset - node.outputs[0][1].view.offset, tuple(v.shape), v.strides) for v, _ in node.parts]
        )
        return node.kind, frames, parts, outputs
    options = instruction_options(node.instruction) if node.kind == "compute" else ()
    return node.kind, node.order, node.written, options, reads, outputs, registers


def _scatter_signature(node: Node) -> tuple:
    return signature(StepMember(node, None, None)), node.outputs[0][1].offset


def instruction_options(instruction: Any) -> tuple:
    """Return everything about an instruction except the addresses of its tensors."""
    found: list[Any] = [instruction.__class__, instruction.runs_on]
    for field in instruction.fields:
        value = getattr(instruction, field)
        if isinstance(value, View):
            found.append((tuple(value.shape), value.dtype))
        else:
            found.append(option_key(value))
    return tuple(found)


def _layout(source: Any) -> tuple:
    elements = source if source.__class__ is Elements else storage_elements(source)
    base: Any = "arena"
    strides = elements.strides
    if elements.base.__class__ is not SSAValue:
        base = id(elements.base)
    elif elements.base.in_product is not None:
        base = ("arena", elements.base.in_product[2], elements.base.size // elements.base.view.shape[0])
    return base, elements.shape, strides, elements.dtype


def _output_layout(out: Any) -> tuple:
    if out.__class__ is not SSAValue:
        return (id(out.storage), tuple(out.shape), out.strides, out.dtype)
    if out.stored_at is not None:
        return ("stored_at", id(out.stored_at.base), out.stored_at.shape, out.stored_at.strides, out.dtype)
    return ("value", tuple(out.view.shape), out.dtype)


def gemm_signature(gemm: Gemm) -> tuple:
    target = None if gemm.target is None else _layout(gemm.target)
    copies = tuple([(row, column, _output_layout(value)) for value, row, column in gemm.copies])
    return _factor_signature(gemm.left), _factor_signature(gemm.right), target, copies


def _factor_signature(factor: Factor) -> tuple:
    if factor.view is not None:
        return factor.rows, factor.columns, _layout(factor.view)
    tiles = tuple(
        [(t.row, t.rows, t.column, t.columns, t.strides, _layout(t.elements)) for t in factor.tiles]
    )
    return factor.rows, factor.columns, factor.terms, tiles


def products_of(nodes: Sequence[Node]) -> list[Gemm]:
    """Return the products of a stage: merged where that saves reading, else tile by tile, to be batched."""
    found: list[Gemm] = []
    for gemm in merge_products(nodes, narrow=True):
        if len(gemm.nodes) > 1 and not _is_strided(gemm) and _saved(gemm) < MERGED:
            found += [single_product(node, narrow=True) for node in gemm.nodes]
        else:
            found.append(gemm)
    return found


def _is_strided(gemm: Gemm) -> bool:
    """Return whether no factor has to be packed."""
    return gemm.left.view is not None and gemm.right.view is not None


def _saved(gemm: Gemm) -> float:
    tiles = 0
    for node in gemm.nodes:
        for left, right in node.outputs[0][1].terms:
            tiles += _elements(left) + _elements(right)
    return tiles / (gemm.left.rows * (gemm.left.columns + gemm.right.columns))


def _elements(elements: Elements) -> int:
    found = 1
    for n in elements.shape:
        found *= n
    return found


def groups(
    ordered: Sequence[tuple[tuple[int, int], StepMember]], machine: Machine
) -> Iterator[tuple[int, list[Any]]]:
    """Iterate over the steps: lists of Gemms, or of members, each with its depth."""
    inside, replaced = {member.node for _, member in ordered}, set[Node]()
    stages: dict[tuple[int, int], list[StepMember]] = {}
    for order, member in ordered:
        stages.setdefault(order, []).append(member)
    for order in sorted(stages):
        depth, level = order
        members = stages[order]
        if level == 0:
            # short sums first: the results of instructions before them then lie in ascending order
            gemms = []
            for gemm in products_of([m.node for m in members]):
                gemm, readers = narrowed(gemm, inside, machine)
                replaced.update(readers)
                gemms.append(gemm)
            products = _equal(gemms, gemm_signature)
            found = sorted(products, key=lambda gemms: gemms[0].left.rows)
        else:
            found = list(_equal([m for m in members if m.node not in replaced], signature))
        yield from ((depth, group) for group in found)


def _equal(items: Sequence[object], key: Any) -> Iterator[list[Any]]:
    found: dict[tuple, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    yield from found.values()
