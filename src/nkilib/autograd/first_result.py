"""Forward functions that return what their backward needs behind their result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from nki.frameworks.torch import differentiable


def with_gradients(backward: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function differentiable, and lets it return its first result alone.

    The backward gets the gradients, all arguments in order, defaults for those not given, then all results.
    """

    def decorate(forward: Callable[..., Any]) -> Callable[..., Any]:
        function, signature = differentiable(forward, backward, outputs=True), inspect.signature(forward)

        @functools.wraps(forward)
        def first(*arguments: Any, **named: Any) -> Any:
            given = signature.bind(*arguments, **named)
            given.apply_defaults()
            return function(*given.args)[0]

        return first

    return decorate
