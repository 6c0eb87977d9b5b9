"""The k largest of each row on VectorE, for vocabularies of any width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import nki
import nki.language as nl
from nkilib.core.topk.largest import top_of_rows
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import DTypeLike, Tensor

FLOATS = (nl.float32, nl.bfloat16, nl.float16)
MAX_COLUMNS = 2**24  # columns are numbers in float32
MAX_K = 1024


@dataclass(frozen=True)
class RotationalTopkConfig(nl.NKIObject):
    """A problem of rotational_topk: the matrix, and how many of each row are found."""

    rows: int  # R
    columns: int  # V
    k: int  # how many of each row
    sorted: bool = True  # the largest comes first in any case


def create_rotational_topk_config(
    inp_shape: tuple, inp_dtype: DTypeLike = None, k: int = 1, sorted: bool = True, num_programs: int = 2
) -> RotationalTopkConfig:
    """Return the configuration for an input [R, V] or [B, S, V]; dtype and cores are seen from the call."""
    kernel_assert(len(inp_shape) in (2, 3), f"inp_shape: got {inp_shape}, expected (R, V) or (B, S, V)")
    rows = 1
    for size in inp_shape[:-1]:
        rows *= size
    return RotationalTopkConfig(rows, inp_shape[-1], k, sorted)


@nki.jit
def rotational_topk(inp: Tensor, config: RotationalTopkConfig) -> tuple:
    """Return (values [R, k], columns int32 [R, k]) of the k largest of each row of inp [R, V].

    The largest comes first, whether `sorted` asks for it or not; of equal values the lower column. inp is
    float32, bfloat16 or float16 in HBM, of values above -3e38. Two cores share the rows. The original has no
    page: name, inp and config are what callers pass; k is at most 1024 and at most V.

    >>> x = np.array([[3, 1, 4, 1, 5, 9, 2, 6]], np.float32)
    >>> values, columns = rotational_topk(x, create_rotational_topk_config(x.shape, x.dtype, 3))
    >>> values.tolist(), columns.tolist()
    ([[9.0, 6.0, 5.0]], [[5, 7, 4]])
    """
    get_verified_program_sharding_info("rotational_topk", (0, 1), 2)
    assert_tensors((("inp", inp),))
    assert_shape(inp, (config.rows, config.columns), "inp")
    kernel_assert(inp.dtype in FLOATS, f"inp: got {inp.dtype}, allowed are float32, bfloat16 and float16")
    kernel_assert(
        config.columns <= MAX_COLUMNS, f"inp: got V = {config.columns}, allowed is up to {MAX_COLUMNS}"
    )
    most = min(MAX_K, config.columns)
    kernel_assert(1 <= config.k <= most, f"config: got k = {config.k}, allowed are 1 to {most}")
    values = nl.ndarray((config.rows, config.k), inp.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((config.rows, config.k), nl.int32, buffer=nl.shared_hbm)
    top_of_rows(values, index, inp)
    return values, index


def rotational_topk_ref(inp: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort in numpy."""
    index = np.argsort(-np.asarray(inp, np.float64), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(inp, index, 1), index.astype(np.int32)
