"""Functions and methods of numpy and torch on a tensor: errors that name what to write instead."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import error
from .hooks import hooks
from .view import View

_METADATA = ("shape", "ndim", "size")  # np.shape(t): no values are read
_RENAMED = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "clamp": "clip",
    "concat": "concatenate",
    "dot": "matmul",
    "true_divide": "divide",
    "mm": "matmul",
    "mul": "multiply",
    "sub": "subtract",
    "div": "divide",
    "neg": "negative",
    "pow": "power",
    "float_power": "power",
    "remainder": "mod",
}
_ADVICE = {
    **dict.fromkeys(
        ["concatenate", "concat", "cat", "stack", "vstack", "hstack", "append"],
        "allocate one tile with nl.ndarray and write its parts: nisa.tensor_copy(whole[:, a:b], part)",
    ),
    **dict.fromkeys(["reshape", "ravel", "squeeze"], "use t.reshape(shape) on the free dimensions"),
    **dict.fromkeys(["transpose", "swapaxes", "moveaxis", "T", "t"], "use nl.transpose or nisa.nc_transpose"),
    **dict.fromkeys(["astype", "to", "float", "half", "bfloat16"], "use nl.copy(t, dtype=...)"),
    **dict.fromkeys(["einsum", "tensordot", "bmm"], "use nl.matmul or nisa.nc_matmul, product by product"),
    **dict.fromkeys(["copy", "clone"], "use nl.copy or nisa.tensor_copy"),
    **dict.fromkeys(
        ["zeros_like", "empty_like", "ones_like"], "use nl.zeros or nl.ndarray(t.shape, t.dtype)"
    ),
    **dict.fromkeys(
        ["cpu", "numpy", "cuda", "detach"], "return the tensor from the kernel to use it on the host"
    ),
    "fill": "use nisa.memset(t, value)",
    "broadcast_to": "use nl.broadcast_to, or t.broadcast(dim, size) on a free dimension",
    "expand": "use nl.broadcast_to, or t.broadcast(dim, size) on a free dimension",
}
_DEBUGGING = "np.asarray(t) reads its values, for debugging alone"


def numpy_function(what: str, tensors: list[View]) -> Any:
    """Return np.shape and its kind, which need no values; else raise what a function of numpy is."""
    name = what.rpartition(".")[2]
    if name in _METADATA:
        return getattr(tensors[0], name)
    refuse(what, name, tensors[0], "numpy computes on the host")


def torch_function(name: str, tensor: View) -> NoReturn:
    """Raise what `torch.name` on a tensor is."""
    refuse(f"torch.{name}", name, tensor, "PyTorch computes on its own tensors")


def refuse(what: str, name: str, tensor: View, why: str) -> NoReturn:
    """Raise the error of a function of another library."""
    raise error(
        "operator",
        f"{what} does not take a tensor of a kernel: {why}",
        notes=[tensor.describe()],
        help=advice(name) or f"compute it from instructions of nki.isa; {_DEBUGGING}",
    )


def advice(name: str) -> str:
    """Return what to write instead of a function or method of this name, or ""."""
    if name in _ADVICE:
        return _ADVICE[name]
    name = _RENAMED.get(name, name)
    return f"use nl.{name}" if hooks.is_language_function(name) else ""


def missing_attribute(tensor: View, name: str) -> Exception:
    """Return the error of `tensor.name`: an AttributeError, since code asks with hasattr."""
    text = f"a tensor of a kernel has no attribute {name!r}"
    found = "" if name.startswith("_") else advice(name)
    return AttributeError(f"{text}: {found}" if found else text, name=name, obj=tensor)
