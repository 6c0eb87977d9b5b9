"""A layer of Gated DeltaNet for one token: projections, convolution and the gated delta rule.

Two cores share the heads of each projection. What they compute meets in HBM, where gdn_tkg reads it with one
row for each request and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.projection import Activations, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, project_into
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import spread_rows
from nkilib.core.utils.types import Tensor
from nkilib.experimental.gdn.gdn_conv1d import (
    CHANNELS_TOGETHER,
    check_weight,
    gdn_conv1d_decode_ref,
    step,
)
from nkilib.experimental.gdn.gdn_tkg import gdn_tkg, gdn_tkg_ref

CORES = (0, 1)


@nki.jit
def gdn_block_tkg(
    hidden: Tensor,
    W_in_qkv: Tensor,
    W_in_z: Tensor,
    W_in_a: Tensor,
    W_in_b: Tensor,
    conv_weight: Tensor,
    conv_state: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    recurrent_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (result [B, 1, Hv V], the new conv_state, the new recurrent_state) of one token of each request.

    q | k | v = silu(causal convolution of x W_in_qkv); value head h reads q and k of head h // (Hv / Hk);
    then gdn_tkg with z, a, b = x W_in_z, x W_in_a, x W_in_b. The output projection is the caller's.

    Args:
        hidden: [B, 1, H] bfloat16, B <= 128, H a multiple of 128.
        W_in_qkv: [H, 2 Hk D + Hv V] bfloat16.
        W_in_z: [H, Hv V] bfloat16.
        W_in_a, W_in_b: [H, Hv] bfloat16.
        conv_weight: [2 Hk D + Hv V, K] bfloat16.
        conv_state: [B, 2 Hk D + Hv V, K] bfloat16.
        A_log, dt_bias: [Hv].
        norm_weight: [V].
        recurrent_state: [B, Hv, D, V] float32, D and V <= 128.

    Read of the page: the signature, the steps and the shapes of hidden, W_in_qkv and W_in_z; the other shapes
    are those of gdn_conv1d_decode and gdn_tkg.

    >>> import ml_dtypes
    >>> bf16 = lambda *shape: np.ones(shape, ml_dtypes.bfloat16)
    >>> f32 = lambda *shape: np.ones(shape, np.float32)
    >>> out, conv, state = gdn_block_tkg(
    ...     bf16(1, 1, 128), bf16(128, 12), bf16(128, 4), bf16(128, 1), bf16(128, 1), bf16(12, 4),
    ...     bf16(1, 12, 4), f32(1), f32(1), f32(4), f32(1, 1, 4, 4))
    >>> out.shape, conv[0, 0].tolist(), state.shape
    ((1, 1, 4), [1.0, 1.0, 1.0, 128.0], (1, 1, 4, 4))
    """
    get_verified_program_sharding_info("gdn_block_tkg", (0, 1), 2)
    block = GdnBlock(hidden, W_in_qkv, W_in_z, W_in_a, W_in_b, recurrent_state)
    block.check_convolution(conv_weight, conv_state)
    new_state = nl.ndarray(conv_state.shape, conv_state.dtype, buffer=nl.shared_hbm)
    keys, heads, size, values = block.keys, block.heads, block.size, block.values
    block.begin_convolution(conv_weight, conv_state, new_state)
    q = block.convolved(W_in_qkv, 0, keys, size, heads // keys)
    k = block.convolved(W_in_qkv, keys * size, keys, size, heads // keys)
    v = block.convolved(W_in_qkv, 2 * keys * size, heads, values, 1)
    z = block.projected(W_in_z, heads, values)
    a, b = block.projected(W_in_a, heads, 1), block.projected(W_in_b, heads, 1)
    rows = block.batches * heads
    if nl.num_programs(0) == 2:
        for tensor in (q, k, v, z, a, b):
            nisa.core_barrier(tensor, CORES)
    out, state = gdn_tkg(
        q.reshape((rows, size)),
        k.reshape((rows, size)),
        v.reshape((rows, values)),
        b.reshape((rows,)),
        a.reshape((rows,)),
        A_log,
        dt_bias,
        z.reshape((rows, values)),
        norm_weight,
        recurrent_state.reshape((rows, size, values)),
    )
    result = out.reshape((block.batches, 1, heads * values))
    return result, new_state, state.reshape(recurrent_state.shape)


class GdnBlock(nl.NKIObject):
    """One call: its sizes, and the token of each request as products contract it."""

    def __init__(self, x: Tensor, qkv: Tensor, z: Tensor, a: Tensor, b: Tensor, state: Tensor):
        named = (("hidden", x), ("W_in_qkv", qkv), ("W_in_z", z), ("W_in_a", a), ("W_in_b", b))
        assert_tensors(named + (("recurrent_state", state),))
        for pair in named:
            kernel_assert(pair[1].dtype == nl.bfloat16, f"{pair[0]}: got {pair[1].dtype}, expected bfloat16")
        kernel_assert(
            len(x.shape) == 3 and x.shape[0] <= PMAX and x.shape[1] == 1 and x.shape[2] % PMAX == 0,
            f"hidden: got shape {tuple(x.shape)}, expected [B <= 128, 1, H], H a multiple of 128",
        )
        kernel_assert(
            len(state.shape) == 4 and state.shape[0] == x.shape[0],
            f"recurrent_state: got shape {tuple(state.shape)}, expected ({x.shape[0]}, Hv, D, V)",
        )
        self.batches = x.shape[0]
        self.heads = state.shape[1]
        self.size = state.shape[2]
        self.values = state.shape[3]
        hidden = x.shape[2]
        self.channels = qkv.shape[1]
        both = self.channels - self.heads * self.values
        kernel_assert(
            qkv.shape[0] == hidden and both > 0 and both % (2 * self.size) == 0,
            f"W_in_qkv: got shape {tuple(qkv.shape)}, expected ({hidden}, 2 Hk {self.size} + "
            f"{self.heads * self.values})",
        )
        self.keys = both // (2 * self.size)
        kernel_assert(
            self.heads % self.keys == 0,
            f"W_in_qkv: got {self.keys} heads of keys, expected a divisor of the {self.heads} value heads",
        )
        assert_shape(z, (hidden, self.heads * self.values), "W_in_z")
        assert_shape(a, (hidden, self.heads), "W_in_a")
        assert_shape(b, (hidden, self.heads), "W_in_b")
        columns = spread_rows([castable(load(x.reshape((self.batches, hidden))), nl.bfloat16)])
        self.x = Activations(columns, hidden, spread=hidden // PMAX)
        self.weight: Any = None
        self.old: Any = None
        self.new: Any = None

    def check_convolution(self, weight: Tensor, state: Tensor) -> None:
        assert_tensors((("conv_weight", weight), ("conv_state", state)))
        kernel_assert(state.dtype == nl.bfloat16, f"conv_state: got {state.dtype}, expected bfloat16")
        taps = check_weight(weight, self.channels, state)
        assert_shape(state, (self.batches, self.channels, taps), "conv_state")

    def begin_convolution(self, weight: Tensor, old: Tensor, new: Tensor) -> None:
        self.weight = weight
        self.old = old
        self.new = new

    def product(self, weight: Tensor, first: int, columns: int) -> Tensor:
        """x w of some columns, [B, columns] in bfloat16."""
        rows = nl.ndarray((self.batches, columns), nl.bfloat16, buffer=nl.sbuf)
        for span in TiledRange(columns, span_columns(self.x, weight)):
            start = span.start_offset
            project_into([rows], start, [self.x], weight, ColumnTerms(), first + start, span.size)
        return rows

    def projected(self, weight: Tensor, heads: int, width: int) -> Tensor:
        """[B, heads, width] in HBM; cores share the heads."""
        out = nl.ndarray((self.batches, heads, width), nl.bfloat16, buffer=nl.shared_hbm)
        first, end = program_share(heads)
        if first < end:
            rows = self.product(weight, first * width, (end - first) * width)
            nisa.dma_copy(out[:, first:end, :], rows.reshape_dim(1, (end - first, width)))
        return out

    def convolved(self, weight: Tensor, column: int, heads: int, width: int, times: int) -> Tensor:
        """Channels from `column` on after the convolution, [B, heads, times, width] in HBM; heads repeat."""
        out = nl.ndarray((self.batches, heads, times, width), nl.bfloat16, buffer=nl.shared_hbm)
        first, end = program_share(heads)
        for some in TiledRange(end - first, max(1, CHANNELS_TOGETHER // width)):
            head = first + some.start_offset
            start, count = column + head * width, some.size * width
            own = slice(start, start + count)
            rows = self.product(weight, start, count)
            factors = load(self.weight[own].expand_dim(0).broadcast(0, self.batches))
            mixed, state = step(rows, load(self.old[:, own]), factors)
            nisa.dma_copy(self.new[:, own], state)
            by_head = mixed.reshape_dim(1, (some.size, width))
            for i in range(times):
                nisa.dma_copy(out[:, head : head + some.size, i, :], by_head)
        return out


def gdn_block_tkg_ref(
    hidden: np.ndarray,
    W_in_qkv: np.ndarray,
    W_in_z: np.ndarray,
    W_in_a: np.ndarray,
    W_in_b: np.ndarray,
    conv_weight: np.ndarray,
    conv_state: np.ndarray,
    A_log: np.ndarray,
    dt_bias: np.ndarray,
    norm_weight: np.ndarray,
    recurrent_state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute in float64, by the references of the steps."""
    x, (batches, heads, size, values) = np.asarray(hidden, np.float64)[:, 0], recurrent_state.shape
    mixed, state = gdn_conv1d_decode_ref(x @ np.asarray(W_in_qkv, np.float64), conv_state, conv_weight)
    both = mixed.shape[1] - heads * values
    q, k, v = np.split(mixed, [both // 2, both], axis=1)
    times = heads * size * 2 // both
    q, k = (t.reshape(batches, -1, size).repeat(times, axis=1).reshape(-1, size) for t in (q, k))
    z, a, b = (x @ np.asarray(w, np.float64) for w in (W_in_z, W_in_a, W_in_b))
    rows = recurrent_state.reshape(-1, size, values)
    v, z = v.reshape(-1, values), z.reshape(-1, values)
    out, new = gdn_tkg_ref(q, k, v, b.reshape(-1), a.reshape(-1), A_log, dt_bias, z, norm_weight, rows)
    return out.reshape(batches, 1, -1), state, new.reshape(recurrent_state.shape)
