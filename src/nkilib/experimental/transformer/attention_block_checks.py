"""What the attention block of decode demands of its arguments, by the names its callers know."""

from __future__ import annotations

from nkilib.core.attention.attention_tkg_utils import resize_cache_block_len_for_attention_tkg_kernel
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
    warn_without_effect,
)
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.transformer.attention_block_parameters import (
    AttentionBlock,
    BlockCaches,
    BlockSizes,
    HeadNormOptions,
    RankShare,
)
from nkilib.experimental.transformer.attention_block_tkg_sharding import CPCollectiveMode, KVDPCollectiveMode

MOST_TOKENS = 4096  # as output_projection_tkg


def check_kinds(b: AttentionBlock) -> None:
    """Tensors are tensors, and options members of their enumerations."""
    i, c, m, o = b.input, b.caches, b.masks, b.output
    assert_tensors(
        (("X", i.x), ("W_qkv", i.w_qkv), ("K_cache", c.keys), ("V_cache", c.values)),
        (
            ("rmsnorm_X_gamma", i.norm.gamma),
            ("bias_qkv", i.bias),
            ("weight_dequant_scale_qkv", i.quantized.w_scale),
            ("input_dequant_scale_qkv", i.quantized.in_scale),
            ("cos", b.rotary.cos),
            ("sin", b.rotary.sin),
            ("active_blocks_table", c.table),
            ("kv_cache_update_idx", c.index),
            ("k_scale", c.scales[0]),
            ("v_scale", c.scales[1]),
            ("attention_mask", m.mask),
            ("sink", m.sink),
            ("pos_ids", m.pos_ids),
            ("swa_start_pos_ids", m.start_pos_ids),
            ("max_context_len", m.max_context_len),
            ("W_out", o.weights),
            ("bias_out", o.bias),
            ("weight_dequant_scale_out", o.quantized.w_scale),
            ("input_dequant_scale_out", o.quantized.in_scale),
            ("KVDP_rank", b.kvdp.place),
        ),
    )
    assert_members(
        ("quantization_type_qkv", i.quantized.kind, QuantizationType),
        ("quantization_type_out", o.quantized.kind, QuantizationType),
        ("dtype_mode", b.dtype_mode, DtypeMode),
    )
    for pair in (("X", i.x), ("V_cache", c.values)):
        kernel_assert(
            len(pair[1].shape) in (3, 4),
            f"{pair[0]}: got shape {tuple(pair[1].shape)}, expected 3 or 4 dimensions",
        )
    kernel_assert(
        len(i.w_qkv.shape) >= 2, f"W_qkv: got shape {tuple(i.w_qkv.shape)}, expected (H, (N + 2) d)"
    )
    if m.mask is not None:
        shape = tuple(m.mask.shape)
        kernel_assert(len(shape) == 4, f"attention_mask: got shape {shape}, expected (S_ctx, B, N, S)")


def check_companions(b: AttentionBlock) -> None:
    """Refuse arguments that this call would ignore, and those of which another one is missing."""
    i, c, m, o = b.input, b.caches, b.masks, b.output
    refuse_without_effect(i.norm.enabled, "rmsnorm_X_enabled", (("rmsnorm_X_gamma", i.norm.gamma),))
    check_head_norm(b.norm_before, "rmsnorm_QK_pre_rope", c.values.shape[-1])
    check_head_norm(b.norm_after, "rmsnorm_QK_post_rope", c.values.shape[-1])
    check_pair("cos", b.rotary.cos, "sin", b.rotary.sin)
    check_pair("k_scale", c.scales[0], "v_scale", c.scales[1])
    refuse_without_effect(m.pos_ids is not None, "pos_ids", (("swa_start_pos_ids", m.start_pos_ids),))
    warn_without_effect(c.update, "update_cache", (("kv_cache_update_idx", c.index),))
    refuse_without_effect(
        o.weights is not None,
        "W_out",
        (
            ("bias_out", o.bias),
            ("weight_dequant_scale_out", o.quantized.w_scale),
            ("input_dequant_scale_out", o.quantized.in_scale),
            ("transposed_out", o.transposed),
        ),
    )
    check_ranks(b.kvdp, "KVDP", KVDPCollectiveMode)
    check_ranks(b.cp, "CP", CPCollectiveMode)
    kernel_assert(
        m.mask is not None or m.pos_ids is not None or b.skip_attention,
        "attention_mask: got None, needed without pos_ids",
    )


