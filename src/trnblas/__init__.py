"""trnblas: BLAS on torch tensors, with NKI kernels where there is a Neuron device or its simulator."""

from trnblas import installed as _installed  # noqa: F401  before anything that needs what it checks
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
