"""Gradients in JAX: a differentiable function from two kernels, or from a kernel and a function of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .gradients import checked, in_order, label, parameter_names


def differentiable(forward: Callable, backward: Callable, *, outputs: bool = False) -> Callable:
    """A differentiable function from a forward and a backward kernel (or any functions of arrays).

    `backward(*gradients, *arguments)` receives a gradient for each array that `forward` returned, then
    the arguments of the call, then, with `outputs=True`, the arrays returned. It returns a gradient for
    each array argument, in order: a tuple, or the one there is; None where there is none. Arguments may be
    given by keyword; they reach both functions in the order of the forward's parameters.
    """
    names = parameter_names(forward)
    called = getattr(forward, "__name__", "differentiable")

    @functools.wraps(forward, updated=())
    def function(*arguments: Any, **keywords: Any) -> Any:
        values, rest, given = in_order(names, arguments, keywords)
        everything, count = [*values, *given], len(values)
        is_array = [isinstance(value, (jax.Array, Tracer, np.ndarray)) for value in everything]
        every = (*names[:count], *rest) if count <= len(names) else ()
        labels = [label(every, i) for i, found in enumerate(is_array) if found]

        def filled(arrays: Sequence[object]) -> tuple[list[Any], dict[str, Any]]:
            left = iter(arrays)
            whole = [next(left) if found else v for v, found in zip(everything, is_array, strict=True)]
            return whole[:count], dict(zip(rest, whole[count:], strict=True))

        def call(*arrays: object) -> Any:
            positional, named = filled(arrays)
            return forward(*positional, **named)

        def forwards(*arrays: object) -> Any:
            result = call(*arrays)
            return result, (arrays, result if outputs else ())

        def backwards(saved: Any, gradients: Any) -> Any:
            arrays, returned = saved
            positional, named = filled(arrays)
            found = backward(*_tuple(gradients), *positional, *_tuple(returned), **named)
            return tuple(checked(called, found, labels, [tuple(x.shape) for x in arrays]))

        differentiated = jax.custom_vjp(call)
        differentiated.defvjp(forwards, backwards)
        return differentiated(*(v for v, found in zip(everything, is_array, strict=True) if found))

    return function


def gradient_of(reference: Callable) -> Callable:
    """Return a backward for `differentiable`: the gradients of a function of JAX that computes the same.

    `reference` takes the arguments of the kernel and returns one array. The backward pass computes it again.
    """

    def backward(gradient: Any, *arguments: Any, **named: Any) -> tuple:
        everything = [*arguments, *named.values()]
        places = [
            i for i, value in enumerate(everything) if isinstance(value, (jax.Array, Tracer, np.ndarray))
        ]

        def of_arrays(*arrays: Any) -> Any:
            whole = list(everything)
            for place, array in zip(places, arrays, strict=True):
                whole[place] = array
            return reference(
                *whole[: len(arguments)], **dict(zip(named, whole[len(arguments) :], strict=True))
            )

        return jax.vjp(of_arrays, *(everything[place] for place in places))[1](gradient)

    return backward


def _tuple(value: object) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
