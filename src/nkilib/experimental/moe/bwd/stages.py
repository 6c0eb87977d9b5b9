"""The backward pass of one unit of tokens, in the order of the formulas.

Each core has half of the columns of H: of tokens, of their gradients, of both weights. Only the gradient of
the middle is a sum over all of H, which the cores exchange; both cores compute everything after it in full.
"""

from __future__ import annotations

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.gate_up import activate
from nkilib.core.moe.moe_cte.experts import affinity_row, combine, swap
from nkilib.core.moe.moe_cte.routing import Repeats, TokenUnit
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_helpers import div_ceil, interleave_copy
from nkilib.core.utils.projection import BANK_COLUMNS, Activations, feature_major_blocks, token_major_blocks
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.clamp_limits import ClampBounds, gate_bounds, rounded, up_bounds
from nkilib.experimental.moe.bwd.gradients import Gradients, add_products
from nkilib.experimental.moe.bwd.moe_bwd_parameters import (
    BackwardParameters,
    derivative,
    intermediate_size,
    matmul_dtype,
)
from nkilib.experimental.moe.bwd.operands import (
    as_dtype,
    gather_columns,
    gather_rows,
    load_transposed,
    multiply_all,
    token_rows,
)


@dataclass
class MiddleTiles(nl.NKIObject):
    """The feature-major tiles [128, tiles, tokens] of a unit, and the rows of its gradient."""

    gate: Tensor  # as checkpointed, or None
    up: Tensor
    active: Tensor  # act(gate); without a gate, 1
    product: Tensor  # act(gate) * up
    slope: Tensor  # act'(gate)
    grad_rows: list  # dy, [128 tokens, columns] each
    grad: Tensor  # dy Wd^T, float32: before affinities


def first_half(p: BackwardParameters, unit: TokenUnit, gradients: Gradients) -> MiddleTiles:
    """Compute the gradient of the middle from that of the output: dm' = dy Wd^T."""
    dtype = matmul_dtype(p)
    table = gradients.of_row(p.out_grad)
    rows = gather_rows(table, unit, dtype)
    dy = gather_columns(table, unit, rows)
    gate = None if p.skip_gate else load_features(p, 0, unit)
    up = load_features(p, 1, unit)
    active, product, slope = activations(p, gate, up)
    return MiddleTiles(gate, up, active, product, slope, rows, middle_grad(p, unit, dy, gradients))


@dataclass
class BlockRows(nl.NKIObject):
    """The factors of the gradients of an expert's weights, [128 tokens, columns] each."""

    weighted: list  # act(gate) * up * affinity
    grads: list  # dy
    hidden: list  # x
    sides: list  # dg | du
    factors: list  # affinities, [128 tokens, 1]


def second_half(
    p: BackwardParameters,
    unit: TokenUnit,
    middle: MiddleTiles,
    gradients: Gradients,
    repeats: Repeats,
    rows: BlockRows,
    is_first: bool,
) -> None:
    """Compute the gradients of tokens and affinities, and collect the `rows` that the others need.

    The gradients are 0 before the first unit.
    """
    dtype, inner = matmul_dtype(p), intermediate_size(p)
    weighted = new_rows(unit.size, inner, dtype)
    token_rows(weighted, 0, Activations(middle.product, inner), unit.affinity)
    counts, targets = repeats.of(unit)
    by_token = (
        sums_over_hidden(p, unit, middle, gradients) if p.on_hidden else sums_over_middle(p, unit, middle)
    )
    gate_grad, up_grad = split_grad(p, unit, middle)
    sides = new_rows(unit.size, 2 * inner, dtype)
    if gate_grad is None:
        for row in sides:
            nisa.memset(row[:, 0:inner], 0.0)
    else:
        token_rows(sides, 0, gate_grad)
    token_rows(sides, inner, up_grad)
    hidden_grad(p, unit, [gate_grad, up_grad], gradients, counts, targets, is_first)
    affinity_grad(p, unit, by_token, gradients, counts, targets)
    rows.weighted.extend(weighted)
    rows.grads.extend(middle.grad_rows)
    rows.hidden.extend(gather_rows(gradients.of_row(p.hidden), unit, dtype))
    rows.sides.extend(sides)
    if p.bias:
        weights = as_dtype(unit.affinity, dtype)
        for c in range(len(sides)):
            rows.factors.append(weights[:, c : c + 1])


