"""Output projection of attention for decode. Bound by the weights, which stream from HBM once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.operands import (
    Operands,
    StaticScales,
    check_operands,
    column_scale,
    matmul_dtype,
    projected_ref,
    quantize,
    quantizes,
    refuse_mx,
    result_dtype,
)
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_assert import kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.projection import PARTITIONS, SUM_BANKS, Activations, last_pass_spans
from nkilib.core.utils.projection_results import load_terms, new_rows, project_into, store_rows
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.transposes import spread_rows, spread_rows_into

MAX_TOKENS = 4096  # attention stays in SBUF
ROW_BYTES = 64 * 1024  # in each partition, of rows that wait for their last columns
MAX_TRANSPOSED = 163840  # N * H of 16-bit weights with TRANSPOSE_OUT; of float32 half as many


@nki.jit
def output_projection_tkg(
    attention: Any,
    weight: Any,
    bias: Any = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    weight_scale: Any = None,
    input_scale: Any = None,
    TRANSPOSE_OUT: bool = False,
    OUT_IN_SB: bool = False,
    sbm: Any = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
) -> Any:
    """out[b S + s, :] = sum over n, d of attention[d, b, n, s] * weight[n D + d, :] + bias

    attention [D, B, N, S] in HBM or SBUF, weight [N D, H], bias [1, H]. out [B S, H]; with TRANSPOSE_OUT
    [128, cores, J, B S], J = H / (128 cores), column c H / cores + J p + j at [p, c, j]. OUT_IN_SB: a tile of
    this core's columns, [B S, H / cores] or [128, J, B S]. In the dtype of attention, bfloat16 where that is
    FP8. Cores share the columns. The page allows B S up to 128; as the published tests have more, up to
    4096 are taken, except for rows in SBUF, which have 128 partitions.

    FP8 weights: STATIC has scales [128, 1] of both operands and quantises attention unless it is FP8;
    ROW has weight_scale [128, H], one for each column (row 0 counts), and leaves attention as it is.

    >>> x, w = np.ones((64, 3, 2, 1), np.float32), np.ones((128, 256), np.float32)
    >>> output_projection_tkg(x, w).shape
    (3, 256)
    """
    refuse_mx(quantization_type)
    if sbm is not None and not sbm.is_auto_alloc():
        not_built("sbm", "tiles are placed by the compiler; pass None or an automatic manager")
    p = Operands(
        attention,
        weight,
        bias,
        quantization_type,
        input_scale,
        weight_scale,
        dtype_mode,
        ("input_scale", "weight_scale"),
    )
    sharding = get_verified_program_sharding_info("output_projection_tkg", (0, 1), 2)
    check(p, sharding[1], TRANSPOSE_OUT, OUT_IN_SB and not TRANSPOSE_OUT)
    scales = StaticScales(p)
    x = attention_by_rows(p, scales)
    columns = weight.shape[1] // sharding[1]
    share = Share(sharding[2] * columns, columns)
    if not OUT_IN_SB:
        return result_in_hbm(p, x, scales, share, TRANSPOSE_OUT)
    if TRANSPOSE_OUT:
        return transposed_in_sbuf(p, x, scales, share)
    rows = new_rows(x.tile.shape[2], columns, result_dtype(p))
    project_rows(p, x, scales, share, rows, None)
    return rows[0]


@dataclass
class Share(nl.NKIObject):
    """The columns of the weights that this core has."""

    first: int
    columns: int


def result_in_hbm(p: Operands, x: Activations, scales: StaticScales, share: Share, transposed: bool) -> Any:
    """Blocks of tokens; the weights pass by once for each, which is once in decode proper."""
    tokens, n_prgs = x.tile.shape[2], p.weight.shape[1] // share.columns
    core = share.first // share.columns
    if transposed:
        shape = (PARTITIONS, n_prgs, share.columns // PARTITIONS, tokens)
    else:
        shape = (tokens, p.weight.shape[1])
    out = nl.ndarray(shape, result_dtype(p), buffer=nl.shared_hbm)
    for block in TiledRange(tokens, block_tokens(p, share)):
        part = some_tokens(x, block)
        rows = new_rows(block.size, share.columns, result_dtype(p))
        if transposed:
            project_rows(p, part, scales, share, rows, None)
            nisa.dma_copy(out[:, core, :, block.start_offset : block.end_offset], spread_rows(rows))
        else:
            project_rows(p, part, scales, share, rows, out[block.start_offset : block.end_offset])
    return out


def transposed_in_sbuf(p: Operands, x: Activations, scales: StaticScales, share: Share) -> Any:
    """[128, J, tokens] of this core's columns."""
    tokens, tiles = x.tile.shape[2], share.columns // PARTITIONS
    tile = nl.ndarray((PARTITIONS, tiles, tokens), result_dtype(p), buffer=nl.sbuf)
    for block in TiledRange(tokens, block_tokens(p, share)):
        rows = new_rows(block.size, share.columns, result_dtype(p))
        project_rows(p, some_tokens(x, block), scales, share, rows, None)
        spread_rows_into(tile[:, :, block.start_offset : block.end_offset], rows)
    return tile


