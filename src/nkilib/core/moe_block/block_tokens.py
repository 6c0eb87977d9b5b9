"""The tokens of moe_block_tkg: rows [B, S, H], or H in partitions."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.common_types import MoEBlockIOLayout
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.transposes import rows_from_spread
from nkilib.core.utils.types import Tensor


class BlockTokens(nl.NKIObject):
    """Tokens in HBM, which `rows` loads whatever their layout is.

    _128_Nprgs_Hfree_T is [128, n, J, T]: column 128 J c + J p + j of token t is at [p, c, j, t].
    """

    def __init__(self, inp: Tensor, layout: MoEBlockIOLayout):
        self.inp = inp
        self.by_rows = layout == MoEBlockIOLayout.B_S_H
        self.size = inp.shape[2] if self.by_rows else inp.size // inp.shape[3]
        self.count = inp.size // self.size

    def rows(self, start: int, end: int) -> Tensor:
        """A tile [end - start, H]."""
        if self.by_rows:
            return load(self.inp.reshape((self.count, self.size))[start:end])
        parts, tiles = self.inp.shape[1], self.inp.shape[2]
        spread = nl.ndarray((PMAX, parts, tiles, end - start), self.inp.dtype, buffer=nl.sbuf)
        nisa.dma_copy(spread, self.inp[:, :, :, start:end])
        rows = nl.ndarray((end - start, self.size), self.inp.dtype, buffer=nl.sbuf)
        for c in range(parts):
            rows_from_spread(rows[:, c * PMAX * tiles : (c + 1) * PMAX * tiles], spread[:, c])
        return rows
