"""The causal convolution of every channel before Gated DeltaNet, with SiLU and the state behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor

FLOATS = (nl.float32, nl.bfloat16, nl.float16)
TOKENS_TOGETHER = 2048  # of a channel that are in SBUF at a time
CHANNELS_TOGETHER = 1024  # of a decoded token, in each partition
ELEMENTS_TOGETHER = 4096  # of the states of decoded tokens, in each partition
MAX_TAPS = 16


@nki.jit
def gdn_conv1d_prefill(mixed: Tensor, conv_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (silu(causal convolution of mixed) [B, C, T], the last K tokens of mixed [B, C, K]).

    y[b, c, t] = sum over j of conv_weight[c, j] mixed[b, c, t - K + 1 + j], of tokens that exist; the state
    of fewer than K tokens begins with zeros, which the page does not define.

    Args:
        mixed: [B, C, T], queries, keys and values before the convolution.
        conv_weight: [C, K], the dtype of mixed, K <= 16.

    TensorE adds up the taps, each a diagonal matrix of weights. Cores share the channels.

    >>> y, state = gdn_conv1d_prefill(np.ones((1, 1, 3), np.float32), np.ones((1, 4), np.float32))
    >>> [round(float(v), 3) for v in y[0, 0]], state[0, 0].tolist()
    ([0.731, 1.762, 2.858], [0.0, 1.0, 1.0, 1.0])
    """
    get_verified_program_sharding_info("gdn_conv1d_prefill", (0, 1), 2)
    assert_tensors((("mixed", mixed), ("conv_weight", conv_weight)))
    kernel_assert(
        len(mixed.shape) == 3 and mixed.dtype in FLOATS,
        f"mixed: got {mixed.dtype} {tuple(mixed.shape)}, expected [B, C, T], float32, bfloat16 or float16",
    )
    batches, channels, tokens = mixed.shape
    taps = check_weight(conv_weight, channels, mixed)
    out = nl.ndarray(mixed.shape, mixed.dtype, buffer=nl.shared_hbm)
    state = nl.ndarray((batches, channels, taps), mixed.dtype, buffer=nl.shared_hbm)
    first, end = program_share(channels)
    for part in TiledRange(end - first, PMAX):
        own = slice(first + part.start_offset, first + part.end_offset)
        diagonals = tap_matrices(load(conv_weight[own]))
        for b in range(batches):
            convolve(out[b, own], mixed[b, own], diagonals)
    for b in range(batches if end > first else 0):
        store_state(state[b, first:end], mixed[b, first:end])
    return out, state


def check_weight(weight: Tensor, channels: int, like_tensor: Tensor) -> int:
    """Return K."""
    kernel_assert(
        len(weight.shape) == 2 and weight.shape[0] == channels and 1 <= weight.shape[1] <= MAX_TAPS,
        f"conv_weight: got shape {tuple(weight.shape)}, expected ({channels}, K), K <= {MAX_TAPS}",
    )
    kernel_assert(
        weight.dtype == like_tensor.dtype,
        f"conv_weight: got {weight.dtype}, expected {like_tensor.dtype} like the input",
    )
    return weight.shape[1]


def tap_matrices(weight: Tensor) -> Tensor:
    """[channels, K, channels]: the weights of each tap on a diagonal."""
    channels, taps = weight.shape
    matrices = nl.ndarray((channels, taps, channels), weight.dtype, buffer=nl.sbuf)
    spread = weight.expand_dim(2).broadcast(2, channels)
    nisa.affine_select(matrices, [[0, taps], [-1, channels]], 1, spread, 0.0, nl.equal)
    return matrices


def convolve(out: Tensor, x: Tensor, matrices: Tensor, function: Any = nl.silu) -> None:
    """The function of the convolution of channels x [C <= 128, T] in HBM."""
    channels, tokens = x.shape
    before = matrices.shape[1] - 1
    for part in TiledRange(tokens, TOKENS_TOGETHER):
        tile = nl.ndarray((channels, before + part.size), x.dtype, buffer=nl.sbuf)
        missing = max(0, before - part.start_offset)
        if missing > 0:
            nisa.memset(tile[:, 0:missing], 0.0)
        nisa.dma_copy(tile[:, missing:], x[:, part.start_offset - before + missing : part.end_offset])
        result = nl.ndarray((channels, part.size), x.dtype, buffer=nl.sbuf)
        for bank in TiledRange(part.size, BANK_COLUMNS):
            sums = nl.ndarray((channels, bank.size), nl.float32, buffer=nl.psum)
            for tap in range(before + 1):
                moving = tile[:, bank.start_offset + tap : bank.end_offset + tap]
                nisa.nc_matmul(sums, matrices[:, tap, :], moving)
            nisa.activation(result[:, bank.start_offset : bank.end_offset], function, sums)
        nisa.dma_copy(out[:, part.start_offset : part.end_offset], result)


def store_state(state: Tensor, x: Tensor) -> None:
    """The last tokens of channels x [C, T] in HBM, behind zeros where there are fewer than taps."""
    channels, taps = state.shape
    known = min(taps, x.shape[1])
    for part in TiledRange(channels if known < taps else 0, PMAX):
        zeros = nl.ndarray((part.size, taps - known), x.dtype, buffer=nl.sbuf)
        nisa.memset(zeros, 0.0)
        nisa.dma_copy(state[part.start_offset : part.end_offset, 0 : taps - known], zeros)
    nisa.dma_copy(state[:, taps - known :], x[:, x.shape[1] - known :])


