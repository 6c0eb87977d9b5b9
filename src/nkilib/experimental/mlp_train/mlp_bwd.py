"""The gradients of a gated MLP, y = (silu(x Wg) (x Wu)) Wd.

With a = silu(g) u and da = dy Wd^T: dWd = a^T dy, du = da silu(g), dg = da u silu'(g), dWg = x^T dg, dWu =
x^T du and dx = dg Wg^T + du Wu^T. g and u are computed again. What TensorE sums over must be in the rows of
both factors, so x, dy, the weights, dg and du are transposed once.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_io import load, piece, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mlp_train.products import (
    add_products,
    join_cores,
    own_rows,
    scratch,
    transposed,
)

COLUMNS = 2048  # of the elements that are multiplied at a time
FLOATS = (nl.float32, nl.bfloat16, nl.float16)


@nki.jit
def mlp_bwd(
    grad_output: Tensor, hidden: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of (silu(x Wg) (x Wu)) Wd: of x [T, H], Wg and Wu [H, I] and Wd [I, H].

    grad_output is [T, H]; all are in one dtype, float32, bfloat16 or float16, which is that of the matmuls
    and of the results; sums and what is between them are float32. Two cores share the rows of every product.
    The documented library has no such kernel; the forward is `mlp` without norm, biases and quantization.

    >>> one = np.ones((1, 1), np.float32)
    >>> [float(g[0, 0].round(4)) for g in mlp_bwd(one, 0 * one, one, one, one)]
    [0.0, 0.0, 0.0, 0.0]
    """
    get_verified_program_sharding_info("mlp_bwd", (0, 1), 2)
    check(grad_output, hidden, gate_weight, up_weight, down_weight)
    tokens, size = hidden.shape[0], gate_weight.shape[1]
    x_columns, dy_columns, down = transposed(hidden), transposed(grad_output), transposed(down_weight)
    join_cores((x_columns, dy_columns, down))
    wide = (tokens, size)
    gate, up, inner = scratch(wide, nl.float32), scratch(wide, nl.float32), scratch(wide, nl.float32)
    add_products(gate, [(x_columns, gate_weight)])
    add_products(up, [(x_columns, up_weight)])
    add_products(inner, [(dy_columns, down)])
    dtype = hidden.dtype
    active, dgate, dup = scratch(wide, dtype), scratch(wide, dtype), scratch(wide, dtype)
    multiply(gate, up, inner, active, dgate, dup)  # each core the rows that it has computed
    join_cores((active, dgate, dup))
    dx = nl.ndarray(hidden.shape, dtype, buffer=nl.shared_hbm)
    weights = []
    for weight in (gate_weight, up_weight, down_weight):
        weights.append(nl.ndarray(weight.shape, dtype, buffer=nl.shared_hbm))
    dgate_columns, dup_columns = transposed(dgate), transposed(dup)
    gate_rows, up_rows = transposed(gate_weight), transposed(up_weight)
    add_products(weights[0], [(hidden, dgate)])
    add_products(weights[1], [(hidden, dup)])
    add_products(weights[2], [(active, grad_output)])
    join_cores((dgate_columns, dup_columns, gate_rows, up_rows))
    add_products(dx, [(dgate_columns, gate_rows), (dup_columns, up_rows)])
    return dx, weights[0], weights[1], weights[2]


def multiply(gate: Tensor, up: Tensor, inner: Tensor, active: Tensor, dgate: Tensor, dup: Tensor) -> None:
    """a = silu(g) u, du = da silu(g), dg = da u silu'(g)."""
    for rows in TiledRange(own_rows(gate), PMAX):
        for columns in TiledRange(gate.shape[1], COLUMNS):
            g, u, da = (
                load(piece(gate, rows, columns)),
                load(piece(up, rows, columns)),
                load(piece(inner, rows, columns)),
            )
            silu, slope = like(g), like(g)
            nisa.activation(silu, nl.silu, g)
            nisa.activation(slope, nl.silu_dx, g)
            product = like(g)
            nisa.tensor_tensor(product, silu, u, nl.multiply, engine=nisa.gpsimd_engine)
            store(piece(active, rows, columns), product)
            nisa.tensor_tensor(silu, silu, da, nl.multiply)
            store(piece(dup, rows, columns), silu)
            nisa.tensor_tensor(u, u, da, nl.multiply)
            nisa.tensor_tensor(slope, slope, u, nl.multiply)
            store(piece(dgate, rows, columns), slope)


def check(dy: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> None:
    given = (("grad_output", dy), ("gate_weight", gate), ("up_weight", up), ("down_weight", down))
    assert_tensors((("hidden", x),) + given)
    kernel_assert(
        len(x.shape) == 2 and x.dtype in FLOATS,
        f"hidden: got {x.dtype} of shape {tuple(x.shape)}, expected [T, H] in float32, bfloat16 or float16",
    )
    kernel_assert(
        len(gate.shape) == 2 and gate.shape[0] == x.shape[1],
        f"gate_weight: got shape {tuple(gate.shape)}, expected [{x.shape[1]}, I]",
    )
    assert_shape(dy, x.shape, "grad_output")
    assert_shape(up, gate.shape, "up_weight")
    assert_shape(down, (gate.shape[1], gate.shape[0]), "down_weight")
    for pair in given:
        kernel_assert(
            pair[1].dtype == x.dtype, f"{pair[0]}: got {pair[1].dtype}, expected {x.dtype} like hidden"
        )


def mlp_bwd_ref(
    grad_output: np.ndarray,
    hidden: np.ndarray,
    gate_weight: np.ndarray,
    up_weight: np.ndarray,
    down_weight: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Compute in float64."""
    given = (grad_output, hidden, gate_weight, up_weight, down_weight)
    dy, x, gate, up, down = (np.asarray(a, np.float64) for a in given)
    g, u, da = x @ gate, x @ up, dy @ down.T
    share = 1 / (1 + np.exp(-g))
    du, dg = da * g * share, da * u * share * (1 + g * (1 - share))
    return dg @ gate.T + du @ up.T, x.T @ dg, x.T @ du, (g * share * u).T @ dy
