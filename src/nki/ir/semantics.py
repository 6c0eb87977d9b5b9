"""What a backend may know of an instruction beyond its effects: that it moves, fills, adds or multiplies.

An instruction with none of these is run by its `compute`. Operands are in the order of the annotations: dst
first.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Move(NamedTuple):
    """dst = src, element by element in stream order; cast through float32 where the dtypes differ.

    `order` permutes the dimensions of src first; "transpose" takes src as [P, F] and dst as [F, P].
    `through_float32`: equal dtypes are cast, too. The numbers are the same; the bits of a NaN may change.
    """

    order: Any = None
    through_float32: bool = False


class MatrixProduct(NamedTuple):
    """dst[M, N] = stationary[K, M].T @ moving[K, N], or added to what matmuls left in dst."""

    accumulate: bool | None


class Fill(NamedTuple):
    """dst = value everywhere."""

    value: Any


class Sum(NamedTuple):
    """dst = data1 + data2 in float32."""


Meaning = Move | MatrixProduct | Fill | Sum
