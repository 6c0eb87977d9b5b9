"""gradcheck: the gradients of a differentiable kernel against differences of its values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import error
from ..kernel.specs import Array, is_array


def gradcheck(
    function: Callable[..., object],
    inputs: Sequence[object],
    *,
    step: float = 2e-2,
    directions: int = 4,
    rtol: float = 2e-2,
) -> None:
    """Fail unless the gradients of `function` agree with differences of its values.

    Kernels compute in float32, so single derivatives drown in noise: the slope along random
    directions is compared, from steps of `step` on both sides. `inputs` are float32 tensors of PyTorch or
    arrays of JAX; other arguments are passed on as they are.
    """
    arrays = [value for value in inputs if is_array(value)]
    if not arrays:
        raise error("argument", "gradcheck: there is no array among the inputs")
    torch = sys.modules.get("torch")
    frame = _Torch if torch is not None and isinstance(arrays[0], torch.Tensor) else _Jax

    def called(values: Sequence[Array]) -> Any:
        rest = iter(values)
        return function(*(next(rest) if is_array(v) else v for v in inputs))

    values = [np.asarray(frame.numpy(value), np.float64) for value in arrays]
    random = np.random.default_rng(0)
    first = frame.results(called, values)
    weights = [random.standard_normal(result.shape) for result in first]
    gradients = frame.gradients(called, values, weights)
    for number in range(directions):
        along = [random.standard_normal(value.shape) for value in values]
        along = [a * (i == number % len(values)) for i, a in enumerate(along)] if number else along
        ahead = frame.results(called, [v + step * a for v, a in zip(values, along, strict=True)])
        behind = frame.results(called, [v - step * a for v, a in zip(values, along, strict=True)])
        slope = sum(float((w * (p - q)).sum()) for w, p, q in zip(weights, ahead, behind, strict=True)) / (
            2 * step
        )
        predicted = sum(float((g * a).sum()) for g, a in zip(gradients, along, strict=True))
        size = np.sqrt(sum(float((g * g).sum()) for g in gradients)) or 1.0
        length = np.sqrt(sum(float((a * a).sum()) for a in along))
        noise = 2.0**-20 / step * sum(float(np.abs(w * p).sum()) for w, p in zip(weights, ahead, strict=True))
        limit = rtol * (abs(slope) + size * length / np.sqrt(max(1, sum(a.size for a in along)))) + noise
        assert abs(predicted - slope) <= limit, (
            f"the gradients give {predicted:.6g} along direction {number}, differences of values {slope:.6g} "
            f"(allowed: {limit:.3g})"
        )


Arrays = Sequence[np.ndarray]
Called = Callable[[Sequence[Array]], Any]  # the function, of its arrays alone


class _Torch:
    """PyTorch."""

    @staticmethod
    def numpy(value: Any) -> np.ndarray:
        return value.detach().cpu().float().numpy()

    @staticmethod
    def _tensors(values: Arrays, needs: bool) -> list[Any]:
        torch = sys.modules["torch"]
        return [torch.tensor(v, dtype=torch.float32, requires_grad=needs) for v in values]

    @classmethod
    def results(cls, called: Called, values: Arrays) -> list[np.ndarray]:
        found = called(cls._tensors(values, False))
        return [cls.numpy(r).astype(np.float64) for r in _tuple(found)]

    @classmethod
    def gradients(cls, called: Called, values: Arrays, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
        torch = sys.modules["torch"]
        tensors = cls._tensors(values, True)
        total = sum(
            (torch.tensor(w, dtype=torch.float32) * r).sum()
            for w, r in zip(weights, _tuple(called(tensors)), strict=True)
        )
        found = torch.autograd.grad(total, tensors, allow_unused=True)
        return [np.zeros(v.shape) if g is None else g.numpy() for g, v in zip(found, values, strict=True)]


class _Jax:
    """JAX."""

    @staticmethod
    def numpy(value: object) -> np.ndarray:
        return np.asarray(value, np.float32)

    @classmethod
    def results(cls, called: Called, values: Arrays) -> list[np.ndarray]:
        import jax.numpy as jnp

        found = called([jnp.asarray(v, jnp.float32) for v in values])
        return [np.asarray(r, np.float64) for r in _tuple(found)]

    @classmethod
    def gradients(cls, called: Called, values: Arrays, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
        import jax
        import jax.numpy as jnp

        def total(*arrays: jax.Array) -> jax.Array:
            pairs = zip(weights, _tuple(called(arrays)), strict=True)
            return sum((jnp.asarray(w, jnp.float32) * r).sum() for w, r in pairs)

        arrays = [jnp.asarray(v, jnp.float32) for v in values]
        found = jax.grad(total, argnums=tuple(range(len(arrays))))(*arrays)
        return [np.asarray(g, np.float64) for g in found]


def _tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
