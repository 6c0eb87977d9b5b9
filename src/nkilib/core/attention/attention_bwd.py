"""The gradient of attention: keys, values and their gradients stay on the chip, queries pass by in tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_gradients import (
    KEYS,
    UNBOUNDED,
    ScoreOptions,
    add_product,
    add_queries,
    pair_products,
    probabilities,
    score_gradient,
    transposed_tokens,
)
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

ROOM = 160 * 1024  # bytes in each partition for keys, values and their gradients
QUERIES = 512  # that are loaded at a time


@nki.jit
def attention_bwd(
    q_ref: Tensor,
    k_ref: Tensor,
    v_ref: Tensor,
    o_ref: Tensor,
    dy_ref: Tensor,
    lse_ref: Tensor,
    sinks_ref: Tensor | None = None,
    bound_min: Tensor | None = None,
    bound_max: Tensor | None = None,
    use_causal_mask: bool = False,
    mixed_precision: bool = True,
    softmax_scale: float | None = None,
    sliding_window: int | None = None,
    transpose_dv: bool = False,
    cp_offset: Tensor | None = None,
):
    """Return (dq, dk, dv), and dsinks with sinks, of attention: each with the shape and dtype of its input.

    Args:
        q_ref, o_ref, dy_ref: [B, H, D, S], S a multiple of 128; o is the result and dy its gradient.
        k_ref, v_ref: [B, Hkv, D, Sk], Sk a multiple of 128; query head h reads head h // (H / Hkv).
        lse_ref: [B, H, 128, S / 128] float32: log(sum e^score), sinks included, of query 128 g + p at [p, g].
        sinks_ref: [B, H] or [B, H, n]: logits that join the softmax and have no value.
        use_causal_mask: query i sees keys up to i, or up to cp_offset + i.
        mixed_precision: matmuls in the dtype of the inputs, otherwise in float32.
        softmax_scale: of the scores; None: 1 / sqrt(D).
        sliding_window: query i sees the last so many keys up to that, with use_causal_mask; None or -1: all.
        bound_min, bound_max: [S] float32, both or none: query i sees keys bound_min[i] <= j < bound_max[i].
        transpose_dv: dv is [B, Hkv, Sk, D].
        cp_offset: one int32, read at run time: where the first query stands among the keys.

    Keys and values of a head stay on the chip: Sk (3 bytes of the dtype + 8) D / 128 is at most 160 KiB. Two
    cores share the heads of the keys. A helper without a page; arguments as public tests pass them. The
    release notes name transpose_dv and cp_offset; what they mean is ours.

    >>> x = np.zeros((1, 1, 4, 128), np.float32)
    >>> dy, lse = np.ones_like(x), np.full((1, 1, 128, 1), np.log(128), np.float32)
    >>> bool(np.allclose(attention_bwd(x, x, x, x, dy, lse)[2], 1.0))
    True
    """
    get_verified_program_sharding_info("attention_bwd", (0, 1), 2)
    window = 0 if sliding_window is None or sliding_window == -1 else sliding_window
    check(q_ref, k_ref, v_ref, o_ref, dy_ref, lse_ref, sinks_ref)
    check_mask(q_ref, window, use_causal_mask, bound_min, bound_max)
    check_offset(cp_offset, use_causal_mask)
    scale = q_ref.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    options = ScoreOptions(scale, q_ref.dtype if mixed_precision else nl.float32)
    check_room(k_ref, options)
    call = Call(options, use_causal_mask, window, bound_min, bound_max, cp_offset)
    dq = nl.ndarray(q_ref.shape, q_ref.dtype, buffer=nl.shared_hbm)
    dk = nl.ndarray(k_ref.shape, k_ref.dtype, buffer=nl.shared_hbm)
    dv_shape = v_ref.shape[0:2] + (v_ref.shape[3], v_ref.shape[2]) if transpose_dv else v_ref.shape
    dv = nl.ndarray(dv_shape, v_ref.dtype, buffer=nl.shared_hbm)
    dsinks = None
    if sinks_ref is not None:
        dsinks = nl.ndarray(sinks_ref.shape, sinks_ref.dtype, buffer=nl.shared_hbm)
    batches, heads, size = k_ref.shape[0:3]
    shared = q_ref.shape[1] // heads
    first, end = program_share(batches * heads)
    for job in range(first, end):
        b, h = job // heads, job % heads
        keys = KeyHead(options, k_ref[b, h], v_ref[b, h])
        for own in range(h * shared, (h + 1) * shared):
            head = QueryHead(call, q_ref[b, own], o_ref[b, own], dy_ref[b, own], lse_ref[b, own])
            for group in TiledRange(q_ref.shape[3], QUERIES):
                head.add_group(keys, group, dq[b, own])
            if sinks_ref is not None and dsinks is not None:
                head.store_sinks(sinks_ref[b, own : own + 1], dsinks[b, own : own + 1])
        for i in range(len(keys.k)):
            place = channels(size, i)
            store(dk[b, h, place], keys.dk[i])
            if transpose_dv:
                store_tokens(dv[b, h, :, place], keys.dv[i])
            else:
                store(dv[b, h, place], keys.dv[i])
    if dsinks is not None:
        return dq, dk, dv, dsinks
    return dq, dk, dv


def channels(size: int, piece: int) -> slice:
    """The channels of a piece of a head: equal pieces of up to 128."""
    step = size // div_ceil(size, PMAX)
    return slice(piece * step, (piece + 1) * step)


def store_tokens(out: Tensor, tile: Tensor) -> None:
    """Store a piece [channels, S] as [S, channels]."""
    for part in TiledRange(tile.shape[1], PMAX):
        bank = nl.ndarray((part.size, tile.shape[0]), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(bank, tile[:, part.start_offset : part.end_offset], engine=nisa.tensor_engine)
        store(out[part.start_offset : part.end_offset], bank)


def load_pieces(head: Tensor, start: int, end: int, dtype: Any) -> list:
    """Tokens of a head [D, S] as pieces."""
    pieces = []
    for i in range(div_ceil(head.shape[0], PMAX)):
        pieces.append(load(head[channels(head.shape[0], i), start:end], dtype))
    return pieces


def own_tokens(pieces: list, own: slice) -> list:
    found = []
    for piece in pieces:
        found.append(piece[:, own])
    return found


class Call(nl.NKIObject):
    """What holds for all heads."""

    def __init__(
        self,
        options: ScoreOptions,
        causal: bool,
        window: int,
        lower: Tensor | None,
        upper: Tensor | None,
        offset: Tensor | None,
    ):
        self.options = options
        self.causal = causal
        self.window = window
        self.lower = lower
        self.upper = upper
        self.offset: Tensor | None = None  # of the queries, in every partition
        if offset is not None:
            self.offset = load(offset.reshape((1, 1)).broadcast(0, PMAX), nl.float32)

    def first_key(self, row: TiledRangeIterator) -> int:
        """The first of the keys, a multiple of 128, that a tile of queries may see."""
        if self.window == 0 or self.offset is not None:
            return 0
        return max(0, row.start_offset - self.window + 1) // PMAX * PMAX

    def end_key(self, row: TiledRangeIterator, keys: int) -> int:
        """The key behind the last that a tile of queries may see."""
        return min(row.end_offset, keys) if self.causal and self.offset is None else keys

    def hides(self, row: TiledRangeIterator, block: TiledRangeIterator) -> bool:
        """Return whether a query of a tile may not see one of these keys."""
        late = self.causal and block.end_offset > row.start_offset + 1
        early = self.window > 0 and block.start_offset < row.end_offset - self.window
        return late or early or self.lower is not None or self.offset is not None

    def seen(self, row: TiledRangeIterator) -> tuple | None:
        """Return (start, end) of the keys that each query of a tile sees, [128, 1]; None if it sees all."""
        if not self.causal and self.lower is None:
            return None
        lower, upper = new_column(PMAX), new_column(PMAX)
        nisa.memset(lower, -1.0)
        nisa.memset(upper, UNBOUNDED)
        if self.causal:
            nisa.iota(upper, [[1, 1]], offset=row.start_offset + 1, channel_multiplier=1)
        if self.offset is not None:
            nisa.tensor_tensor(upper, upper, self.offset, nl.add)
        if self.window > 0:
            nisa.tensor_scalar(lower, upper, nl.subtract, float(self.window))
        if self.lower is not None and self.upper is not None:
            rows = slice(row.start_offset, row.end_offset)
            nisa.tensor_tensor(lower, lower, load(self.lower[rows].expand_dim(1)), nl.maximum)
            nisa.tensor_tensor(upper, upper, load(self.upper[rows].expand_dim(1)), nl.minimum)
        return lower, upper


class KeyHead(nl.NKIObject):
    """Keys and values of a head, and the sums of their gradients, in pieces."""

    def __init__(self, options: ScoreOptions, k: Tensor, v: Tensor):
        tokens = k.shape[1]
        self.k = load_pieces(k, 0, tokens, options.dtype)
        self.v = load_pieces(v, 0, tokens, options.dtype)
        self.rows: list = []
        self.dk: list = []
        self.dv: list = []
        for piece in self.k:
            self.rows.append(transposed_tokens(piece))
            for sums in (self.dk, self.dv):
                total = like(piece, nl.float32)
                nisa.memset(total, 0.0)
                sums.append(total)


class QueryHead(nl.NKIObject):
    """A head of the queries: what it adds to the gradients."""

    def __init__(self, call: Call, q: Tensor, o: Tensor, dy: Tensor, lse: Tensor):
        self.call = call
        self.q = q
        self.o = o
        self.dy = dy
        self.neg_lse = load(lse, nl.float32)
        nisa.tensor_scalar(self.neg_lse, self.neg_lse, nl.multiply, -1.0)
        self.delta = like(self.neg_lse)
        self.sums: list = []  # of a row
        self.ones = new_column(PMAX)
        nisa.memset(self.ones, 1.0)

    def add_group(self, keys: KeyHead, group: TiledRangeIterator, dq: Tensor) -> None:
        """Add the part of some queries to the gradients of keys and values; store dq."""
        first, dtype = group.start_offset, self.call.options.dtype
        q = load_pieces(self.q, first, group.end_offset, dtype)
        dy = load_pieces(self.dy, first, group.end_offset, dtype)
        o = load_pieces(self.o, first, group.end_offset, self.o.dtype)
        found = []
        for piece in q:
            found.append(like(piece, dq.dtype))
        for row in TiledRange(group, PMAX):
            own = slice(row.start_offset - first, row.end_offset - first)
            tile = TiledRangeIterator(row.size, row.start_offset // PMAX, row.start_offset, row.end_offset)
            self.add_row(keys, tile, own_tokens(q, own), own_tokens(dy, own), own_tokens(o, own))
            for i in range(len(q)):
                nisa.activation(found[i][:, own], nl.copy, self.sums[i], scale=self.call.options.scale)
        for i in range(len(q)):
            nisa.dma_copy(dq[channels(dq.shape[0], i), first : group.end_offset], found[i])

    def add_row(self, keys: KeyHead, row: TiledRangeIterator, q: list, dy: list, o: list) -> None:
        """Add the part of 128 queries, in pieces; `sums` has that of dq, without its scale."""
        call, options = self.call, self.call.options
        q_rows, dy_rows, sums = [], [], []
        for i in range(len(q)):
            q_rows.append(transposed_tokens(q[i]))
            dy_rows.append(transposed_tokens(dy[i]))
            sums.append(nl.ndarray((q[i].shape[0], PMAX), nl.float32, buffer=nl.psum))
        self.sums = sums
        delta = self.add_delta(row, dy, o)
        neg_lse, seen = self.neg_lse[:, row.index : row.index + 1], call.seen(row)
        start, end = call.first_key(row), call.end_key(row, keys.k[0].shape[1])
        visible = TiledRangeIterator(end - start, 0, start, end)
        for block in TiledRange(visible, KEYS):
            columns = slice(block.start_offset, block.end_offset)
            scores = pair_products(q, keys.k, slice(0, PMAX), columns)
            p = probabilities(options, scores, neg_lse, seen if call.hides(row, block) else None, block)
            ds = score_gradient(options, pair_products(dy, keys.v, slice(0, PMAX), columns), p, delta)
            for i in range(len(q)):
                add_product(keys.dv[i][:, columns], dy_rows[i][:, 0, :], p, 1.0)
                add_product(keys.dk[i][:, columns], q_rows[i][:, 0, :], ds, options.scale)
            add_queries(sums, keys.rows, ds, block)

    def add_delta(self, row: TiledRangeIterator, dy: list, o: list) -> Any:
        """delta of 128 queries, [128, 1]."""
        bank = nl.ndarray((PMAX, 1), nl.float32, buffer=nl.psum)
        for i in range(len(o)):
            product = like(o[i], nl.float32)
            nisa.tensor_tensor(product, o[i], dy[i], nl.multiply)
            nisa.nc_matmul(bank, product, self.ones[0 : product.shape[0]])
        place = self.delta[:, row.index : row.index + 1]
        nisa.tensor_copy(place, bank)
        return place

    def store_sinks(self, sinks: Tensor, grad: Tensor) -> None:
        """dsink = -sum over the queries of e^(sink - lse) delta; sinks of a head, [1] or [1, n]."""
        count = 1 if len(sinks.shape) == 1 else sinks.shape[1]
        logits = load(sinks.reshape((1, count)).broadcast(0, PMAX), nl.float32)
        parts = nl.ndarray((PMAX, count), nl.float32, buffer=nl.sbuf)
        for i in range(count):
            p, product = like(self.delta), like(self.delta)
            nisa.activation(p, nl.exp, self.neg_lse, bias=logits[:, i : i + 1])
            nisa.tensor_tensor(product, p, self.delta, nl.multiply)
            nisa.tensor_reduce(parts[:, i : i + 1], nl.add, product, 1, negate=True)
        bank = nl.ndarray((1, count), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(bank, self.ones, parts)
        store(grad.reshape((1, count)), bank)


def check(q: Tensor, k: Tensor, v: Tensor, o: Tensor, dy: Tensor, lse: Tensor, sinks: Tensor | None) -> None:
    given = (("q_ref", q), ("k_ref", k), ("v_ref", v), ("o_ref", o), ("dy_ref", dy), ("lse_ref", lse))
    assert_tensors(given, (("sinks_ref", sinks),))
    kernel_assert(len(q.shape) == 4, f"q_ref: got shape {tuple(q.shape)}, expected [B, H, D, S]")
    batches, heads, size, tokens = q.shape
    kernel_assert(tokens % PMAX == 0, f"q_ref: got {tokens} tokens, allowed are multiples of {PMAX}")
    kernel_assert(
        size % div_ceil(size, PMAX) == 0,
        f"q_ref: got a head dimension of {size}, allowed are equal pieces of up to {PMAX}",
    )
    kernel_assert(
        len(k.shape) == 4
        and (k.shape[0], k.shape[2]) == (batches, size)
        and k.shape[3] % PMAX == 0
        and heads % k.shape[1] == 0,
        f"k_ref: got shape {tuple(k.shape)}, expected ({batches}, Hkv, {size}, Sk), Hkv a divisor of {heads} "
        f"and Sk a multiple of {PMAX}",
    )
    assert_shape(v, k.shape, "v_ref")
    assert_shape(o, q.shape, "o_ref")
    assert_shape(dy, q.shape, "dy_ref")
    assert_shape(lse, (batches, heads, PMAX, tokens // PMAX), "lse_ref")
    if sinks is not None:
        kernel_assert(
            len(sinks.shape) in (2, 3) and (sinks.shape[0], sinks.shape[1]) == (batches, heads),
            f"sinks_ref: got shape {tuple(sinks.shape)}, expected ({batches}, {heads}) or one axis more",
        )


def check_mask(q: Tensor, window: int, causal: bool, lower: Tensor | None, upper: Tensor | None) -> None:
    kernel_assert(
        window == 0 or (causal and window > 0),
        f"sliding_window: got {window}, allowed are positive numbers with use_causal_mask",
    )
    kernel_assert(
        (lower is None) == (upper is None),
        "bound_min: got one of bound_min and bound_max, expected both or none",
    )
    for pair in (("bound_min", lower), ("bound_max", upper)):
        bound = pair[1]
        if bound is not None:
            assert_shape(bound, (q.shape[3],), pair[0])
            kernel_assert(bound.dtype == nl.float32, f"{pair[0]}: got {bound.dtype}, expected float32")


def check_offset(offset: Tensor | None, causal: bool) -> None:
    if offset is not None:
        kernel_assert(causal, "cp_offset: got one without use_causal_mask, where it has no effect")
        kernel_assert(
            offset.dtype == nl.int32 and offset.size == 1,
            f"cp_offset: got {offset.dtype} of shape {tuple(offset.shape)}, expected one int32",
        )


def check_room(k: Tensor, options: ScoreOptions) -> None:
    need = k.shape[3] * div_ceil(k.shape[2], PMAX) * (3 * sizeinbytes(options.dtype) + 8)
    kernel_assert(
        need <= ROOM, f"k_ref: got {k.shape[3]} tokens, which need {need} bytes in a partition, not {ROOM}"
    )


def attention_bwd_ref(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dy: np.ndarray,
    visible: np.ndarray,
    scale: float,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    """Return (o, lse, dq, dk, dv, dsinks) in float64; visible [S, S], lse [B, H, S], sinks [B, H, n]."""
    q, k, v, dy = (np.asarray(x, np.float64).swapaxes(2, 3) for x in (q, k, v, dy))
    shared, heads = q.shape[1] // k.shape[1], k.shape[1]
    k, v = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
    extra = np.zeros((*q.shape[:2], 0)) if sinks is None else np.asarray(sinks, np.float64)
    scores = np.where(visible, scale * q @ k.swapaxes(2, 3), -np.inf)
    lse = np.logaddexp(
        np.logaddexp.reduce(scores, -1), np.logaddexp.reduce(extra, -1, initial=-np.inf)[..., None]
    )
    p, idle = np.exp(scores - lse[..., None]), np.exp(extra[:, :, None] - lse[..., None])
    o = p @ v
    delta = (o * dy).sum(-1, keepdims=True)
    ds = p * (dy @ v.swapaxes(2, 3) - delta)
    dq, dk, dv = scale * ds @ k, scale * ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dy
    dk, dv = (x.reshape(x.shape[0], heads, shared, *x.shape[2:]).sum(2) for x in (dk, dv))
    results = [x.swapaxes(2, 3) for x in (o, dq, dk, dv)]
    return results[0], lse, results[1], results[2], results[3], -(idle * delta).sum(2)
