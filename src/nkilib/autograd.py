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
from nkilib.experimental import misc, pooling
from nkilib.experimental.conv import conv3d as forward_conv3d
from nkilib.experimental.conv.conv3d_bwd import conv3d_bwd
from nkilib.experimental.deformable_attention import ms_deformable_attention as forward_deformable
from nkilib.experimental.deformable_attention import ms_deformable_attention_bwd

__all__ = [
    "avg_pooling_3d",
    "conv3d",
    "gather",
    "max_pooling_3d",
    "ms_deformable_attention",
    "scatter_add",
]


def _gather_backward(dy: Any, input: Any, dim: int, index: Any) -> tuple:
    return misc.gather_bwd(dy, input, dim, index), None


def _scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:
    return misc.scatter_add(input.clone(), dim, index, src)  # autograd needs the old values


def _scatter_add_backward(dy: Any, input: Any, dim: int, index: Any, src: Any) -> tuple:
    return dy, None, misc.scatter_add_bwd(dy, dim, index)


def _avg_pooling_backward(dy: Any, x: Any, *options: Any, **named: Any) -> Any:
    return pooling.avg_pooling_3d_backward(dy, x, *options, **named)


def _max_pooling_backward(dy: Any, x: Any, *rest: Any, **named: Any) -> Any:
    *options, y = rest  # the forward result stands last
    return pooling.max_pooling_3d_backward(dy, x, y, *options, **named)


def _conv3d(
    x_in: Any,
    filters: Any,
    bias: Any,
    stride: tuple = (1, 1, 1),
    padding: tuple = (0,) * 6,
    dilation: tuple = (1, 1, 1),
) -> Any:
    """conv3d without an activation."""
    return forward_conv3d(x_in, filters, bias, stride, padding, dilation)


def _conv3d_backward(dy: Any, x_in: Any, filters: Any, bias: Any, *options: Any, **named: Any) -> Any:
    """dx and dw, and db where there is a bias."""
    named["compute_db"] = bias is not None
    return conv3d_bwd(dy, x_in, filters, *options, **named)


def _deformable_backward(dy: Any, value: Any, shapes: Any, starts: Any, *rest: Any, **named: Any) -> tuple:
    """The gradients of value, sampling_locations and attention_weights."""
    return ms_deformable_attention_bwd(dy, value, shapes, starts, *rest, **named)


avg_pooling_3d = differentiable(pooling.avg_pooling_3d, _avg_pooling_backward)
conv3d = differentiable(_conv3d, _conv3d_backward)
gather = differentiable(misc.gather, _gather_backward)
max_pooling_3d = differentiable(pooling.max_pooling_3d, _max_pooling_backward, outputs=True)
ms_deformable_attention = differentiable(forward_deformable, _deformable_backward)
scatter_add = differentiable(_scatter_add, _scatter_add_backward)
