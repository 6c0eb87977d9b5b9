"""A block of Kimi Delta Attention for decode: norm, projections, convolutions, the delta rule, output.

Two cores share the heads, and add up their parts of the output projection.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.norms import inverse_root
from nkilib.core.utils.projection import Activations
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like
from nkilib.core.utils.transposes import spread_rows
from nkilib.core.utils.types import Tensor
from nkilib.experimental.attention.kda_tkg import kda_tkg, kda_tkg_ref
from nkilib.experimental.deepseek_v32.shared_products import project_columns, received
from nkilib.experimental.gdn.delta_step import L2_EPSILON
from nkilib.experimental.gdn.gdn_conv1d import gdn_conv1d_decode_ref, step


@nki.jit
def kda_block_tkg(
    hidden: Tensor,
    gamma_in: Tensor,
    W_in: Tensor,
    W_fb: Tensor,
    W_gb: Tensor,
    conv_w: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    gamma_o: Tensor,
    W_o: Tensor,
    out: Tensor,
    S: Tensor,
    conv_state: Tensor,
    scale: Tensor,
    lower_bound: Tensor,
    rms_norm_eps: float = 1e-05,
    l2_eps: float = 1e-06,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write n tokens of a block of Kimi Delta Attention to out [B, n, H]; return (out, S, conv_state).

    x = RMSNorm(hidden) gamma_in; x W_in is q | k | v | f | g | b. q, k and v pass a causal convolution and
    SiLU; kda_tkg takes them with the gate f W_fb and beta = sigmoid(b); out = (RMSNorm of each head of its
    result gamma_o sigmoid(g W_gb)) W_o.

    Args:
        hidden: [B, n, H] bfloat16, B <= 128, H a multiple of 128.
        gamma_in: [H].
        W_in: [H, 2 heads dk + heads dv + rank_f + rank_g + heads] bfloat16.
        W_fb: [rank_f, heads dk] bfloat16, rank_f a multiple of 128.
        W_gb: [rank_g, heads dv] bfloat16, rank_g a multiple of 128.
        conv_w: [2 heads dk + heads dv, K] bfloat16.
        A_log: [heads] float32.
        dt_bias: [dk, heads] float32.
        gamma_o: [dv].
        W_o: [heads dv, H] bfloat16.
        out: [B, n, H] bfloat16.
        S: [B, heads, dk, dv] float32, updated in place.
        conv_state: [B, 2 heads dk + heads dv, K] bfloat16, updated in place.
        scale, lower_bound: [1, 1] float32.
        rms_norm_eps: of both norms.
        l2_eps: of the norms of q and k; 1e-6 alone.

    Read of the page: the signature and the steps; the shapes, the order of the columns of W_in and that the
    gate of the result is a sigmoid are ours or the model's.

    >>> import ml_dtypes
    >>> bf16 = lambda *shape: np.full(shape, 0.01, ml_dtypes.bfloat16)
    >>> f32 = lambda *shape: np.ones(shape, np.float32)
    >>> out, S, state = kda_block_tkg(
    ...     bf16(1, 2, 128), f32(128), bf16(128, 269), bf16(128, 4), bf16(128, 4), bf16(12, 4), f32(1),
    ...     f32(4, 1), f32(4), bf16(4, 128), bf16(1, 2, 128), f32(1, 1, 4, 4), bf16(1, 12, 4),
    ...     f32(1, 1), -f32(1, 1))
    >>> out.shape, S.shape, bool(state[0, 0, 3] == state[0, 0, 2])
    ((1, 2, 128), (1, 1, 4, 4), True)
    """
    get_verified_program_sharding_info("kda_block_tkg", (0, 1), 2)
    if l2_eps != L2_EPSILON:
        not_built("l2_eps", f"the delta rule has {L2_EPSILON}")
    block = KdaBlock(hidden, W_in, W_fb, W_gb, W_o, out, S, rms_norm_eps)
    block.set_states(gamma_in, gamma_o, conv_w, conv_state)
    for token in range(hidden.shape[1]):
        block.project(token)
        q, k, v, g, beta, result = block.scratch
        kda_tkg(
            q.permute((0, 2, 1)),
            k.permute((0, 2, 1)),
            v,
            g.permute((0, 2, 1)),
            beta,
            A_log,
            dt_bias,
            result,
            S,
            scale,
            lower_bound,
        )
        block.finish(token)
    return out, S, conv_state


def check_gate(name: str, weight: Tensor, columns: int) -> None:
    shape = tuple(weight.shape)
    kernel_assert(
        len(shape) == 2 and shape[0] % PMAX == 0 and shape[1] == columns,
        f"{name}: got shape {shape}, expected (rank, {columns}), rank a multiple of 128",
    )


