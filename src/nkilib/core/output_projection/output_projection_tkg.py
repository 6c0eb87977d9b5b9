"""Output projection of attention for decode. Bound by the weights, which stream from HBM once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.mx import OutputMxProjection, as_mx, decode_tokens
from nkilib.core.output_projection.operands import (
    OperandNames,
    Operands,
    OutputStaticScales,
    check_kinds,
    check_operands,
    column_scale,
    matmul_dtype,
    projected_ref,
    quantize,
    quantizes,
    result_dtype,
)
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.projection import BANK_COLUMNS, SUM_BANKS, Activations, span_columns
from nkilib.core.utils.projection_results import load_terms, new_rows, project_into, store_rows, store_span
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import Tiles, close_scope, new_tile, open_scope
from nkilib.core.utils.transposes import spread_rows, spread_rows_into
from nkilib.core.utils.types import Tensor

if TYPE_CHECKING:
    from nkilib.core.utils.allocator import BufferManager

MAX_TOKENS = 4096  # attention stays in SBUF
ROW_BYTES = 64 * 1024  # in each partition, of rows that wait for their last columns
MAX_TRANSPOSED = 163840  # N * H of 16-bit weights with TRANSPOSE_OUT; of float32 half as many


@nki.jit
def output_projection_tkg(
    attention: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    weight_scale: Tensor | None = None,
    input_scale: Tensor | None = None,
    TRANSPOSE_OUT: bool = False,
    OUT_IN_SB: bool = False,
    sbm: BufferManager | None = None,
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

    MX weights (trn3): four-packed FP8 or FP4, [N D / 4, H], row 4 p + q in lane q of word p;
    weight_scale [N D / 32, H]. Attention becomes MXFP8. STATIC_MX: FP8 whose bytes are [N D / 4, H, 4],
    scales as STATIC. D is then a multiple of 32.

    With a manual `sbm` all tiles are on its stack and freed at the end, except for a result in SBUF.

    >>> x, w = np.ones((64, 3, 2, 1), np.float32), np.ones((128, 256), np.float32)
    >>> output_projection_tkg(x, w).shape
    (3, 256)
    """
    p = Operands(
        attention,
        weight,
        bias,
        quantization_type,
        input_scale,
        weight_scale,
        dtype_mode,
        OperandNames("input_scale", "weight_scale"),
    )
    return project_tokens(p, TRANSPOSE_OUT, OUT_IN_SB, sbm)


def project_tokens(p: Operands, transposed: bool, in_sbuf: bool, sbm: BufferManager | None) -> Any:
    """The output projection of decode, once the arguments are in one object."""
    check_kinds(p, "(D, B, N, S)")
    sharding = get_verified_program_sharding_info("output_projection_tkg", (0, 1), 2)
    if p.quantization.is_mx():
        as_mx(p, p.attention.shape[2], p.attention.shape[0], False, flat=False)
        kernel_assert(
            p.weight.shape[1] % sharding[1] == 0,
            f"{p.names.weight}: got H = {p.weight.shape[1]}, {sharding[1]} cores take multiples of "
            f"{sharding[1]}",
        )
    check(p, sharding[1], transposed, in_sbuf and not transposed)
    columns = p.weight.shape[1] // sharding[1]
    share = ColumnShare(sharding[2] * columns, columns)
    if sbm is None or sbm.is_auto_alloc():
        return project_all(p, share, new_result(p, share, transposed, in_sbuf, None), transposed)
    result = new_result(p, share, transposed, in_sbuf, sbm)  # stays where it is; all else goes
    sbm.open_scope(name="output_projection_tkg")
    p.tiles = Tiles(sbm)
    project_all(p, share, result, transposed)
    sbm.close_scope()
    return result


@dataclass
class ColumnShare(nl.NKIObject):
    """The columns of the weights that this core has."""

    first: int
    columns: int


