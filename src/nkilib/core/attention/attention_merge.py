"""Joining attention over parts of the keys by the online softmax:

M = max m_i,  w_i = e^(m_i - M),  out = sum w_i o_i / sum w_i l_i
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

SMALLEST_SUM = 1.0e-19  # a query that sees a key has a sum of about 1 or more; the logarithm takes no less
TILES = 8  # of 128 queries whose parts are joined at a time


def join_parts(found: list, out: Tensor, lse: Tensor | None = None, negated: bool = True) -> None:
    """out [heads, queries, d] and lse [heads, 128, queries / 128] of what was found about parts of the keys.

    An entry of `found` is (out, max, sum): unnormalised rows, and for query 128 g + p at [head, p, g] the
    maximum, `negated` or not, and the sum. Two cores share the tiles of all heads.
    """
    heads, tiles = out.shape[0], out.shape[1] // PMAX
    if nl.num_programs(0) > 1:
        nisa.core_barrier(found[len(found) - 1][0], (0, 1))
    first, end = program_share(heads * tiles)
    for head in range(heads):
        begin, stop = max(first, head * tiles), min(end, (head + 1) * tiles)
        if begin < stop:
            join_head(found, out, lse, negated, head, begin - head * tiles, stop - head * tiles)


def join_head(
    found: list, out: Tensor, lse: Tensor | None, negated: bool, head: int, first: int, end: int
) -> None:
    """Tiles first to end of a head."""
    weights = join_statistics(found, lse, negated, head, first, end)
    head_dim = out.shape[2]
    for begin in range(first, end, TILES):
        count = min(TILES, end - begin)
        joined = nl.ndarray((PMAX, count, head_dim), out.dtype)
        total = nl.ndarray((PMAX, count, head_dim), nl.float32)
        for i in range(len(found)):
            part = nl.ndarray((PMAX, count, head_dim), found[i][0].dtype)
            nisa.dma_copy(part, by_tile(found[i][0], head, begin, count))
            target = joined if i == len(found) - 1 else total
            for tile in range(count):
                weight = weights[i][:, begin - first + tile : begin - first + tile + 1]
                if i == 0:
                    nisa.activation(target[:, tile, :], nl.copy, part[:, tile, :], scale=weight)
                else:
                    nisa.scalar_tensor_tensor(
                        target[:, tile, :], part[:, tile, :], nl.multiply, weight, nl.add, total[:, tile, :]
                    )
        nisa.dma_copy(by_tile(out, head, begin, count), joined)


def by_tile(rows: Tensor, head: int, first: int, count: int) -> Any:
    """[128, count, d]: query 128 g + p of a head at [p, g]."""
    found = rows[head, first * PMAX : (first + count) * PMAX, :]
    return found.reshape((count, PMAX, rows.shape[2])).permute((1, 0, 2))


def join_statistics(found: list, lse: Tensor | None, negated: bool, head: int, first: int, end: int) -> list:
    """The factor of each step's rows, [128, tiles]; writes lse."""
    count = end - first
    neg_max, sums = [], []
    for part in found:
        largest = load(part[1][head, :, first:end])
        if not negated:
            nisa.tensor_scalar(largest, largest, nl.multiply, -1.0)
        neg_max.append(largest)
        sums.append(load(part[2][head, :, first:end]))
    lowest = nl.ndarray((PMAX, count), nl.float32)  # - M
    nisa.tensor_copy(lowest, neg_max[0])
    for i in range(1, len(found)):
        nisa.tensor_tensor(lowest, lowest, neg_max[i], nl.minimum)
    weights = []
    total = nl.ndarray((PMAX, count), nl.float32)
    for i in range(len(found)):
        weight, product = nl.ndarray((PMAX, count), nl.float32), nl.ndarray((PMAX, count), nl.float32)
        nisa.tensor_tensor(weight, lowest, neg_max[i], nl.subtract)
        nisa.activation(weight, nl.exp, weight)
        nisa.tensor_tensor(product, weight, sums[i], nl.multiply)
        if i == 0:
            nisa.tensor_copy(total, product)
        else:
            nisa.tensor_tensor(total, total, product, nl.add)
        weights.append(weight)
    nisa.tensor_scalar(total, total, nl.maximum, SMALLEST_SUM)
    if lse is not None:
        write_lse(lse, lowest, total, head, first, end)
    factor = nl.ndarray((PMAX, count), nl.float32)
    nisa.reciprocal(factor, total)
    for weight in weights:
        nisa.tensor_tensor(weight, weight, factor, nl.multiply)
    return weights


def write_lse(lse: Tensor, lowest: Tensor, total: Tensor, head: int, first: int, end: int) -> None:
    """lse = M + ln sum."""
    logarithm = nl.ndarray(total.shape, nl.float32)
    nisa.activation(logarithm, nl.log, total)
    ready = nl.ndarray(total.shape, lse.dtype)
    nisa.tensor_tensor(ready, logarithm, lowest, nl.subtract)
    nisa.dma_copy(lse[head, :, first:end], ready)
