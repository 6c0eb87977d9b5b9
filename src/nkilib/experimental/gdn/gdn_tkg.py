"""One token of Gated DeltaNet, from raw projections to the normalised result."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor
from nkilib.experimental.gdn.delta_step import HEADS, DeltaStep, normalized

NORM_EPSILON = 1e-6


@nki.jit
def gdn_tkg(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    a: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    z: Tensor,
    norm_weight: Tensor,
    state_in: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return one decoded token of Gated DeltaNet, [BH, V], and the new states, [BH, K, V] float32.

    q and k are divided by their norms, q also by sqrt(K); beta = sigmoid(b), g = -exp(A_log) softplus(a +
    dt_bias); S <- e^g S; S <- S + k (beta (v - S^T k))^T; out = RMSNorm(S^T q) norm_weight silu(z).

    Args:
        q, k: [BH, K], raw, one row for each request and value head, K <= 128.
        v, z: [BH, V], V <= 128.
        b, a: [BH], raw.
        A_log, dt_bias: [Hv]; row i of the others belongs to value head i % Hv.
        norm_weight: [V].
        state_in: [BH, K, V] float32.

    Computed in float32; the result has the dtype of v. Two cores share the rows. Read of the page: the
    function, its formulas and the shapes of q, k, v, b, a, A_log, dt_bias and z; the shapes of norm_weight
    and of the states, the division by sqrt(K) and both epsilons, 1e-6, are those of the model.

    >>> one, zero = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    >>> before = np.ones((1, 1, 1), np.float32)
    >>> out, state = gdn_tkg(one, one, one, zero, zero - 50, zero, zero, one, zero + 1, before)
    >>> float(np.round(state[0, 0, 0], 5))
    1.0
    """
    get_verified_program_sharding_info("gdn_tkg", (0, 1), 2)
    check(q, k, v, b, a, A_log, dt_bias, z, norm_weight, state_in)
    rows, size, values = state_in.shape
    out = nl.ndarray((rows, values), v.dtype, buffer=nl.shared_hbm)
    state_out = nl.ndarray(state_in.shape, nl.float32, buffer=nl.shared_hbm)
    coefficients = row_coefficients(A_log, dt_bias, rows)
    first, end = program_share(rows)
    weight = load(norm_weight.expand_dim(0).broadcast(0, min(HEADS, rows)), nl.float32)
    for group in TiledRange(end - first, HEADS):
        some = slice(first + group.start_offset, first + group.end_offset)
        queries, keys = load(q[some], nl.float32), load(k[some], nl.float32)
        gates = Gate(load_column(b, some), load_column(a, some), coefficients[some], size)
        step = DeltaStep(
            normalized(keys),
            normalized(queries, size**-0.5),
            load(v[some], nl.float32),
            gates.decay,
            gates.beta,
        )
        result = step.advance(state_in[some], state_out[some])
        store(out[some], gated_norm(result, weight[0 : group.size], load(z[some], nl.float32)))
    return out, state_out


def load_column(numbers: Tensor, rows: slice) -> Tensor:
    """A number for each row, [n, 1] in float32."""
    return load(numbers[rows].expand_dim(1), nl.float32)