def check_bounds(
    low: Tensor | None,
    high: Tensor | None,
    mask: Tensor | None,
    pos_ids: Tensor | None,
    start_pos_ids: Tensor | None,
    ranks: int,
) -> None:
    """Bounds come together, and alone."""
    check_pair("bound_min", low, "bound_max", high)
    others = (("attention_mask", mask), ("pos_ids", pos_ids), ("swa_start_pos_ids", start_pos_ids))
    refuse_without_effect(False, "bound_min=None", others)
    kernel_assert(ranks == 1, f"CP: got {ranks}, allowed with bound_min is 1")


def check_pair(name: str, value: Tensor | None, other_name: str, other: Tensor | None) -> None:
    kernel_assert(value is None or other is not None, f"{other_name}: got None, needed by {name}")
    kernel_assert(other is None or value is not None, f"{name}: got None, needed by {other_name}")


def check_head_norm(o: HeadNormOptions, name: str, depth: int) -> None:
    gammas = ((f"{name}_W_Q", o.q_gamma), (f"{name}_W_K", o.k_gamma))
    assert_tensors((), gammas)
    refuse_without_effect(o.enabled, f"{name}_enabled", gammas)
    for gamma in gammas:
        if gamma[1] is not None:
            kernel_assert(
                gamma[1].size == depth,
                f"{gamma[0]}: got shape {tuple(gamma[1].shape)}, expected (1, {depth})",
            )


def check_ranks(share: RankShare, name: str, modes: type) -> None:
    kernel_assert(share.ranks > 0, f"{name}: got {share.ranks}, allowed are positive numbers")
    if share.mode is not None:
        assert_members((f"{name}_collective_mode", share.mode, modes))
    refuse_without_effect(
        share.ranks > 1,
        f"{name} > 1",
        (
            (f"{name}_replica_group", share.groups),
            (f"{name}_collective_mode", share.mode),
            (f"{name}_rank", share.place),
        ),
    )


# ---- sizes ---------------------------------------------------------------------------------------


