"""The kernels as functions of torch tensors: layouts, tiles, padding, launch.

Each `nki_...` function does what the backend says: the kernel, or the same in PyTorch. Called with numpy
arrays, or inside another kernel, it is the kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import nki.language as nl
from trnblas.arguments import NARROW
from trnblas.backend import HAS_NKI, choose, launch, serve
from trnblas.level3 import torch_product, trsm
from trnblas.nki.gemm import TILE_K, batched_gemm_kernel, gemm_kernel, syrk_kernel
from trnblas.nki.mp2 import largest_divisor, mp2_energy_kernel
from trnblas.nki.trsm import trsm_kernel
from trnblas.tuning import SYMMETRIC, gemm_tiles

NL_DTYPES = {torch.float32: nl.float32, torch.bfloat16: nl.bfloat16, torch.float16: nl.float16}
PAIR_BYTES = 64 * 2**20  # of amplitudes that nki_batched_pair_energy makes at a time


def is_nki(*tensors: torch.Tensor) -> bool:
    return choose(tensors[0].dtype, tensors[0].device.type).nki


# ---- products ------------------------------------------------------------------------------------


def nki_gemm(A: Any, B: Any) -> Any:
    """A @ B of matrices."""
    if not isinstance(A, torch.Tensor):
        return gemm_kernel(A, B)
    if not is_nki(A):
        return _torch_matmul(A, B)
    return serve("nki_gemm", lambda: product(A, B), lambda: _torch_matmul(A, B))


def nki_batched_gemm(A: Any, B: Any) -> Any:
    """A[i] @ B[i] for every i of the leading dimension."""
    if not isinstance(A, torch.Tensor):
        return batched_gemm_kernel(A, B)
    if not is_nki(A):
        return _torch_matmul(A, B)
    return serve("nki_batched_gemm", lambda: product(A, B), lambda: _torch_matmul(A, B))


def nki_syrk(A: Any) -> Any:
    """A @ A.T, of which the kernel computes one triangle."""
    if not isinstance(A, torch.Tensor):
        return syrk_kernel(A)
    if not is_nki(A):
        return _torch_matmul(A, A.mT)
    return serve("nki_syrk", lambda: symmetric_product(A), lambda: _torch_matmul(A, A.mT))


def _torch_matmul(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch_product(1.0, A, B, 0.0, None)


def product(A: torch.Tensor, B: torch.Tensor, out: torch.dtype | None = None) -> torch.Tensor:
    """A @ B with the gemm kernel; leading dimensions are batches and broadcast."""
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
    """A @ A.mT with the syrk kernel, one matrix of the batch after the other; both triangles are filled."""
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
    """A dense tensor and whether it is x transposed: views by .T are not copied."""
    if not x.is_contiguous() and x.mT.is_contiguous():
        return x.mT, True
    return x.contiguous(), False


# ---- triangular solves ---------------------------------------------------------------------------


def nki_trsm(
    A: Any, B: Any, uplo: str = "upper", trans: bool = False, diag: str = "nonunit", alpha: float = 1.0
) -> Any:
    """The X of op(A) @ X = alpha B; A is a triangle."""
    return trsm(alpha, A, B, "left", uplo, trans, diag)


def solve(A: torch.Tensor, B: torch.Tensor, uplo: str, trans: bool, diag: str) -> torch.Tensor:
    """op(A) @ X = B with the trsm kernel, in float32; n is padded to a multiple of 128."""
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    n, columns = B.shape[-2:]
    if 0 in (*batch, n, columns):
        return B.new_zeros((*batch, n, columns))
    missing = -n % TILE_K
    right = torch.nn.functional.pad(B.float().expand(*batch, n, columns), (0, 0, 0, missing))
    left = torch.nn.functional.pad(A.float().expand(*batch, n, n), (0, missing, 0, missing))
    left, right = (x.reshape(-1, *x.shape[-2:]).contiguous() for x in (left, right))
    inverses = inverse_blocks(left, n, uplo, diag)
    turned = inverses if trans else inverses.mT.contiguous()
    x = launch(trsm_kernel, left, turned.float(), right, trans, (uplo == "upper") != trans)
    return x[:, :n].reshape(*batch, n, columns).to(B.dtype)


def inverse_blocks(A: torch.Tensor, n: int, uplo: str, diag: str) -> torch.Tensor:
    """The inverses [batch, blocks, 128, 128] of the diagonal blocks, in float64; ones where n is padded."""
    blocks = A.reshape(A.shape[0], -1, TILE_K, A.shape[-1] // TILE_K, TILE_K)
    blocks = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).double().contiguous()
    padded = torch.arange(A.shape[-1], device=A.device).reshape(-1, TILE_K) >= n
    blocks.diagonal(dim1=-2, dim2=-1).masked_fill_(padded, 1.0)
    eye = torch.eye(TILE_K, dtype=torch.float64, device=A.device)
    return torch.linalg.solve_triangular(blocks, eye, upper=uplo == "upper", unitriangular=diag == "unit")


# ---- MP2 -----------------------------------------------------------------------------------------


def nki_mp2_energy(
    T_flat: Any, eps_occ_chunk: Any, eps_occ_full: Any, eps_vir: Any, partials: bool = False
) -> Any:
    """sum T (2 T - T^t) / (e_i + e_j - e_a - e_b) with T[i, j, a, b] = T_flat[i * nvir + a, j * nvir + b].

    With partials=True (and of arrays, always): partial sums [P_TILE, ic, nocc], P_TILE the largest divisor
    of nvir up to 128.
    """
    arguments = (T_flat, eps_occ_chunk, eps_occ_full, eps_vir)
    if not isinstance(T_flat, torch.Tensor):
        return mp2_energy_kernel(*arguments)
    if not is_nki(T_flat):
        found = torch_mp2_partials(*arguments)
    else:
        found = serve(
            "nki_mp2_energy", lambda: mp2_partials(*arguments), lambda: torch_mp2_partials(*arguments)
        )
    return found if partials else found.sum()


def mp2_partials(*arguments: torch.Tensor) -> torch.Tensor:
    """The partial sums by the kernel; narrow floats are widened, as its sums are float32."""
    ic, nocc, nvir = (len(energies) for energies in arguments[1:])
    if 0 in (ic, nocc, nvir):
        return arguments[0].new_zeros((largest_divisor(nvir), ic, nocc), dtype=torch.float32)
    return launch(mp2_energy_kernel, *(x.float().contiguous() for x in arguments))


def torch_mp2_partials(
    T_flat: torch.Tensor, eps_occ_chunk: torch.Tensor, eps_occ_full: torch.Tensor, eps_vir: torch.Tensor
) -> torch.Tensor:
    """The partial sums in PyTorch, written as the formula is; those of narrow floats in float32."""
    if T_flat.dtype in NARROW:
        T_flat, eps_occ_chunk, eps_occ_full, eps_vir = (
            x.float() for x in (T_flat, eps_occ_chunk, eps_occ_full, eps_vir)
        )
    ic, nocc, nvir = len(eps_occ_chunk), len(eps_occ_full), len(eps_vir)
    T = T_flat.reshape(ic, nvir, nocc, nvir).transpose(1, 2)
    virtual = eps_vir[:, None] + eps_vir
    denominators = eps_occ_chunk[:, None, None, None] + eps_occ_full[:, None, None] - virtual
    rows = (T * (2 * T - T.mT) / denominators).sum(-1)  # [ic, nocc, nvir]
    tile = largest_divisor(nvir)
    return rows.reshape(ic, nocc, nvir // tile, tile).sum(2).permute(2, 0, 1)


def _torch_mp2_energy(*arguments: torch.Tensor) -> torch.Tensor:
    """The energy in PyTorch. Callers of the published trnblas know it by this name."""
    return torch_mp2_partials(*arguments).sum()


def nki_fused_gemm_energy(
    B_i: Any, B_j: Any, eps_i: float, eps_j: float, eps_vir: torch.Tensor
) -> torch.Tensor:
    """The MP2 energy of one pair from its density-fitting factors [nvir, naux]."""
    e_i, e_j = (eps_vir.new_tensor([float(eps)]) for eps in (eps_i, eps_j))
    return nki_mp2_energy(nki_gemm(B_i, B_j.mT), e_i, e_j, eps_vir)


def nki_batched_pair_energy(B: torch.Tensor, eps_occ: torch.Tensor, eps_vir: torch.Tensor) -> torch.Tensor:
    """The MP2 energy of all pairs from the factors B [nocc, nvir, naux], some i's at a time."""
    nocc, nvir, naux = B.shape
    flat = B.reshape(nocc * nvir, naux)
    step = max(1, PAIR_BYTES // max(1, 4 * nocc * nvir * nvir))
    total = B.new_zeros(())
    for i in range(0, nocc, step):
        T = nki_gemm(flat[i * nvir : (i + step) * nvir], flat.mT)
        total = total + nki_mp2_energy(T, eps_occ[i : i + step], eps_occ, eps_vir)
    return total


__all__ = [
    "HAS_NKI",
    "nki_batched_gemm",
    "nki_batched_pair_energy",
    "nki_fused_gemm_energy",
    "nki_gemm",
    "nki_mp2_energy",
    "nki_syrk",
    "nki_trsm",
]
