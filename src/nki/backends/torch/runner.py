"""Runs the steps of a program on a torch device: a GPU, or the CPU by the same code.

`instructions` does the work of a step on tensors; they are parts of the memory that a run has.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.context import activate
from ...ir.storage import Storage
from ...machine import dtypes
from ...machine.dtypes import DType, f32
from ..fused.products import NARROW
from ..reference.settings import WhileKernelsRun
from .batches import Batch
from .device import held_as
from .gemms import BatchedFactor, BatchedGemm
from .grids import GridCopy, OperandGrid, copy_strided
from .instructions import InstructionRunner
from .lanes import Lanes
from .steps import DevicePlan

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice


class DeviceRunner(InstructionRunner):
    """One run of a plan, on memory of its own."""

    def __init__(self, torch: ModuleType, plan: DevicePlan, given: dict[Storage, Any], where: TorchDevice):
        super().__init__(torch, plan, where)
        self.memories: dict[Any, Any] = {}
        for storage, tensor in (plan.constants_on(torch, where) | given).items():
            self.memories[storage] = self._held(tensor.reshape(-1), storage)
        for storage in plan.written:
            self.memories[storage] = self._new_memory(storage)
        self.arena = torch.empty(-(-plan.arena // 8) * 8, dtype=torch.uint8, device=where)
        self.views: dict[Any, Any] = {}
        self.packed: dict[Any, Any] = {}  # factors that several products share
        self.kernels = plan.kernels.get(where, {})

    def _new_memory(self, storage: Storage) -> Any:
        """Return new memory for what is written; with the old contents, where they matter."""
        before = self.memories.get(storage)
        if before is not None and storage in self.plan.partly:
            return before.clone()
        size = storage.nbytes // storage.dtype.itemsize
        tensor = self.torch.empty(size, dtype=self._held_dtype(storage.dtype), device=self.where)
        if storage in self.plan.partly:
            poison = np.asarray(dtypes.poison(storage.dtype), storage.dtype.storage)
            tensor.copy_(self.device.constant(poison))
        return tensor

    def _held_dtype(self, dtype: DType) -> Any:
        return getattr(self.torch, held_as(dtype.storage))

    def _held(self, tensor: Tensor, storage: Storage) -> Any:
        wanted = self._held_dtype(storage.dtype)
        return tensor if tensor.dtype == wanted else tensor.view(wanted)

    def run(self) -> dict[Storage, Any] | None:
        """Run the plan; return the tensors of what is written, or None: the host is to run the program."""
        doubt = self.launch()
        return None if doubt is not None and bool(doubt) else self.written()

    def written(self) -> dict[Storage, Any]:
        return {storage: self.memories[storage] for storage in self.plan.written}

    def launch(self) -> Any:
        """Run the steps, without waiting for the device; return whether an instruction reports something.

        That is a tensor on the device, or None if no instruction asked.
        """
        outer = activate(self.core)  # type: ignore[arg-type]
        try:
            with self.torch.no_grad(), exact_products(), np.errstate(all="ignore"):
                for step in self.plan.steps:
                    if isinstance(step, BatchedGemm):
                        self._products(step)
                    elif isinstance(step, Batch):
                        self._batch(step)
                return self.device.doubt()
        finally:
            activate(outer)

    # ---- memory ----------------------------------------------------------------------------------

    def memory(self, grid: OperandGrid) -> Any:
        key = (grid.layout.memory, grid.layout.dtype)
        found = self.views.get(key)
        if found is None:
            wanted = self._held_dtype(grid.layout.dtype)
            base = self.arena if key[0] is None else self.memories[key[0]]
            found = self.views[key] = base if base.dtype == wanted else base.view(wanted)
        return found

    def read(self, grid: OperandGrid, lead: tuple[int, ...]) -> Any:
        return grid.read(self.torch, self.memory(grid), lead)

    def lanes(self, grid: OperandGrid, lead: tuple[int, ...]) -> Lanes:
        return Lanes(self.read(grid, lead), len(lead), grid.layout.dtype.storage, self.device)

    # ---- instructions ----------------------------------------------------------------------------

    def _batch(self, step: Batch) -> None:
        if step.node.kind == "gather":
            for copy in step.copies:
                self._copy(copy, self.read(copy.source, copy.lead), self.memory(copy.target))
            return
        tensors = [self._operand(grid, step) for grid in step.operands()]
        kernel = self.kernels.get(step)
        if kernel is None:
            self.apply(step, tensors)
        else:
            self.device.doubts += kernel(tensors)
        for (_, grid, _), made in zip(step.outputs, tensors, strict=False):
            if grid.regular(step.lead) is None:
                grid.write(self.torch, self.memory(grid), made)

    def _operand(self, grid: OperandGrid | None, step: Batch) -> Any:
        """Return the tensor of an operand; new memory for results whose places are not regular."""
        if grid is None:
            return None
        if grid.regular(step.lead) is None and any(grid is out for _, out, _ in step.outputs):
            shape = (*step.lead, *grid.layout.shape)
            return self.torch.empty(shape, dtype=self._held_dtype(grid.layout.dtype), device=self.where)
        return self.read(*step.place_of(grid))

    def _copy(self, copy: GridCopy, values: Tensor, memory: Tensor) -> None:
        """Copy values to the target of a copy, in some memory."""
        target = copy.target
        values = values.reshape(*copy.lead, *target.layout.shape)
        if copy.is_strided:
            copy_strided(self.torch, target.read(self.torch, memory, copy.lead), values)
        else:
            target.write(self.torch, memory, values)

    # ---- products --------------------------------------------------------------------------------

    def _products(self, step: BatchedGemm) -> None:
        dtype = self._held_dtype(step.dtype)
        left, right = self._side(step.left, dtype), self._side(step.right, dtype)
        target = step.results
        columns = min(right.shape[2], target.layout.shape[1])  # those of padding are not defined
        left, right = left[:, :, : step.rows].transpose(1, 2), right[:, :, :columns]
        if target.regular((step.count,)) is None:
            made, memory = self._multiplied(left, right, None), self.memory(target)
            whole = memory.new_empty(step.count, *target.layout.shape)
            whole[:, :, :columns] = made
            target.write(self.torch, memory, whole)
        else:
            made = self._multiplied(left, right, self.read(target, (step.count,))[:, :, :columns])
        for (rows, columns), stored_at in step.copies:
            part = made[:, rows, columns]
            if stored_at.regular((step.count,)) is None:
                stored_at.write(self.torch, self.memory(stored_at), part)
            else:
                into = self.read(stored_at, (step.count,))
                into.copy_(part.reshape(into.shape))

    def _multiplied(self, left: Tensor, right: Tensor, out: Tensor | None) -> Any:
        """Return the products, summed in float32: the product of two narrow numbers is exact there."""
        torch = self.torch
        options: dict[str, Any] = {}
        if out is not None and out.dtype != torch.float32:  # rounded once, at the end
            if self.where.type == "cpu" or left.dtype != out.dtype:
                return out.copy_(self._multiplied(left, right, None))
        elif left.dtype != torch.float32:
            if self.where.type == "cuda" and hasattr(torch.ops.aten.bmm, "dtype"):
                options["out_dtype"] = torch.float32
            else:
                left, right = left.float(), right.float()
        if len(left) == 1:
            return torch.mm(left[0], right[0], out=None if out is None else out[0], **options)[None]
        return torch.bmm(left, right, out=out, **options)

    def _side(self, side: BatchedFactor, dtype: Any) -> Any:
        """Return a factor [count, K, M or more] in float32, or in the narrow dtype of all its tiles."""
        if side.view is not None:
            return self._tiles(side.view, (side.count,), dtype)
        if side.longest is None:
            return self._packed(side, dtype)
        key = (side.longest, dtype)
        if key not in self.packed:
            self.packed[key] = self._packed(side.longest, dtype)
        return self.packed[key][:, : side.rows]

    def _packed(self, side: BatchedFactor, dtype: Any) -> Any:
        """Return a factor whose tiles are copied side by side."""
        shape = (side.columns, side.rows) if side.transposed else (side.rows, side.pitch)
        packed = self.torch.empty((side.count, *shape), dtype=dtype, device=self.where)
        memory = packed.reshape(-1)
        for copy in side.copies:
            plain = copy.is_strided and copy.source.layout.dtype in NARROW  # which a copy widens
            tiles = self.read(copy.source, copy.lead) if plain else self._tiles(copy.source, copy.lead, dtype)
            self._copy(copy, tiles, memory)
        return packed.transpose(1, 2) if side.transposed else packed

    def _tiles(self, grid: OperandGrid, lead: tuple[int, ...], dtype: Any) -> Any:
        tiles = self.read(grid, lead)
        return tiles if tiles.dtype == dtype else self._wide(grid, lead)

    def _wide(self, grid: OperandGrid, lead: tuple[int, ...]) -> Any:
        return f32(self.lanes(grid, lead), grid.layout.dtype).tensor  # type: ignore[arg-type, attr-defined]


# ---- float32 products ----------------------------------------------------------------------------


class exact_products(WhileKernelsRun):
    """Context: products are summed in float32 and not rounded to TF32 while any thread runs a plan."""

    @classmethod
    def present(cls) -> Any:
        settings = cls._settings()
        return {name: getattr(settings, name) for name in cls._exact()}

    @classmethod
    def change(cls, before: Any) -> None:
        cls.restore(cls._exact())

    @classmethod
    def restore(cls, before: Any) -> None:
        settings = cls._settings()
        for name, value in before.items():
            setattr(settings, name, value)

    @staticmethod
    def _settings() -> Any:
        import torch

        return torch.backends.cuda.matmul

    @classmethod
    def _exact(cls) -> dict[str, Any]:
        """Return the settings of exact products."""
        is_new = hasattr(cls._settings(), "fp32_precision")
        wide = {"fp32_precision": "ieee"} if is_new else {"allow_tf32": False}
        return {**wide, "allow_bf16_reduced_precision_reduction": False}
