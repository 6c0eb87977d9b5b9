"""Runs the steps of a program on a torch device: a GPU, or the CPU by the same code.

An instruction's own `compute` does the work of a whole step, on `Lanes`. A step whose numpy functions tensors
do not support runs on the host, with a warning the first time. No value is read back on the way: checks of
values leave masks, and if one of them is not empty at the end, the host runs the program again.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import emit_warning
from ...ir.context import activate
from ...ir.engine_state import Accumulators, EngineState
from ...ir.storage import Storage
from ...ir.view import View
from ...machine import dtypes
from ...machine.dtypes import DType, f32
from ...machine.machine import Machine
from ..fused.products import NARROW
from . import functions as functions  # fills the table
from .batches import Batch
from .gemms import BatchedFactor, BatchedGemm
from .grids import GridCopy, OperandGrid, copy_strided
from .lanes import Device, Lanes, Unsupported, held_as
from .steps import DevicePlan

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice


class Diagnosed(Exception):
    """An instruction reports a diagnostic about values: the reference reports it, with lines."""


def part_of(tensor: Tensor, view: View) -> Any:
    """Return the tensor of a view of a storage."""
    start = tensor.storage_offset() + view.offset
    return tensor.as_strided(tuple(view.shape), tuple(view.strides), start)


# ---- steps ---------------------------------------------------------------------------------------


class _Core:
    """What an instruction may use of its core: the machine, and its accumulator registers."""

    index, pending_warnings, registers = 0, None, None

    def __init__(self, machine: Machine):
        self.machine = machine
        self.engine_state = EngineState(0)

    def diagnose(self, *_: object) -> None:
        raise Diagnosed


class DeviceRunner:
    """One run of a plan, on memory of its own."""

    def __init__(self, torch: ModuleType, plan: DevicePlan, given: dict[Storage, Any], where: TorchDevice):
        self.torch, self.plan, self.where = torch, plan, where
        self.device = Device(torch, where, plan.numbers[where])
        self.core = _Core(plan.machine)
        self.stayed = True  # no step ran on the host
        self.memories: dict[Any, Any] = {}
        for storage, tensor in (plan.constants_on(torch, where) | given).items():
            self.memories[storage] = self._held(tensor.reshape(-1), storage)
        for storage in plan.written:
            self.memories[storage] = self._new_memory(storage)
        self.arena = torch.empty(-(-plan.arena // 8) * 8, dtype=torch.uint8, device=where)
        self.views: dict[Any, Any] = {}
        self.packed: dict[Any, Any] = {}  # factors that several products share

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
            for step in self.plan.steps:
                if isinstance(step, BatchedGemm):
                    self._products(step)
                elif isinstance(step, Batch):
                    self._batch(step)
        finally:
            activate(outer)
        return self.device.doubt()

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
        after: list[tuple[OperandGrid, Any]] = []
        outputs = [self._output(grid, old, step, after) for _, grid, old in step.outputs]
        reads = [self.lanes(grid, step.lead) for _, grid in step.reads]
        if step.node.kind == "move":
            self._move(step, reads[0], outputs[0])
        else:
            self._compute(step, reads, outputs)
        for grid, made in after:
            grid.write(self.torch, self.memory(grid), made.tensor)

    def _output(self, grid: OperandGrid, old: OperandGrid | None, step: Batch, after: list[Any]) -> Lanes:
        if grid.regular(step.lead) is not None:
            made = self.lanes(grid, step.lead)
        else:
            shape = (*step.lead, *grid.layout.shape)
            dtype = grid.layout.dtype
            tensor = self.torch.empty(shape, dtype=self._held_dtype(dtype), device=self.where)
            made = Lanes(tensor, len(step.lead), dtype.storage, self.device)
            after.append((grid, made))
        if old is not None:
            made.tensor.copy_(self.read(old, step.lead).reshape(made.tensor.shape))
        return made

    def _copy(self, copy: GridCopy, values: Tensor, memory: Tensor) -> None:
        """Copy values to the target of a copy, in some memory."""
        target = copy.target
        values = values.reshape(*copy.lead, *target.layout.shape)
        if copy.is_strided:
            copy_strided(self.torch, target.read(self.torch, memory, copy.lead), values)
        else:
            target.write(self.torch, memory, values)

    def _move(self, step: Batch, source: Lanes, target: Lanes) -> None:
        order = step.node.order
        memories = [grid.layout.memory for grid in (step.outputs[0][1], step.reads[0][1])]
        if memories[0] is not None and memories[0] is memories[1]:
            source = source.copy()  # the two may overlap
        if order == "transpose":
            source = source.reshape(len(source), -1).T
        elif order is not None:
            source = source.transpose(tuple(order))
        source = source.reshape(target.shape)
        wanted, given = step.outputs[0][1].layout.dtype, step.reads[0][1].layout.dtype
        if wanted is given:
            target.tensor.copy_(source.tensor)
        else:
            dtypes.store(target, f32(source, given), wanted)  # type: ignore[arg-type]

    def _compute(self, step: Batch, reads: list[Lanes], outputs: list[Lanes]) -> None:
        instruction = step.node.instruction
        arrays: list[Any] = list(instruction.operands())
        widened = dict(instruction.access.reads)
        for (i, grid), lanes in zip(step.reads, reads, strict=True):
            arrays[i] = f32(lanes, grid.layout.dtype) if widened[i] else lanes  # type: ignore[arg-type]
        for (i, _, _), lanes in zip(step.outputs, outputs, strict=True):
            arrays[i] = lanes
        if instruction.accumulates:
            self.core.engine_state.matmul_written = step.node.written
        self._set_registers(step)
        try:
            instruction.compute(*arrays)
        except Unsupported as why:
            self._on_host(step, arrays, str(why))

    def _set_registers(self, step: Batch) -> None:
        if step.after is None:
            return
        lanes = self.lanes(step.after, step.lead)
        if step.before is not None:
            lanes.tensor.copy_(self.read(step.before, step.lead))
        known = step.lanes
        opened = Accumulators(lanes) if known is None else Accumulators(lanes, known.lanes, known.user)  # type: ignore[arg-type]
        state = self.core.engine_state
        state.vector = state.scalar = opened

    # ---- what tensors do not support -------------------------------------------------------------

    def _on_host(self, step: Batch, arrays: list[Any], why: str) -> None:
        """Run the instructions of a step one by one, with numpy."""
        instruction = step.node.instruction
        name = instruction.public
        self.stayed = False
        if (self.where.type, name) not in _warned:
            _warned.add((self.where.type, name))
            emit_warning(
                "device-copy",
                f"{name} is not supported on {self.where.type} ({why}): "
                "its tiles are copied to the host and back",
                instruction.site,
                [],
                None,
            )
        state, count = self.core.engine_state, step.count
        opened = state.vector
        registers: Any = opened.values if step.after is not None else None
        copies = [to_host(a, count) if isinstance(a, Lanes) else None for a in arrays]
        host_registers = None if registers is None else to_host(registers, count)
        for j in range(count):
            one = [a if c is None else c[j] for a, c in zip(arrays, copies, strict=True)]
            if host_registers is not None:
                state.vector = state.scalar = Accumulators(host_registers[j], opened.defined, opened.user)
            instruction.compute(*one)
        for i, _, _ in step.outputs:
            written = copies[i]
            assert written is not None
            to_device(arrays[i], written)
        if host_registers is not None:
            to_device(registers, host_registers)

    # ---- products --------------------------------------------------------------------------------

    def _products(self, step: BatchedGemm) -> None:
        dtype = self._held_dtype(step.dtype)
        left, right = self._side(step.left, dtype), self._side(step.right, dtype)
        target = step.results
        columns = min(right.shape[2], target.layout.shape[1])  # those of padding are not defined
        left, right = left[:, :, : step.rows].transpose(1, 2), right[:, :, :columns]
        if target.regular((step.count,)) is None:
            made = self._multiplied(left, right, None)
            whole = made.new_empty(step.count, *target.layout.shape)
            whole[:, :, :columns] = made
            target.write(self.torch, self.memory(target), whole)
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
        """Return the products in float32. The product of two narrow numbers is exact there."""
        torch = self.torch
        options: dict[str, Any] = {}
        if left.dtype != torch.float32:
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


_warned: set[tuple[str, str]] = set()


def to_host(lanes: Lanes, count: int) -> np.ndarray:
    """Return the arrays of all members as one, [count, ...]."""
    tensor = lanes.tensor.reshape(count, *lanes.shape)
    if tensor.dtype == lanes.device.torch.bfloat16:
        tensor = tensor.view(lanes.device.torch.int16)
    return np.array(tensor.cpu().numpy()).view(lanes.dtype)


def to_device(lanes: Lanes, values: np.ndarray) -> None:
    held = values.view(np.int16) if lanes.dtype.name == "bfloat16" else values
    if held_as(held.dtype) != held.dtype.name:
        held = held.view(held_as(held.dtype))
    tensor = lanes.device.torch.from_numpy(held).to(lanes.tensor.device)
    lanes.tensor.copy_(tensor.view(lanes.tensor.dtype).reshape(lanes.tensor.shape))
