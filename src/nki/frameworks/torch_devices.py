"""PyTorch tensors where they are: calls that run on their device, or on the one that the options name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import emit_warning, error, user_site
from ..ir.tree import leaves
from ..ir.tree import replace_leaves as replaced
from ..kernel.bridges import NumpyFramework, TensorSpec
from ..kernel.devices import on_device
from ..kernel.kernel import Kernel
from ..machine import dtypes
from ..options import checked_device, chosen_device
from .torch_tensors import connect, from_numpy, no_more_word_of, to_numpy, torch


def describe(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype)


def run_there(
    kernel: Kernel, args: tuple, kwargs: dict, tensors: list[torch.Tensor], where: Any = None
) -> list[Any] | str:
    """What a call returns, computed on a device, in a list; or why it runs on the host.

    Without `where` that is the device of the tensors, and nothing is copied. Results are where they are.
    """
    home = tensors[0].device
    if any(tensor.device != home for tensor in tensors) or not all(map(_is_dense, tensors)):
        return "its tensors are not all dense, on one device"
    specs, kept = replaced((args, kwargs), torch.Tensor, describe)
    found = on_device(kernel, specs, kept, tensors, home if where is None else where)
    if isinstance(found, str):
        return found
    result = replaced(found[0], torch.Tensor, lambda tensor: tensor.to(home))
    return [connect(result, tensors, kernel.__name__)]


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_neg())


def run_arrays(kernel: Kernel, args: tuple, kwargs: dict, name: str) -> list[Any]:
    """A call with numpy arrays on the device that the options name; an empty list: it runs on the host."""
    where = _device(name)
    arrays = leaves((args, kwargs), np.ndarray)
    if not arrays or any(type(a) is not np.ndarray or a.dtype not in _PLAIN_ARRAYS for a in arrays):
        return []
    tensors: list[torch.Tensor] = []

    def described(array: np.ndarray) -> TensorSpec:
        tensors.append(from_numpy(np.array(array, order="C")).to(where))
        return TensorSpec(array.shape, array.dtype)

    specs, kept = replaced((args, kwargs), np.ndarray, described)
    before = [tensor._version for tensor in tensors]
    found = on_device(kernel, specs, kept, tensors, where)
    if isinstance(found, str):
        say_host(kernel.__name__, where, found)
        return []
    for array, tensor, version in zip(arrays, tensors, before, strict=True):
        if tensor._version != version:  # the kernel wrote it
            NumpyFramework.check_writable(array, "of an array")
            array[...] = to_numpy(tensor.cpu())
    own = {id(tensor): array for tensor, array in zip(tensors, arrays, strict=True)}
    return [replaced(found[0], torch.Tensor, lambda t: own[id(t)] if id(t) in own else to_numpy(t.cpu()))]


_PLAIN_ARRAYS = {
    dtype.storage
    for dtype in dtypes.ALL
    if dtype.castable and dtype not in (dtypes.float8_e4m3, dtypes.float8_e4m3fn)
}


def place_of(tensors: Sequence[torch.Tensor]) -> Any:
    """The device on which a call with these tensors runs; None: the processor, by numpy."""
    name = chosen_device()
    if name:
        return None if name == "cpu" or not tensors else _device(name)
    return tensors[0].device if tensors and all(tensor.is_cuda for tensor in tensors) else None


def _device(name: str) -> torch.device:
    checked_device(name, "OPEN_NKI_DEVICE")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise error(
            "device",
            f"OPEN_NKI_DEVICE is {name!r}, and PyTorch finds no GPU here",
            notes=[f"PyTorch {torch.__version__}"],
            help="install a PyTorch with CUDA, or leave OPEN_NKI_DEVICE out",
        )
    return torch.device("cpu" if name == "torch-cpu" else name)


_said_kernels: set[str] = set()


def say_host(kernel: str, where: Any, why: str) -> None:
    """Say once that a kernel does not run on a device."""
    if kernel in _said_kernels or where.type == "cpu":
        return
    _said_kernels.add(kernel)
    no_more_word_of(where.type)
    emit_warning(
        "device-copy",
        f"{kernel} runs on the CPU ({why}): what is on {where.type} is copied there, and the results back",
        user_site(2),
    )
