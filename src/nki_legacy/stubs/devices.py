"""The devices `xla` and `neuron` of torch: here they are the CPU.

A process-wide TorchFunctionMode writes `cpu` wherever one of them is named, and copies what is moved to one,
as a device would: a kernel that writes its input must not change the host's tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import neuron_device, xla_backend
from .after_import import add_to

_NAMES = ("xla", "neuron", "privateuseone")
_mode: OnCpu | None = None


def is_accelerator(device: object) -> bool:
    """True for the name or the torch.device of an accelerator."""
    if isinstance(device, str):
        return device.partition(":")[0] in _NAMES
    return isinstance(device, torch.device) and device.type in _NAMES


class OnCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device or not (
            any(map(is_accelerator, args)) or any(map(is_accelerator, kwargs.values()))
        ):
            return func(*args, **kwargs)
        new_args = [torch.device("cpu") if is_accelerator(a) else a for a in args]
        new_kwargs = {k: torch.device("cpu") if is_accelerator(v) else v for k, v in kwargs.items()}
        made = func(*new_args, **new_kwargs)
        moved = func is torch.Tensor.to and isinstance(made, torch.Tensor) and made is args[0]
        return made.clone() if moved else made


def install() -> None:
    """Map accelerators to the CPU, from now on in this process."""
    global _mode
    if _mode is not None:
        return
    _mode = OnCpu()
    _mode.__enter__()
    xla_backend.install()
    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", neuron_device)
    if hasattr(torch, "accelerator"):  # PyTorch would ask the device for streams
        torch.accelerator.current_accelerator = _real_accelerator
    add_to("torch._dynamo.backends.registry", _register_compiler)


def _real_accelerator(check_available: bool = False) -> torch.device | None:
    return torch.device("cuda") if torch.cuda.is_available() else None


def _register_compiler(registry: ModuleType) -> None:
    """Make `torch.compile(backend="neuron")` run a graph as it is."""
    registry.register_backend(lambda graph, inputs: graph.forward, name="neuron")


def device(index: int | None = None) -> torch.device:
    """Return the accelerator, as torch calls it."""
    install()
    return torch.device("xla", index or 0)
