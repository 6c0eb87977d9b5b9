"""Stages: the order of all nodes.

Between two fences the nodes are split into windows, so that the values of a window stay within a budget of
memory. A window runs in stages: first the products that depend on no other product of the window, then the
nodes that depend on these alone, in chains (`chains.py`), then the products that depend on those, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...ir.dependences import AccessLevels
from ...ir.instruction import State
from .chains import group_products, split
from .products import Gemm, merge_products
from .storages import Storages
from .tracking import Node, node_inputs
from .values import Elements, SSAValue

WINDOW = 96 << 20  # bytes of the values of a window
UNIT_WINDOW = 24 << 20  # in a unit; every thread has one


def schedule(nodes: Sequence[Node], storages: Storages) -> list[Any]:
    """Return what to do, in order: Gemms, Nodes and Chains."""
    steps: list[Any] = []
    for products, others in _stages(nodes, storages, WINDOW, 0):
        steps += group_products(products)
        steps += split(others, storages)
    return steps


def schedule_unit(nodes: Sequence[Node], storages: Storages, number: int) -> list[Any]:
    """Return the same for a unit, which runs on one thread; `number`: of its first window."""
    stages = _stages(nodes, storages, UNIT_WINDOW, number)
    return [step for products, others in stages for step in (*products, *others)]


Stage = tuple[list[Gemm], list[Node]]  # products, and then what depends on them


def _stages(nodes: Sequence[Node], storages: Storages, window: int, number: int) -> Iterator[Stage]:
    nbytes = 0
    open_nodes: list[Node] = []
    depths = _Depths(storages)
    for node in nodes:
        if node.kind == "fence":
            yield from _staged(open_nodes)
            yield [], [node]
            open_nodes, nbytes, number = [], 0, number + 1
            depths = _Depths(storages)
            continue
        new = sum(v.nbytes for _, v, _ in node.outputs if v.__class__ is SSAValue and v.stored_at is None)
        if nbytes + new > window and open_nodes:
            yield from _staged(open_nodes)
            open_nodes, nbytes, number = [], 0, number + 1
            depths = _Depths(storages)
        nbytes += new
        depths.set(node, number)
        open_nodes.append(node)
    yield from _staged(open_nodes)


class _Depths:
    """Sets the depth of nodes: the length of the longest chain of products before them in the window."""

    def __init__(self, storages: Storages):
        self.storages = storages
        self.memory: AccessLevels[int] = AccessLevels()  # what is written in place
        self.states: dict[State, int] = {}

    def set(self, node: Node, window: int) -> None:
        depth = 0
        for elements in node_inputs(node):
            value = elements.base
            if value.__class__ is SSAValue and value.window == window and value.depth > depth:
                depth = value.depth
        if node.kind == "product":
            depth += 1
        else:
            reads = [v.storage for _, v in node.reads if v.__class__ is not Elements]
            writes = [v.storage for _, v, _ in node.outputs if v.__class__ is not SSAValue]
            writes = [s for s in writes if s not in self.storages.write_once]
            depth = self.memory.after(reads, writes, depth)
            instruction = node.instruction
            if instruction is not None and instruction.state:
                for state in instruction.touches():
                    depth = self.states[state] = max(depth, self.states.get(state, 0))
            self.memory.add(reads, writes, depth)
        node.depth = depth
        for _, value, _ in node.outputs:
            if value.__class__ is SSAValue:
                value.depth, value.window = depth, window


def _staged(nodes: list[Node]) -> Iterator[Stage]:
    stages: dict[int, tuple[list[Node], list[Node]]] = {}
    for node in nodes:
        products, others = stages.setdefault(node.depth, ([], []))
        (products if node.kind == "product" else others).append(node)
    for depth in sorted(stages):
        products, others = stages[depth]
        yield merge_products(products), others
