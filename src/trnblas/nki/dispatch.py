"""The kernels as functions that users call.

Each `nki_...` function runs the kernel or its PyTorch equivalent, as the backend setting selects. Called with
numpy arrays, or inside another kernel, it is the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, Union

import torch

from nki.typing import Tensor
from trnblas.arguments import NARROW
from trnblas.backend import HAS_NKI, choose, flag, serve
from trnblas.level3 import torch_product, trsm
from trnblas.nki.gemm import batched_gemm_kernel, gemm_kernel, syrk_kernel
from trnblas.nki.launches import mp2_partials, product, symmetric_product
from trnblas.nki.mp2 import largest_divisor, mp2_energy_kernel

Matrix: TypeAlias = Union[torch.Tensor, Any]  # noqa: UP007  of torch, or any array that the kernel takes
PAIR_BYTES = 64 * 2**20  # of amplitudes that nki_batched_pair_energy computes at a time


def is_nki(*tensors: torch.Tensor) -> bool:
    return choose(tensors[0].dtype, tensors[0].device.type).nki


def _use_nki() -> bool:
    """Return whether float32 matrices go to a kernel now; tests of the published package use this name."""
    return choose(torch.float32).nki


def _use_simulator() -> bool:
    """Return whether TRNBLAS_USE_SIMULATOR requests the simulator."""
    return flag("TRNBLAS_USE_SIMULATOR")


# ---- products ------------------------------------------------------------------------------------


def nki_gemm(A: Matrix, B: Matrix) -> Matrix:
    """Return A @ B of matrices."""
    return _served_product("nki_gemm", gemm_kernel, A, B)


def nki_batched_gemm(A: Matrix, B: Matrix) -> Matrix:
    """Return A[i] @ B[i] for every i of the leading dimension."""
    return _served_product("nki_batched_gemm", batched_gemm_kernel, A, B)


def _served_product(op: str, kernel: Callable[..., Tensor], A: Matrix, B: Matrix) -> Matrix:
    """Return A @ B: of arrays by the kernel, of torch tensors on the backend that serves them."""
    if not isinstance(A, torch.Tensor):
        return kernel(A, B)
    if not is_nki(A):
        return _torch_matmul(A, B)
    return serve(op, product, _torch_matmul, A, B)


def nki_syrk(A: Matrix) -> Matrix:
    """Return A @ A.T, of which the kernel computes one triangle."""
    if not isinstance(A, torch.Tensor):
        return syrk_kernel(A)
    if not is_nki(A):
        return _torch_matmul(A, A.mT)
    return serve("nki_syrk", symmetric_product, lambda A: _torch_matmul(A, A.mT), A)


def _torch_matmul(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return torch_product(1.0, A, B, 0.0, None)


# ---- triangular solves ---------------------------------------------------------------------------


def nki_trsm(
    A: Matrix, B: Matrix, uplo: str = "upper", trans: bool = False, diag: str = "nonunit", alpha: float = 1.0
) -> torch.Tensor:
    """Return the X of op(A) @ X = alpha B; A is triangular."""
    return trsm(alpha, A, B, "left", uplo, trans, diag)


# ---- MP2 -----------------------------------------------------------------------------------------


def nki_mp2_energy(
    T_flat: Matrix, eps_occ_chunk: Matrix, eps_occ_full: Matrix, eps_vir: Matrix, partials: bool = False
) -> Matrix:
    """Return the sum of T (2 T - T^t) / (e_i + e_j - e_a - e_b).

    T[i, j, a, b] = T_flat[i * nvir + a, j * nvir + b]. With partials=True, and always for arrays, return
    partial sums [P_TILE, ic, nocc] instead; P_TILE is the largest divisor of nvir up to 128.
    """
    arguments = (T_flat, eps_occ_chunk, eps_occ_full, eps_vir)
    if not isinstance(T_flat, torch.Tensor):
        return mp2_energy_kernel(*arguments)
    if not is_nki(T_flat):
        found = torch_mp2_partials(*arguments)
    else:
        found = serve("nki_mp2_energy", mp2_partials, torch_mp2_partials, *arguments)
    return found if partials else found.sum()


def torch_mp2_partials(
    T_flat: torch.Tensor, eps_occ_chunk: torch.Tensor, eps_occ_full: torch.Tensor, eps_vir: torch.Tensor
) -> torch.Tensor:
    """Return the partial sums in PyTorch, by the formula; those of narrow floats in float32."""
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
    """Return the energy in PyTorch; callers of the published trnblas use this name."""
    return torch_mp2_partials(*arguments).sum()


def nki_fused_gemm_energy(
    B_i: Matrix, B_j: Matrix, eps_i: float, eps_j: float, eps_vir: torch.Tensor
) -> torch.Tensor:
    """Return the MP2 energy of one pair from its density-fitting factors [nvir, naux]."""
    e_i, e_j = (eps_vir.new_tensor([float(eps)]) for eps in (eps_i, eps_j))
    return nki_mp2_energy(nki_gemm(B_i, B_j.mT), e_i, e_j, eps_vir)


def nki_batched_pair_energy(B: torch.Tensor, eps_occ: torch.Tensor, eps_vir: torch.Tensor) -> torch.Tensor:
    """Return the MP2 energy of all pairs from the factors B [nocc, nvir, naux], some i's at a time."""
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