def new_result(
    p: Operands, share: ColumnShare, transposed: bool, in_sbuf: bool, sbm: BufferManager | None
) -> Any:
    """All columns in HBM, or those of this core in SBUF."""
    tokens, tiles = p.attention.shape[1] * p.attention.shape[3], share.columns // PMAX
    n_prgs = p.weight.shape[1] // share.columns
    if in_sbuf:
        shape: tuple = (PMAX, tiles, tokens) if transposed else (tokens, share.columns)
        if sbm is not None:
            return sbm.alloc_stack(shape, result_dtype(p))
        return nl.ndarray(shape, result_dtype(p), buffer=nl.sbuf)
    shape = (PMAX, n_prgs, tiles, tokens) if transposed else (tokens, p.weight.shape[1])
    return nl.ndarray(shape, result_dtype(p), buffer=nl.shared_hbm)


def project_all(p: Operands, share: ColumnShare, result: Tensor, transposed: bool) -> Any:
    """Blocks of tokens; the weights pass by once for each, which is once in decode proper."""
    if p.quantization.is_mx():
        return project_all_mx(p, share, result, transposed)
    scales = OutputStaticScales(p)
    x = attention_by_rows(p, scales)
    in_sbuf = not is_hbm_buffer(result)
    for block in TiledRange(x.tile.shape[2], block_tokens(p, share)):
        open_scope(p.tiles)
        part = some_tokens(x, block)
        if in_sbuf and not transposed:
            project_rows(p, part, scales, share, [result], None)
        elif transposed:
            rows = new_rows(block.size, share.columns, result_dtype(p), p.tiles)
            project_rows(p, part, scales, share, rows, None)
            put_spread(p, share, result, rows, block)
        else:
            rows = new_rows(block.size, share.columns, result_dtype(p), p.tiles)
            project_rows(p, part, scales, share, rows, result[block.start_offset : block.end_offset])
        close_scope(p.tiles)
    return result


def project_all_mx(p: Operands, share: ColumnShare, result: Tensor, transposed: bool) -> Any:
    """The same with MX weights, all tokens at once."""
    mx = OutputMxProjection(p, p.attention.shape[2], p.attention.shape[0])
    tokens = p.attention.shape[1] * p.attention.shape[3]
    x = decode_tokens(mx)
    if not transposed and not is_hbm_buffer(result):
        mx.project_into([result], x, share.first, share.columns)
        return result
    rows = new_rows(tokens, share.columns, result_dtype(p), p.tiles)
    mx.project_into(rows, x, share.first, share.columns)
    if transposed:
        for block in TiledRange(tokens, tokens):
            put_spread(p, share, result, rows, block)
    else:
        store_rows(result, rows, 0, 0, share.first, share.columns)
    return result


