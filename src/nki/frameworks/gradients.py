"""What `differentiable` of PyTorch and JAX share: keywords in the forward's order, gradients that fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import plugins
from ..errors import error


def parameter_names(forward: Callable) -> tuple[str, ...]:
    """The parameters of a function that can be given by position; () where they are not known."""
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple([p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])


def in_order(
    names: tuple[str, ...], arguments: tuple, keywords: dict
) -> tuple[list[Any], list[str], list[Any]]:
    """The positional values, then names and values of what only a keyword can give.

    A keyword takes the place of its parameter where all before it are given. torch.compile traces this.
    """
    values, left = list(arguments), dict(keywords)
    for name in names[len(values) :]:
        if name not in left:
            break
        values.append(left.pop(name))
    return values, list(left.keys()), list(left.values())


def checked(function: str, found: Any, labels: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The gradients that a backward returned, one for each array argument; else an error that names it."""
    gradients = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(gradients) != len(labels):
        raise _wrong_count(function, gradients, labels)
    for label, gradient, shape in zip(labels, gradients, shapes, strict=True):
        if gradient is not None and tuple(gradient.shape) != tuple(shape):
            raise error(
                "gradient",
                f"{function}: the backward returned a gradient of shape {tuple(gradient.shape)} for {label}, "
                f"which has {tuple(shape)}",
                help="a gradient has the shape of its argument; sum it over what was broadcast",
            )
    return gradients


def _wrong_count(function: str, gradients: Sequence[object], labels: Sequence[str]) -> Exception:
    arrays = ", ".join(labels)
    extra = gradients[len(labels) :]
    help = "return one gradient for each array argument, in order; None for one without a gradient"
    if extra and all(gradient is None for gradient in extra):
        help = "numbers and other constants get no gradient, not even None: leave it out"
    return error(
        "gradient",
        f"{function}: the backward returned {len(gradients)} gradient(s) for {len(labels)} arrays, {arrays}",
        help=help,
    )


def library_gradient(kernel: str) -> str:
    """Return what a library declares of the gradients of its kernel, as a clause; "" for other kernels."""
    for entry in plugins.entry_points("nki.libraries").values():
        for known in plugins.load(entry)():
            if known.name == kernel and known.differentiable:
                return f"{known.differentiable} is differentiable in PyTorch"
            if known.name == kernel:
                return f"{entry.name}'s {kernel} has {known.backward or 'no kernel'} for its gradients"
    return ""


def label(names: tuple[str, ...], place: int) -> str:
    return f"'{names[place]}'" if place < len(names) else f"argument {place}"
