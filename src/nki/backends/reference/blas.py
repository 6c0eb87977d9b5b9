"""BLAS for tiles, on one thread (docs/decisions/09-one-blas-thread.md), and with a sum.

numpy multiplies matrices but does not add to what is there. The BLAS in its wheels does, which saves a
pass over the product of every matmul that accumulates.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .settings import WhileKernelsRun, importing

_libraries: list[Any] | None = None
_sgemm: Any = None  # of numpy's wheels, once it was looked up; it takes 64-bit integers
_numpys: Any = None  # the library that it is part of
SGEMM = ("scipy_cblas_sgemm64_", "cblas_sgemm64_")  # of numpy 2, of numpy 1.26
AVX512 = ("SkylakeX", "Cooperlake", "SapphireRapids")  # OpenBLAS's names of its kernels for it


class one_blas_thread(WhileKernelsRun):
    """Context: BLAS uses one thread while any kernel runs, and as many as before afterwards."""

    @classmethod
    def present(cls) -> list[int]:
        return [library.num_threads for library in _blas_libraries()]

    @classmethod
    def change(cls, before: list[int]) -> None:
        for library in _blas_libraries():
            library.set_num_threads(1)

    @classmethod
    def restore(cls, before: list[int]) -> None:
        for library, threads in zip(_blas_libraries(), before, strict=True):
            library.set_num_threads(threads)


def _blas_libraries() -> list[Any]:
    global _libraries, _sgemm, _numpys
    if _libraries is None:
        with importing:
            import threadpoolctl

        controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
        _libraries = list(controller.lib_controllers)
        _sgemm, _numpys = _find_sgemm(_libraries)
    return _libraries


def sums_are_independent() -> bool:
    """Return whether BLAS sums an element of a product in one order, whichever others it computes with it.

    OpenBLAS's kernels for AVX-512 do. Those for AVX2 unroll the sums at the edges of a matrix in another way.
    """
    return _numpys is not None and getattr(_numpys, "architecture", None) in AVX512


def _find_sgemm(libraries: list[Any]) -> tuple[Any, Any]:
    """Return cblas_sgemm of numpy's wheels and its library, or None."""
    for library in libraries:
        loaded = ctypes.CDLL(library.filepath)  # loaded already: this returns its handle
        function = next((getattr(loaded, name) for name in SGEMM if hasattr(loaded, name)), None)
        if function is not None:
            integer, pointer = ctypes.c_int64, ctypes.c_void_p
            function.argtypes = [
                *(ctypes.c_int,) * 3,
                *(integer,) * 3,
                *(ctypes.c_float, pointer, integer, pointer, integer),
                *(ctypes.c_float, pointer, integer),
            ]
            function.restype = None
            return function, library
    return None, None


ROW_MAJOR, NORMAL, TRANSPOSED = 101, 111, 112


def add_product(dst: np.ndarray, left: np.ndarray, right: np.ndarray) -> bool:
    """Compute dst += left.T @ right in one pass. False: not possible here, nothing was done."""
    if _sgemm is None or not (_has_rows(dst) and _has_rows(left) and _has_rows(right)):
        return False
    (k, m), n = left.shape, right.shape[1]
    if dst.shape != (m, n) or right.shape[0] != k or m == 1 or n == 1:  # numpy sums vectors otherwise
        return False
    a, b, c = left.__array_interface__, right.__array_interface__, dst.__array_interface__
    _sgemm(
        *(ROW_MAJOR, TRANSPOSED, NORMAL, m, n, k),
        *(1.0, a["data"][0], left.strides[0] // 4, b["data"][0], right.strides[0] // 4),
        *(1.0, c["data"][0], dst.strides[0] // 4),
    )
    return True


def _has_rows(array: np.ndarray) -> bool:
    """Return whether BLAS takes a float32 matrix as it is: its rows are dense and do not overlap."""
    if array.__class__ is not np.ndarray or array.ndim != 2 or array.dtype != np.float32:
        return False
    pitch, step = array.strides
    return step == 4 and pitch >= 4 * array.shape[1] and pitch % 4 == 0
