"""What is done to queries and keys after their projection: norms of heads and RoPE.

Tokens are in the partitions, heads side by side: [tokens, heads d].
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_parameters import HeadNorm, K, Q, QKVParameters, V
from nkilib.core.utils.common_types import NormType
from nkilib.core.utils.norms import inverse_root
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


class HeadTables(nl.NKIObject):
    """What every head is multiplied by or shifted by, in all partitions: one row per norm and section."""

    def __init__(self, p: QKVParameters):
        self.before = norm_rows(p.before_rope)
        self.after = norm_rows(p.after_rope)


class NormRows(nl.NKIObject):
    """Gamma and beta of a HeadNorm in SBUF, [128, d] or of all heads; None where there is none."""

    def __init__(self, norm: HeadNorm):
        self.norm = norm
        self.gammas = (row_of(norm.gammas[Q]), row_of(norm.gammas[K]))
        self.betas = (row_of(norm.betas[Q]), row_of(norm.betas[K]))


def norm_rows(norm: HeadNorm) -> Any:
    return None if norm is None else NormRows(norm)


def row_of(vector: Tensor) -> Any:
    return None if vector is None else broadcast_row(vector.reshape((1, vector.size)), 0, vector.size, PMAX)


class Angles(nl.NKIObject):
    """cos and sin of some tokens, [tokens, d] each: (queries, keys)."""

    def __init__(self, p: QKVParameters, first: int, count: int):
        cos = load_table(p.rope.cos[Q], first, count)
        sin = load_table(p.rope.sin[Q], first, count)
        own = p.rope.cos[K] != p.rope.cos[Q]
        self.cos = (cos, load_table(p.rope.cos[K], first, count) if own else cos)
        own = p.rope.sin[K] != p.rope.sin[Q]
        self.sin = (sin, load_table(p.rope.sin[K], first, count) if own else sin)


def load_table(table: Tensor, first: int, count: int) -> Tensor:
    depth = table.shape[2]
    tile = nl.ndarray((count, depth), table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, table.reshape((table.shape[0] * table.shape[1], depth))[first : first + count])
    return tile


# ---- one section of some tokens ------------------------------------------------------------------


def changes(tables: HeadTables, angles: Any, section: int) -> bool:
    """True if heads of this section do not stay as the projection leaves them."""
    if section == V:
        return False
    return angles is not None or normed(tables.before, section) or normed(tables.after, section)


def normed(rows: Any, section: int) -> bool:
    return rows is not None and rows.norm.norms[section] not in (None, NormType.NO_NORM)


def change_heads(dst: Tensor, x: Tensor, depth: int, section: int, tables: HeadTables, angles: Any) -> None:
    """dst = norm(RoPE(norm(x))) of each head, x and dst [tokens, heads d]. The last step writes to dst."""
    value = x
    last = normed(tables.after, section)
    if normed(tables.before, section):
        out = dst if angles is None and not last else fresh(x)
        norm_section(out, value, depth, section, tables.before)
        value = out
    if angles is not None:
        out = dst if not last else fresh(x)
        rotate_heads(by_head(out, depth), by_head(value, depth), angles.cos[section], angles.sin[section])
        value = out
    if last:
        norm_section(dst, value, depth, section, tables.after)


def norm_section(dst: Tensor, x: Tensor, depth: int, section: int, rows: NormRows) -> None:
    """norm_heads of [tokens, heads d]: of each head, or of all as if they were one."""
    size = x.shape[1] if rows.norm.norms[section] == NormType.RMS_NORM_ACROSS_HEADS else depth
    norm_heads(by_head(dst, size), by_head(x, size), section, rows)


def by_head(x: Tensor, depth: int) -> Any:
    """[tokens, heads, d]"""
    return x.reshape_dim(1, (x.shape[1] // depth, depth))


def fresh(x: Tensor) -> Tensor:
    return nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)


def norm_heads(dst: Tensor, x: Tensor, section: int, rows: NormRows) -> None:
    """dst = x / rms(x) * gamma + beta of each head; LAYER_NORM takes the mean off first."""
    tokens, heads, depth = x.shape
    gamma, beta = rows.gammas[section], rows.betas[section]
    if rows.norm.norms[section] == NormType.LAYER_NORM:
        x = centred(x)
    squares = fresh(x)
    nisa.activation(squares, nl.square, x)
    total = nl.ndarray((tokens, heads), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(total, nl.add, squares, 2)
    scale = inverse_root(total, 1.0 / depth, rows.norm.eps)
    value = dst if gamma is None and beta is None else fresh(x)
    nisa.tensor_tensor(value, x, scale.expand_dim(2).broadcast(2, depth), op=nl.multiply)
    if gamma is not None:
        out = dst if beta is None else fresh(x)
        nisa.tensor_tensor(out, value, over_heads(gamma, x), op=nl.multiply)
        value = out
    if beta is not None:
        nisa.tensor_tensor(dst, value, over_heads(beta, x), op=nl.add)


def centred(x: Tensor) -> Any:
    tokens, heads, depth = x.shape
    mean = nl.ndarray((tokens, heads), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(mean, nl.add, x, 2)
    nisa.tensor_scalar(mean, mean, nl.multiply, 1.0 / depth)
    out = fresh(x)
    nisa.tensor_tensor(out, x, mean.expand_dim(2).broadcast(2, depth), op=nl.subtract)
    return out


def over_heads(row: Tensor, x: Tensor) -> Any:
    """[tokens, d] of a table as if it were [tokens, heads, d], like x."""
    return row[0 : x.shape[0]].expand_dim(1).broadcast(1, x.shape[1])


def rotate_heads(dst: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """RoPE of the halves of each head: lower cos - upper sin, upper cos + lower sin. Half of sin counts."""
    half = x.shape[2] // 2
    straight, crossed = fresh(x), fresh(x)
    sine = over_heads(sin[:, 0:half], x)
    nisa.tensor_tensor(straight, x, over_heads(cos, x), op=nl.multiply)
    nisa.tensor_tensor(crossed[:, :, 0:half], x[:, :, half:], sine, op=nl.multiply)
    nisa.tensor_tensor(crossed[:, :, half:], x[:, :, 0:half], sine, op=nl.multiply)
    lower, upper = straight[:, :, 0:half], straight[:, :, half:]
    nisa.tensor_tensor(dst[:, :, 0:half], lower, crossed[:, :, 0:half], op=nl.subtract)
    nisa.tensor_tensor(dst[:, :, half:], upper, crossed[:, :, half:], op=nl.add)
