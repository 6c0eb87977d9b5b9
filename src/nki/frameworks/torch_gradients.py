"""Gradients in PyTorch: a differentiable function from two kernels (spec/frameworks.md 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gradients import checked, in_order, label, parameter_names
from .torch_tensors import torch

is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def differentiable(forward: Callable, backward: Callable, *, outputs: bool = False) -> Callable:
    """A differentiable function from a forward and a backward kernel (or any functions of tensors).

    `backward(*gradients, *arguments)` receives a gradient for each tensor that `forward` returned, then
    the arguments of the call, then, with `outputs=True`, the tensors returned. It returns a gradient for
    each tensor argument, in order: a tuple, or the one there is; None where there is none. Arguments may be
    given by keyword; they reach both functions in the order of the forward's parameters.
    """
    names = parameter_names(forward)
    called = getattr(forward, "__name__", "differentiable")

    class Plain(torch.autograd.Function):
        """Positional arguments alone, in the form that torch.compile traces."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            result = forward(*arguments)
            returned = result if isinstance(result, tuple) else (result,)
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            ctx.save_for_backward(*tensors, *(returned if outputs else ()))
            ctx.constants = [None if isinstance(value, torch.Tensor) else (value,) for value in arguments]
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            saved = list(ctx.saved_tensors)
            arguments = [saved.pop(0) if value is None else value[0] for value in ctx.constants]
            found = backward(*(g.contiguous() for g in gradients), *arguments, *saved)
            found = list(found) if isinstance(found, (tuple, list)) else [found]
            if not torch.compiler.is_compiling():
                places = [i for i, value in enumerate(ctx.constants) if value is None]
                labels = [label(names, i) for i in places]
                found = checked(called, found, labels, [tuple(arguments[i].shape) for i in places])
            return tuple(found.pop(0) if value is None else None for value in ctx.constants)

    class Differentiable(torch.autograd.Function):
        """Keywords, and torch.func: vmap, grad."""

        @staticmethod
        def forward(keywords: Any, *arguments: Any) -> Any:
            count = len(arguments) - len(keywords)  # the values of keywords stand last
            given = {name: arguments[count + i] for i, name in enumerate(keywords)}
            return forward(*arguments[:count], **given)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.keywords, *arguments = inputs
            returned = output if isinstance(output, tuple) else (output,)
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            ctx.save_for_backward(*tensors, *(returned if outputs else ()))
            ctx.constants = [None if isinstance(value, torch.Tensor) else (value,) for value in arguments]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            saved = list(ctx.saved_tensors)
            arguments = [saved.pop(0) if value is None else value[0] for value in ctx.constants]
            count = len(arguments) - len(ctx.keywords)
            given = {name: arguments[count + i] for i, name in enumerate(ctx.keywords)}
            found = backward(*(g.contiguous() for g in gradients), *arguments[:count], *saved, **given)
            places = [i for i, value in enumerate(ctx.constants) if value is None]
            every = (*names[:count], *ctx.keywords) if count <= len(names) else ()
            labels = [label(every, i) for i in places]
            found = checked(called, found, labels, [tuple(arguments[i].shape) for i in places])
            return None, *[found.pop(0) if value is None else None for value in ctx.constants]

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *arguments: Any) -> Any:
            """torch.vmap: once for each element of the batch."""
            results = []
            for i in range(info.batch_size):
                pairs = zip(arguments, in_dims, strict=True)
                picked = [v.select(d, i) if isinstance(d, int) else v for v, d in pairs]
                results.append(Differentiable.apply(*picked))
            if isinstance(results[0], tuple):
                stacked = tuple(torch.stack(column) for column in zip(*results, strict=True))
                return stacked, (0,) * len(stacked)
            return torch.stack(results), 0

    for cls in (Plain, Differentiable):
        cls.__name__ = cls.__qualname__ = called

    def function(*arguments: object, **keywords: object) -> Any:
        if keywords or (not torch.compiler.is_compiling() and any(map(_is_transformed, arguments))):
            values, rest, given = in_order(names, arguments, keywords)
            everything = [*values, *given]
            needed = [isinstance(v, torch.Tensor) and (v.requires_grad or is_wrapped(v)) for v in everything]
            if torch.is_grad_enabled() and any(needed):
                return Differentiable.apply(tuple(rest), *everything)
            return forward(*arguments, **keywords)
        needed = [isinstance(value, torch.Tensor) and value.requires_grad for value in arguments]
        if torch.is_grad_enabled() and any(needed):
            return Plain.apply(*arguments)
        return forward(*arguments)

    function.__name__ = called
    function.__doc__ = getattr(forward, "__doc__", None)
    return function


def gradient_of(reference: Callable, results: int = 1) -> Callable:
    """Return a backward for `differentiable`: the gradients of a function of PyTorch that computes the same.

    `reference` takes the arguments of the kernel and returns as many tensors, `results`. The backward pass
    computes it again, and differentiates it.
    """

    def backward(*given: Any, **named: Any) -> tuple:
        gradients, arguments = given[:results], [*given[results:], *named.values()]
        with torch.enable_grad():
            values = [_leaf(value) for value in arguments]
            count = len(values) - len(named)
            returned = reference(*values[:count], **dict(zip(named, values[count:], strict=True)))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        outputs = returned if isinstance(returned, (tuple, list)) else (returned,)
        found = iter(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))
        return tuple(next(found) if tensor.requires_grad else None for tensor in tensors)

    return backward


def _leaf(value: Any) -> Any:
    """Return a tensor that autograd starts from; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.is_floating_point())


def _is_transformed(value: object) -> bool:
    """A tensor inside torch.func or torch.vmap."""
    return isinstance(value, torch.Tensor) and is_wrapped(value)