def put_spread(
    p: Operands, share: ColumnShare, result: Tensor, rows: list, block: TiledRangeIterator
) -> None:
    """The rows of a block of tokens in the transposed result, [128, J, T] in SBUF or [128, cores, J, T]."""
    if is_hbm_buffer(result):
        place = result[:, share.first // share.columns, :, block.start_offset : block.end_offset]
        nisa.dma_copy(place, spread_rows(rows, p.tiles))
    else:
        spread_rows_into(result[:, :, block.start_offset : block.end_offset], rows)


def block_tokens(p: Operands, share: ColumnShare) -> int:
    """How many tokens a pass over the weights serves: a set of sums, of which the rows must fit into SBUF."""
    width = 4 if result_dtype(p) == nl.float32 else 2
    tiles = ROW_BYTES // (width * share.columns)
    return PMAX * max(1, min(SUM_BANKS, tiles))


def some_tokens(x: Activations, block: TiledRangeIterator) -> Activations:
    part = x.tile[:, :, block.start_offset : block.end_offset]
    return Activations(part, x.size, partitions=x.partitions, tiles=x.tiles)


def project_rows(
    p: Operands, x: Activations, scales: OutputStaticScales, share: ColumnShare, rows: list, out: Tensor
) -> None:
    """The columns of this core in rows, [tokens, columns]; stored as they become ready, if out is given."""
    terms = load_terms(scales.sums, column_scale(p), p.bias, share.first, share.columns, x, p.weight)
    for span in TiledRange(share.columns, span_columns(x, p.weight)):
        at, column = span.start_offset, share.first + span.start_offset
        taper = span.end_offset == share.columns
        open_scope(p.tiles)
        project_into(rows, at, [x], p.weight, terms, column, span.size, taper=taper)
        if out is not None:
            store_span(out, rows, at, column, span.size, taper)
        close_scope(p.tiles)


def check(p: Operands, n_prgs: int, transposed: bool, rows_in_sbuf: bool) -> None:
    depth, batches, heads, tokens = p.attention.shape
    if not p.quantization.is_mx():
        check_operands(p, heads * depth, depth, n_prgs)
    most = PMAX if rows_in_sbuf else (BANK_COLUMNS if p.quantization.is_mx() else MAX_TOKENS)
    kernel_assert(
        batches * tokens <= most,
        f"attention: got B * S = {batches * tokens} tokens, allowed are at most {most}",
    )
    if transposed:
        columns, multiple = p.weight.shape[1], PMAX * n_prgs
        kernel_assert(
            columns % multiple == 0,
            f"{p.names.weight}: got H = {columns}, allowed with TRANSPOSE_OUT are multiples of {multiple}",
        )
        most = MAX_TRANSPOSED // 2 if p.weight.dtype == nl.float32 else MAX_TRANSPOSED
        kernel_assert(
            heads * columns <= most,
            f"{p.names.weight}: got N * H = {heads * columns}, allowed with TRANSPOSE_OUT are at most {most}",
        )


# ---- attention with as many heads in the partitions as fit ----------------------------------------


def attention_by_rows(p: Operands, scales: OutputStaticScales) -> Activations:
    """[n D, groups, tokens], n = 128 / D heads in a group: the rows of the weights in order."""
    depth, batches, heads, tokens = p.attention.shape
    per_group = min(heads, PMAX // depth)
    groups, rest = heads // per_group, heads % per_group
    x = new_tile(p.tiles, (per_group * depth, div_ceil(heads, per_group), batches * tokens), matmul_dtype(p))
    open_scope(p.tiles)
    grouped = group_heads(p, per_group)
    by_head = x.reshape_dim(2, (batches, tokens))
    for group in range(groups):
        convert(p, by_head[:, group], grouped[:, :, group * per_group, :], scales)
    if rest > 0:
        convert(
            p, by_head[0 : rest * depth, groups], grouped[0 : rest * depth, :, groups * per_group, :], scales
        )
    close_scope(p.tiles)
    return Activations(x, heads * depth, partitions=per_group * depth, tiles=p.tiles)


def group_heads(p: Operands, per_group: int) -> Any:
    """[n D, B, N, S]: partition q D + d at head h has head h + q. Copies, each shifted by a head more."""
    depth, batches, heads, tokens = p.attention.shape
    if per_group == 1 and not is_hbm_buffer(p.attention):
        return p.attention
    size = batches * heads * tokens
    source = p.attention.reshape((depth, size))
    grouped = new_tile(p.tiles, (per_group * depth, size), p.attention.dtype)
    for q in range(per_group):
        nisa.dma_copy(grouped[q * depth : (q + 1) * depth, 0 : size - q * tokens], source[:, q * tokens :])
    return grouped.reshape((per_group * depth, batches, heads, tokens))


def convert(p: Operands, dst: Tensor, src: Tensor, scales: OutputStaticScales) -> None:
    """The heads of one group, dense, in the dtype of the matmul."""
    if quantizes(p):
        quantize(dst, src, scales, p.tiles)
    else:
        nisa.tensor_copy(dst, src)


def output_projection_tkg_ref(
    attention: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    weight_scale: np.ndarray | None = None,
    input_scale: np.ndarray | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
) -> np.ndarray:
    """[B S, H] in float64."""
    d, b, n, s = attention.shape
    x = attention.transpose(1, 3, 2, 0).reshape(b * s, n * d)
    return projected_ref(x, weight, bias, quantization_type, input_scale, weight_scale, dtype_mode)
