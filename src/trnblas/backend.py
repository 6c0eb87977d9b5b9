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
from typing import NamedTuple, TypeVar

import torch

BACKENDS = ("auto", "pytorch", "nki")
HAS_NKI = importlib.util.find_spec("nki") is not None
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NEURON_DEVICES = ("xla", "neuron")

_backend = "auto"


class NkiFallbackWarning(RuntimeWarning):
    """A kernel failed and PyTorch served the call instead."""


def set_backend(name: str) -> None:
    """Choose the backend of all calls: "auto" (NKI on a Neuron device, else PyTorch), "pytorch" or "nki"."""
    global _backend
    if name not in BACKENDS:
        raise ValueError(f"set_backend: the backends are {', '.join(BACKENDS)}; got {name!r}")
    if name == "nki" and not HAS_NKI:
        raise RuntimeError("set_backend: the package nki cannot be imported; pip install open-nki")
    _backend = name


def get_backend() -> str:
    """Return the name given to `set_backend`, initially "auto"."""
    return _backend


class Choice(NamedTuple):
    """True for a kernel, False for PyTorch; and the reason."""

    nki: bool
    why: str


def choose(dtype: torch.dtype, device: str = "cpu", precision: str | None = None) -> Choice:
    """Return the backend of a call on tensors of this dtype and device."""
    if _backend == "pytorch":
        return Choice(False, "the backend is pytorch")
    if _backend == "auto":
        where = _why_auto(device)
        if not where.nki:
            return where
    else:
        where = Choice(True, "the backend is nki")
    if precision == "fp64":
        return Choice(True, f"{where.why}; precision='fp64' splits float64 into bfloat16 slices")
    if dtype == torch.float64:
        return Choice(
            False, "TensorE has no float64, and nothing is rounded silently: precision='fp64' splits it"
        )
    if dtype not in KERNEL_DTYPES:
        return Choice(False, f"there is no kernel for {dtype}")
    return where


def _why_auto(device: str) -> Choice:
    if not HAS_NKI:
        return Choice(False, "auto: the package nki cannot be imported")
    if flag("TRNBLAS_USE_SIMULATOR"):
        return Choice(True, "auto: TRNBLAS_USE_SIMULATOR is set")
    if device in NEURON_DEVICES or has_neuron_device():
        return Choice(True, "auto: there is a Neuron device")
    return Choice(False, "auto: there is no Neuron device here, and TRNBLAS_USE_SIMULATOR is not set")


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

Result = TypeVar("Result")


def serve(op: str, kernel: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """Return the kernel's result, or fall back to PyTorch if the kernel fails.

    With TRNBLAS_REQUIRE_NKI or TRNBLAS_USE_SIMULATOR the kernel's error is raised; otherwise it becomes a
    warning.
    """
    try:
        return kernel()
    except Exception as problem:
        if flag("TRNBLAS_REQUIRE_NKI") or flag("TRNBLAS_USE_SIMULATOR"):
            raise
        _warn_once(op, problem)
        return otherwise()


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
    """Run a kernel on tensors: in the simulator if requested, else where nki runs kernels on this machine."""
    if flag("TRNBLAS_USE_SIMULATOR"):
        import nki

        return nki.simulate(kernel)(*arguments)
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    if not has_neuron_device() or tensors[0].device.type in NEURON_DEVICES:
        return kernel(*arguments)
    import torch_xla  # a Neuron device, and tensors that are not on it

    there = torch_xla.device()
    moved = [value.to(there) if isinstance(value, torch.Tensor) else value for value in arguments]
    return kernel(*moved).to(tensors[0].device)
