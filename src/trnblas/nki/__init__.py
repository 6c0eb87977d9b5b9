"""The NKI kernels of trnblas as functions of torch tensors; `trnblas.nki.gemm` and so on hold the kernels."""

from trnblas.backend import get_backend, set_backend
from trnblas.nki import dispatch
from trnblas.nki.dispatch import *  # noqa: F403

__all__ = [*dispatch.__all__, "get_backend", "set_backend"]


def __dir__() -> list[str]:
    return __all__
