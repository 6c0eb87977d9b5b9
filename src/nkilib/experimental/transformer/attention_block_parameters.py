"""Sizes of the attention block of decode, and checks of its caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.tile_sizes import PMAX

DEFAULT_EPS = 1e-6
MOST_TOKENS = 4096  # as output_projection_tkg


@dataclass
class BlockCaches(nl.NKIObject):
    """The caches: flat [B, (1,) Smax, d], keys also [B, (1,) d, Smax]; or blocks [n, block_len, d]."""

    keys: Any
    values: Any
    keys_transposed: bool
    table: Any = None  # [B, blocks of a sequence]
    update: bool = False
    index: Any = None  # [B, 1]: the slots of the new tokens
    scales: tuple = (None, None)


@dataclass
class BlockSizes(nl.NKIObject):
    """B, S, N, d; keys to attend to, capacity of the caches; tokens of a cache block, 0 if flat."""

    batch: int
    active: int
    heads: int
    depth: int
    window: int
    room: int
    block_len: int

    def tokens(self) -> int:
        return self.batch * self.active


def sizes_of(
    x: Any, transposed_in: bool, w_qkv: Any, c: BlockCaches, hints: tuple, s_ctx: Any, ranks: tuple
) -> BlockSizes:
    """Return the sizes that the arguments give together.

    `hints` is (attention_mask, cos, pos_ids), which give B and the window. `ranks` is how many ranks share
    the batches, and how many the keys.
    """
    depth = c.values.shape[len(c.values.shape) - 1]
    heads = w_qkv.shape[1] // depth - 2
    mask, cos, positions = hints
    if is_hbm_buffer(x) and not transposed_in:
        batch, active = x.shape[0], x.shape[1]
    else:
        tokens = x.shape[3] if transposed_in else x.shape[1]
        batch = batch_of(mask, cos, c, tokens, ranks[0])
        active = tokens // batch
    block_len = 0 if c.table is None else c.values.shape[1]
    room = c.values.shape[len(c.values.shape) - 2] if c.table is None else c.table.shape[1] * block_len
    window = room
    if c.table is None and s_ctx is not None:
        kernel_assert(
            s_ctx % ranks[1] == 0, f"S_ctx: got {s_ctx}, allowed with CP={ranks[1]} are multiples of that"
        )
        window = s_ctx // ranks[1]
    elif c.table is None and mask is not None and positions is None:
        window = mask.shape[0]
    return BlockSizes(batch, active, heads, depth, window, room, block_len)


def batch_of(mask: Any, cos: Any, c: BlockCaches, tokens: int, ranks: int) -> int:
    """Return B for tokens whose shape does not give it; `ranks` share the batches."""
    if mask is not None:
        return mask.shape[1] * ranks
    if cos is not None:
        return cos.shape[1]
    if c.index is not None:
        return c.index.shape[0] * ranks
    return tokens if c.table is None else c.table.shape[0] * ranks


# ---- checks --------------------------------------------------------------------------------------


def refuse_packing(fp8_packed: bool) -> None:
    if fp8_packed:
        not_built("fp8_packed=True", "attention over packed keys is not built")


def check_block(n: BlockSizes, w_qkv: Any) -> None:
    kernel_assert(n.depth % 2 == 0 and n.depth <= PMAX, f"V_cache: got d = {n.depth}, allowed: even <= 128")
    kernel_assert(
        n.heads > 0 and w_qkv.shape[1] == (n.heads + 2) * n.depth,
        f"W_qkv: got {w_qkv.shape[1]} columns, expected (N + 2) d with d = {n.depth}",
    )
    tokens = n.tokens()
    kernel_assert(tokens <= MOST_TOKENS, f"X: got B S = {tokens} tokens, allowed are at most {MOST_TOKENS}")


def check_caches(n: BlockSizes, c: BlockCaches) -> None:
    if n.block_len > 0:
        blocks = c.values.shape[0]
        assert_shape(c.values, (blocks, n.block_len, n.depth), "V_cache")
        assert_shape(c.keys, (blocks, n.block_len, n.depth), "K_cache")
        kernel_assert(not c.keys_transposed, "K_cache_transposed: got True, allowed only with flat caches")
    else:
        check_flat(c.values, n, False, "V_cache")
        check_flat(c.keys, n, c.keys_transposed, "K_cache")
    if c.update:
        kernel_assert(c.index is not None, "kv_cache_update_idx: got None, needed by update_cache")
        kernel_assert(
            c.index.size == n.batch,
            f"kv_cache_update_idx: got shape {tuple(c.index.shape)}, expected ({n.batch}, 1)",
        )
    kernel_assert(
        (c.scales[0] is None) == (c.scales[1] is None),
        "k_scale, v_scale: got one of them, expected both or none",
    )


def check_flat(cache: Any, n: BlockSizes, transposed: bool, name: str) -> None:
    shape, batch = tuple(cache.shape), cache.shape[0]
    inner = (n.depth, n.room) if transposed else (n.room, n.depth)
    kernel_assert(
        shape in ((batch,) + inner, (batch, 1) + inner) and batch >= n.batch,
        f"{name}: got shape {shape}, expected {(n.batch, 1) + inner}",
    )
