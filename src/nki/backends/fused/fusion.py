"""Folding: what needs no work of its own once everybody who reads a value is known.

Sums of products that an addition goes on with are one sum of products; a result that is only stored is made
where it is stored; moves, fills and gatherings that nobody reads are left out.
"""

from __future__ import annotations

from math import prod

from ...machine.dtypes import float32
from .tracking import Task
from .values import Place, Value, reshaped

IDLE = ("move", "gather")  # without readers they do nothing that anybody notices


def folded(tasks: list[Task], counts: dict[str, int]) -> list[Task]:
    """The tasks that are left."""
    gone: set[Task] = set()
    for task in tasks:
        if task.written == "sum":
            _continue_sum(task, gone, counts)
    _drop_unread(tasks, gone)
    for task in reversed(tasks):
        if task not in gone and task.kind in ("move", "compute") and task.store is not None:
            _sink(task, gone, counts)
    _drop_unread(tasks, gone)
    return [task for task in tasks if task not in gone]


# ---- sums of products ----------------------------------------------------------------------------


def _continue_sum(task: Task, gone: set[Task], counts: dict[str, int]) -> None:
    """running = running + product: its terms join those that running is made of."""
    out = task.outs[0][1]
    if out.__class__ is not Value or out.dtype is not float32:
        return
    (_, first), (_, second) = task.reads
    if first.__class__ is not Place or second.__class__ is not Place:
        return
    sums = [_sum_of(place, task) for place in (first, second)]
    if None in sums or first.base is second.base or all(value.terms is None for value in sums):  # type: ignore[union-attr]
        return
    rows = out.view.shape[0]
    if any(value.view.shape[0] != rows for value in sums):  # type: ignore[union-attr]
        return
    out.terms = [term for value in sums for term in (value.terms or ())]  # type: ignore[union-attr]
    task.kind = "product"
    for value in sums:
        assert value is not None
        value.readers.remove(task)
        if value.terms is not None:
            gone.add(value.makers[0])
            for term in value.terms:
                for place in term:
                    if place.base.__class__ is Value:
                        place.base.readers.remove(value.makers[0])
                        place.base.readers.append(task)
    task.reads = []
    counts["sums"] = counts.get("sums", 0) + 1


def _sum_of(place: Place, task: Task) -> Value | None:
    """The value that an addition reads as a whole: zeros, or a sum of products that nobody else reads."""
    value = place.base
    if value.__class__ is not Value or place.dtype is not float32 or not _is_whole(place, value):
        return None
    if value.zero and value.terms is None:
        return value
    return value if value.terms is not None and len(value.readers) == 1 else None


def _is_whole(place: Place, value: Value) -> bool:
    """All elements, in the order in which they were written."""
    if place.offset or value.base is not value or prod(place.shape) != value.size:
        return False
    dense = reshaped(place.shape, place.strides, (value.size,))
    return dense is not None and dense[0] in (0, 1)


# ---- stores --------------------------------------------------------------------------------------


def _sink(task: Task, gone: set[Task], counts: dict[str, int]) -> None:
    """What is only stored is made where it is stored."""
    if task.kind != "move":
        return
    place, store = task.reads[0][1], task.store
    assert store is not None
    if task.order is not None or place.__class__ is not Place or place.dtype is not store.dtype:
        return
    if _sink_place(place, store, task, gone):
        gone.add(task)
        counts["stores"] = counts.get("stores", 0) + 1


def _sink_place(place: Place, store: Place, task: Task, gone: set[Task]) -> bool:
    value = place.base
    if value.__class__ is not Value or not _is_whole(place, value) or value.readers != [task]:
        return False
    if value.sunk is not None or value.dtype is not store.dtype or len(value.makers) != 1:
        return False
    strides = reshaped(store.shape, store.strides, tuple(value.view.shape))
    if strides is None:
        return False
    maker = value.makers[0]
    if len(maker.outs) != 1 or maker.outs[0][2] is not None:
        return False
    value.sunk = store._replace(shape=tuple(value.view.shape), strides=strides)
    if maker.kind == "gather":
        _sink_parts(maker, value, gone)
    return True


def _sink_parts(gather: Task, value: Value, gone: set[Task]) -> None:
    """The pieces of a gathering that nobody else reads are made where it is stored, too."""
    sunk = value.sunk
    assert sunk is not None
    left = []
    there = value.within(sunk)
    apart = sum(view.size for view, _ in gather.parts) <= value.size  # no piece hides another
    for view, place in gather.parts:
        part = there.part(view)
        if apart and part is not None and _sink_place(place, part, gather, gone):
            continue
        left.append((view, place))
    gather.parts = left
    if not left:
        gone.add(gather)


# ---- what nobody reads ---------------------------------------------------------------------------


def _drop_unread(tasks: list[Task], gone: set[Task]) -> None:
    for task in reversed(tasks):
        if task in gone or not _is_idle(task):
            continue
        value = task.outs[0][1]
        if value.__class__ is Value and not value.readers and value.sunk is None:
            gone.add(task)
            for place in [p for _, p in task.reads] + [p for _, p in task.parts]:
                if place.__class__ is Place and place.base.__class__ is Value:
                    place.base.readers.remove(task)


def _is_idle(task: Task) -> bool:
    if task.kind in IDLE:
        return True
    return task.kind == "compute" and bool(task.outs) and getattr(task.outs[0][1], "zero", False)
