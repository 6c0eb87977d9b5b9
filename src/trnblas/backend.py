"""Which backend serves a call, why, and what happens when a kernel fails.

Only `choose` decides: every operation calls it, and `trnblas.explain` shows its result.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from open_nki import is_provided

BACKENDS = ("auto", "pytorch", "nki")
HAS_NKI = importlib.util.find_spec("nki") is not None
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NEURON_DEVICES = ("xla", "neuron")

_backend = "auto"


class NkiFallbackWarning(RuntimeWarning):
    """A kernel failed and PyTorch served the call instead."""


def set_backend(name: str) -> None:
    """Choose the backend of all calls: "auto" (AWS's nki on a device, else PyTorch), "pytorch" or "nki"."""
    global _backend
    if name not in BACKENDS:
        raise ValueError(f"set_backend: the backends are {', '.join(BACKENDS)}; got {name!r}")
    if name == "nki" and not HAS_NKI:
        raise RuntimeError("set_backend: the package nki cannot be imported; install Open NKI or AWS's nki")
    _backend = name


def get_backend() -> str:
    """Return the name given to `set_backend`, initially "auto"."""
    return _backend


PYTORCH, SIMULATOR, DEVICE = "PyTorch", "simulator", "device"  # what serves a call


class Choice(NamedTuple):
    """What serves a call, and the reason."""

    place: str
    why: str

    @property
    def nki(self) -> bool:
        """Whether a kernel serves the call."""
        return self.place != PYTORCH


def choose(dtype: torch.dtype, device: str = "cpu", precision: str | None = None) -> Choice:
    """Return the backend of a call on tensors of this dtype and device."""
    if _backend == "pytorch":
        return Choice(PYTORCH, "the backend is pytorch")
    where = _auto(device) if _backend == "auto" else Choice(kernel_place(device), "the backend is nki")
    if not where.nki:
        return where
    if precision == "fp64":
        return Choice(where.place, f"{where.why}; precision='fp64' splits float64 into bfloat16 slices")
    if dtype == torch.float64:
        return Choice(
            PYTORCH, "TensorE has no float64, and nothing is rounded silently: precision='fp64' splits it"
        )
    if dtype not in KERNEL_DTYPES:
        return Choice(PYTORCH, f"there is no kernel for {dtype}")
    return where


def _auto(device: str) -> Choice:
    if not HAS_NKI:
        return Choice(PYTORCH, "auto: the package nki cannot be imported")
    if flag("TRNBLAS_USE_SIMULATOR"):
        return Choice(SIMULATOR, "auto: TRNBLAS_USE_SIMULATOR is set")
    if kernel_place(device) == DEVICE:
        return Choice(DEVICE, "auto: there is a Neuron device, and nki is AWS's package")
    lacks = "the package nki is Open NKI, a simulator" if is_open_nki() else "there is no Neuron device here"
    return Choice(PYTORCH, f"auto: {lacks}, and TRNBLAS_USE_SIMULATOR is not set")


def kernel_place(device: str) -> str:
    """Return where a kernel runs on tensors of this device: AWS's nki alone uses a Neuron device."""
    has_device = device in NEURON_DEVICES or has_neuron_device()
    return DEVICE if has_device and not is_open_nki() and not flag("TRNBLAS_USE_SIMULATOR") else SIMULATOR


@cache
def is_open_nki() -> bool:
    """Return whether the package nki is that of Open NKI."""
    return is_provided("nki")


@cache
def has_neuron_device() -> bool:
    """Return True on a machine with a Neuron device."""
    return Path("/dev/neuron0").exists()


def flag(name: str, default: bool = False) -> bool:
    """Return an on/off environment variable, read at each call."""
    value = os.environ.get(name, "").strip().lower()
    return value not in ("0", "false", "no", "off") if value else default


# ---- running -------------------------------------------------------------------------------------

_reported: set[str] = set()

Function = Callable[..., torch.Tensor]  # of operands


def serve(op: str, kernel: Function, otherwise: Function, *operands: torch.Tensor | None) -> torch.Tensor:
    """Return kernel(*operands), or fall back to PyTorch, otherwise(*operands), if the kernel fails.

    Gradients are those of `otherwise`. With TRNBLAS_REQUIRE_NKI or TRNBLAS_USE_SIMULATOR the kernel's error
    is raised; otherwise it becomes a warning.
    """
    needed = any(operand is not None and operand.requires_grad for operand in operands)
    if needed and torch.is_grad_enabled():
        return _WithGradients.apply(op, kernel, otherwise, *operands)
    try:
        return kernel(*operands)
    except Exception as problem:
        if flag("TRNBLAS_REQUIRE_NKI") or flag("TRNBLAS_USE_SIMULATOR"):
            raise
        _warn_once(op, problem)
        return otherwise(*operands)


class _WithGradients(torch.autograd.Function):
    """A served call whose gradients PyTorch derives from its own computation of the same."""

    @staticmethod
    def forward(ctx: Any, op: str, kernel: Function, otherwise: Function, *operands: Any) -> torch.Tensor:
        ctx.save_for_backward(*operands)
        ctx.otherwise = otherwise
        return serve(op, kernel, otherwise, *operands)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:  # type: ignore[override]
        further = torch.is_grad_enabled()  # a gradient of this gradient is wanted
        with torch.enable_grad():
            operands = [x if x is None else x.view_as(x) for x in ctx.saved_tensors]  # one may be given twice
            result = ctx.otherwise(*operands)
        wanted = [x for x in operands if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, gradient, create_graph=further, allow_unused=True))
        return (
            None,
            None,
            None,
            *(next(found) if x is not None and x.requires_grad else None for x in operands),
        )


def _warn_once(op: str, problem: Exception) -> None:
    """Warn once for each distinct error."""
    error = f"{type(problem).__name__}: {problem}"
    if error not in _reported:
        _reported.add(error)
        text = f"{op}: the NKI kernel failed, PyTorch serves the call: {error}"
        warnings.warn(text, NkiFallbackWarning, stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """Return the stack level, for warnings.warn above, of the first frame outside this package."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "trnblas":
        depth, frame = depth + 1, frame.f_back
    return depth


def forget_fallbacks() -> None:
    """Clear the record of reported errors, so that they warn again."""
    _reported.clear()


def launch(kernel: Callable[..., torch.Tensor], *arguments: object) -> torch.Tensor:
    """Run a kernel on tensors, where `kernel_place` says."""
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    simulated = kernel_place(tensors[0].device.type) == SIMULATOR
    if flag("TRNBLAS_USE_SIMULATOR") or (simulated and not is_open_nki()):
        import nki

        return nki.simulate(kernel)(*arguments)
    if is_open_nki() or tensors[0].device.type in NEURON_DEVICES:
        return kernel(*arguments)
    import torch_xla  # a Neuron device, and tensors that are not on it

    there = torch_xla.device()
    moved = [value.to(there) if isinstance(value, torch.Tensor) else value for value in arguments]
    return kernel(*moved).to(tensors[0].device)
