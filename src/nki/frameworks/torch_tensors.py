"""PyTorch tensors: as numpy arrays and back, without a copy; and why they have no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import emit_warning, error, user_site
from ..ir.tree import leaves
from ..ir.tree import replace_leaves as replaced
from ..machine import dtypes
from .gradients import library_gradient

try:
    import torch
except ImportError as problem:
    raise error(
        "missing-package", "nki.frameworks.torch needs PyTorch", help="pip install torch"
    ) from problem

_warned_devices: set[str] = set()


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# dtypes numpy does not have travel as integers of their size; torch has no IEEE-style e4m3, and the
# e4m3fn tensors that trn1 and trn2 read as e4m3 come back under the name they arrived with
_NARROW = {
    getattr(torch, dtype): np.dtype(getattr(ml_dtypes, dtype))
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    if hasattr(torch, dtype)
}
_TORCH = {storage: dtype for dtype, storage in _NARROW.items()}
_TORCH[dtypes.float8_e4m3.storage] = torch.float8_e4m3fn


# ---- tensors (what nki.arguments asks of a framework) --------------------------------------------


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def device_of(value: torch.Tensor) -> Any:
    return value.device


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """The tensor's own memory as an array; a copy only for tensors of another device."""
    _check_dense(value)
    plain = value.detach() if value.requires_grad else value
    if not value.is_cpu:
        _warn_device(value.device.type)
        plain = plain.cpu()
    if value.is_neg():
        plain = plain.resolve_neg()
    narrow = _NARROW.get(plain.dtype)
    return plain.numpy() if narrow is None else plain.view(_BITS[narrow.itemsize]).numpy().view(narrow)


def from_numpy(array: np.ndarray, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor on the memory of the array, or its copy on the device of `like`."""
    narrow = _TORCH.get(array.dtype)
    if narrow is None:
        tensor = torch.from_numpy(array)
    else:
        tensor = torch.from_numpy(dtypes.bits(array).view(f"i{array.itemsize}")).view(narrow)
    return tensor if like is None or like.device.type == "cpu" else tensor.to(like.device)


def check_writable(value: torch.Tensor, name: str) -> None:
    """Raise what `write_back` would, before anything is written."""
    if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
        raise error(
            "read-only-input",
            f"the kernel wrote argument '{name}', whose elements share memory (it was expanded)",
            help="pass x.clone()",
        )
    refused = value.requires_grad and value.is_leaf and torch.is_grad_enabled()
    if refused or (value.is_inference() and not torch.is_inference_mode_enabled()):
        value.copy_(value.detach())  # torch's own error


def write_back(value: torch.Tensor, array: np.ndarray, inputs: Sequence[torch.Tensor], kernel: str) -> None:
    """The new contents of an argument; torch's version counter advances."""
    value.copy_(connect(from_numpy(np.ascontiguousarray(array)), inputs, kernel))


def _check_dense(value: torch.Tensor) -> None:
    if value.is_nested or value.is_quantized or value.layout is not torch.strided:
        what = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
        raise error(
            "framework",
            f"a kernel needs a dense tensor, got a {what.removeprefix('torch.')} one of {value.dtype}",
            help="pass x.to_dense() of a sparse tensor, x.dequantize() of a quantized one, "
            "x.to_padded_tensor(0.0) of a nested one",
        )


def mark_device_warned(device: str) -> None:
    """Note that a warning about tensors of a device was shown."""
    _warned_devices.add(device)


def _warn_device(device: str) -> None:
    """Warn once that tensors of another device are copied to the processor and back."""
    if device not in ("cpu", "meta", "xla") and not _warned_devices:
        _warned_devices.add(device)
        emit_warning(
            "device-copy",
            f"kernels run on the CPU: tensors on {device} are copied there, and the results back",
            user_site(2),
        )


# ---- gradients -----------------------------------------------------------------------------------


def connect(result: object, inputs: Sequence[torch.Tensor], kernel: str) -> Any:
    """Let the gradient of every new tensor in a result be an error, if an input requires one."""
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in inputs):
        return result
    known = {id(tensor) for tensor in inputs}
    new = [tensor for tensor in leaves(result, torch.Tensor) if id(tensor) not in known]
    connected = iter(_NoBackward.apply((kernel, user_site(1)), new, *inputs))
    return replaced(result, torch.Tensor, lambda t: t if id(t) in known else next(connected))


_WHY = "it was called with a tensor that requires a gradient"


def _no_backward(kernel: str, site: Any = None) -> Exception:
    return error(
        "no-backward",
        f"kernel {kernel} has no backward",
        notes=[note for note in (_WHY, library_gradient(kernel)) if note],
        help="wrap it in torch.autograd.Function or torch.library.register_autograd, or in one line: "
        f"{kernel} = nki.frameworks.torch.differentiable({kernel}, backward), "
        "where backward(dy, *arguments) returns the gradients of the arguments; without a kernel for them, "
        "backward = nki.frameworks.torch.gradient_of(reference), the same function in PyTorch; "
        "x.detach() and torch.no_grad() need none",
        site=site,
    )


class _NoBackward(torch.autograd.Function):
    """Between the arguments and the results of a kernel: forward does nothing, backward refuses."""

    @staticmethod
    def forward(ctx: Any, kernel: tuple[str, Any], results: list[torch.Tensor], *inputs: Any) -> Any:
        ctx.kernel = kernel
        ctx.mark_non_differentiable(*(t for t in results if not t.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: object) -> Any:
        raise _no_backward(*ctx.kernel)
