"""Kernels of the library with their backward, as differentiable functions of PyTorch.

>>> import torch
>>> table = torch.ones(3, 2, requires_grad=True)
>>> gather(table, 0, torch.tensor([2, 0, 2], dtype=torch.int32)).sum().backward()
>>> table.grad.tolist()
[[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
"""

from __future__ import annotations

from typing import Any

from nki.frameworks.torch import differentiable
from nkilib.experimental import misc

__all__ = ["gather", "scatter_add"]


def _gather_backward(dy: Any, input: Any, dim: int, index: Any) -> tuple:
    return misc.gather_bwd(dy, input, dim, index), None


def _scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:
    return misc.scatter_add(input.clone(), dim, index, src)  # autograd needs the old values


def _scatter_add_backward(dy: Any, input: Any, dim: int, index: Any, src: Any) -> tuple:
    return dy, None, misc.scatter_add_bwd(dy, dim, index)


gather = differentiable(misc.gather, _gather_backward)
scatter_add = differentiable(_scatter_add, _scatter_add_backward)