def check_block(n: BlockSizes, b: AttentionBlock) -> None:
    w_qkv = b.input.w_qkv
    kernel_assert(n.depth % 2 == 0 and n.depth <= PMAX, f"V_cache: got d = {n.depth}, allowed: even <= 128")
    kernel_assert(
        n.heads > 0 and w_qkv.shape[1] == (n.heads + 2) * n.depth,
        f"W_qkv: got {w_qkv.shape[1]} columns, expected (N + 2) d with d = {n.depth}",
    )
    tokens = n.tokens()
    kernel_assert(tokens <= MOST_TOKENS, f"X: got B S = {tokens} tokens, allowed are at most {MOST_TOKENS}")
    for table in (("cos", b.rotary.cos), ("sin", b.rotary.sin)):
        if table[1] is not None:
            assert_shape(table[1], (n.depth // 2, n.batch, n.active), table[0])


def check_masks(n: BlockSizes, b: AttentionBlock) -> None:
    """`n` are the sizes of attention on one rank."""
    m = b.masks
    kernel_assert(
        n.block_len == 0 or b.s_ctx in (None, n.room * b.cp.ranks),
        f"S_ctx: got {b.s_ctx}, allowed with active_blocks_table is the number of its keys, {n.room}",
    )
    kernel_assert(
        n.window <= n.room, f"S_ctx: got {n.window} keys, allowed are at most those of V_cache, {n.room}"
    )
    kernel_assert(
        n.window <= PMAX or n.window % PMAX == 0 or b.skip_attention,
        f"S_ctx: got {n.window} keys, allowed above {PMAX} are multiples of {PMAX}",
    )
    if m.mask is not None:
        rows = n.window if m.pos_ids is None else n.active
        assert_shape(m.mask, (rows, n.batch, n.heads, n.active), "attention_mask")
    names = ("bound_max", "bound_min") if m.packed else ("pos_ids", "swa_start_pos_ids")
    for pair in ((names[0], m.pos_ids), (names[1], m.start_pos_ids)):
        if pair[1] is not None:
            assert_shape(pair[1], (n.batch, n.active), pair[0])
    if m.sink is not None:
        own = n.heads // (b.kvdp.ranks * b.cp.ranks)
        shape = tuple(m.sink.shape)
        kernel_assert(shape in ((own, 1), (n.heads, 1)), f"sink: got shape {shape}, expected ({own}, 1)")


def check_packing(n: BlockSizes, n_prgs: int) -> None:
    """Pairs of packed keys stay together: each partition has an even number of them."""
    cut = resize_cache_block_len_for_attention_tkg_kernel(
        n.room // n.block_len, n.block_len, n_prgs, PMAX, n.batch, n.heads, n.active
    )
    kernel_assert(
        cut[0] % 2 == 0,
        f"fp8_packed: got {n.room} keys in blocks of {n.block_len}, allowed are multiples of {2 * PMAX} "
        "for each core that shares them",
    )


def check_caches(n: BlockSizes, c: BlockCaches) -> None:
    refuse_without_effect(n.block_len > 0, "active_blocks_table", (("fp8_packed", c.packed),))
    if n.block_len > 0:
        check_blocks(n, c)
    else:
        check_flat(c.values, n, False, "V_cache")
        check_flat(c.keys, n, c.keys_transposed, "K_cache")
    if c.update:
        kernel_assert(c.index is not None, "kv_cache_update_idx: got None, needed by update_cache")
        kernel_assert(
            c.index.size == n.batch,
            f"kv_cache_update_idx: got shape {tuple(c.index.shape)}, expected ({n.batch}, 1)",
        )
    for i in range(2):
        scale, cache, name = c.scales[i], (c.keys, c.values)[i], ("k_scale", "v_scale")[i]
        kernel_assert(
            scale is not None or cache.dtype not in FP8,
            f"{name}: got None, needed by a cache of {cache.dtype}",
        )
        if scale is not None:
            shape = tuple(scale.shape)
            kernel_assert(
                shape in ((1,), (1, 1), (PMAX, 1)),
                f"{name}: got shape {shape}, expected one number: (128, 1), (1, 1) or (1,)",
            )


def check_blocks(n: BlockSizes, c: BlockCaches) -> None:
    """Caches of blocks, and their table."""
    blocks = c.values.shape[0]
    assert_shape(c.values, (blocks, n.block_len, n.depth), "V_cache")
    kernel_assert(not c.keys_transposed, "K_cache_transposed: got True, allowed only with flat caches")
    table: tuple = () if c.table is None else tuple(c.table.shape)
    kernel_assert(
        len(table) == 2 and table[0] == n.batch,
        f"active_blocks_table: got shape {table}, expected ({n.batch}, blocks)",
    )
    keys: tuple = (blocks, n.block_len, n.depth)
    if c.packed:
        kernel_assert(c.keys.dtype in FP8, f"K_cache: got {c.keys.dtype}, fp8_packed takes FP8")
        kernel_assert(
            n.block_len % 2 == 0, f"V_cache: got blocks of {n.block_len}, fp8_packed takes even ones"
        )
        keys = (blocks, n.block_len // 2, n.depth, 2)
    assert_shape(c.keys, keys, "K_cache")


def check_flat(cache: Tensor, n: BlockSizes, transposed: bool, name: str) -> None:
    shape, batch = tuple(cache.shape), cache.shape[0]
    inner = (n.depth, n.room) if transposed else (n.room, n.depth)
    kernel_assert(
        shape in ((batch,) + inner, (batch, 1) + inner) and batch >= n.batch,
        f"{name}: got shape {shape}, expected {(n.batch, 1) + inner}",
    )
