"""The k largest of each row on VectorE, for vocabularies of any width."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.language as nl
from nkilib.core.topk.largest import MAX_WIDTH, top_of_rows
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import DTypeLike, Tensor

FLOATS = (nl.float32, nl.bfloat16, nl.float16)
MAX_COLUMNS = 2**24  # columns are numbers in float32
MAX_K = 4096


@dataclass(frozen=True)
class TopkConfig(nl.NKIObject):
    """A problem of top-k: the matrix [BxS, vocab_size], and how many of each row are found."""

    BxS: int  # rows
    vocab_size: int  # columns
    k: int  # how many of each row
    inp_dtype: Any = None  # seen from the call where it is None
    sorted: bool = True  # the largest comes first in any case
    num_programs: int = 2  # the launch decides


@dataclass(frozen=True)
class RotationalTopkConfig(nl.NKIObject):
    """How rotational_topk solves a problem of top-k; the shapes decide everything else."""

    topk_config: TopkConfig  # the problem

    def log_strategy(self) -> None:
        """Log the problem with the logger of this module, at level INFO."""
        logging.getLogger(__name__).info("rotational_topk: %s", self.topk_config)


def create_topk_config(
    inp_shape: tuple, inp_dtype: DTypeLike = None, k: int = 1, sorted: bool = True, num_programs: int = 2
) -> TopkConfig:
    """Return the problem of finding the k largest of each row of an input [R, V] or [B, S, V]."""
    kernel_assert(len(inp_shape) in (2, 3), f"inp_shape: got {inp_shape}, expected (R, V) or (B, S, V)")
    rows = 1
    for size in inp_shape[:-1]:
        rows *= size
    return TopkConfig(rows, inp_shape[-1], k, inp_dtype, sorted, num_programs)


def create_rotational_topk_config(
    inp_shape: tuple,
    inp_dtype: DTypeLike = None,
    k: int = 1,
    sorted: bool = True,
    num_programs: int = 2,
    topk_config: TopkConfig | None = None,
) -> RotationalTopkConfig:
    """Return the configuration for an input [R, V] or [B, S, V]; topk_config replaces the other arguments."""
    own = create_topk_config(inp_shape, inp_dtype, k, sorted, num_programs)
    if topk_config is None:
        return RotationalTopkConfig(own)
    got, wanted = (own.BxS, own.vocab_size), (topk_config.BxS, topk_config.vocab_size)
    kernel_assert(
        got == wanted, f"inp_shape: got {got[0]} rows of {got[1]}, expected {wanted} of topk_config"
    )
    return RotationalTopkConfig(topk_config)


def prepare_rotational_constants(config: RotationalTopkConfig) -> RotationalTopkConfig:
    """Return the configuration: unlike the original before 2.32, the kernel has no constants to prepare."""
    return config


def cleanup_rotational_constants() -> None:
    """Do nothing: prepare_rotational_constants allocates nothing."""


@nki.jit
def rotational_topk(inp: Tensor, config: RotationalTopkConfig) -> tuple:
    """Return (values [R, k], columns int32 [R, k]) of the k largest of each row of inp [R, V].

    The largest comes first, whether `sorted` asks for it or not; of equal values the lower column. inp is
    float32, bfloat16 or float16 in HBM, of values above -3e38. Two cores share the rows. The original has no
    page: name, inp and config are what callers pass; k is at most 4096 and at most V, V at most 2**21.

    >>> x = np.array([[3, 1, 4, 1, 5, 9, 2, 6]], np.float32)
    >>> values, columns = rotational_topk(x, create_rotational_topk_config(x.shape, x.dtype, 3))
    >>> values.tolist(), columns.tolist()
    ([[9.0, 6.0, 5.0]], [[5, 7, 4]])
    """
    get_verified_program_sharding_info("rotational_topk", (0, 1), 2)
    assert_tensors((("inp", inp),))
    rows, columns, k = config.topk_config.BxS, config.topk_config.vocab_size, config.topk_config.k
    assert_shape(inp, (rows, columns), "inp")
    kernel_assert(inp.dtype in FLOATS, f"inp: got {inp.dtype}, allowed are float32, bfloat16 and float16")
    kernel_assert(columns <= MAX_WIDTH, f"inp: got V = {columns}, allowed is up to {MAX_WIDTH}")
    most = min(MAX_K, columns)
    kernel_assert(1 <= k <= most, f"config: got k = {k}, allowed are 1 to {most}")
    values = nl.ndarray((rows, k), inp.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((rows, k), nl.int32, buffer=nl.shared_hbm)
    top_of_rows(values, index, inp)
    return values, index


def rotational_topk_ref(inp: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort in numpy."""
    index = np.argsort(-np.asarray(inp, np.float64), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(inp, index, 1), index.astype(np.int32)
