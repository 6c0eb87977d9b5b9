"""Describes a plan: as plain data (`nki plan --json`), and as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...ir.program import Item, Loop, Program, walk
from ..lowered import lower
from .planner import NoPlan, plan_of
from .steps import CorePlan, GemmStep, InstructionStep, Matrix, PackStep, PlanStep

WIDTH = 100


def describe(program: Program, forced: bool = True) -> dict[str, Any]:
    """Return the plan of a program as plain data; `why` is the reason where there is none."""
    lowered = lower(program)
    plan = plan_of(lowered, forced)
    facts: dict[str, Any] = {
        "kernel": program.name,
        "platform": program.machine.name,
        "instructions": len(program),
        "by_default": not isinstance(plan_of(lowered), NoPlan),
    }
    if isinstance(plan, NoPlan):
        return facts | {"planned": False, "why": plan.why}
    unplanned = plan_of(lowered)
    facts["planned"] = True
    facts["why"] = unplanned.why if isinstance(unplanned, NoPlan) else ""
    facts["cores"] = [_core(part, items) for part, items in zip(plan.cores, program.cores, strict=True)]
    untracked = [(program.storages[number], why) for number, why in plan.in_place]
    facts["in_place"] = [
        {"storage": f"{s.dtype}{list(s.shape)} {s.where}", "why": why} for s, why in untracked
    ]
    facts["parts"] = plan.parts
    return facts


def _core(part: CorePlan, items: Sequence[Item]) -> dict[str, Any]:
    return {
        "steps": _merged([_step(step, items) for step in part.steps]),
        "bytes": part.arena,
        "packed_bytes": part.packed,
        "fused": {name: count for name, count in part.fused.items() if count},
        "units": [{"times": len(unit.shifts), **_core(unit.plan, items)} for unit in part.units],
    }


def _step(step: PlanStep, items: Sequence[Item]) -> dict[str, Any]:
    if isinstance(step, GemmStep):
        return _product(step)
    if isinstance(step, PackStep):
        size = 4 * step.factor.rows * step.factor.columns
        return {"step": "packing", "what": {"factor": 1}, "instructions": 0, "bytes": size}
    return _work(step, items)


def _product(product: GemmStep) -> dict[str, Any]:
    rows, columns = product.left.columns, product.right.columns
    return {
        "step": "product",
        "m": rows,
        "n": columns,
        "k": product.left.rows,
        "tiles": product.tiles,
        "terms": max(product.terms // product.tiles, 1),
        "instructions": product.terms,
        "stationary": _factor(product.left),
        "moving": _factor(product.right),
        "result": "in place" if product.target is not None else "in the arena",
        "bytes": 0 if product.target is not None else 4 * rows * columns,
    }


def _factor(factor: Matrix) -> str:
    return "where it is" if factor.view is not None else f"packed from {len(factor.tiles)}"


def _work(work: InstructionStep, items: Sequence[Item]) -> dict[str, Any]:
    item = None if work.kind == "gather" else items[work.item]
    if item is None:
        name, count = "gather", 0
    elif isinstance(item, Loop):
        name, count = item.function, sum(1 for _ in walk(item.body))
    else:
        name, count = item.public, 1
    return {
        "step": "fence" if work.kind == "fence" else "one by one",
        "what": {name: 1},
        "instructions": count,
        "bytes": work.nbytes,
    }


def _merged(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbouring steps of one kind, except products, into one row."""
    found: list[dict[str, Any]] = []
    for step in steps:
        if found and step["step"] == found[-1]["step"] != "product":
            last = found[-1]
            last["what"] = dict(Counter(last["what"]) + Counter(step["what"]))
            last["instructions"] += step["instructions"]
            last["bytes"] += step["bytes"]
        else:
            found.append(step)
    return found


# ---- text ----------------------------------------------------------------------------------------


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the plan as text, at most 100 columns wide."""
    head = f"{facts['kernel']} for {facts['platform']}: {facts['instructions']:,} instructions"
    if not facts["planned"]:
        return [f"{head}, run one by one", f"  why: {facts['why']}"]
    found = [head]
    if not facts["by_default"]:
        found.append(f"  by default it runs one by one: {facts['why']}")
    for index, core in enumerate(facts["cores"]):
        if len(facts["cores"]) > 1:
            found.append(f"core {index}")
        fused = ", ".join(f"{count:,} {name}" for name, count in core["fused"].items()) or "nothing"
        once = ", each unit counted once" if core["units"] else ""
        found.append(f"  {len(core['steps'])} steps; fused{once}: {fused}")
        found += _rows(core)
        for unit in core["units"]:
            found.append(f"  repeated {unit['times']} times on different data, {len(unit['steps'])} steps:")
            found += _rows(unit)
    for untracked in facts["in_place"]:
        found.append(f"  in place: {untracked['storage']}: {untracked['why']}"[:WIDTH])
    return [line.rstrip()[:WIDTH] for line in found]


def _rows(part: dict[str, Any]) -> list[str]:
    memory = f"  memory: {_bytes(part['bytes'])} of values, {_bytes(part['packed_bytes'])} of packed factors"
    return [memory, *(line for number, step in enumerate(part["steps"], 1) for line in _row(number, step))]


def _row(number: int, step: dict[str, Any]) -> list[str]:
    start = f"  {number:>4}  {step['instructions']:>7,} "
    if step["step"] == "product":
        size = f"{step['m']} x {step['n']} x {step['k']}"
        tiles = f"{step['tiles']:,} tiles of {step['terms']} terms"
        where = f"stationary {step['stationary']}, moving {step['moving']}, result {step['result']}"
        return [f"{start} product {size:<20} {tiles}", f"{'':16} {where}"]
    what = ", ".join(f"{name} {count:,}" for name, count in sorted(step["what"].items(), key=_most))
    return [f"{start} {step['step']:<10} {_bytes(step['bytes']):>9}  {what}"]


def _most(item: tuple[str, int]) -> int:
    return -item[1]


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
