"""What a plan looks like: as plain data (`nki plan --json`), and as lines of text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..program.program import Loop, Program, walk
from .planner import CorePlan, NoPlan, Plan, plan_of
from .products import Factor, Gemm
from .tracking import Task
from .values import Value

WIDTH = 100


def described(program: Program, forced: bool = True) -> dict[str, Any]:
    """The plan of a program as plain data; `why` says it where there is none."""
    plan = plan_of(program, forced)
    facts: dict[str, Any] = {
        "kernel": program.name,
        "platform": program.machine.name,
        "instructions": len(program),
        "by_default": not isinstance(plan_of(program), NoPlan),
    }
    if isinstance(plan, NoPlan):
        return facts | {"planned": False, "why": plan.why}
    unplanned = plan_of(program)
    facts["planned"] = True
    facts["why"] = unplanned.why if isinstance(unplanned, NoPlan) else ""
    facts["cores"] = [_core(part) for part in plan.cores]
    facts["in_place"] = [
        {"storage": f"{s.dtype}{list(s.shape)} {s.where}", "why": why} for s, why in plan.in_place.items()
    ]
    facts["parts"] = _parts_in_place(plan)
    return facts


def _parts_in_place(plan: Plan) -> int:
    return sum(s.on_chip for s in plan.storages.in_place)


def _core(part: CorePlan) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for step in part.steps:
        steps.append(_gemm(step) if step.__class__ is Gemm else _task(step))
    return {
        "steps": _joined(steps),
        "bytes": part.arena,
        "packed_bytes": part.packed,
        "folded": {name: count for name, count in part.folded.items() if count},
    }


def _gemm(gemm: Gemm) -> dict[str, Any]:
    terms = max(gemm.products // len(gemm.tasks), 1)
    return {
        "step": "product",
        "m": gemm.left.columns,
        "n": gemm.right.columns,
        "k": gemm.left.rows,
        "tiles": len(gemm.tasks),
        "terms": terms,
        "instructions": gemm.products,
        "stationary": _factor(gemm.left),
        "moving": _factor(gemm.right),
        "result": "in place" if gemm.target is not None else "in the arena",
        "bytes": 0 if gemm.result is None else gemm.result.nbytes,
    }


def _factor(factor: Factor) -> str:
    return "where it is" if factor.there is not None else f"packed from {len(factor.tiles)}"


def _task(task: Task) -> dict[str, Any]:
    if task.kind == "gather":
        name, count = "gather", 0
    elif isinstance(task.instruction, Loop):
        name, count = task.instruction.function, sum(1 for _ in walk(task.instruction.body))
    else:
        name, count = task.instruction.public, 1
    made = sum(v.nbytes for _, v, _ in task.outs if v.__class__ is Value and v.sunk is None)
    return {
        "step": "fence" if task.kind == "fence" else "one by one",
        "what": {name: 1},
        "instructions": count,
        "bytes": made,
    }


def _joined(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one kind that are no products are shown as one row."""
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
    """The plan for a person, at most 100 columns wide."""
    head = f"{facts['kernel']} for {facts['platform']}: {facts['instructions']:,} instructions"
    if not facts["planned"]:
        return [f"{head}, run one by one", f"  why: {facts['why']}"]
    found = [head]
    if not facts["by_default"]:
        found.append(f"  by default it runs one by one: {facts['why']}")
    for index, core in enumerate(facts["cores"]):
        if len(facts["cores"]) > 1:
            found.append(f"core {index}")
        folded = ", ".join(f"{count:,} {name}" for name, count in core["folded"].items()) or "nothing"
        found.append(f"  {len(core['steps'])} steps; folded: {folded}")
        memory = (
            f"  memory: {_bytes(core['bytes'])} of values, {_bytes(core['packed_bytes'])} of packed factors"
        )
        found.append(memory)
        for number, step in enumerate(core["steps"], 1):
            found += _row(number, step)
    for kept in facts["in_place"]:
        found.append(f"  in place: {kept['storage']}: {kept['why']}"[:WIDTH])
    return [line.rstrip()[:WIDTH] for line in found]


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


__all__ = ["described", "lines"]
