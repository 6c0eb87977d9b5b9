"""What attention_cte has to do: units of work, each a tile of queries against a section of keys."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.kernel_helpers import div_ceil
from ..utils.tiled_range import TiledRange

KEY_BLOCK = nl.tile_size.gemm_moving_fmax  # 512 keys: one PSUM bank of scores
SECTION_KEYS = 8192  # keys of one unit: its scores and probabilities lie in SBUF
GROUP_TILES = 8  # query tiles that are loaded and stored together
RESIDENT_BYTES = 64 * 1024  # per partition: keys and values that stay for all queries of a head


class PrefillMask(nl.NKIObject):
    """Which keys a query sees, as far as it is known at trace time; run-time numbers are in HBM."""

    def __init__(
        self, causal, window, query_step, offset, offset_at_most_0, prior_used, bound_min, bound_max
    ):
        self.causal = causal
        self.window = window  # 0: no window
        self.query_step = query_step  # from the position of one query to the next
        self.offset = offset  # position of the first query, None for 0
        self.prior_used = prior_used  # keys of the prior that count, None without a prior
        self.prior_window = 0  # so many: the prior has them all, and those that count come last
        self.bound_min = bound_min
        self.bound_max = bound_max
        self.numbering = None  # of positions, where a rank has some of the keys (attention_whole_numbers.py)
        self.always = None  # so many keys, counted from the first, are seen by every query
        self.can_hide_all = offset is not None or window > 0 or bound_min is not None
        self.skips = causal and (offset is None or offset_at_most_0)  # keys after a query's index are hidden

    def key_range(self, first_row: int, last_row: int, keys: int) -> tuple[int, int]:
        """(begin, end) of the active keys that rows first_row .. last_row - 1 may see; never empty."""
        begin, end = 0, keys
        if self.skips:
            end = min(keys, (last_row - 1) * self.query_step + 1)
            if self.window > 0 and self.offset is None:
                begin = min(max(0, first_row * self.query_step - self.window + 1), end - 1)
        return begin // PMAX * PMAX, end


class PrefillCall(nl.NKIObject):
    """The operands of one call in HBM, its sizes and its options."""

    def __init__(self, q, k, v, k_prior, v_prior, mask, scale, tp_q, tp_k, tp_out, scores_dtype, bias, sink):
        self.q = q
        self.k = k
        self.v = v
        self.k_prior = k_prior
        self.v_prior = v_prior
        self.mask = mask
        self.scale = scale
        self.tp_q = tp_q
        self.tp_k = tp_k
        self.tp_out = tp_out
        self.scores_dtype = scores_dtype
        self.bias = bias
        self.sink = sink
        self.heads = q.shape[0]
        self.heads_per_key_head = q.shape[0] // v.shape[0]
        self.head_dim = v.shape[2]
        self.queries = q.shape[1] if tp_q else q.shape[2]
        self.tiles = div_ceil(self.queries, PMAX)
        self.neg_sinks: Any = None  # [128, heads] in SBUF
        self.out: Any = None
        self.neg_max: Any = None
        self.sums: Any = None
        self.normalize = True
        self.pages = None  # keys and values in the blocks of a paged cache (attention_pages.py)
        self.k_scale = None  # [d, 1] in SBUF: queries are multiplied by it
        self.v_scale = None  # [128, d] in SBUF: results are multiplied by it
        self.max_sign = 1.0  # -1.0: neg_max receives the maxima themselves


class PrefillSection(nl.NKIObject):
    """A run of keys of one head and their values, brought to SBUF when first needed."""

    def __init__(self, k_hbm, v_hbm, start: int, size: int, is_prior: bool):
        self.k_hbm = k_hbm
        self.v_hbm = v_hbm
        self.start = start
        self.size = size
        self.is_prior = is_prior
        self.total = v_hbm.shape[0]  # keys of the head
        self.k: Any = None  # [d, keys]
        self.v: Any = None  # [128, tiles of keys, d + 1], the last column all ones
        self.chunks: Any = None  # of a paged cache
        self.key_head = 0

    def value_tiles(self) -> list:
        """(rows, first column, step) of the keys that stand in the partitions of each tile of v."""
        tiles: list = []
        if self.chunks is None:
            for part in TiledRange(self.size, PMAX):
                tiles.append((part.size, part.start_offset, 1))
            return tiles
        for chunk in self.chunks:
            for token in range(chunk.width):
                tiles.append((chunk.rows, chunk.key - self.start + token, chunk.width))
        return tiles


class Group(nl.NKIObject):
    """Neighbouring query tiles of a head: loaded together, stored together."""

    def __init__(self, call: PrefillCall, head: int, first: int, last: int):
        self.call = call
        self.head = head
        self.first = first
        self.tiles = last - first
        self.start = first * PMAX
        self.rows = min(last * PMAX, call.queries) - first * PMAX
        self.unfinished = last - first
        self.q: Any = None  # [d, rows]
        self.active: Any = None  # the interval of keys each query sees, a pair of [128, tiles]
        self.prior: Any = None
        self.out: Any = None  # [128, tiles, d], or [d, rows] for a transposed result
        self.neg_max: Any = None  # [128, tiles], if the caller wants it
        self.sums: Any = None


class QueryRow(nl.NKIObject):
    """One query tile and its softmax over the sections seen so far."""

    def __init__(self, group: Group, index: int):
        self.group = group
        self.index = index
        self.size = min(PMAX, group.rows - index * PMAX)
        self.units = 0
        self.neg_max: Any = None  # -(the largest scaled score so far)
        self.product: Any = None  # [rows, d + 1]: probabilities times values and, last, their sum


class PrefillUnit(nl.NKIObject):
    """A query tile against keys begin .. end - 1 of a section."""

    tiles: list  # the tiles of keys, once values are needed

    def __init__(self, row: QueryRow, section: PrefillSection, begin: int, end: int):
        self.row = row
        self.section = section
        self.begin = begin
        self.size = end - begin
        self.blocks = TiledRange(end - begin, KEY_BLOCK)
        self.index = row.units  # of its row
        row.units += 1
        self.bias: Any = None
        self.scores: Any = None
        self.maximum: Any = None
        self.neg_max: Any = None
        self.rescale: Any = None  # e^(old max - new max), for what earlier sections left
        self.probabilities: Any = None
        self.product: Any = None


def plan_units(call: PrefillCall) -> list:
    """The units of this core, in the order of execution."""
    units: list = []
    sections: list = []
    key_head = -1
    for run in query_runs(call.heads, call.tiles):
        head, first, last = run
        while last > first:  # late queries, which see most keys, before early ones: the end is then short
            group = Group(call, head, max(first, last - GROUP_TILES), last)
            if head // call.heads_per_key_head != key_head or not fit_together(sections):
                key_head = head // call.heads_per_key_head
                sections = sections_of(call, key_head)
            add_units(units, group, sections)
            last = group.first
    return units


def query_runs(heads: int, tiles: int) -> list:
    """(head, first tile, last tile) of this core: half of the heads, and half of the last odd one.

    Under a causal mask later queries cost more: one core takes the outer quarters, the other the middle.
    """
    n_prgs, prg_id = nl.num_programs(0), nl.program_id(0)
    share = heads // n_prgs
    runs = []
    for head in range(prg_id * share, (prg_id + 1) * share):
        runs.append((head, 0, tiles))
    if heads % n_prgs == 1:
        cuts = (0, div_ceil(tiles, 4), tiles - tiles // 4, tiles)
        for i in range(3):
            if i % 2 == prg_id and cuts[i] < cuts[i + 1]:
                runs.append((heads - 1, cuts[i], cuts[i + 1]))
    return runs


def sections_of(call: PrefillCall, key_head: int) -> list:
    """The keys of a head, those of the prior first; half as many at a time where each takes more room."""
    keys = SECTION_KEYS // 2 if call.q.dtype == nl.float32 or call.bias is not None else SECTION_KEYS
    sections: list = []
    if call.pages is not None:
        return call.pages.sections(key_head, keys)
    if call.k_prior is not None:
        add_sections(sections, call.k_prior[key_head], call.v_prior[key_head], keys, True)
    add_sections(sections, call.k[key_head], call.v[key_head], keys, False)
    return sections


def add_sections(sections: list, k_hbm: Tensor, v_hbm: Tensor, keys: int, is_prior: bool) -> None:
    for part in TiledRange(v_hbm.shape[0], keys):
        sections.append(PrefillSection(k_hbm, v_hbm, part.start_offset, part.size, is_prior))


def fit_together(sections: list) -> bool:
    """True when all sections may stay in SBUF; else each group loads them again."""
    needed = 0
    for section in sections:
        width = 4 if section.v_hbm.dtype == nl.float32 else 2
        needed += width * (section.size + div_ceil(section.size, PMAX) * (section.v_hbm.shape[1] + 1))
    return needed <= RESIDENT_BYTES


def add_units(units: list, group: Group, sections: list) -> None:
    """The units of a group: all its tiles meet a section before the next is needed."""
    rows = []
    for index in range(group.tiles):
        rows.append(QueryRow(group, group.tiles - 1 - index))
    for section in sections:
        for row in rows:
            begin, end = visible_range(row, section)
            if begin < end:
                units.append(PrefillUnit(row, section, begin, end))


def visible_range(row: QueryRow, section: PrefillSection) -> tuple[int, int]:
    """(begin, end) of the keys of a section that a query tile may see; empty if begin >= end."""
    mask, first = row.group.call.mask, row.group.start + row.index * PMAX
    if section.is_prior and mask.prior_window == 0:
        return 0, section.size
    if section.is_prior:
        begin = max(0, mask.prior_window + first - mask.window + 1) // PMAX * PMAX
        return max(begin - section.start, 0), section.size
    begin, end = mask.key_range(first, first + row.size, section.total)
    return max(begin - section.start, 0), min(end - section.start, section.size)
