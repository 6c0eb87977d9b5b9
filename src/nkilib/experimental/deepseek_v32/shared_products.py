"""Products of a few tokens with weights in HBM, of which two cores load half each."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.projection import Activations, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, project_into
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.transposes import spread_rows
from nkilib.core.utils.types import Tensor


def shared_sums(x: Tensor, weights: tuple) -> Tensor:
    """x [T, H] times each of the weights [H, N], side by side in float32 [T, sum of N], on each core.

    Cores share the hidden dimension, a multiple of 128, and exchange their sums.
    """
    steps, cores = x.shape[1] // PMAX, nl.num_programs(0)
    shared = steps >= cores
    first, end = program_share(steps) if shared else (0, steps)
    columns = spread_rows([castable(load(x[:, first * PMAX : end * PMAX]), nl.bfloat16)])
    part = Activations(columns, (end - first) * PMAX, first * PMAX, spread=end - first)
    width = 0
    for weight in weights:
        width += weight.shape[1]
    sums, at = nl.ndarray((x.shape[0], width), nl.float32, buffer=nl.sbuf), 0
    for weight in weights:
        project_columns(sums, at, part, weight, 0, weight.shape[1])
        at += weight.shape[1]
    if shared and cores == 2:
        nisa.tensor_tensor(sums, sums, received(sums), nl.add)
    return sums


def project_columns(
    rows: Tensor, at: int, part: Activations, weight: Tensor, first: int, columns: int
) -> None:
    """Columns first ... of x w, into columns `at` ... of rows [T, ...]."""
    for span in TiledRange(columns, span_columns(part, weight)):
        start = span.start_offset
        project_into([rows], at + start, [part], weight, ColumnTerms(), first + start, span.size)


def received(tile: Tensor) -> Tensor:
    """What the other core sends for this tile."""
    other, result = 1 - nl.program_id(0), like(tile)
    nisa.sendrecv(tile, result, other, other, pipe_id=0, dma_engine=nisa.dma_engine.dma)
    return result
