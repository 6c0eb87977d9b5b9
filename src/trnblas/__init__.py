"""trnblas: BLAS on torch tensors, with NKI kernels where there is a Neuron device or its simulator."""

try:
    import torch as _torch  # noqa: F401
except ImportError as problem:
    raise ImportError("trnblas computes on PyTorch tensors: pip install 'open-nki[torch]'") from problem

from trnblas.backend import HAS_NKI, NkiFallbackWarning, get_backend, set_backend
from trnblas.choices import Explanation, explain
from trnblas.level1 import asum, axpy, dot, iamax, nrm2, scal
from trnblas.level2 import gemv, ger, symv, trmv
from trnblas.level3 import batched_gemm, gemm, symm, syrk, trmm, trsm

__version__ = "0.5.4"  # the published trnblas whose names these are

__all__ = [
    "HAS_NKI",
    "Explanation",
    "NkiFallbackWarning",
    "asum",
    "axpy",
    "batched_gemm",
    "dot",
    "explain",
    "gemm",
    "gemv",
    "ger",
    "get_backend",
    "iamax",
    "nrm2",
    "scal",
    "set_backend",
    "symm",
    "symv",
    "syrk",
    "trmm",
    "trmv",
    "trsm",
]


def __dir__() -> list[str]:
    return __all__