class KdaBlock(nl.NKIObject):
    """One call: its sizes, its weights, and what passes through HBM."""

    def __init__(
        self,
        x: Tensor,
        w_in: Tensor,
        w_fb: Tensor,
        w_gb: Tensor,
        w_o: Tensor,
        out: Tensor,
        S: Tensor,
        eps: float,
    ):
        named = (("hidden", x), ("W_in", w_in), ("W_fb", w_fb), ("W_gb", w_gb), ("W_o", w_o), ("out", out))
        assert_tensors(named + (("S", S),))
        for pair in named:
            kernel_assert(pair[1].dtype == nl.bfloat16, f"{pair[0]}: got {pair[1].dtype}, expected bfloat16")
        kernel_assert(
            len(x.shape) == 3 and x.shape[0] <= PMAX and x.shape[2] % PMAX == 0,
            f"hidden: got shape {tuple(x.shape)}, expected [B <= 128, n, H], H a multiple of 128",
        )
        kernel_assert(
            len(S.shape) == 4 and S.shape[0] == x.shape[0] and S.shape[3] <= PMAX,
            f"S: got shape {tuple(S.shape)}, expected ({x.shape[0]}, heads, dk, dv <= 128)",
        )
        self.batches = x.shape[0]
        self.hidden = x.shape[2]
        self.heads = S.shape[1]
        self.size = S.shape[2]
        self.depth = S.shape[3]
        check_gate("W_fb", w_fb, self.heads * self.size)
        check_gate("W_gb", w_gb, self.heads * self.depth)
        self.channels = self.heads * (2 * self.size + self.depth)
        columns = self.channels + w_fb.shape[0] + w_gb.shape[0] + self.heads
        assert_shape(w_in, (self.hidden, columns), "W_in")
        assert_shape(w_o, (self.heads * self.depth, self.hidden), "W_o")
        assert_shape(out, tuple(x.shape), "out")
        self.x = x
        self.w_in = w_in
        self.w_fb = w_fb
        self.w_gb = w_gb
        self.w_o = w_o
        self.out = out
        self.eps = eps
        share = program_share(self.heads)
        self.first = share[0]
        self.end = share[1]
        self.gate: Any = None
        self.scratch: list = []
        for width in (self.size, self.size, self.depth, self.size, 0, self.depth):
            shape = (self.batches, self.heads) + ((width,) if width > 0 else ())
            self.scratch.append(nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm))

    def set_states(self, gamma_in: Tensor, gamma_o: Tensor, conv_w: Tensor, state: Tensor) -> None:
        named = (("gamma_in", gamma_in), ("gamma_o", gamma_o), ("conv_w", conv_w), ("conv_state", state))
        assert_tensors(named)
        assert_shape(gamma_in, (self.hidden,), "gamma_in")
        assert_shape(gamma_o, (self.depth,), "gamma_o")
        kernel_assert(
            len(conv_w.shape) == 2 and conv_w.shape[0] == self.channels and conv_w.dtype == nl.bfloat16,
            f"conv_w: got {conv_w.dtype} {tuple(conv_w.shape)}, expected bfloat16 ({self.channels}, K)",
        )
        assert_shape(state, (self.batches, self.channels, conv_w.shape[1]), "conv_state")
        kernel_assert(state.dtype == nl.bfloat16, f"conv_state: got {state.dtype}, expected bfloat16")
        self.gamma_in = broadcast_row(gamma_in.reshape((1, self.hidden)), 0, self.hidden, self.batches)
        self.gamma_o = broadcast_row(gamma_o.reshape((1, self.depth)), 0, self.depth, self.batches)
        self.conv_w = conv_w
        self.state = state

    def project(self, token: int) -> None:
        """What kda_tkg takes of a token, for the heads of this core, to HBM; the gate of the result."""
        if self.first == self.end:
            return
        rows = load(self.x[:, token])
        normal = like(rows, nl.bfloat16)
        rms_norm(normal, rows, self.gamma_in, self.eps)
        x = Activations(spread_rows([normal]), self.hidden, spread=self.hidden // PMAX)
        heads, at = self.end - self.first, 0
        for i in range(3):
            width = self.depth if i == 2 else self.size
            start = at + self.first * width
            own = slice(start, start + heads * width)
            mixed = self.product(x, self.w_in, start, heads * width, nl.bfloat16)
            factors = load(self.conv_w[own].expand_dim(0).broadcast(0, self.batches))
            result, state = step(mixed, load(self.state[:, own]), factors)
            nisa.dma_copy(self.state[:, own], state)
            store(self.scratch[i][:, self.first : self.end], result.reshape_dim(1, (heads, width)))
            at += self.heads * width
        gate = self.low_rank(x, at, self.w_fb, self.size)
        nisa.dma_copy(self.scratch[3][:, self.first : self.end], gate.reshape_dim(1, (heads, self.size)))
        at += self.w_fb.shape[0]
        self.gate = self.low_rank(x, at, self.w_gb, self.depth)
        at += self.w_gb.shape[0]
        beta = self.product(x, self.w_in, at + self.first, heads, nl.float32)
        nisa.activation(beta, nl.sigmoid, beta)
        nisa.dma_copy(self.scratch[4][:, self.first : self.end], beta)

    def product(self, x: Activations, weight: Tensor, first: int, columns: int, dtype: Any) -> Tensor:
        """x w of some columns, [B, columns]."""
        rows = nl.ndarray((self.batches, columns), dtype, buffer=nl.sbuf)
        project_columns(rows, 0, x, weight, first, columns)
        return rows

    def low_rank(self, x: Activations, at: int, second: Tensor, width: int) -> Tensor:
        """(x W_in) second of this core's heads, in float32."""
        rank = second.shape[0]
        inner = spread_rows([self.product(x, self.w_in, at, rank, nl.bfloat16)])
        part = Activations(inner, rank, spread=rank // PMAX)
        first, columns = self.first * width, (self.end - self.first) * width
        return self.product(part, second, first, columns, nl.float32)

    def finish(self, token: int) -> None:
        """The gated norm of each head and the output projection; cores add up their heads."""
        total = nl.ndarray((self.batches, self.hidden), nl.float32, buffer=nl.sbuf)
        if self.first < self.end:
            heads = self.end - self.first
            columns = self.gated_columns(heads)
            part = Activations(columns, heads * self.depth, self.first * self.depth, partitions=self.depth)
            project_columns(total, 0, part, self.w_o, 0, self.hidden)
        else:
            nisa.memset(total, 0.0)
        if nl.num_programs(0) == 2:
            nisa.tensor_tensor(total, total, received(total), nl.add)
        first, end = program_share(self.hidden)
        store(self.out[:, token, first:end], total[:, first:end])

    def gated_columns(self, heads: int) -> Tensor:
        """RMSNorm gamma_o sigmoid(gate) of each head, [dv, heads, B] in bfloat16."""
        rows = load(self.scratch[5][:, self.first : self.end])
        squares, sums = like(rows), nl.ndarray((self.batches, heads), nl.float32, buffer=nl.sbuf)
        nisa.activation(squares, nl.square, rows)
        nisa.tensor_reduce(sums, nl.add, squares, 2)
        factor = inverse_root(sums, 1.0 / self.depth, self.eps)
        nisa.tensor_tensor(rows, rows, factor.expand_dim(2).broadcast(2, self.depth), nl.multiply)
        nisa.tensor_tensor(rows, rows, self.gamma_o.expand_dim(1).broadcast(1, heads), nl.multiply)
        nisa.activation(self.gate, nl.sigmoid, self.gate)
        gated = like(rows, nl.bfloat16)
        nisa.tensor_tensor(gated, rows, self.gate.reshape_dim(1, (heads, self.depth)), nl.multiply)
        columns = nl.ndarray((self.depth, heads, self.batches), nl.bfloat16, buffer=nl.sbuf)
        for head in range(heads):
            bank = nl.ndarray((self.depth, self.batches), nl.bfloat16, buffer=nl.psum)
            nisa.nc_transpose(bank, gated[:, head, :])
            nisa.tensor_copy(columns[:, head, :], bank)
        return columns


def kda_block_tkg_ref(
    hidden: np.ndarray,
    gamma_in: np.ndarray,
    W_in: np.ndarray,
    W_fb: np.ndarray,
    W_gb: np.ndarray,
    conv_w: np.ndarray,
    A_log: np.ndarray,
    dt_bias: np.ndarray,
    gamma_o: np.ndarray,
    W_o: np.ndarray,
    out: np.ndarray,
    S: np.ndarray,
    conv_state: np.ndarray,
    scale: np.ndarray,
    lower_bound: np.ndarray,
    rms_norm_eps: float = 1e-05,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute in float64; returns, and writes nothing."""

    def rms(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + rms_norm_eps) * np.asarray(gamma, np.float64)

    w_in, w_fb, w_gb, w_o = (np.asarray(w, np.float64) for w in (W_in, W_fb, W_gb, W_o))
    batches, heads, size, depth = S.shape
    channels, state, conv = heads * (2 * size + depth), np.asarray(S, np.float64), conv_state
    results = []
    for x in np.asarray(hidden, np.float64).swapaxes(0, 1):
        places = np.cumsum([channels, len(w_fb), len(w_gb)])
        mixed, f, g, b = np.split(rms(x, gamma_in) @ w_in, places, axis=1)
        mixed, conv = gdn_conv1d_decode_ref(mixed, conv, conv_w)
        q, k, v = np.split(mixed, [heads * size, 2 * heads * size], axis=1)
        q, k, f = (t.reshape(batches, heads, size).swapaxes(1, 2) for t in (q, k, f @ w_fb))
        v, beta = v.reshape(batches, heads, depth), 1 / (1 + np.exp(-b))
        o, state = kda_tkg_ref(q, k, v, f, beta, A_log, dt_bias, v, state, scale, lower_bound)
        gate = 1 / (1 + np.exp(-(g @ w_gb).reshape(batches, heads, depth)))
        results.append((rms(o, gamma_o) * gate).reshape(batches, -1) @ w_o)
    return np.stack(results, 1), state, conv
