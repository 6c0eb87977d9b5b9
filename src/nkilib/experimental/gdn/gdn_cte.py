"""Gated delta rule for prefill: chunks in groups, then the state from chunk to chunk."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor
from nkilib.experimental.gdn.chunks import (
    AT_ONCE,
    CHUNK,
    Gates,
    Inverse,
    Masks,
    bank,
    copied,
    load_numbers,
    load_rows,
    products,
    scaled,
    store_rows,
    transposed,
)

DEFAULT_ALGORITHM = "halves"
DEFAULT_GROUP_SIZE = 8
MAX_VALUES = 512  # of a head: float32 of a PSUM bank
FLOATS = (nl.float32, nl.bfloat16, nl.float16)


@nki.jit
def gdn_cte(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g_log: Tensor,
    beta: Tensor,
    scale: float = 1.0,
    algorithm: str = DEFAULT_ALGORITHM,
    mask_pack: Tensor | None = None,
    group_size: int = DEFAULT_GROUP_SIZE,
    recurrent_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gated delta rule of all tokens, [B, Hv, S, Dv], and the state behind them, [B, Hv, Dk, Dv].

    S <- e^g S; S <- S + k (beta (v - S^T k))^T; out = scale S^T q, token by token, computed in chunks of 128.

    Args:
        query, key: [B, Hk, S, Dk], Dk <= 128, in float32, bfloat16 or float16: the dtype of the matmuls.
        value: [B, Hv, S, Dv], Dv <= 512; value head h reads key head h // (Hv / Hk).
        g_log, beta: [B, Hv, S]: the logs of the decays, at most 0, and the rates.
        scale: of the result.
        algorithm: of the triangular inverse: "halves", exact for keys however similar.
        mask_pack: not built; the kernel makes its masks.
        group_size: of chunks, 1 or more; no effect here: four chunks are worked on at a time.
        recurrent_state: [B, Hv, Dk, Dv] float32, the state before the first token; None: zeros.

    Inverse, states and sums are in float32. Two cores share the value heads. The gradients are `gdn_cte_bwd`.
    Read of the page: signature, the layout of query, what is returned; the layouts of the others, the names
    of the algorithms and that q and k are taken as they are (scale them before) are ours.

    >>> q, v = np.ones((1, 1, 3, 1), np.float32), np.full((1, 1, 3, 1), 4.0, np.float32)
    >>> g, beta = np.zeros((1, 1, 3), np.float32), np.full((1, 1, 3), 0.5, np.float32)
    >>> gdn_cte(q, q, v, g, beta)[0].ravel().tolist()
    [2.0, 3.0, 3.5]
    """
    get_verified_program_sharding_info("gdn_cte", (0, 1), 2)
    check(query, key, value, g_log, beta, recurrent_state)
    kernel_assert(
        algorithm == DEFAULT_ALGORITHM, f"algorithm: got {algorithm!r}, allowed is {DEFAULT_ALGORITHM!r}"
    )
    kernel_assert(group_size >= 1, f"group_size: got {group_size}, allowed is 1 or more")
    if mask_pack is not None:
        not_built("mask_pack", "the kernel makes its masks")
    batches, heads, tokens, values = value.shape
    out = nl.ndarray(value.shape, query.dtype, buffer=nl.shared_hbm)
    final = nl.ndarray((batches, heads, query.shape[3], values), nl.float32, buffer=nl.shared_hbm)
    masks = Masks()
    shared = heads // query.shape[1]
    first, end = program_share(batches * heads)
    for job in range(first, end):
        b, h = job // heads, job % heads
        state = first_state(None if recurrent_state is None else recurrent_state[b, h], final.shape)
        for part in groups(tokens):
            start, size, count = part
            q = load_rows(query[b, h // shared], start, size, count)
            k = load_rows(key[b, h // shared], start, size, count)
            v = load_rows(value[b, h], start, size, count)
            gates = Gates(masks, load_numbers(g_log[b, h], start, size, count))
            rates = load_numbers(beta[b, h], start, size, count)
            chunks = Chunks(masks, gates, rates, scale, Rows(q, k, v))
            store_rows(out[b, h], start, chunks.advance(state))
        nisa.dma_copy(final[b, h], state)
    return out, final


def groups(tokens: int) -> list[tuple]:
    """(first token, tokens of a chunk, chunks): up to four full chunks each, and the short last one."""
    parts = []
    for part in TiledRange(tokens // CHUNK, AT_ONCE):
        parts.append((part.start_offset * CHUNK, CHUNK, part.size))
    if tokens % CHUNK > 0:
        parts.append((tokens // CHUNK * CHUNK, tokens % CHUNK, 1))
    return parts


def first_state(given: Tensor | None, shape: tuple) -> Tensor:
    """The state before the first token, [Dk, Dv] in float32."""
    if given is not None:
        return load(given, nl.float32)
    state = nl.ndarray((shape[2], shape[3]), nl.float32, buffer=nl.sbuf)
    nisa.memset(state, 0.0)
    return state


class Rows(nl.NKIObject):
    """Queries, keys and values of some chunks, [n, chunks, d]."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor):
        self.q = q
        self.k = k
        self.v = v


class Chunks(nl.NKIObject):
    """What a group of chunks needs of its tokens; the state comes later."""

    def __init__(self, masks: Masks, gates: Gates, beta: Tensor, scale: float, rows: Rows):
        q, k, v = rows.q, rows.k, rows.v
        self.dtype = q.dtype
        self.gates = gates
        left = gates.between(True)
        self.q_columns = transposed(q)
        k_columns = transposed(k, 1)
        fed_columns = transposed(scaled(k, beta, k.dtype))
        system = like(left)
        nisa.tensor_tensor(system, products(k_columns, fed_columns), left, nl.multiply)
        self.inverse = Inverse(masks, system)
        inverse = self.inverse.flipped
        if self.dtype != nl.float32:
            inverse = copied(inverse, self.dtype)
        self.scores = like(left, self.dtype)
        scores = products(k_columns, self.q_columns)
        nisa.scalar_tensor_tensor(self.scores, scores, nl.multiply, scale, nl.multiply, left)
        self.grown = like(gates.grown)
        nisa.tensor_scalar(self.grown, gates.grown, nl.multiply, scale)
        seen = like(beta)
        nisa.tensor_tensor(seen, beta, gates.grown, nl.multiply)
        self.reads = copied(products(scaled(k, seen, self.dtype), inverse), self.dtype, 1)
        self.writes = fitting_products(inverse, scaled(v, beta, self.dtype))
        self.keys = scaled(k, gates.rest, self.dtype)

    def advance(self, state: Tensor, seen: list | None = None) -> Tensor:
        """The results of the group, [n, chunks, Dv]; the state [Dk, Dv] moves behind it.

        `seen` gets what each chunk writes, [n, Dv], and the state before it.
        """
        size, chunks, values = self.writes.shape
        result = nl.ndarray((size, chunks, values), self.dtype, buffer=nl.sbuf)
        for c in range(chunks):
            before = state if self.dtype == nl.float32 else copied(state, self.dtype)
            new = self.written(c, before)
            if seen is not None:
                kept = like(state)
                nisa.tensor_copy(kept, state)
                seen.append((new, kept))
            inside, outside = bank((size, values)), bank((size, values))
            nisa.nc_matmul(inside, self.scores[:, c, :], new)
            nisa.nc_matmul(outside, self.q_columns[:, c, :], before)
            left = nl.ndarray((size, values), nl.float32, buffer=nl.sbuf)
            nisa.activation(left, nl.copy, outside, scale=self.grown[:, c : c + 1])
            nisa.tensor_tensor(result[:, c, :], left, inside, nl.add)
            added = bank(state.shape)
            nisa.nc_matmul(added, self.keys[:, c, :], new)
            whole = self.gates.whole[0 : state.shape[0], c : c + 1]
            nisa.scalar_tensor_tensor(state, state, nl.multiply, whole, nl.add, added)
        return result

    def written(self, c: int, before: Tensor) -> Tensor:
        """What chunk c writes, given the state before it, [n, Dv]."""
        known = bank((self.writes.shape[0], self.writes.shape[2]))
        nisa.nc_matmul(known, self.reads[:, c, :], before)
        new = nl.ndarray(known.shape, self.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(new, self.writes[:, c, :], known, nl.subtract)
        return new


def fitting_products(stationary: Tensor, moving: Tensor) -> Tensor:
    """`products` in SBUF, float32, of results that may take a PSUM bank each."""
    out = nl.ndarray((stationary.shape[2], moving.shape[1], moving.shape[2]), nl.float32, buffer=nl.sbuf)
    for c in range(moving.shape[1]):
        product = bank((out.shape[0], out.shape[2]))
        nisa.nc_matmul(product, stationary[:, c, :], moving[:, c, :])
        nisa.activation(out[:, c, :], nl.copy, product)
    return out


def check(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None) -> None:
    """Check what the forward and the backward take."""
    required = (("query", q), ("key", k), ("value", v), ("g_log", g), ("beta", beta))
    assert_tensors(required, (("recurrent_state", state),))
    kernel_assert(
        len(q.shape) == 4 and q.shape[3] <= PMAX and q.dtype in FLOATS,
        f"query: got {q.dtype} of shape {tuple(q.shape)}, expected [B, Hk, S, Dk] in float32, bfloat16 or "
        f"float16 with Dk <= {PMAX}",
    )
    assert_shape(k, q.shape, "key")
    kernel_assert(
        len(v.shape) == 4
        and (v.shape[0], v.shape[2]) == (q.shape[0], q.shape[2])
        and v.shape[1] % q.shape[1] == 0
        and v.shape[3] <= MAX_VALUES,
        f"value: got shape {tuple(v.shape)}, expected [{q.shape[0]}, Hv, {q.shape[2]}, Dv] with Hv a "
        f"multiple of {q.shape[1]} and Dv <= {MAX_VALUES}",
    )
    for pair in (("key", k), ("value", v)):
        kernel_assert(
            pair[1].dtype == q.dtype, f"{pair[0]}: got {pair[1].dtype}, expected {q.dtype} like query"
        )
    assert_shape(g, (v.shape[0], v.shape[1], v.shape[2]), "g_log")
    assert_shape(beta, (v.shape[0], v.shape[1], v.shape[2]), "beta")
    if state is not None:
        assert_shape(state, (v.shape[0], v.shape[1], q.shape[3], v.shape[3]), "recurrent_state")


def gdn_cte_ref(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    g_log: np.ndarray,
    beta: np.ndarray,
    scale: float = 1.0,
    recurrent_state: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute token by token, in float64."""
    q, k, v, g, b = (np.asarray(x, np.float64) for x in (query, key, value, g_log, beta))
    shared = v.shape[1] // q.shape[1]
    q, k = np.repeat(q, shared, 1), np.repeat(k, shared, 1)
    state = np.zeros((*v.shape[:2], q.shape[3], v.shape[3]))
    if recurrent_state is not None:
        state = np.asarray(recurrent_state, np.float64).copy()
    out = np.zeros(v.shape)
    for t in range(v.shape[2]):
        state *= np.exp(g[:, :, t])[..., None, None]
        new = b[:, :, t, None] * (v[:, :, t] - np.einsum("bhd,bhdv->bhv", k[:, :, t], state))
        state += k[:, :, t, :, None] * new[:, :, None, :]
        out[:, :, t] = scale * np.einsum("bhd,bhdv->bhv", q[:, :, t], state)
    return out, state
