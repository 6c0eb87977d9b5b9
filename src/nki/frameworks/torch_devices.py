"""PyTorch tensors on a GPU: whether a call runs where its tensors are."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import emit_warning, user_site
from ..options import chosen_device
from .torch_tensors import mark_device_warned, torch


def device_of_call(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """Return the GPU that holds the tensors of a call; None: the call runs on the processor."""
    if chosen_device() == "cpu" or not tensors or not all(tensor.is_cuda for tensor in tensors):
        return None
    return tensors[0].device


_warned_kernels: set[str] = set()


def warn_host(kernel: str, device: torch.device, why: str) -> None:
    """Warn once that a kernel does not run on the device of its tensors."""
    if kernel in _warned_kernels or device.type == "cpu":
        return
    _warned_kernels.add(kernel)
    mark_device_warned(device.type)
    emit_warning(
        "device-copy",
        f"{kernel} runs on the CPU ({why}): what is on {device.type} is copied there, and the results back",
        user_site(2),
    )
