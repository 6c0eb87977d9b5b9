"""From attention over latents to hidden states: values of each head, then the output projection, in MX."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info, interleave_copy
from nkilib.core.utils.mx_blocks import block_weights, project_all
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_projection import MxTokens, ones_tile, token_scales
from nkilib.core.utils.mx_rows import check_mx, new_operand, quantize_into, rows_to_columns
from nkilib.core.utils.mx_weight_loads import MxWeights, load_scales, load_words
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.projection_results import store_rows
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import Tensor
from nkilib.experimental.mla.latents import token_groups

LATENT = TILE  # elements of a head's attention
HEADS_TOGETHER = 16  # whose attention and weights are in SBUF at a time


@nki.jit
def mla_vupmx_oproj_cte_kernel(
    out_attn_hbm: Tensor,
    wuv_qtz_hbm: Tensor,
    wuv_scale_hbm: Tensor,
    wo_qtz_hbm: Tensor,
    wo_scale_hbm: Tensor,
) -> Tensor:
    """Return bfloat16 [1, S, HID]: the attention of each head times its Wuv, all heads times Wo.

    out_attn is bfloat16 [1, S, H 512], H a multiple of 4, as mla_sparse_attention_cte_kernel writes it:
    latent l = 4 g + q of a head is in its column 128 q + g. Weights are four-packed FP8 with scales for 128 x
    128 elements: wuv [H 512 / 4, 128], row 128 h + g of lanes q = 0 ... 3; wo [H 128 / 4, HID], row r of
    elements 4 r ... 4 r + 3. Attention and the values, in bfloat16, are quantised to MXFP8 in blocks of 32
    neighbours. Cores share the tokens; S need not be a multiple of them.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> attention = np.ones((1, 3, 4 * 512), ml_dtypes.bfloat16)
    >>> wuv = np.zeros((512, 128), np.uint32), np.zeros((16, 1), np.uint8)
    >>> wo = np.zeros((128, 640), np.uint32), np.zeros((4, 5), np.uint8)
    >>> mla_vupmx_oproj_cte_kernel(attention, *wuv, *wo).shape
    (1, 3, 640)
    """
    get_verified_program_sharding_info("mla_vupmx_oproj_cte_kernel", (0, 1), 2)
    check_mx("mla_vupmx_oproj_cte_kernel")
    heads = check_attention(out_attn_hbm, wuv_qtz_hbm, wo_qtz_hbm)
    tokens, columns = out_attn_hbm.shape[1], wo_qtz_hbm.shape[1]
    up = block_weights("wuv", wuv_qtz_hbm, wuv_scale_hbm, heads * LATENT, PMAX, "wuv_qtz_hbm")
    down = block_weights("wo", wo_qtz_hbm, wo_scale_hbm, heads * PMAX, columns, "wo_qtz_hbm")
    out = nl.ndarray((tokens, columns), nl.bfloat16, buffer=nl.shared_hbm)
    attention = out_attn_hbm.reshape((tokens, heads * LATENT))
    ones = ones_tile(BANK_COLUMNS)
    for group in token_groups(tokens):
        start, count = group
        values = new_operand(heads * PMAX, count + count % 2, ones)
        for some in TiledRange(heads, HEADS_TOGETHER):
            raise_values(values, attention, up, start, count, some)
        rows = project_all(values, count, down, nl.bfloat16)
        store_rows(out, rows, 0, start, 0, columns)
    return out.reshape((1, tokens, columns))


def check_attention(attention: Tensor, wuv: Tensor, wo: Tensor) -> int:
    """Return the number of heads."""
    assert_tensors((("out_attn_hbm", attention), ("wuv_qtz_hbm", wuv), ("wo_qtz_hbm", wo)))
    shape = tuple(attention.shape)
    kernel_assert(
        len(shape) == 3 and shape[0] == 1 and shape[2] % (LANES * LATENT) == 0,
        f"out_attn_hbm: got shape {shape}, expected (1, S, 512 H) with H a multiple of 4",
    )
    kernel_assert(
        attention.dtype == nl.bfloat16, f"out_attn_hbm: got dtype {attention.dtype}, expected bfloat16"
    )
    kernel_assert(len(wo.shape) == 2, f"wo_qtz_hbm: got shape {tuple(wo.shape)}, expected (H 128 / 4, HID)")
    return shape[2] // LATENT


def raise_values(
    values: MxTokens, attention: Tensor, weights: MxWeights, start: int, count: int, heads: TiledRangeIterator
) -> None:
    """Values of some heads as tiles of the operand of the output projection, four heads each."""
    up = MxWeights(
        weights.words[:, heads.start_offset : heads.end_offset, :],
        weights.scales[heads.start_offset : heads.end_offset],
        compact=True,
    )
    words, scales = load_words(up, 0, heads.size, 0, PMAX, None), load_scales(up, 0, PMAX, None)
    for part in TiledRange(count, PMAX):
        even = part.size + part.size % 2
        token = start + part.start_offset
        source = attention[token : token + part.size, heads.start_offset * LATENT : heads.end_offset * LATENT]
        columns = nl.ndarray((PMAX, LANES * heads.size, even), nl.bfloat16, buffer=nl.sbuf)
        if even > part.size:
            nisa.memset(columns[:, :, part.size : even], 0.0)
        by_lane = source.reshape_dim(1, (LANES * heads.size, PMAX))
        nisa.dma_transpose(columns[:, :, 0 : part.size], by_lane)
        x = new_operand(heads.size * LATENT, even, values.ones)
        quantize_into(x, 0, 0, columns)
        rows = nl.ndarray((part.size, heads.size * PMAX), nl.bfloat16, buffer=nl.sbuf)
        for bank in TiledRange(heads.size, BANK_COLUMNS // PMAX):
            sums = nl.ndarray((even, bank.size, PMAX), nl.float32, buffer=nl.psum)
            for i in range(bank.size):
                head = bank.start_offset + i
                nisa.nc_matmul_mx(
                    sums[:, i, :],
                    x.words[:, head, :],
                    words[:, head, :],
                    token_scales(x, head, 0, even),
                    scales.of(head, 0, PMAX),
                )
            place = rows[:, bank.start_offset * PMAX : bank.end_offset * PMAX]
            interleave_copy(place.reshape_dim(1, (bank.size, PMAX)), sums[0 : part.size], bank.index)
        quantize_into(values, heads.start_offset // LANES, part.start_offset, rows_to_columns(rows, even))


def mla_vupmx_oproj_cte_ref(attention: np.ndarray, wuv: np.ndarray, wo: np.ndarray) -> np.ndarray:
    """Return [1, S, HID] in float64 of plain Wuv [H 512, 128] and Wo [H 128, HID]; nothing is quantised."""
    heads = wuv.shape[0] // LATENT
    x = np.asarray(attention, np.float64).reshape(1, -1, heads, LANES, PMAX).swapaxes(3, 4)
    values = np.einsum("bshl,hld->bshd", x.reshape(1, -1, heads, LATENT), wuv.reshape(heads, LATENT, PMAX))
    return values.reshape(1, -1, heads * PMAX) @ wo