def weight_grads(
    p: BackwardParameters, expert: nisa.VirtualRegister, rows: BlockRows, gradients: Gradients, is_first: bool
) -> None:
    """Add the products of all tokens of a block: an expert's gradients are loaded and stored once for it."""
    down = gradients.of_row(gradients.down.total.select(0, expert))
    starts = is_first and not gradients.down.holds_values
    add_products(down, rows.weighted, rows.grads, gradients.start_down if starts else None)
    gate_up = gradients.of_column(gradients.gate_up.total.select(0, expert))
    starts = is_first and not gradients.gate_up.holds_values
    add_products(gate_up, rows.hidden, rows.sides, gradients.start_gate_up if starts else None)
    if p.bias:
        bias_grads(expert, rows, gradients)


# ---- the middle ----------------------------------------------------------------------------------


def load_features(p: BackwardParameters, side: int, unit: TokenUnit) -> Tensor:
    """Load gate or up of the checkpoint, [128, tiles, tokens]."""
    inner = intermediate_size(p)
    full, rest = inner // PMAX, inner % PMAX
    tile = nl.ndarray((PMAX, div_ceil(inner, PMAX), unit.size), matmul_dtype(p), buffer=nl.sbuf)
    source = p.gate_up_checkpoint[unit.block, side, :, unit.first : unit.first + unit.size]
    if full > 0:
        rows = source[0 : full * PMAX].reshape_dim(0, (full, PMAX))
        nisa.dma_copy(tile[:, 0:full, :], rows.permute((1, 0, 2)))
    if rest > 0:
        nisa.dma_copy(tile[0:rest, full, :], source[full * PMAX :])
    return tile


def activations(p: BackwardParameters, gate: Tensor | None, up: Tensor) -> tuple:
    """Return (act(gate), act(gate) * up, act'(gate)); without a gate (None, act(up), act'(up))."""
    source = up if gate is None else gate
    active, slope = like(source), like(source)
    product = active if gate is None else like(source)
    parts = TiledRange(intermediate_size(p), PMAX)
    for tile in parts:
        rows, k = tile.size, tile.index
        activate(active[0:rows, k, :], source[0:rows, k, :], p.act_fn)
    for tile in parts:
        rows, k = tile.size, tile.index
        put_slope(p.act_fn, slope[0:rows, k, :], source[0:rows, k, :])
        if gate is not None:
            nisa.tensor_tensor(product[0:rows, k, :], active[0:rows, k, :], up[0:rows, k, :], op=nl.multiply)
    return active, product, slope


def like(tile: Tensor) -> Tensor:
    return nl.ndarray(tile.shape, tile.dtype, buffer=nl.sbuf)


def put_slope(act_fn: ActFnType, dst: Tensor, x: Tensor) -> None:
    """Set dst = act'(x)."""
    slope = derivative(act_fn)
    if slope is None:  # SquaredReLU
        nisa.tensor_scalar(dst, x, nl.maximum, 0.0, op1=nl.multiply, operand1=2.0)
    else:
        nisa.activation(dst, slope, x)


def middle_grad(p: BackwardParameters, unit: TokenUnit, dy: Activations, gradients: Gradients) -> Tensor:
    """Return dy Wd^T over all of H, [128, tiles, tokens] float32: the cores exchange their sums."""
    inner = intermediate_size(p)
    own = nl.ndarray((PMAX, div_ceil(inner, PMAX), unit.size), nl.float32, buffer=nl.sbuf)
    weight = gradients.of_row(p.down.select(0, unit.expert))
    for span in TiledRange(inner, BANK_COLUMNS):
        tile = load_transposed(weight[span.start_offset : span.end_offset], dy.tile.dtype)
        blocks = feature_major_blocks(unit.size, span.size)
        multiply_all(blocks, dy, tile, feature_major=True)
        for block in blocks:
            k = (span.start_offset + block.column) // PMAX
            interleave_copy(own[0 : block.columns, k, :], block.sums, 1)
    if gradients.cores == 1:
        return own
    other = like(own)
    for tile in TiledRange(inner, PMAX):
        rows, k = tile.size, tile.index
        swap(own[0:rows, k, :], other[0:rows, k, :], gradients.core)
        nisa.tensor_tensor(own[0:rows, k, :], own[0:rows, k, :], other[0:rows, k, :], op=nl.add)
    return own


