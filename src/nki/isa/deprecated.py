"""Deprecated argument forms of instructions: public code still uses them, so they work (spec/isa.md 5)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from ..ir.context import warn
from ..machine import dtypes

P = ParamSpec("P")
R = TypeVar("R")

REMOVED = dict.fromkeys(
    ("tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"),
    "nisa.tensor_copy with a view t.ap(pattern, scalar_offset=register)",
)


def deprecated_dtype(function: Callable[P, R]) -> Callable[P, R]:
    """Accept and ignore `dtype=`: the dtype of dst decides."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if "dtype" in kwargs:
            dtype = kwargs.pop("dtype")
            dst: Any = kwargs.get("dst", args[0] if args else None)
            warn("legacy", f"{function.__name__}: dtype= is an old form", help="the dtype of dst decides")
            if dtype is not None and dst is not None and dtypes.resolve(dtype) != dst.dtype:
                warn(
                    "dtype-ignored",
                    f"{function.__name__}: dtype={dtype} is ignored, dst is {dst.dtype}",
                    notes=[dst.describe()],
                )
        return function(*args, **kwargs)

    return wrapper


def deprecated_order(
    names: tuple[str, ...], is_old: Callable[[tuple[Any, ...]], bool]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept positional arguments in an older release's order; `is_old` recognises it by their kinds."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if not is_old(args):
                return function(*args, **kwargs)
            warn(
                "legacy",
                f"{function.__name__}: this order of arguments is an old form",
                help=f"pass them by name: {', '.join(f'{name}=' for name in names[: len(args)])}",
            )
            return function(**dict(zip(names, args, strict=False)), **kwargs)  # type: ignore[arg-type, call-arg]

        return wrapper

    return decorate


def deprecated_keywords(**names: str | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old keywords under their new names; one whose new name is None is ignored."""
    renamed = names.keys()

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs and not renamed.isdisjoint(kwargs):
                old = {name: kwargs.pop(name) for name in names if name in kwargs}
                for name, value in current_keywords(function.__name__, old, names).items():
                    kwargs.setdefault(name, value)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def hide_old_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Leave the last parameter, `**old`, out of the signature that is shown.

    A function that is called very often takes old keywords by itself: a wrapper costs a fifth of its time.
    """
    signature = inspect.signature(function)
    shown = list(signature.parameters.values())[:-1]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def current_keywords(function: str, old: dict[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:
    """Return old keywords under their new names, with a warning for each; refuse those that never were."""
    found = {}
    for name, value in old.items():
        if name not in names:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        new = names[name]
        help = f"write {new}=" if new else "it has no effect: leave it out"
        warn("legacy", f"{function}: {name}= is an old form", help=help)
        if new is not None:
            found[new] = value
    return found
