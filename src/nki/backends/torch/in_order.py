"""Runs a program in order on a device, each instruction by one call of its `compute`: it may do anything.

Programs that have no plan run so: their addresses, loops or tiles are known at run time only, cores wait
for each other, or ranks exchange data. It is the reference on other memory, so all of it is the same: loops,
registers, barriers, what is reported and at which line. The host reads a value where a register or an
address needs it. An instruction that tensors do not support runs on the host, with a warning once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.engine_state import Accumulators
from ...ir.instruction import Instruction, State
from ...ir.storage import Storage
from ...ir.view import View
from ..fused.storages import touched
from ..lowered import Lowered, LoweredStep
from ..protocol import ExecutingCore, ExecutionContext
from ..reference.backend import run_core
from ..reference.executor import Executor
from ..reference.indirect import IndexedRows
from . import functions as functions  # fills the table
from .device import Unsupported
from .instructions import warn_copies
from .lanes import Lanes
from .memory import DeviceMemories, ReadableDevice
from .runner import exact_products

if TYPE_CHECKING:
    from torch import device as TorchDevice


def run_in_order(
    lowered: Lowered, execution: ExecutionContext, given: Mapping[Storage, Any], where: TorchDevice
) -> DeviceMemories:
    """Run all cores on the tensors of the parameters; return what holds the results."""
    import torch

    device = ReadableDevice(torch, torch.device(where))
    memories = DeviceMemories(lowered.machine, device)
    for storage, raw in lowered.constants:
        memories.lend(storage, device.tensor(raw))
    for storage, tensor in given.items():
        memories.lend(storage, tensor)
    stream = torch.cuda.current_stream(where) if device.where.type == "cuda" else None
    for core in execution.cores:
        core.use(DeviceExecutor(core, memories))
    with exact_products():
        cores = zip(execution.cores, lowered.cores, strict=True)
        execution.run_cores([(core, partial(_run, core, steps, stream)) for core, steps in cores])
    execution.report_divergent_loops()
    return memories


def _run(core: ExecutingCore, steps: Sequence[LoweredStep], stream: Any) -> None:
    """Run the steps of a core, on the stream of the caller: each core has a thread of its own."""
    import torch

    with torch.no_grad(), nullcontext() if stream is None else torch.cuda.stream(stream):
        run_core(core, steps)


class DeviceExecutor(Executor):
    """Runs instructions of one core on tensors."""

    memories: DeviceMemories

    def __init__(self, core: ExecutingCore, memories: DeviceMemories):
        super().__init__(core, memories)
        self.device = memories.device
        for registers in (core.engine_state.vector, core.engine_state.scalar):
            tensor = self.device.tensor(registers.values)
            registers.values = Lanes(tensor, 0, registers.values.dtype, self.device)  # type: ignore[assignment]

    def __call__(self, instruction: Instruction) -> None:
        try:
            super().__call__(instruction)
        except Unsupported as why:  # of an operand
            warn_copies(instruction, self.device.where, str(why))
            with self.memories.on_host(touched(instruction)), self._registers_on_host():
                super().__call__(instruction)

    def _compute(self, instruction: Instruction, arrays: list[Any]) -> None:
        try:
            instruction.compute(*arrays)
        except Unsupported as why:
            if State.output not in instruction.state:
                warn_copies(instruction, self.device.where, str(why))
            self._compute_on_host(instruction, arrays)

    def _compute_on_host(self, instruction: Instruction, arrays: list[Any]) -> None:
        """Run an instruction with numpy. What it opens by itself is on the host meanwhile."""
        copies = [array.on_host() if isinstance(array, Lanes) else array for array in arrays]
        opened = any(isinstance(array, (View, IndexedRows)) for array in arrays)
        with self.memories.on_host(touched(instruction) if opened else ()), self._registers_on_host():
            instruction.compute(*copies)
        for i in instruction.write_at:
            if isinstance(arrays[i], Lanes):
                arrays[i].take_from(copies[i])

    @contextmanager
    def _registers_on_host(self) -> Iterator[None]:
        state = self.core.engine_state
        before: list[Accumulators] = [state.vector, state.scalar]
        lanes: list[Any] = [registers.values for registers in before]
        for registers in before:
            registers.values = np.asarray(registers.values)
        try:
            yield
        finally:
            for registers, values in zip(before, lanes, strict=True):
                values.take_from(registers.values)
                registers.values = values
