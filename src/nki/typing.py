"""nki.typing: shapes of kernel parameters, declared in annotations (spec/language.md 2.6)."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, TypeAlias, Union

import numpy as np

from .errors import error
from .ir.tensor import NkiTensor
from .machine.dtypes import DTypeLike as DTypeLike
from .machine.operators import Operator

Number: TypeAlias = int | float | np.generic
TileOrNumber: TypeAlias = NkiTensor | Number
OperatorLike: TypeAlias = Operator | Callable[..., Any]  # nl.add, nl.max, or np.add

# The type of a kernel's tensor parameter: inside the kernel an `NkiTensor`, for its caller any array. A type
# checker finds a misspelt attribute of a `Tensor`, and accepts whatever array is passed for one.
Tensor: TypeAlias = Union[NkiTensor, Any]  # noqa: UP007  Python 3.10 has no `|` for Any


class tensor:
    """`x: nt.tensor[128, 512]` declares a shape; entries may be ints, None or symbols (strings)."""

    def __init__(self, shape: tuple | None = None):
        self.shape = shape

    def __class_getitem__(cls, shape: object) -> Any:
        shape = shape if isinstance(shape, tuple) else (shape,)
        for size in shape:
            if size is not None and not isinstance(size, (int, str)):
                raise error("argument", f"nt.tensor: a size is an int, None or a name, got {size!r}")
        return cls(shape)

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    def __call__(self) -> None:
        """Let typing constructs such as Optional accept the annotation."""

    def __repr__(self) -> str:
        return f"nt.tensor[{', '.join(map(repr, self.shape))}]" if self.shape else "nt.tensor"


def check_shapes(func: Callable, arguments: Mapping[str, object]) -> None:
    """Compare declared shapes with the arguments by name; equal symbols must have equal sizes."""
    symbols: dict[str, tuple[int, str]] = {}  # symbol -> size, and the argument that set it
    annotations = getattr(func, "__annotations__", {})
    for name, argument in arguments.items():
        is_declared = name in annotations and hasattr(argument, "shape")
        declared = _declared(annotations[name], func) if is_declared else None
        if declared is None or declared.shape is None:
            continue
        shape = tuple(argument.shape)  # type: ignore[attr-defined]
        if len(shape) != len(declared.shape):
            raise _differs(name, shape, declared)
        for size, wanted in zip(shape, declared.shape, strict=True):
            known, source = (
                symbols.setdefault(wanted, (size, name)) if isinstance(wanted, str) else (wanted, name)
            )
            if known is not None and size != known:
                note = [f"'{wanted}' is {known} in argument '{source}'"] if isinstance(wanted, str) else []
                raise _differs(name, shape, declared, note)


def _differs(name: str, shape: tuple[int, ...], declared: tensor, notes: Iterable[str] = ()) -> Exception:
    return error("shape", f"argument '{name}' has shape {shape}, declared {declared!r}", notes=notes)


@lru_cache(maxsize=4096)
def _compiled(annotation: str) -> CodeType:
    return compile(annotation.lstrip(), "<annotation>", "eval")


def _declared(annotation: object, func: Callable) -> tensor | None:
    """Return the nt.tensor[...] of an annotation, also inside Optional and in its string form."""
    if isinstance(annotation, str):
        names = getattr(func, "__globals__", {})
        try:  # most are a name
            annotation = names[annotation] if annotation in names else eval(_compiled(annotation), names)
        except Exception:  # an annotation that does not evaluate declares nothing
            return None
    if annotation is Tensor:
        return None
    if isinstance(annotation, tensor):
        return annotation
    return next((part for part in typing.get_args(annotation) if isinstance(part, tensor)), None)
