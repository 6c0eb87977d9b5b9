"""What attention_tkg has to do: where each token of the cache stands, and in which steps all are worked off.

Tokens stand in tiles of 128, a token per partition. `width` neighbouring tokens share a partition, so that
a transfer moves long runs: token 128 width c + width p + j of a core is in partition p of tile width c + j.
A chunk is the `width` tiles that one such step fills; cache blocks, cut if need be, are chunks too.

A unit of work is a section (some chunks) of a group of batches: its softmax is computed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

from ..utils.allocator import sizeinbytes
from ..utils.kernel_assert import kernel_assert
from ..utils.tiled_range import TiledRange
from .attention_tkg_utils import (
    is_batch_sharded,
    is_s_prior_sharded,
    resize_cache_block_len_for_attention_tkg_kernel,
)

BANK = nl.tile_size.gemm_moving_fmax  # float32 columns of a PSUM bank
RUN_BYTES = 16 * 1024  # of values in each partition and transfer, at most: DMA has a fixed cost for each run
UNIT_BYTES = 40 * 1024  # per partition
GROUP_BYTES = 20 * 1024  # the same where a unit has several batches: then there are more units
MASK_BYTES = 16 * 1024
SPARE_BYTES = 24 * 1024  # for what does not grow with units
SLOTS = 3  # units under way: the keys of one arrive, one has its softmax, one its values
VALUE_SLOTS = 2  # fewer: values, which come a unit later, are not to be asked for before the next keys


class DecodeCall(nl.NKIObject):
    """The operands of one call and this core's share of it."""

    def __init__(self, q, k_active, v_active, k_prior, v_prior, mask, out, cfg, sbm, n_prgs, core):
        self.q = q
        self.k_active = k_active
        self.v_active = v_active
        self.k_prior = k_prior
        self.v_prior = v_prior
        self.mask = mask
        self.out = out
        self.cfg = cfg
        self.sbm = sbm
        self.n_prgs = n_prgs
        self.core = core
        self.columns = cfg.q_head * cfg.s_active  # queries of one batch
        self.splits_batch = is_batch_sharded(cfg, n_prgs)
        self.splits_keys = is_s_prior_sharded(cfg, n_prgs)
        self.batches = cfg.bs // n_prgs if self.splits_batch else cfg.bs
        self.first_batch = core * self.batches if self.splits_batch else 0
        self.first_stored = 0  # of its batches, a core writes those from here ...
        self.last_stored = self.batches  # ... to here: where both have all results, each writes a part
        if n_prgs > 1 and not self.splits_batch:
            half = cfg.bs - cfg.bs // 2
            self.first_stored = half * core
            self.last_stored = half if core == 0 else cfg.bs
        self.rows = min(PMAX, cfg.curr_sprior)  # tokens of a tile
        self.block_len = 0  # of the pieces that blocks are cut into
        self.factor = 1  # pieces of a block
        if cfg.block_len > 0:
            cut = resize_cache_block_len_for_attention_tkg_kernel(
                cfg.curr_sprior // cfg.block_len,
                cfg.block_len,
                n_prgs,
                PMAX,
                cfg.bs,
                cfg.q_head,
                cfg.s_active,
                cfg.full_sprior,
                cfg.enable_fa_s_prior_tiling,
            )
            self.block_len = cut[0]
            self.factor = cut[1]
        if cfg.fp8_packed:  # pieces of blocks are as long as unpacked ones: only the order within differs
            kernel_assert(
                self.block_len % 2 == 0,
                f"cfg.block_len: got {cfg.block_len}, cut into pieces of {self.block_len} tokens; "
                "fp8_packed takes even ones",
            )
            self.k_prior = k_prior.reshape((k_prior.shape[0], cfg.block_len, cfg.d_head))
        tiles = cfg.curr_sprior // self.rows
        share = tiles - tiles // 2  # of the first core
        self.first_tile = core * share if self.splits_keys else 0
        self.tiles = tiles if not self.splits_keys else (share if core == 0 else tiles - share)
        self.by_rows = cfg.tp_k_prior or cfg.block_len > 0  # keys arrive as rows
        self.inv_freqs: Any = None
        self.rope_pos_ids: Any = None
        self.start_pos_ids = None
        self.sink = None
        self.table: Any = None
        self.max_context_len = None
        self.statistics: Any = None  # the caller's dict

    def tile(self, shape: tuple, dtype: DTypeLike) -> Any:
        """A tile in SBUF, where the caller's manager places it."""
        if self.sbm is None or self.sbm.is_auto_alloc():
            return nl.ndarray(shape, dtype, buffer=nl.sbuf)
        return self.sbm.alloc_stack(shape, dtype, buffer=nl.sbuf, align=32)


class LoadChunk(nl.NKIObject):
    """`width` tiles of a core that hold rows * width neighbouring tokens."""

    def __init__(self, call: DecodeCall, tile: int, width: int):
        self.tile = tile  # of the core
        self.width = width
        self.token = (call.first_tile + tile) * call.rows
        self.tokens = call.rows * width


class TokenRun(nl.NKIObject):
    """New tokens that lie side by side: `count` of them from (partition, tile) on, along one of the two."""

    def __init__(self, partition: int, tile: int, count: int, down: bool, active: int):
        self.partition = partition
        self.tile = tile  # of the section
        self.count = count
        self.down = down  # from partition to partition
        self.active = active  # number of the first among the new tokens
        self.partitions = count if down else 1
        self.tiles = 1 if down else count


