"""Small things that many kernels need."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.common_types import ActFnType, DtypeMode, NormType
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert, not_built
from nkilib.core.utils.types import DTypeLike, Tensor

NUM_HW_PSUM_BANKS = 8
PSUM_BANK_SIZE = 2048  # bytes in each partition

_DTYPES = (
    ("float32", nl.float32),
    ("bfloat16", nl.bfloat16),
    ("float16", nl.float16),
    ("float8_e4m3", nl.float8_e4m3),
    ("float8_e4m3fn", nl.float8_e4m3fn),
    ("float8_e5m2", nl.float8_e5m2),
    ("int32", nl.int32),
    ("int16", nl.int16),
    ("int8", nl.int8),
    ("uint32", nl.uint32),
    ("uint16", nl.uint16),
    ("uint8", nl.uint8),
    ("bool", nl.bool_),
    ("bool_", nl.bool_),
)
_LARGEST = ((nl.float8_e4m3, 240.0), (nl.float8_e4m3fn, 448.0), (nl.float8_e5m2, 57344.0))
_LARGEST_WIDE = ((nl.float16, 65504.0), (nl.bfloat16, 2.0**128 - 2.0**120), (nl.float32, 2.0**128 - 2.0**104))
_ACTIVATIONS = (
    (ActFnType.SiLU, nl.silu),
    (ActFnType.GELU, nl.gelu),
    (ActFnType.GELU_Tanh_Approx, nl.gelu_apprx_tanh),
    (ActFnType.Swish, nl.gelu_apprx_sigmoid),  # x * sigmoid(1.702 x)
)


def div_ceil(n: int, d: int) -> int:
    """n / d, rounded up."""
    return -(-n // d)


def get_program_sharding_info() -> tuple[int, int, int]:
    """(dimensions of the launch grid, programs, this program); (0, 1, 0) without a grid."""
    return nl.program_ndim(), nl.num_programs(0), nl.program_id(0)


def get_verified_program_sharding_info(
    kernel_name: str = "", allowed_ndims: tuple[int, ...] = (0, 1), max_shards: int | None = None
) -> tuple[int, int, int]:
    """get_program_sharding_info, after checking that the kernel may run on such a grid."""
    ndim, n_prgs, prg_id = get_program_sharding_info()
    kernel_assert(
        ndim in allowed_ndims,
        f"{kernel_name}: the launch grid has {ndim} dimensions, allowed is one of {allowed_ndims}",
    )
    kernel_assert(
        max_shards is None or n_prgs <= max_shards,
        f"{kernel_name}: launched on {n_prgs} programs, allowed are at most {max_shards}",
    )
    return ndim, n_prgs, prg_id


def program_share(size: int, multiple: int = 1) -> tuple[int, int]:
    """(start, end) of this program's part of `size` rows: equal contiguous parts, the remainder to the last.

    Parts but the last are multiples of `multiple`.
    """
    n_prgs, prg_id = nl.num_programs(0), nl.program_id(0)
    part = size // n_prgs // multiple * multiple
    return prg_id * part, size if prg_id == n_prgs - 1 else (prg_id + 1) * part


def get_max_positive_value_for_dtype(dtype: DTypeLike) -> Any:
    """The largest finite value of an FP8 dtype."""
    for known in _LARGEST:
        if dtype == known[0]:
            return known[1]
    kernel_assert(False, f"dtype: got {dtype}, allowed are float8_e4m3, float8_e4m3fn and float8_e5m2")


def largest_value(dtype: DTypeLike) -> float:
    """The largest finite value of a float dtype, FP8 or wider."""
    for known in _LARGEST + _LARGEST_WIDE:
        if dtype == known[0]:
            return known[1]
    kernel_assert(False, f"dtype: got {dtype}, allowed are FP8, float16, bfloat16 and float32")
    return 0.0


def resolve_dtype_to_nki(dtype: DTypeLike) -> Any:
    """The nki.language dtype of a torch or numpy dtype, or of a name; those of nki.language stay."""
    text = str(dtype)
    for known in _DTYPES:
        name = known[0]
        classes = (f"<class 'numpy.{name}'>", f"<class 'ml_dtypes.{name}'>", f"<class 'jax.numpy.{name}'>")
        if text in (name, f"torch.{name}") or text in classes:
            return known[1]
    kernel_assert(False, f"dtype: got {text}, expected a dtype of nki.language, numpy, ml_dtypes or torch")


def resolve_fp8_dtype(dtype_mode: DtypeMode) -> Any:
    """The E4M3 dtype of a DtypeMode."""
    ocp = dtype_mode == DtypeMode.OCP
    if dtype_mode == DtypeMode.AUTO:
        ocp = nisa.get_nc_version() >= nisa.nc_version.gen4
    return nl.float8_e4m3fn if ocp else nl.float8_e4m3


def get_nl_act_fn_from_type(act_fn: ActFnType) -> Any:
    """The activation function of the Scalar engine for an ActFnType."""
    for known in _ACTIVATIONS:
        if act_fn == known[0]:
            return known[1]
    kernel_assert(False, f"act_fn: got {act_fn}, allowed are SiLU, GELU, GELU_Tanh_Approx and Swish")


def is_hbm_buffer(tensor: Tensor) -> bool:
    """True for a tensor in HBM of any kind."""
    return tensor.buffer in (nl.hbm, nl.shared_hbm, nl.private_hbm)


def is_rms_normalization(norm_type: NormType) -> bool:
    """True for RMSNorm, with or without gamma."""
    return norm_type in (NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA, NormType.RMS_NORM_ACROSS_HEADS)


def normalization_uses_weights(norm_type: NormType) -> bool:
    """True for norms that multiply by gamma."""
    return norm_type in (NormType.RMS_NORM, NormType.LAYER_NORM, NormType.RMS_NORM_ACROSS_HEADS)


def interleave_copy(dst: Tensor, src: Tensor, index: int) -> None:
    """Copy (and cast) a tile, on the Vector engine for even indices and the Scalar engine for odd ones."""
    if index % 2 == 0:
        nisa.tensor_copy(dst, src, engine=nisa.vector_engine)
    else:
        nisa.activation(dst, nl.copy, src)


def cross_partition_copy(dst: Tensor, src: Tensor) -> None:
    """Copy between tiles in any partitions of SBUF: engines keep data in its partition, DMA does not."""
    kernel_assert(
        tuple(dst.shape) == tuple(src.shape),
        f"dst: got shape {tuple(dst.shape)}, expected {tuple(src.shape)} like src",
    )
    nisa.dma_copy(dst, src)


class LncSubscriptable:
    """Lets a reference function be called like a kernel: f(...), f[2](...). `lnc` is the launch degree."""

    def __init__(self, function: Any, lnc: int = 1):
        self.function = function
        self.lnc = lnc

    def __getitem__(self, grid: Any) -> LncSubscriptable:
        return LncSubscriptable(self.function, grid[0] if isinstance(grid, tuple) else grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


__all__ = [
    "LncSubscriptable",
    "NUM_HW_PSUM_BANKS",
    "PSUM_BANK_SIZE",
    "assert_shape",
    "cross_partition_copy",
    "div_ceil",
    "get_max_positive_value_for_dtype",
    "get_nl_act_fn_from_type",
    "get_program_sharding_info",
    "get_verified_program_sharding_info",
    "interleave_copy",
    "is_hbm_buffer",
    "is_rms_normalization",
    "kernel_assert",
    "normalization_uses_weights",
    "not_built",
    "program_share",
    "resolve_dtype_to_nki",
    "resolve_fp8_dtype",
]
