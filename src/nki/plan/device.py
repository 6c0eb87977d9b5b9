"""A plan on torch tensors: on a GPU, or on the processor by the same code.

Products, moves, fills and sums of floats have a form here, which covers matrix products from end to end. A
plan with anything else in it runs on the host (`refusal` says why). Products are float32, never TF32; casts
round as numpy's do. The values lie in one tensor, as they do on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hardware.dtypes import DType
from ..program.meanings import Fill, Move, Sum
from ..tensors import View
from ..tensors.storage import Storage
from .planner import CorePlan, Plan
from .products import Factor, Gemm
from .running import made_at, spot
from .tracking import Task
from .values import Place, Value, of_storage

FLOATS = ("float32", "bfloat16", "float16")  # what torch casts as numpy does
MOVED = (*FLOATS, "int32", "int16", "int8", "uint8")


def refusal(plan: Plan) -> str | None:
    """Why a plan cannot run on a device; None: it can."""
    if len(plan.cores) > 1:
        return "it runs on two cores"
    storages = plan.storages
    if any(storage not in storages.complete or storage.parameter for storage in storages.written):
        return "it writes its arguments, or writes a result in part"
    for step in plan.cores[0].steps:
        if step.__class__ is Gemm:
            narrow = {p.dtype for f in (step.left, step.right) for p in _factor_places(f)} - set(FLOATS)
            if narrow:
                return f"a product of {min(narrow)} has no form there"
        elif not _has_form(step, plan):
            name = getattr(step.instruction, "public", None) or getattr(
                step.instruction, "function", "gather"
            )
            return f"{name} has no form there"
    return None


def _factor_places(factor: Factor) -> list[Place]:
    return [tile.place for tile in factor.tiles] if factor.there is None else [factor.there]


def _has_form(task: Task, plan: Plan) -> bool:
    if task.kind in ("fence", "memory"):
        return False
    if any(source.__class__ is not Place for _, source in task.reads):
        return False
    dtypes = {p.dtype for p in _all_places(task)}
    if task.kind == "gather":
        return dtypes <= set(MOVED)
    meaning = task.instruction.meaning(plan.program.machine)
    if meaning.__class__ is Move:
        return dtypes <= set(FLOATS) or (len(dtypes) == 1 and dtypes <= set(MOVED))
    return meaning.__class__ in (Fill, Sum) and dtypes <= set(FLOATS)


def _all_places(task: Task) -> list[Place]:
    found = [source for _, source in task.reads] + [place for _, place in task.parts]
    return found + [made_at(out) if out.__class__ is Value else of_storage(out) for _, out, _ in task.outs]


def run(plan: Plan, given: Mapping[Storage, Any], device: Any) -> dict[Storage, Any]:
    """Run a plan on the tensors of its parameters; the tensors of what it writes."""
    import torch

    runner = _Runner(torch, plan.cores[0], given, torch.device(device))
    precise = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.no_grad():
            for storage in plan.storages.complete:
                runner.open(storage)
            for step in plan.cores[0].steps:
                runner.step(step, plan)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = precise
    return {storage: runner.tensors[storage] for storage in plan.storages.complete}


def part_of(tensor: Any, view: View) -> Any:
    """The tensor of a view of a storage."""
    return tensor.as_strided(tuple(view.shape), tuple(view.strides), view.offset)


class _Runner:
    """Does the steps of a plan on tensors."""

    def __init__(self, torch: Any, part: CorePlan, given: Mapping[Storage, Any], device: Any):
        self.torch, self.device = torch, device
        self.tensors = {storage: tensor.reshape(-1) for storage, tensor in given.items()}
        self.arena = torch.empty(-(-part.arena // 4) * 4, dtype=torch.uint8, device=device)
        self.packs = torch.empty(part.packed // 4, dtype=torch.float32, device=device)

    def open(self, storage: Storage) -> None:
        size = storage.nbytes // storage.dtype.itemsize
        self.tensors[storage] = self.torch.empty(size, dtype=self._dtype(storage.dtype), device=self.device)

    def _dtype(self, dtype: DType) -> Any:
        return getattr(self.torch, dtype)

    def tensor(self, place: Place) -> Any:
        where = spot(place)
        width = place.dtype.itemsize
        base = self.arena if where.storage is None else self.tensors[where.storage]
        wanted = self._dtype(place.dtype)
        base = base if base.dtype == wanted else base.view(wanted)
        return base.as_strided(where.shape, [s // width for s in where.strides], where.offset // width)

    # ---- steps -----------------------------------------------------------------------------------

    def step(self, step: Any, plan: Plan) -> None:
        if step.__class__ is Gemm:
            self._gemm(step)
        elif step.kind == "gather":
            self._gather(step)
        else:
            self._compute(step, step.instruction.meaning(plan.program.machine))

    def _gather(self, task: Task) -> None:
        value: Value = task.outs[0][1]
        there = value if value.sunk is None else value.within(value.sunk)
        for view, source in task.parts:
            target = there.part(view)
            assert target is not None
            into = self.tensor(target)
            into.copy_(self.tensor(source).reshape(into.shape))

    def _compute(self, task: Task, meaning: Any) -> None:
        out = task.outs[0][1]
        dst = self.tensor(made_at(out) if out.__class__ is Value else of_storage(out))
        sources = [self.tensor(source) for _, source in task.reads]
        if meaning.__class__ is Fill:
            dst.fill_(meaning.value)
        elif meaning.__class__ is Sum:
            first, second = (s.float().reshape(dst.shape) for s in sources)
            dst.copy_(first + second)
        else:
            (source,) = sources
            if meaning.order == "turn":
                source = source.reshape(source.shape[0], -1).T
            elif meaning.order is not None:
                source = source.permute(meaning.order)
            dst.copy_(source.reshape(dst.shape))

    def _gemm(self, gemm: Gemm) -> None:
        left = self._matrix(gemm.left, 0)
        right = self._matrix(gemm.right, gemm.left.nbytes // 4)
        rows, columns = gemm.left.columns, gemm.right.columns
        if gemm.target is not None:
            self.torch.mm(left.T, right, out=self.tensor(gemm.target))
            return
        assert gemm.result is not None
        start = gemm.result.at // 4
        out = self.arena.view(self.torch.float32)[start : start + rows * columns].view(rows, columns)
        self.torch.mm(left.T, right, out=out)
        for value, row, column in gemm.copies:
            assert value.sunk is not None
            height = value.view.shape[0]
            width = value.size // height
            target = self.tensor(value.sunk)
            target.copy_(out[row : row + height, column : column + width].reshape(target.shape))

    def _matrix(self, factor: Factor, at: int) -> Any:
        if factor.there is not None:
            return self.tensor(factor.there)
        packed = self.packs[at : at + factor.rows * factor.columns].view(factor.rows, factor.columns)
        for target, place in factor.pieces(packed):
            target.copy_(self.tensor(place).reshape(target.shape))
        return packed


__all__ = ["part_of", "refusal", "run"]
