"""MLP for many tokens: bound by TensorE. Weights pass once for every block of tokens, which stay in SBUF."""

from __future__ import annotations

from nkilib.core.mlp.gate_up import MLPStaticScales, contract_rows, down_terms, gate_up_features, gate_up_rows
from nkilib.core.mlp.mlp_parameters import (
    MLPParameters,
    hidden_size,
    intermediate_size,
    result_dtype,
    token_count,
)
from nkilib.core.mlp.rows import MLPRowSource, token_activations, tokens_per_block
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.kernel_helpers import div_ceil, program_share
from nkilib.core.utils.projection import BANK_COLUMNS, Activations, span_columns
from nkilib.core.utils.projection_results import new_rows, project_into, store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import close_scope, open_scope
from nkilib.core.utils.types import Tensor


def mlp_prefill(p: MLPParameters, out: Tensor, add_out: Tensor | None) -> None:
    """out[T, H] = MLP of the tokens of this core. Cores share the tokens."""
    start, end = program_share(token_count(p))
    if start == end:
        return
    scales = MLPStaticScales(p)
    source = MLPRowSource(p, 1, add_out, scales.inverse_x)
    blocks = div_ceil(end - start, tokens_per_block(p, BANK_COLUMNS))
    size = div_ceil(div_ceil(end - start, blocks), PMAX) * PMAX
    tiles = TiledRange(end - start, size)
    if p.tiles is not None:
        run_sequentially(p, source, scales, out, start, tiles)
        return
    inner = intermediate_size(p)
    x = token_activations(p, source, start, tiles[0].size, inner)
    for block in tiles:
        m = middle(p, x, scales)
        if block.index + 1 < len(tiles):  # before the down projection, which keeps TensorE busy meanwhile
            size = tiles[block.index + 1].size
            x = token_activations(p, source, start + block.end_offset, size, inner)
        project_block(p, m, scales, out, start + block.start_offset)


def run_sequentially(
    p: MLPParameters, source: MLPRowSource, scales: MLPStaticScales, out: Tensor, start: int, blocks: tuple
) -> None:
    """One block after the other, on the stack of a manual manager."""
    for block in blocks:
        first = start + block.start_offset
        open_scope(p.tiles)
        x = token_activations(p, source, first, block.size, intermediate_size(p))
        project_block(p, middle(p, x, scales), scales, out, first)
        close_scope(p.tiles)


def project_block(p: MLPParameters, m: Activations, scales: MLPStaticScales, out: Tensor, first: int) -> None:
    """The down projection of one block of tokens, stored."""
    tokens = m.tile.shape[2]
    for span in TiledRange(hidden_size(p), span_columns(m, p.down.weight)):
        open_scope(p.tiles)
        terms = down_terms(p, scales, m, span.start_offset, span.size)
        rows = new_rows(tokens, span.size, result_dtype(p), p.tiles)
        project_into(rows, 0, [m], p.down.weight, terms, span.start_offset, span.size)
        store_rows(out, rows, 0, first, span.start_offset, span.size)
        close_scope(p.tiles)


def middle(p: MLPParameters, x: Activations, scales: MLPStaticScales) -> Activations:
    """m of one block of tokens. ROW needs all of a token's m for its scale: tokens stay in partitions."""
    if p.quantization != QuantizationType.ROW:
        return gate_up_features(p, x, scales, 0, intermediate_size(p))
    rows, maxima = gate_up_rows(p, x, scales, 0, intermediate_size(p))
    return contract_rows(p, scales, rows, 0, maxima)
