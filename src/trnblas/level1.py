"""Level 1: vectors. One pass over memory each, so PyTorch serves them wherever the tensor is."""

from __future__ import annotations

import torch

from trnblas.arguments import NARROW, rounded_once


def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return alpha x + y; x is not read when alpha is 0."""
    if alpha == 0:
        return y.clone()
    return rounded_once(lambda y, x: torch.add(y, x, alpha=alpha), y, x)


def scal(alpha: float, x: torch.Tensor) -> torch.Tensor:
    """Return alpha x."""
    return rounded_once(lambda x: torch.mul(x, alpha), x)


def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sum of x[i] y[i]; narrow floats are summed in float32."""
    if x.dtype in NARROW:
        return torch.dot(x.float(), y.float()).to(x.dtype)
    return torch.dot(x, y)


def nrm2(x: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm, without intermediate overflow."""
    if x.dtype != torch.float64:
        return torch.linalg.vector_norm(x, dtype=torch.float64).to(x.dtype)
    norm = torch.linalg.vector_norm(x)
    if 1e-150 < norm < 1e150:
        return norm
    largest = x.abs().max() if x.numel() else norm
    if largest == 0 or not torch.isfinite(largest):
        return largest
    return torch.linalg.vector_norm(x / largest) * largest


def asum(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of |x[i]|; narrow floats are summed in float32."""
    if x.dtype in NARROW:
        return x.abs().sum(dtype=torch.float32).to(x.dtype)
    return x.abs().sum()


def iamax(x: torch.Tensor) -> int:
    """Return the index, from 0, of the first element of largest magnitude; -1 for an empty vector."""
    return int(torch.argmax(x.abs())) if x.numel() else -1
