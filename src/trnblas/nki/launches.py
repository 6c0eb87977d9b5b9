"""The kernels on torch tensors: layouts, tiles, padding, launch."""

from __future__ import annotations

import numpy as np
import torch

import nki.language as nl
from trnblas.backend import launch
from trnblas.nki.gemm import TILE_K, batched_gemm_kernel, gemm_kernel, syrk_kernel
from trnblas.nki.mp2 import largest_divisor, mp2_energy_kernel
from trnblas.nki.trsm import trsm_kernel
from trnblas.tuning import SYMMETRIC, gemm_tiles

NL_DTYPES = {torch.float32: nl.float32, torch.bfloat16: nl.bfloat16, torch.float16: nl.float16}

# ---- products ------------------------------------------------------------------------------------


def product(A: torch.Tensor, B: torch.Tensor, out: torch.dtype | None = None) -> torch.Tensor:
    """Return A @ B with the gemm kernel; leading dimensions are batches and broadcast."""
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    m, k, n = *A.shape[-2:], B.shape[-1]
    out = out or A.dtype
    if 0 in (*batch, m, k, n):
        return A.new_zeros((*batch, m, n), dtype=out)
    if batch:
        A, B = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (A, B))
    a, a_transposed = stored(A)
    b, b_transposed = stored(B)
    tiles = gemm_tiles(m, k, n, A.dtype, (a_transposed, b_transposed))
    kernel = batched_gemm_kernel if batch else gemm_kernel
    result = launch(kernel, a, b, a_transposed, b_transposed, *tiles, NL_DTYPES[out])
    return result.reshape(*batch, m, n)


def symmetric_product(A: torch.Tensor, out: torch.dtype | None = None) -> torch.Tensor:
    """Return A @ A.mT with the syrk kernel, one matrix at a time; both triangles are filled."""
    n, k = A.shape[-2:]
    out = out or A.dtype
    if A.numel() == 0:
        return A.new_zeros((*A.shape[:-1], n), dtype=out)
    if A.ndim > 2:
        flat = A.reshape(-1, n, k)
        return torch.stack([symmetric_product(a, out) for a in flat]).reshape(*A.shape[:-1], n)
    a, transposed = stored(A)
    lower = launch(syrk_kernel, a, transposed, *SYMMETRIC, NL_DTYPES[out]).tril()
    return lower + lower.tril(-1).mT


def stored(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return a dense tensor and whether it is x transposed: views by .T are not copied."""
    if not x.is_contiguous() and x.mT.is_contiguous():
        return x.mT, True
    return x.contiguous(), False


# ---- triangular solves ---------------------------------------------------------------------------


def solve(A: torch.Tensor, B: torch.Tensor, uplo: str, trans: bool, diag: str) -> torch.Tensor:
    """Solve op(A) @ X = B with the trsm kernel, in float32; n is padded to a multiple of 128."""
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    n, columns = B.shape[-2:]
    if 0 in (*batch, n, columns):
        return B.new_zeros((*batch, n, columns))
    missing = -n % TILE_K
    right = torch.nn.functional.pad(B.float().expand(*batch, n, columns), (0, 0, 0, missing))
    left = torch.nn.functional.pad(A.float().expand(*batch, n, n), (0, missing, 0, missing))
    left, right = (x.reshape(-1, *x.shape[-2:]).contiguous() for x in (left, right))
    inverses = inverse_blocks(left, n, uplo, diag)
    oriented = inverses if trans else inverses.mT.contiguous()
    x = launch(trsm_kernel, left, oriented.float(), right, trans, (uplo == "upper") != trans)
    return x[:, :n].reshape(*batch, n, columns).to(B.dtype)


def inverse_blocks(A: torch.Tensor, n: int, uplo: str, diag: str) -> torch.Tensor:
    """Return inverses [batch, blocks, 128, 128] of the diagonal blocks in float64; 1 where n is padded."""
    blocks = A.reshape(A.shape[0], -1, TILE_K, A.shape[-1] // TILE_K, TILE_K)
    blocks = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).double().contiguous()
    padded = torch.arange(A.shape[-1], device=A.device).reshape(-1, TILE_K) >= n
    blocks.diagonal(dim1=-2, dim2=-1).masked_fill_(padded, 1.0)
    eye = torch.eye(TILE_K, dtype=torch.float64, device=A.device)
    return torch.linalg.solve_triangular(blocks, eye, upper=uplo == "upper", unitriangular=diag == "unit")


# ---- MP2 energies --------------------------------------------------------------------------------


def mp2_partials(*arguments: torch.Tensor) -> torch.Tensor:
    """Return the kernel's partial sums; narrow floats are widened, as its sums are float32."""
    ic, nocc, nvir = (len(energies) for energies in arguments[1:])
    if 0 in (ic, nocc, nvir):
        return arguments[0].new_zeros((largest_divisor(nvir), ic, nocc), dtype=torch.float32)
    return launch(mp2_energy_kernel, *(x.float().contiguous() for x in arguments))
