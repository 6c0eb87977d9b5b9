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
from .schedule import Refused
from .steps import DevicePlan, device_plan_of

if TYPE_CHECKING:
    from torch import Tensor


class TorchBackend:
    """Runs a program on torch tensors: on the device that the options name, else on the processor."""

    name = "torch"

    def refusal(self, lowered: Lowered, options: Options) -> str:
        torch_device(options.device)
        if not options.precise_fp or options.strict:
            return "the reference backend is asked for"
        plan = device_plan_of(lowered)
        if isinstance(plan, Refused):
            return str(plan)
        parameters = {storage for _, storage in lowered.parameters}
        incomplete = plan.partly - parameters
        if any(view.storage in incomplete for view in leaves(lowered.result, View)):
            return "it returns a tensor of which a part was never written"
        return ""

    def run(self, lowered: Lowered, execution: ExecutionContext) -> bool:
        """Run the steps. False if an instruction reports something: the reference reports it at its line."""
        import torch

        plan = device_plan_of(lowered)
        assert isinstance(plan, DevicePlan)
        device = torch_device(execution.options.device)
        tensors = {
            storage: torch.from_numpy(execution.memories[storage].raw.copy()).to(device)
            for _, storage in lowered.parameters
        }
        found = run(plan, tensors, device)
        if found is None:
            return False
        for storage, tensor in found.items():
            execution.memories.adopt(storage, _bytes(tensor.cpu()))
        for diagnostic in lowered.diagnostics:
            execution.diagnostics.report(diagnostic)
        return True


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
