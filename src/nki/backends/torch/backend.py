"""The torch backend: a Program as steps of many equal instructions on torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import error
from ...ir.tree import leaves
from ...ir.view import View
from ...options import Options, checked_device
from ..lowered import Lowered
from ..protocol import ExecutionContext
from .graphs import run
from .in_order import run_in_order
from .schedule import Refused
from .steps import DevicePlan, device_plan_of

if TYPE_CHECKING:
    from torch import Tensor


class TorchBackend:
    """Runs a program on torch tensors: on the device that the options name, else on the processor."""

    name = "torch"

    def refusal(self, lowered: Lowered, options: Options) -> str:
        torch_device(options.device)
        return "" if options.precise_fp and not options.strict else "the reference backend is asked for"

    def run(self, lowered: Lowered, execution: ExecutionContext) -> bool:
        """Run the steps, or else in order. False: the reference reports something, at its line."""
        import torch

        device = torch_device(execution.options.device)
        tensors = {
            storage: torch.from_numpy(execution.memories[storage].raw.copy()).to(device)
            for _, storage in lowered.parameters
        }
        plan = complete_plan(lowered)
        if isinstance(plan, Refused):
            memories = run_in_order(lowered, execution, tensors, device)
            memories.to_host()
            execution.memories.update(memories)
            return True
        found = run(plan, tensors, device)
        if found is None:
            return False
        for storage, tensor in found.items():
            execution.memories.adopt(storage, _bytes(tensor.cpu()))
        for diagnostic in lowered.diagnostics:
            execution.diagnostics.report(diagnostic)
        return True


def complete_plan(lowered: Lowered) -> DevicePlan | Refused:
    """Return the plan of a program whose results are written in full, or why it has none."""
    plan = device_plan_of(lowered)
    if isinstance(plan, Refused):
        return plan
    parameters = {storage for _, storage in lowered.parameters}
    known = {*plan.written, *parameters, *(storage for storage, _ in plan.constants)}
    partly = plan.partly - parameters
    if any(v.storage in partly or v.storage not in known for v in leaves(lowered.result, View)):
        return Refused("it returns a tensor of which a part was never written")
    return plan


def torch_device(name: str) -> Any:
    """Return the torch device that the option `device` names."""
    import torch

    checked_device(name, "OPEN_NKI_DEVICE")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise error(
            "device",
            f"OPEN_NKI_DEVICE is {name!r}, and PyTorch finds no GPU here",
            notes=[f"PyTorch {torch.__version__}"],
            help="install a PyTorch with CUDA, or leave OPEN_NKI_DEVICE out",
        )
    return torch.device(name if name.startswith("cuda") else "cpu")


def _bytes(tensor: Tensor) -> np.ndarray:
    import torch

    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
