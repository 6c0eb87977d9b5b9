"""What attention_tkg accepts. Every check names the argument, what it got and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.kernel_assert import assert_shape, kernel_assert, refuse_without_effect
from ..utils.kernel_helpers import is_hbm_buffer
from .attention_tkg_plan import BANK, DecodeCall

if TYPE_CHECKING:
    from nkilib.core.attention.attention_tkg_utils import AttnTKGConfig

WIDE = (nl.bfloat16, nl.float16, nl.float32)
NARROW = (nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)


def check_attention_tkg(call: DecodeCall, k_out: Tensor, debug: Tensor | None) -> None:
    check_dtypes(call)
    check_operands(call)
    check_cache(call)
    check_masks(call)
    check_rope(call, k_out)
    if debug is not None:
        expected = 5 if call.cfg.block_len > 0 else 4
        kernel_assert(len(debug) == expected, f"DBG_TENSORS: got {len(debug)} tensors, expected {expected}")


def check_packing(cfg: AttnTKGConfig, k_prior: Tensor) -> None:
    """Keys of FP8 in pairs of tokens, [blocks, block_len / 2, d, 2]."""
    if not cfg.fp8_packed:
        return
    kernel_assert(
        cfg.block_len > 0 and cfg.block_len % 2 == 0,
        f"cfg.block_len: got {cfg.block_len}, allowed with fp8_packed are even numbers",
    )
    kernel_assert(k_prior.dtype in NARROW, f"k_prior: got dtype {k_prior.dtype}, fp8_packed takes FP8")
    assert_shape(k_prior, (k_prior.shape[0], cfg.block_len // 2, cfg.d_head, 2), "k_prior")


def check_config(cfg: AttnTKGConfig) -> None:
    for field in (
        ("bs", cfg.bs),
        ("q_head", cfg.q_head),
        ("s_active", cfg.s_active),
        ("curr_sprior", cfg.curr_sprior),
        ("d_head", cfg.d_head),
    ):
        kernel_assert(field[1] > 0, f"cfg.{field[0]}: got {field[1]}, allowed are positive numbers")
    kernel_assert(cfg.d_head <= PMAX, f"cfg.d_head: got {cfg.d_head}, allowed are 1 to {PMAX}")
    kernel_assert(
        cfg.q_head * cfg.s_active <= BANK,
        f"cfg: got q_head * s_active = {cfg.q_head * cfg.s_active}, allowed are at most {BANK}",
    )
    kernel_assert(
        cfg.curr_sprior <= PMAX or cfg.curr_sprior % PMAX == 0,
        f"cfg.curr_sprior: got {cfg.curr_sprior}, allowed above {PMAX} are multiples of {PMAX}",
    )
    kernel_assert(
        cfg.s_active <= min(cfg.curr_sprior, PMAX),
        f"cfg.s_active: got {cfg.s_active}, allowed are at most curr_sprior = {cfg.curr_sprior} and {PMAX}",
    )
    kernel_assert(
        cfg.curr_sprior <= cfg.full_sprior,
        f"cfg.curr_sprior: got {cfg.curr_sprior}, allowed are at most full_sprior = {cfg.full_sprior}",
    )
    kernel_assert(
        cfg.block_len == 0 or cfg.curr_sprior % cfg.block_len == 0,
        f"cfg.curr_sprior: got {cfg.curr_sprior}, allowed are multiples of block_len = {cfg.block_len}",
    )
    kernel_assert(cfg.qk_in_sb or cfg.fuse_rope, "cfg.qk_in_sb: got False, allowed without fuse_rope is True")
    kernel_assert(
        cfg.qk_in_sb or cfg.block_len == 0, "cfg.qk_in_sb: got False, allowed with a cache of blocks is True"
    )


def check_dtypes(call: DecodeCall) -> None:
    for pair in (
        ("q", call.q),
        ("k_active", call.k_active),
        ("v_active", call.v_active),
        ("k_prior", call.k_prior),
        ("v_prior", call.v_prior),
    ):
        kernel_assert(
            pair[1].dtype in WIDE + NARROW,
            f"{pair[0]}: got dtype {pair[1].dtype}, allowed are bfloat16, float16, float32 and FP8",
        )
    kernel_assert(
        call.out.dtype in WIDE,
        f"out: got dtype {call.out.dtype}, allowed are bfloat16, float16 and float32",
    )


def check_operands(call: DecodeCall) -> None:
    cfg = call.cfg
    queries, keys = cfg.bs * cfg.q_head * cfg.s_active, cfg.bs * cfg.s_active
    if cfg.qk_in_sb:
        check_on_chip(call.q, (cfg.d_head, queries), "q")
        check_on_chip(call.k_active, (cfg.d_head, keys), "k_active")
    else:
        check_one_of(
            call.q,
            (
                (cfg.bs, cfg.d_head, cfg.q_head, cfg.s_active),
                (cfg.bs, cfg.q_head, cfg.s_active, cfg.d_head),
            ),
            "q",
        )
        check_one_of(
            call.k_active,
            ((cfg.bs, cfg.d_head, cfg.s_active), (cfg.bs, 1, cfg.s_active, cfg.d_head)),
            "k_active",
        )
    if is_hbm_buffer(call.v_active):
        assert_shape(call.v_active, (cfg.bs, 1, cfg.s_active, cfg.d_head), "v_active")
    else:
        check_on_chip(call.v_active, (keys, cfg.d_head), "v_active")
    if cfg.out_in_sb:
        check_on_chip(call.out, (cfg.d_head, queries), "out")
    else:
        check_one_of(call.out, ((cfg.bs, cfg.q_head, cfg.d_head, cfg.s_active),), "out")
    if call.sink is not None:
        assert_shape(call.sink, (cfg.q_head, 1), "sink")


def check_on_chip(tensor: Tensor, shape: tuple, name: str) -> None:
    kernel_assert(not is_hbm_buffer(tensor), f"{name}: got a tensor in HBM, cfg asks for one in SBUF")
    assert_shape(tensor, shape, name)


def check_one_of(tensor: Tensor, shapes: tuple, name: str) -> None:
    kernel_assert(is_hbm_buffer(tensor), f"{name}: got a tile on chip, cfg asks for a tensor in HBM")
    kernel_assert(
        tuple(tensor.shape) in shapes, f"{name}: got shape {tuple(tensor.shape)}, allowed are {shapes}"
    )


def check_cache(call: DecodeCall) -> None:
    cfg, k_prior, v_prior = call.cfg, call.k_prior, call.v_prior
    if cfg.block_len > 0:
        blocks = k_prior.shape[0]
        assert_shape(k_prior, (blocks, cfg.block_len, cfg.d_head), "k_prior")
        assert_shape(v_prior, (blocks, cfg.block_len, cfg.d_head), "v_prior")
        kernel_assert(call.table is not None, "active_blocks_table: got None, cfg.block_len needs it")
        assert_shape(call.table, (cfg.bs, cfg.curr_sprior // cfg.block_len), "active_blocks_table")
        return
    kernel_assert(call.table is None, "active_blocks_table: got a tensor, allowed with block_len = 0 is None")
    batches = v_prior.shape[0]
    kernel_assert(batches >= cfg.bs, f"v_prior: got batch size {batches}, allowed are {cfg.bs} and more")
    assert_shape(v_prior, (batches, 1, cfg.full_sprior, cfg.d_head), "v_prior")
    rows, columns = (batches, 1, cfg.full_sprior, cfg.d_head), (batches, 1, cfg.d_head, cfg.full_sprior)
    assert_shape(k_prior, rows if cfg.tp_k_prior else columns, "k_prior")


def check_masks(call: DecodeCall) -> None:
    cfg = call.cfg
    rows = cfg.s_active if cfg.use_pos_id else cfg.curr_sprior
    assert_shape(call.mask, (rows, cfg.bs, cfg.q_head, cfg.s_active), "mask")
    kernel_assert(
        not cfg.use_pos_id or call.rope_pos_ids is not None,
        "rope_pos_ids: got None, cfg.use_pos_id needs them",
    )
    uses_positions = cfg.use_pos_id or cfg.fuse_rope
    positions = (("rope_pos_ids", call.rope_pos_ids),)
    refuse_without_effect(uses_positions, "cfg.use_pos_id or cfg.fuse_rope", positions)
    for pair in (("rope_pos_ids", call.rope_pos_ids), ("start_pos_ids", call.start_pos_ids)):
        if pair[1] is not None:
            assert_shape(pair[1], (cfg.bs, cfg.s_active), pair[0])
    if call.max_context_len is not None:
        kernel_assert(
            call.max_context_len.size == 1,
            f"max_context_len: got shape {tuple(call.max_context_len.shape)}, expected one number",
        )


def check_rope(call: DecodeCall, k_out: Tensor) -> None:
    cfg = call.cfg
    refuse_without_effect(cfg.fuse_rope, "cfg.fuse_rope", (("inv_freqs", call.inv_freqs), ("k_out", k_out)))
    if not cfg.fuse_rope:
        return
    kernel_assert(
        call.inv_freqs is not None and call.rope_pos_ids is not None,
        "inv_freqs, rope_pos_ids: got None, cfg.fuse_rope needs both",
    )
    kernel_assert(cfg.d_head % 2 == 0, f"cfg.d_head: got {cfg.d_head}, allowed with fuse_rope are even ones")
    assert_shape(call.inv_freqs, (cfg.d_head // 2, 1), "inv_freqs")
    kernel_assert(call.q.dtype in WIDE, f"q: got dtype {call.q.dtype}, allowed with fuse_rope is no FP8")
    if k_out is not None:
        if cfg.k_out_in_sb:
            check_on_chip(k_out, (cfg.d_head, cfg.bs * cfg.s_active), "k_out")
        else:
            check_one_of(k_out, ((cfg.bs, 1, cfg.d_head, cfg.s_active),), "k_out")
