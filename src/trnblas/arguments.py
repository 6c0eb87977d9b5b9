"""Shared by all levels: checks of flags and shapes, triangles, sums of narrow floats."""

from __future__ import annotations

from collections.abc import Callable

import torch

NARROW = (torch.bfloat16, torch.float16)
UPLO, SIDE, DIAG = ("upper", "lower"), ("left", "right"), ("nonunit", "unit")


def check_flag(op: str, name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{op}: {name} must be {allowed[0]!r} or {allowed[1]!r}, got {value!r}")


def check_precision(op: str, precision: str | None) -> None:
    if precision not in (None, "fp64"):
        raise ValueError(f"{op}: precision must be None or 'fp64', got {precision!r}")


def check_matrix(op: str, name: str, x: torch.Tensor) -> None:
    if x.ndim < 2:
        raise ValueError(f"{op}: {name} must be a matrix or a batch of them, it has shape {tuple(x.shape)}")


def check_square(op: str, name: str, x: torch.Tensor) -> None:
    check_matrix(op, name, x)
    if x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{op}: {name} must be square, it has shape {tuple(x.shape)}")


def check_inner(op: str, A: torch.Tensor, B: torch.Tensor) -> None:
    """Check that A @ B is possible."""
    if A.shape[-1] != B.shape[-2]:
        raise ValueError(
            f"{op}: op(A) is {tuple(A.shape)}, op(B) is {tuple(B.shape)}: {A.shape[-1]} != {B.shape[-2]}"
        )
    if A.dtype != B.dtype:
        raise TypeError(f"{op}: A is {A.dtype}, B is {B.dtype}; cast one of them")


def check_added(op: str, name: str, C: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype) -> None:
    """Check that the addend has the shape and dtype of the result."""
    if C is None:
        return
    if C.shape != shape:
        raise ValueError(f"{op}: {name} has shape {tuple(C.shape)}, the result has {tuple(shape)}")
    if C.dtype != dtype:
        raise TypeError(f"{op}: {name} is {C.dtype}, the operands are {dtype}; cast one of them")


def transposed_if(x: torch.Tensor, trans: bool) -> torch.Tensor:
    """Return op(x): x, or its transpose."""
    return x.mT if trans else x


def triangle(A: torch.Tensor, uplo: str, diag: str = "nonunit") -> torch.Tensor:
    """Return one triangle of A, zeros elsewhere; ones on the diagonal of a unit triangle."""
    part = A.triu() if uplo == "upper" else A.tril()
    if diag == "unit":
        part.diagonal(dim1=-2, dim2=-1).fill_(1)
    return part


def symmetric(A: torch.Tensor, uplo: str) -> torch.Tensor:
    """Return the symmetric matrix of which A stores one triangle."""
    if uplo == "upper":
        return A.triu() + A.triu(1).mT
    return A.tril() + A.tril(-1).mT


def rounded_once(compute: Callable[..., torch.Tensor], *operands: torch.Tensor | None) -> torch.Tensor:
    """Return compute(*operands); narrow floats on the host are computed in float32 and rounded once.

    torch itself sums them in float32 on some CPUs, in their own dtype on others (spec/decisions.md 24).
    """
    given = [x for x in operands if x is not None]
    dtype = given[0].dtype
    if dtype not in NARROW or not all(x.is_cpu and x.dtype == dtype for x in given):
        return compute(*operands)
    return compute(*(None if x is None else x.float() for x in operands)).to(dtype)
