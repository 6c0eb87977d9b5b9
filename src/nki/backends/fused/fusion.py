"""Fusion: removes nodes that need no work of their own, once all readers of every value are known.

Sums of products that are added to each other become one sum of products. A result that is only stored is
computed where it is stored. Moves, fills and gathers without readers are removed.
"""

from __future__ import annotations

from itertools import chain
from math import prod

from ...machine.dtypes import float32
from ..lowered import Lowered
from ..units import Units
from .tracking import Node, Tracker
from .values import Elements, SSAValue, reshape_strides

PURE = ("move", "gather")  # without readers they have no effect


def fuse(nodes: list[Node], counts: dict[str, int]) -> list[Node]:
    """Return the nodes that are left."""
    removed: set[Node] = set()
    for node in nodes:
        if node.written == "sum":
            _fuse_sum(node, removed, counts)
    _drop_unread(nodes, removed)
    for node in reversed(nodes):
        if node not in removed and node.kind in ("move", "compute") and node.store is not None:
            _fuse_store(node, removed, counts)
    _drop_unread(nodes, removed)
    return [node for node in nodes if node not in removed]


def track_units(tracker: Tracker, lowered: Lowered, core: int, units: Units) -> list[list[Node]]:
    """Track what is common, and the first one of equal units; return the nodes of each that are left."""
    parts = [units.common, *(unit.items for unit in units.units)]
    part_of = {number: part for part, numbers in enumerate(parts) for number in numbers}
    items, kinds, order = lowered.items[core], lowered.kinds[core], sorted(part_of)
    tracker.track([items[number] for number in order], [kinds[number] for number in order])
    tile_of = {tile: part for part, unit in enumerate(units.units, 1) for tile in unit.tiles}
    by_item = {id(items[number]): part for number, part in part_of.items()}
    for node in tracker.nodes:
        # a gather is part of what uses its tile
        gathered = node.instruction is None
        node.unit = (
            tile_of.get(node.outputs[0][1].view.storage, 0) if gathered else by_item[id(node.instruction)]
        )
    nodes: list[list[Node]] = [[] for _ in parts]
    for node in fuse(tracker.nodes, tracker.fused):
        nodes[node.unit].append(node)
    return nodes


# ---- sums of products ----------------------------------------------------------------------------


def _fuse_sum(node: Node, removed: set[Node], counts: dict[str, int]) -> None:
    """Fuse running = running + product: its terms join those of `running`."""
    out = node.outputs[0][1]
    if out.__class__ is not SSAValue or out.dtype is not float32:
        return
    (_, first), (_, second) = node.reads
    if first.__class__ is not Elements or second.__class__ is not Elements:
        return
    sums = [_sum_of(elements, node) for elements in (first, second)]
    if None in sums or first.base is second.base or all(value.terms is None for value in sums):  # type: ignore[union-attr]
        return
    rows = out.view.shape[0]
    if any(value.view.shape[0] != rows for value in sums):  # type: ignore[union-attr]
        return
    out.terms = [term for value in sums for term in (value.terms or ())]  # type: ignore[union-attr]
    out.from_values = any(value.from_values for value in sums)  # type: ignore[union-attr]
    node.kind = "product"
    for value in sums:
        assert value is not None
        value.readers.remove(node)
        if value.terms is not None:
            removed.add(value.producers[0])
        if value.from_values:
            _replace_reader(value, node)
    node.reads = []
    counts["sums"] = counts.get("sums", 0) + 1


def _replace_reader(value: SSAValue, node: Node) -> None:
    """Let a node read the terms of a sum in place of its producer."""
    for elements in chain.from_iterable(value.terms or ()):
        if elements.base.__class__ is SSAValue:
            elements.base.readers.remove(value.producers[0])
            elements.base.readers.append(node)


def _sum_of(elements: Elements, node: Node) -> SSAValue | None:
    """Return the value that an addition reads whole: zeros, or a sum of products with no other reader."""
    value = elements.base
    if value.__class__ is not SSAValue or elements.dtype is not float32 or not _is_whole(elements, value):
        return None
    if value.is_zero and value.terms is None:
        return value
    if value.terms is None or len(value.readers) != 1 or value.producers[0].unit != node.unit:
        return None
    return value


def _is_whole(elements: Elements, value: SSAValue) -> bool:
    """Return whether these are all elements of a value, in the order in which they were written."""
    if elements is value.own:
        return True
    if elements.offset or value.base is not value or prod(elements.shape) != value.size:
        return False
    dense = reshape_strides(elements.shape, elements.strides, (value.size,))
    return dense is not None and dense[0] in (0, 1)


# ---- stores --------------------------------------------------------------------------------------


def _fuse_store(node: Node, removed: set[Node], counts: dict[str, int]) -> None:
    """Compute a value that is only stored directly where it is stored."""
    if node.kind != "move":
        return
    elements, store = node.reads[0][1], node.store
    assert store is not None
    if node.order is not None or elements.__class__ is not Elements or elements.dtype is not store.dtype:
        return
    if _store_directly(elements, store, node, removed):
        removed.add(node)
        counts["stores"] = counts.get("stores", 0) + 1


def _store_directly(elements: Elements, store: Elements, node: Node, removed: set[Node]) -> bool:
    value = elements.base
    if value.__class__ is not SSAValue or not _is_whole(elements, value) or value.readers != [node]:
        return False
    if value.stored_at is not None or value.dtype is not store.dtype or len(value.producers) != 1:
        return False
    strides = reshape_strides(store.shape, store.strides, tuple(value.view.shape))
    if strides is None:
        return False
    producer = value.producers[0]
    if len(producer.outputs) != 1 or producer.outputs[0][2] is not None or producer.unit != node.unit:
        return False
    value.stored_at = store._replace(shape=tuple(value.view.shape), strides=strides)
    if producer.kind == "gather":
        _store_parts(producer, value, removed)
    return True


def _store_parts(gather: Node, value: SSAValue, removed: set[Node]) -> None:
    """Compute the parts of a gather that have no other reader where it is stored, too."""
    stored_at = value.stored_at
    assert stored_at is not None
    left = []
    there = value.relocated(stored_at)
    apart = sum(view.size for view, _ in gather.parts) <= value.size  # no part covers another
    for view, elements in gather.parts:
        part = there.locate(view)
        if apart and part is not None and _store_directly(elements, part, gather, removed):
            continue
        left.append((view, elements))
    gather.parts = left
    if not left:
        removed.add(gather)


# ---- unread values ---------------------------------------------------------------------------


def _drop_unread(nodes: list[Node], removed: set[Node]) -> None:
    for node in reversed(nodes):
        if node in removed or not _is_pure(node):
            continue
        value = node.outputs[0][1]
        if value.__class__ is SSAValue and not value.readers and value.stored_at is None:
            removed.add(node)
            for elements in [p for _, p in node.reads] + [p for _, p in node.parts]:
                if elements.__class__ is Elements and elements.base.__class__ is SSAValue:
                    elements.base.readers.remove(node)


def _is_pure(node: Node) -> bool:
    if node.kind in PURE:
        return True
    value = node.outputs[0][1] if node.kind == "compute" and node.outputs else None
    return value.__class__ is SSAValue and (value.is_zero or value.origin is not None)  # a fill, or a copy
