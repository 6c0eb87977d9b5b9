"""Masks for attention_tkg from positions, in the order of its tiles of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor

from ..utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from ..utils.kernel_helpers import get_verified_program_sharding_info
from ..utils.tile_sizes import PMAX
from ..utils.tiled_range import TiledRange
from .attention_tkg_masks import Masks
from .attention_tkg_plan import DecodeCall, DecodeSection, DecodeUnit, LoadChunk, active_runs
from .attention_tkg_utils import AttnTKGConfig, resize_cache_block_len_for_attention_tkg_kernel

if TYPE_CHECKING:
    from nkilib.core.attention.attention_tkg_utils import AttnTKGConfig


@nki.jit
def gen_mask_tkg_hbm(
    pos_ids_hbm: Tensor,
    bs: int,
    q_head: int,
    s_active: int,
    s_prior: int,
    start_pos_hbm: Tensor | None = None,
    block_len: int = 0,
    active_mask: Tensor | None = None,
    enable_fa_s_prior_tiling: bool = True,
    transposed_out: bool = False,
    cp_seq_offset: Tensor | None = None,
) -> Tensor:
    """The mask [s_prior, B, H, s] of 0 and 1 (uint8) that gen_mask_tkg makes, in HBM.

    Row 128 f + p is tile f, partition p: token n p + f of a flat cache with n tiles, of blocks token
    (f // l) 128 l + p l + f % l with l from resize_cache_block_len_for_attention_tkg_kernel. Where two cores
    share the keys, each half is ordered so by itself. pos_ids_hbm and start_pos_hbm are [1, B s].
    transposed_out gives [B, H, s, s_prior]. The rest is as in gen_mask_tkg.

    >>> mask = gen_mask_tkg_hbm(np.array([[3.0]], np.float32), 1, 1, 1, 256)
    >>> int(mask.sum()), mask[[0, 1, 128], 0, 0, 0].tolist()
    (3, [1, 1, 1])
    """
    call = mask_call(
        bs,
        q_head,
        s_active,
        s_prior,
        block_len,
        (("pos_ids_hbm", pos_ids_hbm), ("start_pos_hbm", start_pos_hbm)),
        active_mask,
        enable_fa_s_prior_tiling,
    )
    out = nl.ndarray((s_prior, bs, q_head, s_active), nl.uint8, buffer=nl.shared_hbm)
    if transposed_out:
        out = nl.ndarray((bs, q_head, s_active, s_prior), nl.uint8, buffer=nl.shared_hbm)
    if call.n_prgs > 1 and not call.splits_keys and not call.splits_batch and call.core > 0:
        return out  # one core does it all
    made = nl.ndarray((call.rows, call.tiles, call.batches, call.columns), nl.uint8, buffer=nl.sbuf)
    fill_mask(call, made, cp_seq_offset)
    first, rows = call.first_tile * call.rows, call.tiles * call.rows
    last = call.first_batch + call.batches
    if transposed_out:
        place = out[call.first_batch : last, :, :, first : first + rows].reshape_dim(
            3, (call.tiles, call.rows)
        )
        place = place.flatten_dims(1, 2).permute((3, 2, 0, 1))
    else:
        place = out[first : first + rows].reshape_dim(0, (call.tiles, call.rows)).permute((1, 0, 2, 3, 4))
        place = place[:, :, call.first_batch : last].flatten_dims(3, 4)
    for batch in range(call.batches):
        nisa.dma_copy(place[:, :, batch], made[:, :, batch])
    return out


def gen_mask_tkg(
    pos_ids: Tensor,
    mask_out: Tensor,
    bs: int,
    q_head: int,
    s_active: int,
    s_prior: int,
    start_pos: Tensor | None = None,
    block_len: int = 0,
    active_mask: Tensor | None = None,
    enable_fa_s_prior_tiling: bool = True,
    transposed_out: bool = False,
    cp_seq_offset: Tensor | None = None,
) -> Any:
    """Fill mask_out, a tile [128, tiles, B, H, s] in SBUF, with 1 where a new token sees a key, else 0.

    Key j is seen if j < pos_ids[b, 0]; with start_pos, by token i, if start <= j < pos_ids[b, i], and if
    start > pos_ids, if j >= start or j < pos_ids. The last s_active keys are the new tokens: active_mask
    [s, B, H, s], if given, is the mask of those. cp_seq_offset, one number in HBM, is added to every j.
    Tiles and batches are those of this core, if cores share them as in attention_tkg. Positions are in HBM,
    [B, s] or [1, B s]. With transposed_out mask_out is a tile [H s, B, keys], row 128 f + p of the other form
    is its key 128 f + p. No page describes this form: the order of arguments and that layout are ours.
    """
    positions = (("pos_ids", pos_ids), ("start_pos", start_pos))
    call = mask_call(
        bs, q_head, s_active, s_prior, block_len, positions, active_mask, enable_fa_s_prior_tiling
    )
    if not transposed_out:
        assert_shape(mask_out, (call.rows, call.tiles, call.batches, q_head, s_active), "mask_out")
        fill_mask(call, mask_out.flatten_dims(3, 4), cp_seq_offset)
        return mask_out
    kernel_assert(
        call.columns <= PMAX, f"q_head, s_active: got {call.columns} queries, transposed_out allows 128"
    )
    assert_shape(mask_out, (call.columns, call.batches, call.tiles * call.rows), "mask_out")
    made = nl.ndarray((call.rows, call.tiles, call.batches, call.columns), nl.bfloat16, buffer=nl.sbuf)
    fill_mask(call, made, cp_seq_offset)
    for batch in range(call.batches):
        transpose_mask(mask_out[:, batch], made[:, :, batch])
    return mask_out


def transpose_mask(dst: Tensor, mask: Tensor) -> None:
    """dst [queries, keys] = the mask [rows, tiles, queries] of a batch."""
    rows, tiles, queries = mask.shape
    for tile in range(tiles):
        bank = nl.ndarray((queries, rows), mask.dtype, buffer=nl.psum)
        nisa.nc_transpose(bank, mask[:, tile])
        nisa.tensor_copy(dst[:, tile * rows : (tile + 1) * rows], bank)


def mask_call(
    bs: int,
    q_head: int,
    s_active: int,
    s_prior: int,
    block_len: int,
    positions: tuple,
    active: Tensor | None,
    tiling: bool,
) -> DecodeCall:
    """The sizes of a mask. `positions`: pairs (name, tensor) of ends and of starts."""
    assert_tensors(positions[0:1], positions[1:2] + (("active_mask", active),))
    for pair in positions:
        kernel_assert(
            pair[1] is None or pair[1].size == bs * s_active,
            f"{pair[0]}: got a tensor that has not bs * s_active = {bs * s_active} elements",
        )
    kernel_assert(
        s_prior <= 128 or s_prior % 128 == 0, f"s_prior: got {s_prior}, allowed above 128 are multiples of it"
    )
    if active is not None:
        assert_shape(active, (s_active, bs, q_head, s_active), "active_mask")
    cfg = AttnTKGConfig(bs, q_head, s_active, s_prior, s_prior, 1, block_len, use_pos_id=True)
    cfg.enable_fa_s_prior_tiling = tiling
    sharding = get_verified_program_sharding_info("gen_mask_tkg", (0, 1), 2)
    call = DecodeCall(None, None, None, None, None, active, None, cfg, None, sharding[1], sharding[2])
    call.rope_pos_ids = positions[0][1]
    call.start_pos_ids = positions[1][1]
    return call


class MaskSizes(nl.NKIObject):
    """One batch at a time, all its keys."""

    def __init__(self, call: DecodeCall):
        self.tiles = call.tiles
        self.batches = 1
        self.mask_batches = 1


class MaskSlot(nl.NKIObject):
    def __init__(self, visible: Tensor):
        self.visible = visible


def fill_mask(call: DecodeCall, mask_out: Tensor, offset: Tensor | None) -> None:
    """mask_out [rows, tiles, batches, columns]"""
    chunks: list = []
    for part in TiledRange(call.tiles, call.block_len if call.block_len > 0 else call.tiles):
        chunks.append(LoadChunk(call, part.start_offset, part.size))
    section = DecodeSection(chunks)
    section.runs = active_runs(call, section) if call.mask is not None else []
    masks = Masks(call, MaskSizes(call), section)
    masks.begin_section(section)
    if offset is not None:
        shift = new_column(call.rows)
        nisa.dma_copy(shift, offset.reshape((1, 1)).ap([[0, call.rows], [1, 1]]))
        nisa.tensor_scalar(masks.numbers[0], masks.numbers[0], nl.add, shift)
    for batch in range(call.batches):
        place = mask_out[:, :, batch].expand_dim(1)
        masks.of_unit(DecodeUnit(section, batch, 1, MaskSlot(place)))


def gen_mask_tkg_hbm_ref(
    pos_ids_hbm: np.ndarray,
    bs: int,
    q_head: int,
    s_active: int,
    s_prior: int,
    start_pos_hbm: np.ndarray | None = None,
    block_len: int = 0,
    active_mask: np.ndarray | None = None,
    n_prgs: int = 1,
    cp_seq_offset: np.ndarray | None = None,
):
    """gen_mask_tkg_hbm in numpy."""
    cfg = AttnTKGConfig(bs, q_head, s_active, s_prior, s_prior, 1, block_len)
    shift = 0 if cp_seq_offset is None else int(np.ravel(cp_seq_offset)[0])
    key, end = np.arange(s_prior)[:, None, None] + shift, pos_ids_hbm.reshape(1, bs, s_active)
    if start_pos_hbm is None:
        seen = key < end[:, :, :1] + np.zeros(s_active)
    else:
        start = start_pos_hbm.reshape(1, bs, s_active)
        seen = np.where(start <= end, (key >= start) & (key < end), (key >= start) | (key < end))
    seen = np.repeat(seen[:, :, None, :], q_head, axis=2)
    if active_mask is not None:
        seen[s_prior - s_active :] = active_mask != 0
    return seen[token_order(cfg, n_prgs)].astype(np.uint8)


def token_order(cfg: AttnTKGConfig, n_prgs: int) -> np.ndarray:
    """The token of every row of a mask."""
    call = DecodeCall(None, None, None, None, None, None, None, cfg, None, n_prgs, 0)
    row = np.arange(cfg.curr_sprior)
    share = call.tiles * call.rows if call.splits_keys else cfg.curr_sprior
    core, tile, partition = row // share, row % share // call.rows, row % call.rows
    tiles = np.where(core == 0, call.tiles, (cfg.curr_sprior - share) // call.rows)
    if cfg.block_len == 0:
        return core * share + partition * tiles + tile
    length, _ = resize_cache_block_len_for_attention_tkg_kernel(
        cfg.curr_sprior // cfg.block_len, cfg.block_len, n_prgs, 128, cfg.bs, cfg.q_head, cfg.s_active
    )
    return core * share + tile // length * 128 * length + partition * length + tile % length
