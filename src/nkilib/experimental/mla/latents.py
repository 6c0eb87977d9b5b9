"""What the QKV projections of multi-head latent attention share: the latents, RoPE and stores by heads.

Tokens are processed in groups of up to 512, so that the weights, which pass by once for each group, are
multiplied faster than they arrive.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.qkv.qkv_heads import rotate_heads
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import interleave_copy, program_share
from nkilib.core.utils.mx_blocks import project_blocks
from nkilib.core.utils.mx_projection import MxTokens
from nkilib.core.utils.mx_weight_loads import MxWeights, load_scales
from nkilib.core.utils.norms import inverse_root
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

GROUP_TOKENS = 512
STAGE_COLUMNS = 2048  # of rows on their way to HBM


def token_groups(tokens: int, aligned: bool = False) -> list:
    """(start, count) of the groups of this core; `aligned`: cores share whole tiles of 128 tokens."""
    first, end = program_share(tokens, PMAX if aligned or tokens >= 2 * PMAX else 1)
    groups = []
    for part in TiledRange(end - first, GROUP_TOKENS):
        groups.append((first + part.start_offset, part.size))
    return groups


def check_positive(sizes: tuple) -> None:
    """Check pairs (name, size)."""
    for size in sizes:
        kernel_assert(size[1] >= 1, f"{size[0]}: got {size[1]}, expected at least 1")


def gamma_row(name: str, gamma: Tensor, size: int) -> Any:
    """A row of RMSNorm in all partitions."""
    assert_shape(gamma, (1, size), name)
    return broadcast_row(gamma, 0, size, PMAX)


def load_tiles(rows: Tensor, start: int, count: int) -> list:
    """Rows start ... start + count of a matrix, in tiles of 128."""
    tiles = []
    for part in TiledRange(count, PMAX):
        tiles.append(load(rows[start + part.start_offset : start + part.end_offset]))
    return tiles


def normalized(rows: list, first: int, gamma: Tensor, eps: float) -> list:
    """RMSNorm of columns first ... of each tile, in bfloat16."""
    size = gamma.shape[1]
    results = []
    for tile in rows:
        out = nl.ndarray((tile.shape[0], size), nl.bfloat16, buffer=nl.sbuf)
        rms_norm(out, tile[:, first : first + size], gamma, eps)
        results.append(out)
    return results


class RopeTable(nl.NKIObject):
    """cos and sin [T, d] of all tokens in HBM; halves of d are rotated."""

    def __init__(self, cos: Tensor, sin: Tensor, batch: int, length: int, depth: int):
        kernel_assert(depth % 2 == 0, f"qk_rope_head_dim: got {depth}, expected an even number")
        assert_shape(cos, (batch, length, depth), "cos_cache_hbm")
        assert_shape(sin, (batch, length, depth), "sin_cache_hbm")
        self.cos = cos.reshape((batch * length, depth))
        self.sin = sin.reshape((batch * length, depth))

    def angles(self, start: int, count: int) -> list:
        """(cos, sin) of some tokens, by tiles."""
        cos, sin = load_tiles(self.cos, start, count), load_tiles(self.sin, start, count)
        pairs = []
        for i in range(len(cos)):
            pairs.append((cos[i], sin[i]))
        return pairs


def rotate_key(row: Tensor, angles: tuple) -> Tensor:
    """RoPE of one head [tokens, d], in bfloat16."""
    out = nl.ndarray(row.shape, nl.bfloat16, buffer=nl.sbuf)
    rotate_heads(out.expand_dim(1), row.expand_dim(1), angles[0], angles[1])
    return out


# ---- products by heads ---------------------------------------------------------------------------


def project_heads(x: MxTokens, tokens: int, weights: MxWeights, heads: int, width: int, rows: Any) -> None:
    """Products of all heads, `width` columns each, given to `rows` some heads at a time.

    rows.start(head, heads) begins some heads, rows.take(sums, tile, head) gets sums [tokens, heads, width] of
    a tile of tokens from a head of these on, rows.finish() comes when all of them are there.
    """
    kernel_assert(width <= BANK_COLUMNS, f"head dimension: got {width}, allowed are at most {BANK_COLUMNS}")
    most = BANK_COLUMNS // width
    for stage in TiledRange(heads, max(1, STAGE_COLUMNS // width // most) * most):
        scales = load_scales(weights, stage.start_offset * width, stage.size * width, None)
        rows.start(stage.start_offset, stage.size)
        for span in TiledRange(stage.size, most):
            column, columns = (stage.start_offset + span.start_offset) * width, span.size * width
            for block in project_blocks(x, tokens, weights, column, columns, scales):
                sums = block.sums.reshape_dim(1, (span.size, width))
                rows.take(sums, block.token // PMAX, span.start_offset)
        rows.finish()


def new_heads(tokens: int, heads: int, width: int, dtype: DTypeLike = nl.bfloat16) -> list:
    """Tiles [tokens <= 128, heads, width]."""
    tiles = []
    for part in TiledRange(tokens, PMAX):
        tiles.append(nl.ndarray((part.size, heads, width), dtype, buffer=nl.sbuf))
    return tiles


def store_heads(out: Tensor, start: int, head: int, tiles: list) -> None:
    """Tiles [tokens <= 128, heads, width] to tokens start ... of out [T, heads, width]."""
    for i in range(len(tiles)):
        row, tile = start + i * PMAX, tiles[i]
        nisa.dma_copy(out[row : row + tile.shape[0], head : head + tile.shape[1], :], tile)


class QueryRows(nl.NKIObject):
    """Queries [T, heads, d] whose last columns are rotated; with `eps`, each head is normalised before."""

    def __init__(
        self, out: Tensor, rotated: int, start: int, tokens: int, angles: list, eps: float | None = None
    ):
        self.out = out
        self.width = out.shape[2]
        self.plain = self.width - rotated
        self.first = start
        self.tokens = tokens
        self.angles = angles
        self.eps = eps
        self.head = 0
        self.tiles: list = []
        self.count = 0

    def start(self, head: int, heads: int) -> None:
        self.head = head
        dtype = nl.bfloat16 if self.eps is None else nl.float32
        self.tiles = new_heads(self.tokens, heads, self.width, dtype)

    def take(self, sums: Tensor, tile: int, head: int) -> None:
        interleave_copy(self.tiles[tile][:, head : head + sums.shape[1], :], sums, self.count)
        self.count = self.count + 1

    def finish(self) -> None:
        results = self.tiles if self.eps is None else []
        for i in range(len(self.tiles)):
            tile, angles = self.tiles[i], self.angles[i]
            if self.eps is not None:
                tile = normalized_heads(tile, self.eps)
                results.append(tile)
            rotate_heads(results[i][:, :, self.plain :], tile[:, :, self.plain :], angles[0], angles[1])
        store_heads(self.out, self.first, self.head, results)


def normalized_heads(tile: Tensor, eps: float) -> Tensor:
    """tile [tokens, heads, d] divided by the root mean square of each head, in bfloat16."""
    tokens, heads, width = tile.shape
    total = nl.ndarray((tokens, heads), nl.float32, buffer=nl.sbuf)
    squares = nl.ndarray((tokens, width), nl.bfloat16, buffer=nl.sbuf)
    for head in range(heads):
        nisa.activation_reduce(squares, nl.square, tile[:, head, :], nl.add, total[:, head : head + 1])
    scale = inverse_root(total, 1.0 / width, eps)
    out = nl.ndarray(tile.shape, nl.bfloat16, buffer=nl.sbuf)
    for head in range(heads):
        nisa.tensor_scalar(out[:, head, :], tile[:, head, :], nl.multiply, scale[:, head : head + 1])
    return out


class KeyValueRows(nl.NKIObject):
    """Keys [T, heads, plain + rotated], whose rotated part all heads share, and values [T, heads, d]."""

    def __init__(self, keys: Tensor, values: Tensor, start: int, tokens: int, rotated: list):
        self.keys = keys
        self.values = values
        self.plain = keys.shape[2] - rotated[0].shape[1]
        self.first = start
        self.tokens = tokens
        self.rotated = rotated
        self.head = 0
        self.key_tiles: list = []
        self.value_tiles: list = []
        self.count = 0

    def start(self, head: int, heads: int) -> None:
        self.head = head
        self.key_tiles = new_heads(self.tokens, heads, self.keys.shape[2])
        self.value_tiles = new_heads(self.tokens, heads, self.values.shape[2])

    def take(self, sums: Tensor, tile: int, head: int) -> None:
        last = head + sums.shape[1]
        interleave_copy(
            self.key_tiles[tile][:, head:last, 0 : self.plain], sums[:, :, 0 : self.plain], self.count
        )
        interleave_copy(self.value_tiles[tile][:, head:last, :], sums[:, :, self.plain :], self.count)
        self.count = self.count + 1

    def finish(self) -> None:
        for i in range(len(self.key_tiles)):
            tile = self.key_tiles[i]
            shared = self.rotated[i].expand_dim(1).broadcast(1, tile.shape[1])
            nisa.tensor_copy(tile[:, :, self.plain :], shared, engine=nisa.gpsimd_engine)
        store_heads(self.keys, self.first, self.head, self.key_tiles)
        store_heads(self.values, self.first, self.head, self.value_tiles)
