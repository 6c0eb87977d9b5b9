"""`torch_neuronx` on the CPU: traces that call their function, kernels, and a profiler that models."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

import nki
from nki.options import choose_machine

from .. import old_api, sessions
from . import devices, neuron_device

T = TypeVar("T")
__version__ = f"{torch.__version__.split('+')[0]}+open.nki"
devices.install()


def nki_jit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A kernel, of the old API where the function's module imports that."""
    if func is None:
        return lambda function: nki_jit(function, **options)
    modules = (getattr(v, "__name__", "") for v in func.__globals__.values())
    old = any(isinstance(name, str) and name.startswith(old_api.__name__) for name in modules)
    return old_api.jit(func) if old else nki.jit(func)


class TracedModule(torch.nn.Module):
    """A function traced on inputs: it takes the same shapes and dtypes."""

    def __init__(self, func: Callable[..., Any], inputs: tuple):
        super().__init__()
        self.func = func
        self.described = [(tuple(t.shape), t.dtype) for t in inputs if isinstance(t, torch.Tensor)]

    def forward(self, *inputs: Any) -> Any:
        found = [(tuple(t.shape), t.dtype) for t in inputs if isinstance(t, torch.Tensor)]
        if found != self.described:
            raise RuntimeError(f"traced for {self.described}, called with {found}")
        with torch.no_grad():
            return self.func(*inputs)


def trace(
    func: Any,
    example_inputs: Any,
    *_: object,
    compiler_workdir: str | os.PathLike | None = None,
    **__: object,
) -> TracedModule:
    """Call the function; with a `compiler_workdir`, write its kernels there as graph.neff."""
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    made = TracedModule(func, inputs)
    if compiler_workdir is not None:
        _, programs = sessions.recorded(lambda: made(*inputs))
        os.makedirs(compiler_workdir, exist_ok=True)
        name = getattr(func, "__name__", type(func).__name__)
        sessions.write(os.path.join(compiler_workdir, "graph.neff"), name, programs)
    return made


class DataParallel(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, device_ids: object = None, dim: int = 0, **_: object):
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def async_load(model: T, *_: object, **__: object) -> T:
    return model


lazy_load = async_load


def get_platform_target() -> str:
    return choose_machine().name


assert_close = neuron_allclose = torch.testing.assert_close


class RmsNorm:
    """`torch_neuronx.xla_impl.ops.RmsNorm`."""

    @staticmethod
    def apply(x: torch.Tensor, weight: torch.Tensor, eps: float, dim: int = -1) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(dim, keepdim=True) + eps)).to(x.dtype) * weight


def __getattr__(name: str) -> Any:
    if name in ("nki_op", "wrap_nki"):
        from nki.frameworks import torch as bridge

        return getattr(bridge, name)
    if name in vars(neuron_device):  # the functions of `torch.neuron`: device_count, synchronize, stream, ...
        return getattr(neuron_device, name)
    raise AttributeError(f"the stub of Open NKI for torch_neuronx lacks torch_neuronx.{name}")
