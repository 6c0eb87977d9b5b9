"""nki.typing: shapes of kernel parameters, declared in annotations (language.md 2.6)."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from .errors import error


class tensor:
    """`x: nt.tensor[128, 512]` declares a shape; entries may be ints, None or symbols (strings)."""

    def __init__(self, shape: tuple | None = None):
        self.shape = shape

    def __class_getitem__(cls, shape: Any) -> Any:
        return cls(shape if isinstance(shape, tuple) else (shape,))

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __call__(self) -> None:
        """Lets typing constructs such as Optional accept the annotation."""

    def __repr__(self) -> str:
        return f"nt.tensor{list(self.shape) if self.shape else ''}"


def check_shapes(func: Callable, bound: inspect.BoundArguments) -> None:
    """Compare declared shapes with the arguments; equal symbols must have equal sizes."""
    annotations = {k: v for k, v in getattr(func, "__annotations__", {}).items() if "tensor" in repr(v)}
    symbols: dict[str, tuple[int, str]] = {}
    for name, declared in annotations.items():
        declared = _evaluate(declared, func)
        shape = getattr(bound.arguments.get(name), "shape", None)
        if not isinstance(declared, tensor) or declared.shape is None or shape is None:
            continue
        for dim, wanted in enumerate(declared.shape):
            if isinstance(wanted, str):
                size, other = symbols.setdefault(wanted, (shape[dim] if dim < len(shape) else -1, name))
            else:
                size, other = wanted, ""
            if len(shape) != len(declared.shape) or (size is not None and shape[dim] != size):
                raise error(
                    "shape",
                    f"argument '{name}' has shape {tuple(shape)}, declared {declared!r}",
                    notes=[f"'{wanted}' is {size} in argument '{other}'"] if other and other != name else [],
                )


def _evaluate(annotation: Any, func: Callable) -> Any:
    if isinstance(annotation, str) and isinstance(func, types.FunctionType):
        try:
            return eval(annotation, func.__globals__)
        except Exception:  # an annotation that does not evaluate declares nothing
            return None
    return annotation