class DecodeSection(nl.NKIObject):
    """Some chunks: the tiles `tile` to `tile + tiles - 1` of a core."""

    def __init__(self, chunks: list):
        self.chunks = chunks
        self.tile = chunks[0].tile
        self.tiles = 0
        for chunk in chunks:
            self.tiles += chunk.width
        self.index = 0
        self.is_last = False
        self.runs: list = []  # of the new tokens


@dataclass
class DecodeUnit(nl.NKIObject):
    """A section of the keys of `batches` batches from `first` on (of this core's), with its tiles in SBUF."""

    section: DecodeSection
    first: int
    batches: int
    slot: Any

    def __post_init__(self) -> None:
        self.tiles = self.section.tiles
        self.number = 0  # of the core's units
        self.values: Any = None  # [rows, batches, tiles, d]
        self.visible: Any = None  # [rows, batches, tiles, columns]


class Sizes(nl.NKIObject):
    """How large units are."""

    def __init__(self, call: DecodeCall):
        cfg = call.cfg
        wide = sizeinbytes(value_dtype(call))
        keys = sizeinbytes(key_dtype(call))
        per_tile = call.rows * keys + cfg.d_head * wide
        if call.by_rows:
            per_tile += cfg.d_head * sizeinbytes(call.k_prior.dtype)
            per_tile += cfg.d_head * keys if key_dtype(call) != call.k_prior.dtype else 0
        per_tile += call.columns * (4 + sizeinbytes(probability_dtype(call)))
        if cfg.use_pos_id:
            per_tile += call.columns + (8 * cfg.s_active if call.start_pos_ids is not None else 0)
        room = unit_room(call)
        masks = min(MASK_BYTES, room // 2)
        tiles = max(1, min(room // per_tile, masks // call.columns))
        self.width = call.block_len
        if call.block_len == 0:
            self.width = max(1, min(call.tiles, RUN_BYTES // (cfg.d_head * wide), tiles))
        self.tiles = min(call.tiles, max(1, tiles // self.width) * self.width)
        fit = min(GROUP_BYTES // (self.tiles * per_tile), BANK // call.columns)
        self.batches = max(1, min(call.batches, fit)) if self.tiles == call.tiles else 1
        groups = masks // (self.tiles * call.columns * self.batches)
        self.mask_batches = min(call.batches, max(1, groups) * self.batches)  # whose masks come together


def unit_room(call: DecodeCall) -> int:
    """Bytes of a unit: what is usual, or a part of what the caller's manager has left."""
    if call.sbm is None or call.sbm.is_auto_alloc():
        return UNIT_BYTES
    return max(1024, min(UNIT_BYTES, (call.sbm.get_free_space() - SPARE_BYTES) // (SLOTS + 1)))


def common_dtype(cached: DTypeLike, new: DTypeLike) -> Any:
    """A dtype that holds values of both exactly: new tokens are not rounded to the dtype of the cache."""
    if cached == new:
        return cached
    if sizeinbytes(cached) == 1:
        return nl.bfloat16 if sizeinbytes(new) == 1 else new
    return cached if sizeinbytes(new) == 1 else nl.float32


def key_dtype(call: DecodeCall) -> Any:
    """The dtype of keys before the first matmul: FP8 rows are widened, TensorE transposes no bytes."""
    dtype = common_dtype(call.k_prior.dtype, call.k_active.dtype)
    if call.q.dtype == nl.float32:
        return nl.float32
    return nl.bfloat16 if call.by_rows and sizeinbytes(dtype) == 1 else dtype


def value_dtype(call: DecodeCall) -> Any:
    """The dtype of values in the second matmul."""
    return common_dtype(call.v_prior.dtype, call.v_active.dtype)


def probability_dtype(call: DecodeCall) -> Any:
    """Probabilities meet the values in the second matmul; next to FP8 values they stay bfloat16."""
    return nl.bfloat16 if sizeinbytes(value_dtype(call)) == 1 else value_dtype(call)


def plan_sections(call: DecodeCall, sizes: Sizes) -> list:
    """The sections of this core's keys, each of whole chunks."""
    sections: list = []
    chunks: list = []
    held = 0
    for part in TiledRange(call.tiles, sizes.width):
        if held + part.size > sizes.tiles and held > 0:
            sections.append(DecodeSection(chunks))
            chunks, held = [], 0
        chunks.append(LoadChunk(call, part.start_offset, part.size))
        held += part.size
    sections.append(DecodeSection(chunks))
    for index in range(len(sections)):
        sections[index].index = index
        sections[index].is_last = index == len(sections) - 1
        sections[index].runs = active_runs(call, sections[index])
    return sections


def active_runs(call: DecodeCall, section: DecodeSection) -> list:
    """Where the new tokens, the last s_active of curr_sprior, stand in a section."""
    runs: list = []
    first = call.cfg.curr_sprior - call.cfg.s_active
    for chunk in section.chunks:
        begin, end = max(first, chunk.token), min(call.cfg.curr_sprior, chunk.token + chunk.tokens)
        while begin < end:
            place, tile = begin - chunk.token, chunk.tile - section.tile
            down = chunk.width == 1
            count = end - begin if down else min(end - begin, chunk.width - place % chunk.width)
            runs.append(
                TokenRun(place // chunk.width, tile + place % chunk.width, count, down, begin - first)
            )
            begin += count
    return runs


def spot(place: Tensor, run: TokenRun) -> Any:
    """The partitions and tiles of a run of new tokens in [rows, tiles, ...]."""
    return place[run.partition : run.partition + run.partitions, run.tile : run.tile + run.tiles]
