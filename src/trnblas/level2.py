"""Level 2: a matrix and a vector, which on the NKI backend is a matrix of one column for gemm's kernel."""

from __future__ import annotations

from functools import partial

import torch

from trnblas.arguments import (
    DIAG,
    UPLO,
    check_flag,
    check_matrix,
    check_square,
    rounded_once,
    symmetric,
    transposed_if,
    triangle,
)
from trnblas.backend import choose
from trnblas.level3 import scaled_product


def gemv(
    alpha: float,
    A: torch.Tensor,
    x: torch.Tensor,
    beta: float = 0.0,
    y: torch.Tensor | None = None,
    trans: bool = False,
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha op(A) x + beta y."""
    check_matrix("gemv", "A", A)
    return _times_vector("gemv", alpha, transposed_if(A, trans), x, beta, y, precision)


def symv(
    alpha: float,
    A: torch.Tensor,
    x: torch.Tensor,
    beta: float = 0.0,
    y: torch.Tensor | None = None,
    uplo: str = "upper",
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha A x + beta y for a symmetric A, of which one triangle is read."""
    check_flag("symv", "uplo", uplo, UPLO)
    check_square("symv", "A", A)
    return _times_vector("symv", alpha, symmetric(A, uplo), x, beta, y, precision)


def trmv(
    A: torch.Tensor,
    x: torch.Tensor,
    uplo: str = "upper",
    trans: bool = False,
    diag: str = "nonunit",
    precision: str | None = None,
) -> torch.Tensor:
    """Return op(A) x for a triangular A."""
    check_flag("trmv", "uplo", uplo, UPLO)
    check_flag("trmv", "diag", diag, DIAG)
    check_square("trmv", "A", A)
    return _times_vector("trmv", 1.0, transposed_if(triangle(A, uplo, diag), trans), x, 0.0, None, precision)


def ger(alpha: float, x: torch.Tensor, y: torch.Tensor, A: torch.Tensor | None = None) -> torch.Tensor:
    """Return alpha x y^T + A."""
    beta = 0.0 if A is None else 1.0
    if A is not None and A.shape != (*x.shape, y.shape[-1]):
        raise ValueError(f"ger: A has shape {tuple(A.shape)}, the product has {(*x.shape, y.shape[-1])}")
    if x.ndim > 1 or choose(x.dtype, x.device.type).nki:
        return scaled_product("ger", alpha, x[..., None], y[..., None, :], beta, A, None)
    if A is not None:
        return A.clone() if alpha == 0 else rounded_once(partial(torch.addr, alpha=alpha), A, x, y)
    if alpha == 1:
        return torch.outer(x, y)
    return rounded_once(lambda x, y: torch.outer(x, y).mul_(alpha), x, y)


def _times_vector(
    op: str,
    alpha: float,
    A: torch.Tensor,
    x: torch.Tensor,
    beta: float,
    y: torch.Tensor | None,
    precision: str | None,
) -> torch.Tensor:
    """Return alpha A x + beta y; leading dimensions are batches."""
    if x.ndim == 1 and A.ndim == 2 and alpha != 0 and precision is None:
        fits = A.shape[1] == x.shape[0] and A.dtype == x.dtype
        fits_y = y is None or (y.shape == A.shape[:1] and y.dtype == A.dtype)
        if fits and fits_y and not choose(A.dtype, A.device.type).nki:
            return rounded_once(partial(_torch_times_vector, alpha, beta), A, x, y)
    column = None if y is None else y[..., None]
    return scaled_product(op, alpha, A, x[..., None], beta, column, precision)[..., 0]


def _torch_times_vector(
    alpha: float, beta: float, A: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None
) -> torch.Tensor:
    """Compute the common case by one call of torch."""
    if y is None or beta == 0:
        return torch.mv(A, x) if alpha == 1 else torch.addmv(A.new_zeros(()), A, x, beta=0, alpha=alpha)
    return torch.addmv(y, A, x, beta=beta, alpha=alpha)
