"""The operands of the router in SBUF: tokens, weights and bias, and the sizes of a call."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.router_topk.router_checks import (
    XHBMLayout_H_T__0,
    XSBLayout__128_Hdiv128_T__3,
    XSBLayout_tp2013__1,
)
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.core.utils.kernel_helpers import get_program_sharding_info, is_hbm_buffer
from nkilib.core.utils.projection import bytes_of
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

BLOCK_BYTES = 64 * 1024  # of tokens per partition that are loaded together
CHUNK_BYTES = 8 * 1024  # per partition of one transfer: matmuls start before a block is complete


# ---- arguments -----------------------------------------------------------------------------------


class Router(nl.NKIObject):
    """One call: sizes, the rule that makes affinities of logits, and where results go."""

    def __init__(self, x, w, act_fn, k, x_hbm_layout, x_sb_layout):
        self.x_in_sbuf = not is_hbm_buffer(x)
        self.x_hbm_layout = x_hbm_layout
        self.x_sb_layout = x_sb_layout
        self.hidden = w.shape[0]
        self.experts = w.shape[1]
        self.k = k
        self.softmax = act_fn == RouterActFnType.SOFTMAX
        self.act_fn = act_fn
        self.tokens = tokens_of(x, self.x_in_sbuf, x_hbm_layout, x_sb_layout)
        per_token = self.hidden // PMAX * bytes_of(x)
        self.block_tokens = max(1, BLOCK_BYTES // (per_token * PMAX)) * PMAX
        self.sparse = False  # affinities of other experts than the top k are 0
        self.divide_by_all = False
        self.divide_by_top = False
        self.column_tiling = False
        self.scatter = False
        self.noaux = None  # the rule of NOAUX_TC
        self.normalize_top = False
        self.logits = None
        self.index = None
        self.affinities: Any = None
        self.top_affinities = None

    def set_rule(self, pre_norm: bool, norm_topk_prob: bool) -> None:
        """softmax over the top k is softmax over all, restricted to them and divided by their sum."""
        self.normalize_top = norm_topk_prob
        self.sparse = norm_topk_prob or not pre_norm
        self.divide_by_all = self.softmax and not self.sparse
        self.divide_by_top = norm_topk_prob or (self.softmax and self.sparse)


def tokens_of(x: Tensor, in_sbuf: bool, hbm_layout: int, sb_layout: int) -> int:
    if in_sbuf:
        return x.shape[2] if sb_layout == XSBLayout__128_Hdiv128_T__3 else x.shape[1]
    return x.shape[1] if hbm_layout == XHBMLayout_H_T__0 else x.shape[0]


# ---- operands ------------------------------------------------------------------------------------


class Bias(nl.NKIObject):
    """w_bias in SBUF: in every partition, or one row that a matmul brings to all of them."""

    def __init__(self, w_bias: Tensor | None, by_matmul: bool):
        self.rows = None  # [128, E], float32
        self.row = None  # [1, E]
        self.ones: Any = None  # [1, 128]
        if w_bias is not None:
            experts = w_bias.size
            if by_matmul:
                self.row = nl.ndarray((1, experts), w_bias.dtype, buffer=nl.sbuf)
                nisa.dma_copy(self.row, w_bias.reshape((1, experts)))
                self.ones = nl.ndarray((1, PMAX), w_bias.dtype, buffer=nl.sbuf)
                nisa.memset(self.ones, 1.0)
            else:
                self.rows = nl.ndarray((PMAX, experts), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(self.rows, w_bias.reshape((1, experts)).ap([[0, PMAX], [1, experts]]))


def token_share(tokens: int, shard_on_tokens: bool) -> tuple[int, int]:
    """(first, last) of the tokens this core routes."""
    if not shard_on_tokens:
        return 0, tokens
    n_prgs, prg_id = get_program_sharding_info()[1:]
    return prg_id * tokens // n_prgs, (prg_id + 1) * tokens // n_prgs


def hidden_parts(hidden: int, sb_layout: int) -> tuple:
    """The runs of H that are spread over the partitions each on its own: halves for layout 1."""
    return TiledRange(hidden, hidden // 2 if sb_layout == XSBLayout_tp2013__1 else hidden)


def load_columns(x: Tensor, hbm_layout: int, start: int, count: int) -> Tensor:
    """Tokens start .. start + count - 1 in SBUF, [128, H/128, count]."""
    steps = x.shape[hbm_layout] // PMAX
    chunk = max(1, CHUNK_BYTES // (count * bytes_of(x)))
    tile = nl.ndarray((PMAX, steps, count), x.dtype, buffer=nl.sbuf)
    if hbm_layout == XHBMLayout_H_T__0:
        rows = x[:, start : start + count].reshape_dim(0, (steps, PMAX))
        copy_in_chunks(tile, rows.permute((1, 0, 2)), chunk)
    else:
        rows = x[start : start + count].reshape_dim(1, (steps, PMAX))
        for part in TiledRange(steps, chunk):
            columns = rows[:, part.start_offset : part.end_offset, :]
            nisa.dma_transpose(tile[:, part.start_offset : part.end_offset, :], columns)
    return tile


def copy_in_chunks(tile: Tensor, source: Tensor, chunk: int) -> None:
    """[128, n, ...] in several transfers: matmuls start before the last has come."""
    for part in TiledRange(tile.shape[1], chunk):
        nisa.dma_copy(
            tile[:, part.start_offset : part.end_offset], source[:, part.start_offset : part.end_offset]
        )


def token_slice(tokens: Tensor, sb_layout: int, start: int, count: int) -> Any:
    """[128, H/128, count] of a tile of tokens."""
    if sb_layout == XSBLayout__128_Hdiv128_T__3:
        return tokens[:, :, start : start + count]
    return tokens[:, start : start + count, :].permute((0, 2, 1))