def split_grad(p: BackwardParameters, unit: TokenUnit, middle: MiddleTiles) -> tuple:
    """Return (dg, du): dm * up * act'(gate) and dm * act(gate), 0 where a limit was reached."""
    inner = intermediate_size(p)
    row = affinity_row(unit)
    gate_grad: Tensor = None if p.skip_gate else like(middle.up)
    up_grad = like(middle.up)
    for tile in TiledRange(inner, PMAX):
        rows, k = tile.size, tile.index
        grad = nl.ndarray((rows, unit.size), middle.up.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(grad, middle.grad[0:rows, k, :], row[0:rows], op=nl.multiply)
        up, slope = middle.up[0:rows, k, :], middle.slope[0:rows, k, :]
        if p.skip_gate:
            nisa.tensor_tensor(up_grad[0:rows, k, :], grad, slope, op=nl.multiply)
        else:
            gate = middle.gate[0:rows, k, :]
            for_gate = nl.ndarray((rows, unit.size), grad.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(for_gate, grad, up, op=nl.multiply)
            dst = gate_grad[0:rows, k, :]
            nisa.tensor_tensor(dst, for_gate, slope, op=nl.multiply)
            stop_at(dst, gate, rounded(gate_bounds(p.limits), p.gate_up_checkpoint.dtype))
            dst = up_grad[0:rows, k, :]
            nisa.tensor_tensor(dst, grad, middle.active[0:rows, k, :], op=nl.multiply)
            stop_at(dst, up, rounded(up_bounds(p.limits), p.gate_up_checkpoint.dtype))
    gates = None if p.skip_gate else Activations(gate_grad, inner)
    return gates, Activations(up_grad, inner)


def stop_at(grad: Tensor, value: Tensor, bounds: ClampBounds) -> None:
    """Set grad = 0 where the value is not strictly inside its bounds, which are rounded as the value was."""
    lower, upper = rounded(bounds, value.dtype)
    if upper is not None:
        nisa.scalar_tensor_tensor(grad, value, nl.less, float(upper), nl.multiply, grad)
    if lower is not None:
        nisa.scalar_tensor_tensor(grad, value, nl.greater, float(lower), nl.multiply, grad)


# ---- affinities, tokens, biases ------------------------------------------------------------------


def affinity_grad(
    p: BackwardParameters,
    unit: TokenUnit,
    sums: Tensor,
    gradients: Gradients,
    counts: Tensor,
    targets: Tensor,
) -> None:
    """Set dAff[t, e] += the sums; sums over H are exchanged by the cores. Core 0 writes it."""
    if p.on_hidden and gradients.cores == 2:
        other = like(sums)
        swap(sums, other, gradients.core, 1)
        nisa.tensor_tensor(sums, sums, other, op=nl.add)
    if gradients.core != 0:
        return
    values = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(values, sums, counts, op=nl.multiply)
    index = affinity_targets(unit, targets)
    table = gradients.affinities.total.reshape((gradients.affinities.total.size, 1))
    for c in range(sums.shape[1]):
        place = table.vector_select(0, index[:, c : c + 1])
        nisa.dma_compute(place, [place, values[:, c : c + 1]], nl.add, oob_mode=nisa.oob_mode.skip)


def affinity_targets(unit: TokenUnit, targets: Tensor) -> Tensor:
    """Return the addresses of the affinities to write; -1 where no row is written."""
    is_written = nl.ndarray(targets.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(is_written, targets, nl.greater_equal, 0.0)
    shifted = nl.ndarray(targets.shape, nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(shifted, unit.affinity_index, nl.add, 1.0, nl.multiply, is_written)
    index = nl.ndarray(targets.shape, nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(index, shifted, nl.subtract, 1.0)
    return index


def sums_over_hidden(
    p: BackwardParameters, unit: TokenUnit, middle: MiddleTiles, gradients: Gradients
) -> Tensor:
    """Return the sum of dy * down over this core's columns, [128, columns of tokens]."""
    tiles = unit.size // PMAX
    sums = nl.ndarray((PMAX, tiles), nl.float32, buffer=nl.sbuf)
    for c in range(tiles):
        start = unit.first + c * PMAX
        saved = gradients.of_row(p.down_checkpoint[unit.block, start : start + PMAX])
        rows = nl.ndarray(saved.shape, matmul_dtype(p), buffer=nl.sbuf)
        nisa.dma_copy(rows, saved)
        nisa.tensor_tensor(rows, rows, middle.grad_rows[c], op=nl.multiply)
        nisa.activation_reduce(rows, nl.copy, rows, nl.add, sums[:, c : c + 1])
    return sums


def sums_over_middle(p: BackwardParameters, unit: TokenUnit, middle: MiddleTiles) -> Tensor:
    """Return the sum of dm' * m over I, [128, columns of tokens]: TensorE sums over the partitions."""
    tiles = unit.size // PMAX
    ones = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    bank = nl.ndarray((PMAX, tiles), nl.float32, buffer=nl.psum)
    products = like(middle.grad)
    parts = TiledRange(intermediate_size(p), PMAX)
    for tile in parts:
        rows, k = tile.size, tile.index
        factors = middle.product[0:rows, k, :]
        nisa.tensor_tensor(products[0:rows, k, :], middle.grad[0:rows, k, :], factors, op=nl.multiply)
    for c in range(tiles):
        for tile in parts:
            rows, k = tile.size, tile.index
            tokens = products[0:rows, k, c * PMAX : (c + 1) * PMAX]
            nisa.nc_matmul(bank[:, c : c + 1], tokens, ones[0:rows])
    sums = nl.ndarray((PMAX, tiles), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(sums, bank)
    return sums


def hidden_grad(
    p: BackwardParameters,
    unit: TokenUnit,
    sides: list,
    gradients: Gradients,
    counts: Tensor,
    targets: Tensor,
    is_first: bool,
) -> None:
    """Set dX[t] += [dg | du] Wgu^T."""
    starts = is_first and not gradients.hidden.holds_values
    adds = p.accumulating and not starts
    rows = new_rows(unit.size, gradients.columns, gradients.hidden.total.dtype)
    mine = gradients.of_row(gradients.hidden.total)
    for c in range(len(rows)):
        if adds:
            nisa.dma_copy(rows[c], mine.vector_select(0, unit.valid_rows[:, c : c + 1]))
    for span in TiledRange(gradients.columns, BANK_COLUMNS):
        blocks = token_major_blocks(unit.size, span.size, packed=False)
        first = gradients.first + span.start_offset
        weight = p.gate_up.select(0, unit.expert)[first : first + span.size]
        for side in range(2):
            if sides[side] is not None:
                tile = load_transposed(weight[:, side, :], matmul_dtype(p))
                multiply_all(blocks, sides[side], tile, feature_major=False)
        for block in blocks:
            c = block.token // PMAX
            combine(rows[c][:, span.start_offset : span.end_offset], block, counts, c, adds)
    if starts:
        gradients.start_hidden()
    for c in range(len(rows)):
        place = mine.vector_select(0, targets[:, c : c + 1])
        nisa.dma_copy(place, rows[c], oob_mode=nisa.oob_mode.skip)


def bias_grads(expert: nisa.VirtualRegister, rows: BlockRows, gradients: Gradients) -> None:
    """Set dbd[e] += sum over tokens of dy * affinity, and dbgu[e] += that of [dg | du], on core 0."""
    down = gradients.of_row(as_rows(gradients.down_bias.total).select(0, expert))
    add_products(down, rows.factors, rows.grads)
    if gradients.core == 0:
        one = nl.ndarray((PMAX, 1), rows.sides[0].dtype, buffer=nl.sbuf)
        nisa.memset(one, 1.0)
        ones = [one] * len(rows.sides)
        add_products(as_rows(gradients.gate_up_bias.total).select(0, expert), ones, rows.sides)


def as_rows(bias: Tensor) -> Tensor:
    """View a bias as [E, 1, columns]."""
    return bias.reshape((bias.shape[0], 1, bias.size // bias.shape[0]))