def block_tokens(p: Operands, share: Share) -> int:
    """How many tokens a pass over the weights serves: a set of sums, of which the rows must fit into SBUF."""
    width = 4 if result_dtype(p) == nl.float32 else 2
    tiles = ROW_BYTES // (width * share.columns)
    return PARTITIONS * max(1, min(SUM_BANKS, tiles))


def some_tokens(x: Activations, block: TiledRangeIterator) -> Activations:
    part = x.tile[:, :, block.start_offset : block.end_offset]
    return Activations(part, x.size, partitions=x.partitions)


def project_rows(
    p: Operands, x: Activations, scales: StaticScales, share: Share, rows: list, out: Any
) -> None:
    """The columns of this core in rows, [tokens, columns]; stored as they become ready, if out is given."""
    terms = load_terms(scales.sums, column_scale(p), p.bias, share.first, share.columns, x, p.weight)
    for span in last_pass_spans(x, p.weight, share.columns):
        at, column = span.start_offset, share.first + span.start_offset
        project_into(rows, at, [x], p.weight, terms, column, span.size)
        if out is not None:
            store_rows(out, rows, at, 0, column, span.size)


def check(p: Operands, n_prgs: int, transposed: bool, rows_in_sbuf: bool) -> None:
    shape = tuple(p.attention.shape)
    kernel_assert(len(shape) == 4, f"attention: got shape {shape}, expected (D, B, N, S)")
    depth, batches, heads, tokens = shape
    check_operands(p, heads * depth, depth, n_prgs)
    most = PARTITIONS if rows_in_sbuf else MAX_TOKENS
    kernel_assert(
        batches * tokens <= most,
        f"attention: got B * S = {batches * tokens} tokens, allowed are at most {most}",
    )
    if transposed:
        columns, multiple = p.weight.shape[1], PARTITIONS * n_prgs
        kernel_assert(
            columns % multiple == 0,
            f"weight: got H = {columns}, TRANSPOSE_OUT on {n_prgs} cores takes multiples of {multiple}",
        )
        most = MAX_TRANSPOSED // 2 if p.weight.dtype == nl.float32 else MAX_TRANSPOSED
        kernel_assert(
            heads * columns <= most,
            f"weight: got N * H = {heads * columns}, allowed with TRANSPOSE_OUT are at most {most}",
        )


# ---- attention with as many heads in the partitions as fit ----------------------------------------


def attention_by_rows(p: Operands, scales: StaticScales) -> Activations:
    """[fold D, groups, tokens], fold = 128 / D heads in a group: the rows of the weights in order."""
    depth, batches, heads, tokens = p.attention.shape
    fold = min(heads, PARTITIONS // depth)
    groups, rest = heads // fold, heads % fold
    folded = fold_heads(p, fold)
    x = nl.ndarray((fold * depth, div_ceil(heads, fold), batches * tokens), matmul_dtype(p), buffer=nl.sbuf)
    by_head = x.reshape_dim(2, (batches, tokens))
    for group in range(groups):
        convert(p, by_head[:, group], folded[:, :, group * fold, :], scales)
    if rest > 0:
        convert(p, by_head[0 : rest * depth, groups], folded[0 : rest * depth, :, groups * fold, :], scales)
    return Activations(x, heads * depth, partitions=fold * depth)


def fold_heads(p: Operands, fold: int) -> Any:
    """[fold D, B, N, S]: partition q D + d at head n has head n + q. Copies, each shifted by a head more."""
    depth, batches, heads, tokens = p.attention.shape
    if fold == 1 and not is_hbm_buffer(p.attention):
        return p.attention
    size = batches * heads * tokens
    source = p.attention.reshape((depth, size))
    folded = nl.ndarray((fold * depth, size), p.attention.dtype, buffer=nl.sbuf)
    for q in range(fold):
        nisa.dma_copy(folded[q * depth : (q + 1) * depth, 0 : size - q * tokens], source[:, q * tokens :])
    return folded.reshape((fold * depth, batches, heads, tokens))


def convert(p: Operands, dst: Any, src: Any, scales: StaticScales) -> None:
    """The heads of one group, dense, in the dtype of the matmul."""
    if quantizes(p):
        quantize(dst, src, scales)
    else:
        nisa.tensor_copy(dst, src)


def output_projection_tkg_ref(
    attention: np.ndarray,
    weight: np.ndarray,
    bias: Any = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    weight_scale: Any = None,
    input_scale: Any = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
) -> np.ndarray:
    """[B S, H] in float64."""
    d, b, n, s = attention.shape
    x = attention.transpose(1, 3, 2, 0).reshape(b * s, n * d)
    return projected_ref(x, weight, bias, quantization_type, input_scale, weight_scale, dtype_mode)
