"""Level 3: matrices, and batches of them in leading dimensions."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

from trnblas.arguments import (
    DIAG,
    NARROW,
    SIDE,
    UPLO,
    check_added,
    check_flag,
    check_inner,
    check_matrix,
    check_precision,
    check_square,
    rounded_once,
    symmetric,
    transposed_if,
    triangle,
)
from trnblas.backend import choose, serve


def gemm(
    alpha: float,
    A: torch.Tensor,
    B: torch.Tensor,
    beta: float = 0.0,
    C: torch.Tensor | None = None,
    transA: bool = False,
    transB: bool = False,
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha op(A) op(B) + beta C.

    precision="fp64" computes and returns float64, on the NKI backend from bfloat16 passes of TensorE.
    """
    check_matrix("gemm", "A", A)
    check_matrix("gemm", "B", B)
    return scaled_product(
        "gemm", alpha, transposed_if(A, transA), transposed_if(B, transB), beta, C, precision
    )


def batched_gemm(
    alpha: float,
    A: torch.Tensor,
    B: torch.Tensor,
    beta: float = 0.0,
    C: torch.Tensor | None = None,
    transA: bool = False,
    transB: bool = False,
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha op(A[i]) op(B[i]) + beta C[i] for every i of the leading dimensions."""
    for name, x in (("A", A), ("B", B)):
        if x.ndim < 3:
            raise ValueError(
                f"batched_gemm: {name} must be a batch of matrices, it has shape {tuple(x.shape)}"
            )
    return scaled_product(
        "batched_gemm", alpha, transposed_if(A, transA), transposed_if(B, transB), beta, C, precision
    )


def symm(
    alpha: float,
    A: torch.Tensor,
    B: torch.Tensor,
    beta: float = 0.0,
    C: torch.Tensor | None = None,
    side: str = "left",
    uplo: str = "upper",
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha A B + beta C (B A with side="right") for a symmetric A, of which one triangle is read."""
    check_flag("symm", "side", side, SIDE)
    check_flag("symm", "uplo", uplo, UPLO)
    check_square("symm", "A", A)
    check_matrix("symm", "B", B)
    full = symmetric(A, uplo)
    left, right = (full, B) if side == "left" else (B, full)
    return scaled_product("symm", alpha, left, right, beta, C, precision)


def trmm(
    alpha: float,
    A: torch.Tensor,
    B: torch.Tensor,
    side: str = "left",
    uplo: str = "upper",
    trans: bool = False,
    diag: str = "nonunit",
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha op(A) B (B op(A) with side="right") for a triangular A."""
    check_triangular("trmm", A, B, side, uplo, diag)
    full = transposed_if(triangle(A, uplo, diag), trans)
    left, right = (full, B) if side == "left" else (B, full)
    return scaled_product("trmm", alpha, left, right, 0.0, None, precision)


def syrk(
    alpha: float,
    A: torch.Tensor,
    beta: float = 0.0,
    C: torch.Tensor | None = None,
    trans: bool = False,
    uplo: str = "upper",
    precision: str | None = None,
) -> torch.Tensor:
    """Return alpha A A^T + beta C (A^T A with trans) for a symmetric C, of which one triangle is read.

    The result is filled on both sides of its diagonal.
    """
    check_flag("syrk", "uplo", uplo, UPLO)
    check_matrix("syrk", "A", A)
    left = transposed_if(A, trans)
    if C is not None and beta != 0:
        check_square("syrk", "C", C)
        C = symmetric(C, uplo)
    if precision == "fp64" or alpha == 0 or not choose(A.dtype, A.device.type).nki:
        return scaled_product("syrk", alpha, left, left.mT, beta, C, precision)
    check_precision("syrk", precision)
    check_added("syrk", "C", C, torch.Size((*left.shape[:-1], left.shape[-2])), A.dtype)
    return serve(
        "syrk",
        lambda left, C: scaled(
            alpha, lambda out: _kernels().symmetric_product(left, out), beta, C, left.dtype
        ),
        lambda left, C: torch_product(alpha, left, left.mT, beta, C),
        *(left, C),
    )


def trsm(
    alpha: float,
    A: torch.Tensor,
    B: torch.Tensor,
    side: str = "left",
    uplo: str = "upper",
    trans: bool = False,
    diag: str = "nonunit",
) -> torch.Tensor:
    """Return the X of op(A) X = alpha B (X op(A) = alpha B with side="right") for a triangular A."""
    check_triangular("trsm", A, B, side, uplo, diag)
    if alpha == 0:
        return torch.zeros_like(B)
    if B.dtype in NARROW:  # torch and the kernel solve in float32
        return trsm(alpha, A.float(), B.float(), side, uplo, trans, diag).to(B.dtype)
    right = B if alpha == 1 else alpha * B
    if not choose(B.dtype, B.device.type).nki:
        return torch_solve(A, right, side, uplo, trans, diag)
    return serve(
        "trsm",
        lambda A, B: kernel_solve(A, B, side, uplo, trans, diag),
        lambda A, B: torch_solve(A, B, side, uplo, trans, diag),
        *(A, right),
    )


def check_triangular(op: str, A: torch.Tensor, B: torch.Tensor, side: str, uplo: str, diag: str) -> None:
    check_flag(op, "side", side, SIDE)
    check_flag(op, "uplo", uplo, UPLO)
    check_flag(op, "diag", diag, DIAG)
    check_square(op, "A", A)
    check_matrix(op, "B", B)
    check_inner(op, *((A, B) if side == "left" else (B, A)))


# ---- products ------------------------------------------------------------------------------------


def scaled_product(
    op: str,
    alpha: float,
    A: torch.Tensor,
    B: torch.Tensor,
    beta: float,
    C: torch.Tensor | None,
    precision: str | None,
) -> torch.Tensor:
    """Return alpha A B + beta C on the backend that serves it: all products of levels 2 and 3 use it."""
    check_precision(op, precision)
    check_inner(op, A, B)
    if C is not None:
        check_added(op, "C", C, product_shape(A, B), A.dtype)
    if precision == "fp64":
        A, B, C = A.double(), B.double(), None if C is None else C.double()
    if alpha == 0:  # A and B are not read
        unread = C is None or beta == 0
        return A.new_zeros(product_shape(A, B)) if unread else rounded_once(lambda C: beta * C, C)
    if not choose(A.dtype, A.device.type, precision).nki:
        return torch_product(alpha, A, B, beta, C)
    return serve(
        op,
        lambda A, B, C: scaled(alpha, lambda out: kernel_product(A, B, out), beta, C, A.dtype),
        lambda A, B, C: torch_product(alpha, A, B, beta, C),
        *(A, B, C),
    )


def product_shape(A: torch.Tensor, B: torch.Tensor) -> torch.Size:
    batch: tuple[int, ...] = A.shape[:-2]
    if batch != B.shape[:-2]:
        batch = np.broadcast_shapes(batch, B.shape[:-2])  # torch's own imports sympy
    return torch.Size((*batch, A.shape[-2], B.shape[-1]))


def torch_product(
    alpha: float, A: torch.Tensor, B: torch.Tensor, beta: float, C: torch.Tensor | None
) -> torch.Tensor:
    """Compute the same by torch."""
    return rounded_once(lambda A, B, C: _torch_product(alpha, A, B, beta, C), A, B, C)


def _torch_product(
    alpha: float, A: torch.Tensor, B: torch.Tensor, beta: float, C: torch.Tensor | None
) -> torch.Tensor:
    """Compute the same by one call of torch, where it has one."""
    if C is None or beta == 0:
        if alpha == 1:
            return torch.matmul(A, B)
        C, beta = A.new_zeros(()), 0
    if A.ndim == B.ndim == 2:
        return torch.addmm(C, A, B, beta=beta, alpha=alpha)
    if A.ndim == B.ndim == 3 and A.shape[0] == B.shape[0]:
        return torch.baddbmm(C, A, B, beta=beta, alpha=alpha)
    scaled = torch.matmul(A, B) * alpha
    return scaled if beta == 0 else scaled + beta * C


def kernel_product(A: torch.Tensor, B: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    if A.dtype == torch.float64:
        from trnblas.precision import split_product

        return split_product(A, B)
    return _kernels().product(A, B, out)


def scaled(
    alpha: float,
    product: Callable[[torch.dtype], torch.Tensor],
    beta: float,
    C: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return alpha product + beta C, rounded once: a product that is scaled or added to is float32."""
    addend = None if beta == 0 else C
    if alpha == 1 and addend is None:
        return product(dtype)
    wide = dtype if dtype == torch.float64 else torch.float32
    result = product(wide) * alpha
    if addend is not None:
        result.add_(addend.to(wide), alpha=beta)
    return result.to(dtype)


# ---- solves --------------------------------------------------------------------------------------


def torch_solve(
    A: torch.Tensor, B: torch.Tensor, side: str, uplo: str, trans: bool, diag: str
) -> torch.Tensor:
    return torch.linalg.solve_triangular(
        transposed_if(A, trans),
        B,
        upper=(uplo == "upper") != trans,
        left=side == "left",
        unitriangular=diag == "unit",
    )


def kernel_solve(
    A: torch.Tensor, B: torch.Tensor, side: str, uplo: str, trans: bool, diag: str
) -> torch.Tensor:
    """Solve with the kernel; side="right" solves the transposed system."""
    if side == "left":
        return _kernels().solve(A, B, uplo, trans, diag)
    return _kernels().solve(A, B.mT, uplo, not trans, diag).mT.contiguous()


def _kernels() -> ModuleType:
    """Import the kernels when one serves a call: everything else works without nki."""
    from trnblas.nki import launches

    return launches
