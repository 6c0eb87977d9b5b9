"""The rank of an element in the order of max8 and nc_match_replace8, from counts instead of passes.

These instructions repeatedly take the 8 largest remaining values, and order equal values of one pass by
descending position. That equals a stable descending sort with each run of equal values reversed inside each
group of eight.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.types import Tensor

PASS = 8  # values that one max8 finds


def put_places(
    dst: Tensor, greater: Tensor, equal: Tensor, before: Tensor, total: int, descending: bool
) -> None:
    """Set dst to int32 ranks of elements whose counts are float32 tiles of one shape.

    greater counts the larger elements, equal the equal ones including itself, before those of them that come
    earlier.
    """
    rank, first, start = new_counts(dst), new_counts(dst), new_counts(dst)
    last, end = new_counts(dst), new_counts(dst)
    nisa.tensor_tensor(rank, greater, before, op=nl.add)
    whole = nl.ndarray(dst.shape, nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(whole, rank)
    nisa.tensor_scalar(whole, whole, nl.bitwise_and, -PASS)
    nisa.tensor_copy(start, whole)
    nisa.tensor_tensor(first, greater, start, op=nl.maximum)
    nisa.scalar_tensor_tensor(end, greater, nl.subtract, 1.0, nl.add, equal)
    nisa.scalar_tensor_tensor(last, start, nl.add, PASS - 1.0, nl.minimum, end)
    nisa.tensor_tensor(first, first, last, op=nl.add)
    if descending:
        nisa.tensor_tensor(dst, first, rank, op=nl.subtract)
    else:
        nisa.tensor_tensor(rank, rank, first, op=nl.subtract)
        nisa.tensor_scalar(dst, rank, nl.add, total - 1.0)


def new_counts(like: Tensor) -> Tensor:
    return nl.ndarray(like.shape, nl.float32, buffer=nl.sbuf)
