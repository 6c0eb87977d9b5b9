"""Runs the instructions of a step on a torch device, all by one call of their own `compute`, on `Lanes`.

A step whose numpy functions tensors do not support runs on the host, with a warning the first time. No
value is read back on the way: checks of values leave masks, and if one of them is not empty at the end, the
host runs the program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import emit_warning
from ...ir.engine_state import Accumulators, EngineState
from ...ir.instruction import Instruction
from ...machine.dtypes import f32
from ...machine.machine import Machine
from . import functions as functions  # fills the table
from .batches import Batch
from .device import Device, Unsupported
from .indirect import convert
from .lanes import Lanes
from .steps import DevicePlan

if TYPE_CHECKING:
    from torch import device as TorchDevice


class Diagnosed(Exception):
    """An instruction reports a diagnostic about values: the reference reports it, with lines."""


class _Core:
    """What an instruction may use of its core: the machine, and its accumulator registers."""

    index, pending_warnings, registers = 0, None, None

    def __init__(self, machine: Machine):
        self.machine = machine
        self.engine_state = EngineState(0)

    def diagnose(self, *_: object) -> None:
        raise Diagnosed


class InstructionRunner:
    """Runs instructions on tensors that are given, with what a plan has on a device."""

    def __init__(self, torch: ModuleType, plan: DevicePlan, where: TorchDevice):
        self.torch, self.plan, self.where = torch, plan, where
        self.device = Device(torch, where, plan.numbers[where])
        self.core = _Core(plan.machine)
        self.stayed = True  # no step ran on the host

    def apply(self, step: Batch, tensors: Sequence[Any]) -> None:
        """Do the work of a step on the tensors of `step.operands()`."""
        lead = len(step.lead)
        lanes = [
            None if grid is None else Lanes(tensor, lead, grid.layout.dtype.storage, self.device)
            for grid, tensor in zip(step.operands(), tensors, strict=True)
        ]
        count = len(step.outputs)
        outputs: Any = lanes[:count]
        reads: Any = lanes[2 * count : -2]
        for made, old in zip(outputs, lanes[count:], strict=False):
            if old is not None:
                made.tensor.copy_(old.tensor.reshape(made.tensor.shape))
        if step.node.kind == "move":
            self._move(step, reads[0], outputs[0])
        else:
            self._set_registers(step, *lanes[-2:])
            self._compute(step, reads, outputs)

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
        convert(target, source, given, wanted)

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
        try:
            instruction.compute(*arrays)
        except Unsupported as why:
            self._on_host(step, arrays, str(why))

    def _set_registers(self, step: Batch, before: Lanes | None, lanes: Lanes | None) -> None:
        if lanes is None:
            return
        if before is not None:
            lanes.tensor.copy_(before.tensor)
        known = step.lanes
        opened = Accumulators(lanes) if known is None else Accumulators(lanes, known.lanes, known.user)  # type: ignore[arg-type]
        state = self.core.engine_state
        state.vector = state.scalar = opened

    # ---- what tensors do not support -------------------------------------------------------------

    def _on_host(self, step: Batch, arrays: list[Any], why: str) -> None:
        """Run the instructions of a step one by one, with numpy."""
        instruction = step.node.instruction
        self.stayed = False
        warn_copies(instruction, self.where, why)
        state, count = self.core.engine_state, step.count
        opened = state.vector
        registers: Any = opened.values if step.after is not None else None
        copies = [members(a, count) if isinstance(a, Lanes) else None for a in arrays]
        host_registers = None if registers is None else members(registers, count)
        for j in range(count):
            one = [a if c is None else c[j] for a, c in zip(arrays, copies, strict=True)]
            if host_registers is not None:
                state.vector = state.scalar = Accumulators(host_registers[j], opened.defined, opened.user)
            instruction.compute(*one)
        for i, _, _ in step.outputs:
            written = copies[i]
            assert written is not None
            arrays[i].take_from(written)
        if host_registers is not None:
            registers.take_from(host_registers)


_warned: set[tuple[str, str]] = set()


def warn_copies(instruction: Instruction, where: TorchDevice, why: str) -> None:
    """Warn once that an instruction does not run on a kind of device."""
    name = instruction.public
    if (where.type, name) not in _warned:
        _warned.add((where.type, name))
        text = f"{name} is not supported on {where.type} ({why}): its tiles are copied to the host and back"
        emit_warning("device-copy", text, instruction.site, [], None)


def members(lanes: Lanes, count: int) -> np.ndarray:
    """Return the arrays of all members as one, [count, ...]."""
    return lanes.on_host().reshape(count, *lanes.shape)
