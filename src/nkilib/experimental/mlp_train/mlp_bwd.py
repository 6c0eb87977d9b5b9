"""The gradients of a gated MLP, y = (silu(x Wg + bg) (x Wu + bu)) Wd + bd, of x or of the norm of x.

With a = silu(g) u and da = dy Wd^T: dWd = a^T dy, du = da silu(g), dg = da u silu'(g), dWg = x^T dg, dWu =
x^T du and dx = dg Wg^T + du Wu^T. g and u are computed again. What TensorE sums over must be in the rows of
both factors, so x, dy, the weights, dg and du are transposed once. A bias is one more row of its weight, for
a column of ones in x; so is its gradient.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.common_types import NormType
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_io import load, piece, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mlp_train.products import (
    add_products,
    join_cores,
    ones_row,
    own_rows,
    scratch,
    transposed,
)
from nkilib.experimental.norm.norms import differentiate, normalize

COLUMNS = 2048  # of the elements that are multiplied at a time
FLOATS = (nl.float32, nl.bfloat16, nl.float16)
NORMS = (NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM)


@nki.jit
def mlp_bwd(
    grad_output: Tensor,
    hidden: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    normalization_type: NormType = NormType.NO_NORM,
    eps: float = 1e-6,
) -> tuple[Tensor, ...]:
    """Return the gradients of (silu(x Wg + bg) (x Wu + bu)) Wd + bd, x being hidden [T, H] or its norm.

    They are those of hidden, Wg and Wu [H, I] and Wd [I, H], and then of those that are given of norm_weight
    and norm_bias [1, H], gate_bias and up_bias [1, I], and down_bias [1, H]. normalization_type RMS_NORM
    needs norm_weight, LAYER_NORM norm_bias too, both with H <= 4096.

    grad_output is [T, H]; all are in one dtype, float32, bfloat16 or float16, which is that of the matmuls
    and of the results; sums and what is between them are float32. Two cores share the rows of every product.
    The documented library has no such kernel; the forward is `mlp` with SiLU, without quantization.

    >>> one = np.ones((1, 1), np.float32)
    >>> [float(g[0, 0].round(4)) for g in mlp_bwd(one, 0 * one, one, one, one)]
    [0.0, 0.0, 0.0, 0.0]
    """
    get_verified_program_sharding_info("mlp_bwd", (0, 1), 2)
    weights = (gate_weight, up_weight, down_weight)
    biases = (gate_bias, up_bias, down_bias)
    check(grad_output, hidden, weights, biases)
    check_norm(hidden, norm_weight, norm_bias, normalization_type)
    tokens, size, dtype = hidden.shape[0], gate_weight.shape[1], hidden.dtype
    x = hidden
    if norm_weight is not None:
        shift = None if norm_bias is None else norm_bias.squeeze_dim(0)
        x = normalize("mlp_bwd", hidden, norm_weight.squeeze_dim(0), shift, eps)
        join_cores((x,))
    x_columns, dy_columns, down = transposed(x), transposed(grad_output), transposed(down_weight)
    ones = ones_row(tokens, dtype)
    join_cores((x_columns, dy_columns, down))
    wide = (tokens, size)
    gate, up, inner = scratch(wide, nl.float32), scratch(wide, nl.float32), scratch(wide, nl.float32)
    add_products(gate, biased(x_columns, gate_weight, ones, gate_bias))
    add_products(up, biased(x_columns, up_weight, ones, up_bias))
    add_products(inner, [(dy_columns, down)])
    active, dgate, dup = scratch(wide, dtype), scratch(wide, dtype), scratch(wide, dtype)
    multiply(gate, up, inner, active, dgate, dup)  # each core the rows that it has computed
    join_cores((active, dgate, dup))
    pairs = ((x, dgate), (x, dup), (active, grad_output))
    found = []
    for i in range(3):
        found.append(nl.ndarray(weights[i].shape, dtype, buffer=nl.shared_hbm))
        add_products(found[i], [pairs[i]])
    of_biases = []
    for i in range(3):
        if biases[i] is not None:
            of_biases.append(nl.ndarray((1, weights[i].shape[1]), dtype, buffer=nl.shared_hbm))
            add_products(of_biases[-1], [(ones.reshape((tokens, 1)), pairs[i][1])])
    dgate_columns, dup_columns = transposed(dgate), transposed(dup)
    gate_rows, up_rows = transposed(gate_weight), transposed(up_weight)
    join_cores((dgate_columns, dup_columns, gate_rows, up_rows))
    to_x = [(dgate_columns, gate_rows), (dup_columns, up_rows)]
    if norm_weight is None:
        dx = nl.ndarray(hidden.shape, dtype, buffer=nl.shared_hbm)
        add_products(dx, to_x)
        return (dx,) + tuple(found) + tuple(of_biases)
    dnormal = scratch(hidden.shape, nl.float32)
    add_products(dnormal, to_x)
    join_cores((dnormal,))
    of_norm = differentiate(
        "mlp_bwd", dnormal, hidden, norm_weight.squeeze_dim(0), norm_bias is not None, eps
    )
    of_weights = []
    for vector in of_norm[1:]:
        of_weights.append(vector.reshape(norm_weight.shape))
    return (of_norm[0],) + tuple(found) + tuple(of_weights) + tuple(of_biases)


def biased(left: Tensor, weight: Tensor, ones: Tensor, bias: Tensor | None) -> list:
    """The factors of x W + b."""
    return [(left, weight)] if bias is None else [(left, weight), (ones, bias)]


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


def check(dy: Tensor, x: Tensor, weights: tuple, biases: tuple) -> None:
    gate, up, down = weights
    given = (("grad_output", dy), ("gate_weight", gate), ("up_weight", up), ("down_weight", down))
    shifts = (("gate_bias", biases[0]), ("up_bias", biases[1]), ("down_bias", biases[2]))
    assert_tensors((("hidden", x),) + given, shifts)
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
        check_dtype(pair[1], x, pair[0])
    for i in range(3):
        if biases[i] is not None:
            assert_shape(biases[i], (1, weights[i].shape[1]), shifts[i][0])
            check_dtype(biases[i], x, shifts[i][0])


def check_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, kind: NormType) -> None:
    kernel_assert(kind in NORMS, f"normalization_type: got {kind}, allowed are NO_NORM, RMS_NORM, LAYER_NORM")
    normal, layer = kind != NormType.NO_NORM, kind == NormType.LAYER_NORM
    refuse_without_effect(normal, "normalization_type", (("norm_weight", weight),))
    refuse_without_effect(layer, "normalization_type LAYER_NORM", (("norm_bias", bias),))
    for need in ((normal, weight, "norm_weight"), (layer, bias, "norm_bias")):
        if need[0]:
            assert_tensors(((need[2], need[1]),))
            assert_shape(need[1], (1, x.shape[1]), need[2])
            check_dtype(need[1], x, need[2])


def check_dtype(tensor: Tensor, x: Tensor, name: str) -> None:
    kernel_assert(tensor.dtype == x.dtype, f"{name}: got {tensor.dtype}, expected {x.dtype} like hidden")


def mlp_bwd_ref(
    grad_output: np.ndarray,
    hidden: np.ndarray,
    gate_weight: np.ndarray,
    up_weight: np.ndarray,
    down_weight: np.ndarray,
    gate_bias: np.ndarray | float = 0.0,
    up_bias: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, ...]:
    """Compute those of hidden and the weights in float64, without a norm."""
    given = (grad_output, hidden, gate_weight, up_weight, down_weight, gate_bias, up_bias)
    dy, x, gate, up, down, shift, shift_up = (np.asarray(a, np.float64) for a in given)
    g, u, da = x @ gate + shift, x @ up + shift_up, dy @ down.T
    share = 1 / (1 + np.exp(-g))
    du, dg = da * g * share, da * u * share * (1 + g * (1 - share))
    return dg @ gate.T + du @ up.T, x.T @ dg, x.T @ du, (g * share * u).T @ dy