def row_coefficients(A_log: Tensor, dt_bias: Tensor, rows: int) -> Tensor:
    """A_log and dt_bias of every row, [rows, 2] in HBM: they repeat for each request."""
    heads = A_log.shape[0]
    table = nl.ndarray((rows, 2), nl.float32, buffer=nl.private_hbm)
    by_request = table.reshape_dim(0, (rows // heads, heads))
    nisa.dma_copy(by_request[:, :, 0], A_log.expand_dim(0).broadcast(0, rows // heads))
    nisa.dma_copy(by_request[:, :, 1], dt_bias.expand_dim(0).broadcast(0, rows // heads))
    return table


class Gate(nl.NKIObject):
    """beta [n, 1], and the decay of each row in every partition, [K, n]."""

    def __init__(self, b: Tensor, a: Tensor, coefficients: Tensor, size: int):
        rows = b.shape[0]
        self.beta = new_column(rows)
        nisa.activation(self.beta, nl.sigmoid, b)
        pair, log = load(coefficients), new_column(rows)
        nisa.activation(log, nl.softplus, a, bias=pair[:, 1:2])
        nisa.activation(pair[:, 0:1], nl.exp, pair[:, 0:1])
        nisa.tensor_scalar(log, log, nl.multiply, pair[:, 0:1], op1=nl.multiply, operand1=-1.0)
        nisa.activation(log, nl.exp, log)
        bank = nl.ndarray((size, rows), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(bank, log.broadcast(1, size), engine=nisa.tensor_engine)
        self.decay = like(bank)
        nisa.tensor_copy(self.decay, bank)


def gated_norm(rows: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    """RMSNorm(rows) weight silu(z), in float32."""
    squares, mean = like(rows), new_column(rows.shape[0])
    nisa.activation_reduce(squares, nl.square, rows, nl.add, mean)
    nisa.tensor_scalar(mean, mean, nl.multiply, 1.0 / rows.shape[1], op1=nl.add, operand1=NORM_EPSILON)
    nisa.activation(mean, nl.rsqrt, mean)
    gate, result = like(z), like(rows)
    nisa.activation(gate, nl.silu, z)
    nisa.tensor_tensor(gate, gate, weight, nl.multiply)
    nisa.scalar_tensor_tensor(result, rows, nl.multiply, mean, nl.multiply, gate)
    return result


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    a: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    z: Tensor,
    norm_weight: Tensor,
    state: Tensor,
) -> None:
    rows = (("q", q), ("k", k), ("v", v), ("b", b), ("a", a), ("z", z))
    assert_tensors(rows + (("A_log", A_log), ("dt_bias", dt_bias), ("norm_weight", norm_weight)))
    assert_tensors((("state_in", state),))
    kernel_assert(
        len(state.shape) == 3 and state.shape[1] <= PMAX and state.shape[2] <= PMAX,
        f"state_in: got shape {tuple(state.shape)}, expected [BH, K, V] with K and V <= {PMAX}",
    )
    count, size, values = state.shape
    for pair in (("q", q), ("k", k)):
        assert_shape(pair[1], (count, size), pair[0])
    for pair in (("v", v), ("z", z)):
        assert_shape(pair[1], (count, values), pair[0])
    for pair in (("b", b), ("a", a)):
        assert_shape(pair[1], (count,), pair[0])
    kernel_assert(
        len(A_log.shape) == 1 and count % A_log.shape[0] == 0,
        f"A_log: got shape {tuple(A_log.shape)}, expected [Hv] with BH = {count} a multiple of Hv",
    )
    assert_shape(dt_bias, A_log.shape, "dt_bias")
    assert_shape(norm_weight, (values,), "norm_weight")


def gdn_tkg_ref(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    b: np.ndarray,
    a: np.ndarray,
    A_log: np.ndarray,
    dt_bias: np.ndarray,
    z: np.ndarray,
    norm_weight: np.ndarray,
    state_in: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute in float64."""
    q, k, v, b, a, z = (np.asarray(x, np.float64) for x in (q, k, v, b, a, z))
    times = q.shape[0] // A_log.shape[0]
    rate, bias = (np.tile(np.asarray(x, np.float64), times) for x in (A_log, dt_bias))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    decay = np.exp(-np.exp(rate) * np.logaddexp(0, a + bias))
    state = np.asarray(state_in, np.float64) * decay[:, None, None]
    new = (v - np.einsum("nk,nkv->nv", k, state)) / (1 + np.exp(-b))[:, None]
    state = state + k[:, :, None] * new[:, None, :]
    out = np.einsum("nk,nkv->nv", q, state) * q.shape[1] ** -0.5
    out /= np.sqrt((out * out).mean(-1, keepdims=True) + 1e-6)
    return out * np.asarray(norm_weight, np.float64) * z / (1 + np.exp(-z)), state
