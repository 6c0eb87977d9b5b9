"""The user's function behind a kernel: where it is, where it returns, whether an error is its own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ..errors import error


class AnyKernel:
    """The base of kernels, by which modules that these import can tell them from other objects."""

    func: Callable[..., Any]


def plain(func: Callable) -> Callable:
    """The user's own function inside partials, bound methods and wrappers of other decorators."""
    passed: list[Callable] = []
    while True:
        passed.append(func)
        inner = (
            getattr(func, "__wrapped__", None)
            or getattr(func, "__func__", None)
            or getattr(func, "func", None)
        )
        if not callable(inner):
            return func
        if any(inner is one for one in passed):
            raise error("argument", f"{inner!r} wraps itself: its __wrapped__ leads back to it")
        func = inner


def refuse_unfinished(function: Callable) -> None:
    """A generator or coroutine would never run."""
    what = "a generator: it contains yield" if inspect.isgeneratorfunction(function) else ""
    what = what or (
        "async" if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""
    )
    if what:
        raise error(
            "argument",
            f"kernel {getattr(function, '__name__', function)} is {what}, so calling it would run nothing",
            help="write a plain function that returns its results",
        )


def named(module: str, name: str) -> Any:
    """What a module has under a qualified name, or None."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