@nki.jit
def gdn_conv1d_decode(x: Tensor, conv_state: Tensor, conv_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (silu(sum over taps of the new state and the weights) [B, C], the new state [B, C, K]).

    The new state is the old one without its first token, then x.

    Args:
        x: [B, C], the token before the convolution; B <= 128.
        conv_state: [B, C, K], the last K tokens, of gdn_conv1d_prefill.
        conv_weight: [C, K], K <= 16; all have one dtype.

    Computed in float32. Cores share the channels. Read of the page: the names of the arguments and what is
    computed; the shapes of x and of the states are ours.

    >>> x, state = np.ones((1, 1), np.float32), np.zeros((1, 1, 4), np.float32)
    >>> y, state = gdn_conv1d_decode(x, state, np.ones((1, 4), np.float32))
    >>> round(float(y[0, 0]), 3), state[0, 0].tolist()
    (0.731, [0.0, 0.0, 0.0, 1.0])
    """
    get_verified_program_sharding_info("gdn_conv1d_decode", (0, 1), 2)
    assert_tensors((("x", x), ("conv_state", conv_state), ("conv_weight", conv_weight)))
    kernel_assert(
        len(x.shape) == 2 and 1 <= x.shape[0] <= PMAX and x.dtype in FLOATS,
        f"x: got {x.dtype} {tuple(x.shape)}, expected [B <= 128, C], float32, bfloat16 or float16",
    )
    taps = check_weight(conv_weight, x.shape[1], x)
    assert_shape(conv_state, tuple(x.shape) + (taps,), "conv_state")
    kernel_assert(conv_state.dtype == x.dtype, f"conv_state: got {conv_state.dtype}, expected {x.dtype}")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    state = nl.ndarray(conv_state.shape, x.dtype, buffer=nl.shared_hbm)
    first, end = program_share(x.shape[1], PMAX)
    whole = (end - first) // PMAX * PMAX
    for own in (slice(first, first + whole), slice(first + whole, end)):
        if own.start < own.stop:
            decode_channels(out[:, own], state[:, own], x[:, own], conv_state[:, own], conv_weight[own])
    return out, state


def decode_channels(out: Tensor, new_state: Tensor, x: Tensor, old: Tensor, weight: Tensor) -> None:
    """One token of a multiple of 128 channels, or of fewer; neighbours share a partition."""
    channels, taps = weight.shape
    partitions = min(channels, PMAX)
    apart = (partitions, channels // partitions)
    factors = load(weight.reshape_dim(0, apart)).expand_dim(1)
    for part in TiledRange(x.shape[0], max(1, ELEMENTS_TOGETHER // (taps * apart[1]))):
        some, together = slice(part.start_offset, part.end_offset), (partitions, part.size * apart[1])
        token = load(x[some].reshape_dim(1, apart).permute((1, 0, 2))).reshape(together)
        state = load(old[some].reshape_dim(1, apart).permute((1, 0, 2, 3))).reshape(together + (taps,))
        result, new = step(token, state, factors.broadcast(1, part.size))
        by_request = (partitions, part.size, apart[1])
        target = new_state[some].reshape_dim(1, apart).permute((1, 0, 2, 3))
        nisa.dma_copy(target, new.reshape(by_request + (taps,)))
        nisa.dma_copy(out[some].reshape_dim(1, apart).permute((1, 0, 2)), result.reshape(by_request))


def step(rows: Tensor, old: Tensor, weight: Tensor) -> tuple:
    """One token of rows [P, C]: (silu of the convolution, the new state) of states and weights [P, C, K]."""
    taps = old.shape[2]
    new, products = like(old), like(old, nl.float32)
    if taps > 1:
        nisa.tensor_copy(new[:, :, 0 : taps - 1], old[:, :, 1:taps])
    nisa.tensor_copy(new[:, :, taps - 1], rows)
    nisa.tensor_tensor(products, new, weight, nl.multiply)
    sums, result = like(rows, nl.float32), like(rows)
    nisa.tensor_reduce(sums, nl.add, products, 2)
    nisa.activation(result, nl.silu, sums)
    return result, new


def gdn_conv1d_prefill_ref(mixed: np.ndarray, conv_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute in float64."""
    taps = conv_weight.shape[1]
    x = np.pad(np.asarray(mixed, np.float64), ((0, 0), (0, 0), (taps, 0)))
    tokens, weight = mixed.shape[2], np.asarray(conv_weight, np.float64)
    sums = sum(weight[:, j : j + 1] * x[:, :, j + 1 : j + 1 + tokens] for j in range(taps))
    return sums / (1 + np.exp(-sums)), x[:, :, -taps:]


def gdn_conv1d_decode_ref(
    x: np.ndarray, conv_state: np.ndarray, conv_weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute in float64."""
    old = np.asarray(conv_state, np.float64)
    state = np.concatenate([old[:, :, 1:], np.asarray(x, np.float64)[:, :, None]], axis=2)
    sums = (state * np.asarray(conv_weight, np.float64)).sum(-1)
    return sums / (1 + np.exp(-sums)), state
