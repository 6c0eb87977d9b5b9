"""One token of Kimi Delta Attention: the delta rule with a decay for each channel of the keys."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.gdn.delta_step import HEADS, DeltaStep, flipped, normalized


@nki.jit
def kda_tkg(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    out: Tensor,
    S: Tensor,
    scale: Tensor,
    lower_bound: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write a decoded token of Kimi Delta Attention to out [B, H, dv], and its states to S; return both.

    q and k are divided by their norms; a = lower_bound sigmoid(exp(a_log) (g + dt_bias)), a log decay for
    each channel of the keys; S <- diag(e^a) S; S <- S + k (beta (v - S^T k))^T; out = scale S^T q.

    Args:
        q, k: [B, dk, H], raw, dk <= 128.
        v: [B, H, dv], dv <= 128.
        g: [B, dk, H], raw.
        beta: [B, H], between 0 and 1.
        a_log: [H].
        dt_bias: [dk, H].
        out: [B, H, dv].
        S: [B, H, dk, dv].
        scale, lower_bound: [1, 1].

    All are float32. Two cores share the heads of each request. Read of the page: the function, the
    signature, the gate and the shapes of q, k, v and g; that beta is taken as it is, the shapes from beta
    on and the epsilon of the norms, 1e-6, are ours.

    >>> one, zero = np.ones((1, 1, 1), np.float32), np.zeros((1, 1), np.float32)
    >>> out, state = np.zeros_like(one), np.zeros((1, 1, 1, 1), np.float32)
    >>> _ = kda_tkg(one, one, 3 * one, one, zero + 0.5, zero[0], zero, out, state, zero + 1, zero - 5)
    >>> [float(np.round(x.ravel()[0], 4)) for x in (out, state)]
    [1.5, 1.5]
    """
    get_verified_program_sharding_info("kda_tkg", (0, 1), 2)
    check(q, k, v, g, beta, a_log, dt_bias, out, S, scale, lower_bound)
    batches, heads, size, values = S.shape
    factor = load(scale.broadcast(0, min(HEADS, heads)))
    bound = load(lower_bound.broadcast(0, size))
    first, end = program_share(heads)
    for group in TiledRange(end - first, HEADS):
        some = slice(first + group.start_offset, first + group.end_offset)
        rate = load(a_log[some].expand_dim(0).broadcast(0, size))
        nisa.activation(rate, nl.exp, rate)
        bias = load(dt_bias[:, some])
        for b in range(batches):
            decay = load(g[b, :, some])
            nisa.tensor_tensor(decay, decay, bias, nl.add)
            nisa.tensor_tensor(decay, decay, rate, nl.multiply)
            nisa.activation(decay, nl.sigmoid, decay)
            nisa.activation(decay, nl.exp, decay, scale=bound)
            queries, keys = flipped(load(q[b, :, some])), flipped(load(k[b, :, some]))
            step = DeltaStep(
                normalized(keys),
                normalized(queries),
                load(v[b, some]),
                decay,
                load(beta[b, some].expand_dim(1)),
            )
            result = step.advance(S[b, some], S[b, some])
            scaled = like(result)
            nisa.tensor_scalar(scaled, result, nl.multiply, factor[0 : group.size])
            nisa.dma_copy(out[b, some], scaled)
    return out, S


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    out: Tensor,
    S: Tensor,
    scale: Tensor,
    lower_bound: Tensor,
) -> None:
    inputs = (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta), ("a_log", a_log), ("dt_bias", dt_bias))
    given = inputs + (("out", out), ("S", S), ("scale", scale), ("lower_bound", lower_bound))
    assert_tensors(given)
    kernel_assert(
        len(S.shape) == 4 and S.shape[2] <= PMAX and S.shape[3] <= PMAX,
        f"S: got shape {tuple(S.shape)}, expected [B, H, dk, dv] with dk and dv <= {PMAX}",
    )
    batches, heads, size, values = S.shape
    for pair in (("q", q), ("k", k), ("g", g)):
        assert_shape(pair[1], (batches, size, heads), pair[0])
    for pair in (("v", v), ("out", out)):
        assert_shape(pair[1], (batches, heads, values), pair[0])
    assert_shape(beta, (batches, heads), "beta")
    assert_shape(a_log, (heads,), "a_log")
    assert_shape(dt_bias, (size, heads), "dt_bias")
    for pair in (("scale", scale), ("lower_bound", lower_bound)):
        assert_shape(pair[1], (1, 1), pair[0])
    for pair in given:
        kernel_assert(pair[1].dtype == nl.float32, f"{pair[0]}: got {pair[1].dtype}, expected float32")


def kda_tkg_ref(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    a_log: np.ndarray,
    dt_bias: np.ndarray,
    out: np.ndarray,
    S: np.ndarray,
    scale: np.ndarray,
    lower_bound: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute in float64; returns, and writes nothing."""
    q, k, v, g, beta, S = (np.asarray(x, np.float64) for x in (q, k, v, g, beta, S))
    q, k = (np.swapaxes(x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-6), 1, 2) for x in (q, k))
    gate = 1 / (1 + np.exp(-np.exp(np.asarray(a_log, np.float64)) * (g + dt_bias)))
    state = S * np.swapaxes(np.exp(float(lower_bound.ravel()[0]) * gate), 1, 2)[..., None]
    new = beta[..., None] * (v - np.einsum("bhk,bhkv->bhv", k, state))
    state = state + k[..., None] * new[:, :, None, :]
    return float(scale.ravel()[0]) * np.einsum("bhk,bhkv->bhv", q, state), state
