"""The NKI kernels of trnblas as functions of torch tensors; `trnblas.nki.gemm` and so on hold the kernels."""

from trnblas.backend import get_backend, set_backend
from trnblas.nki.dispatch import (
    HAS_NKI,
    nki_batched_gemm,
    nki_batched_pair_energy,
    nki_fused_gemm_energy,
    nki_gemm,
    nki_mp2_energy,
    nki_syrk,
    nki_trsm,
)

__all__ = [
    "HAS_NKI",
    "get_backend",
    "nki_batched_gemm",
    "nki_batched_pair_energy",
    "nki_fused_gemm_energy",
    "nki_gemm",
    "nki_mp2_energy",
    "nki_syrk",
    "nki_trsm",
    "set_backend",
]


def __dir__() -> list[str]:
    return __all__
