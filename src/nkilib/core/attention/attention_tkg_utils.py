"""What callers of attention_tkg decide and ask: its configuration, how cores share it, cut cache blocks."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX

from ..utils.kernel_assert import kernel_assert

FLASH_KEYS = 8192
SHARDED_KEYS = 256  # fewer keys are not worth splitting between two cores


@dataclass
class AttnTKGConfig(nl.NKIObject):
    """Sizes and options of attention_tkg. Those marked * are hints: results do not depend on them."""

    bs: int = 0  # batch size
    q_head: int = 0  # query heads of the one kv head
    s_active: int = 0  # new tokens of each sequence
    curr_sprior: int = 0  # keys to attend to, the new ones included
    full_sprior: int = 0  # keys the cache has room for
    d_head: int = 0  # size of a head
    block_len: int = 0  # tokens of a cache block, 0 for a flat cache
    tp_k_prior: bool = False  # k_prior is [B, 1, S, d] (or blocks), not [B, 1, d, S]
    strided_mm1: bool = True  # * order of the keys in the first product
    use_pos_id: bool = False  # the mask of the cache follows from rope_pos_ids (and start_pos_ids)
    fuse_rope: bool = False  # rotate q and k_active, scale q by 1 / sqrt(d)
    use_gpsimd_sb2sb: bool = True  # * GpSimd carries what two cores exchange
    qk_in_sb: bool = False  # q and k_active are tiles in SBUF
    k_out_in_sb: bool = False  # so is k_out
    out_in_sb: bool = False  # so is out
    enable_fa_s_prior_tiling: bool = True  # * keys in sections
    fp8_packed: bool = False  # our own: FP8 blocks [blocks, block_len / 2, d, 2], as `qkv` writes them


def is_batch_sharded(cfg: AttnTKGConfig, n_prgs: int) -> bool:
    """True when each of two cores takes half of the batch."""
    columns = cfg.bs * cfg.q_head * cfg.s_active
    return n_prgs > 1 and cfg.bs % n_prgs == 0 and (cfg.curr_sprior < SHARDED_KEYS or columns > PMAX)


def is_s_prior_sharded(cfg: AttnTKGConfig, n_prgs: int) -> bool:
    """True when each of two cores takes half of the keys."""
    return n_prgs > 1 and cfg.curr_sprior >= SHARDED_KEYS and not is_batch_sharded(cfg, n_prgs)


def uses_batch_tiling(cfg: AttnTKGConfig, n_prgs: int = 1) -> bool:
    """True when a core has more query columns than partitions."""
    share = cfg.bs // n_prgs if is_batch_sharded(cfg, n_prgs) else cfg.bs
    return share * cfg.q_head * cfg.s_active > PMAX


def uses_flash_attention(cfg: AttnTKGConfig, n_prgs: int = 1) -> bool:
    """True when a core has so many keys that it processes them in sections."""
    keys = cfg.curr_sprior // n_prgs if is_s_prior_sharded(cfg, n_prgs) else cfg.curr_sprior
    return keys > FLASH_KEYS


def resize_cache_block_len_for_attention_tkg_kernel(
    num_blocks: int,
    block_len: int,
    n_prgs: int,
    p_max: int,
    bs: int,
    q_head: int,
    s_active: int,
    full_sprior: int | None = None,
    enable_fa_s_prior_tiling: bool = True,
) -> tuple[int, int]:
    """(length, factor) of the pieces blocks are cut into so that every partition of every core has as many.

    factor is the smallest power of two that divides block_len with num_blocks * factor a multiple of
    p_max (of p_max * n_prgs where cores share the keys); length = block_len / factor. Where a core has more
    than FLASH_KEYS keys, enable_fa_s_prior_tiling asks for pieces of which p_max are no more than that.
    """
    cfg = AttnTKGConfig(bs=bs, q_head=q_head, s_active=s_active, curr_sprior=num_blocks * block_len)
    unit = p_max * (n_prgs if is_s_prior_sharded(cfg, n_prgs) else 1)
    flash = enable_fa_s_prior_tiling and uses_flash_attention(cfg, n_prgs)
    factor = 1
    while block_len % (2 * factor) == 0 and (
        num_blocks * factor % unit != 0 or (flash and block_len // factor * p_max > FLASH_KEYS)
    ):
        factor *= 2
    kernel_assert(
        num_blocks * factor % unit == 0,
        f"active_blocks_table: got {num_blocks} blocks of {block_len} tokens, which cannot be cut into a "
        f"multiple of {unit} equal pieces",
    )
    return block_len // factor, factor
