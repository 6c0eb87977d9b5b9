"""The gated MLP of DeepSeek V3.2 for prefill: packed MX rows in, MXFP8 products, rows out."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import (
    get_nl_act_fn_from_type,
    get_verified_program_sharding_info,
    resolve_dtype_to_nki,
)
from nkilib.core.utils.mx_blocks import block_weights, project_all, project_blocks, slabs, span_columns
from nkilib.core.utils.mx_layout import TILE
from nkilib.core.utils.mx_projection import MxTokens, ones_tile
from nkilib.core.utils.mx_rows import check_mx, quantize_rows_mx, unpack_rows
from nkilib.core.utils.mx_weight_loads import MxWeights, load_scales
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.projection_results import new_rows
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.mla.deepseek.mla_qkv_cte import check_packed
from nkilib.experimental.mla.latents import load_tiles, token_groups
from nkilib.experimental.sparse_attention_indexer.sparse_attention_indexer_mx_bf16score import mx_weights

FLOATS = (nl.bfloat16, nl.float32, nl.float16)


@nki.jit
def mlp_deepseek_mx(
    hidden_tensor: Tensor,
    gate_proj_weights_tensor: Tensor,
    up_proj_weights_tensor: Tensor,
    down_proj_weights_tensor: Tensor,
    gate_w_scale: Tensor,
    up_w_scale: Tensor,
    down_w_scale: Tensor,
    activation_fn: ActFnType = ActFnType.SiLU,
    output_dtype: DTypeLike | None = None,
    routed_expert_output: Tensor | None = None,
    sbm: BufferManager | None = None,
    compact_scales: bool = False,
) -> list:
    """Return [y], y [B, S, H] = (act(x Wg) * (x Wu)) Wd + routed_expert_output, of packed MX rows x.

    Args:
        hidden_tensor: [B, S, H + scale columns] FP8, rows of rmsnorm_mx_prefill; H a multiple of 512.
        gate_proj_weights_tensor, up_proj_weights_tensor: [H / 4, I] words of FP8, I a multiple of 512.
        down_proj_weights_tensor: [I / 4, H] words of FP8.
        gate_w_scale, up_w_scale, down_w_scale: bytes, [K / 32, N] of weights [K, N]; with compact_scales
            [K / 128, ceil(N / 128)].
        activation_fn: SiLU, GELU, GELU_Tanh_Approx or Swish.
        output_dtype: of y; bfloat16 without it.
        routed_expert_output: [B, S, H], added, or None.
        sbm: without effect.
        compact_scales: the weights have a scale for 128 x 128 elements.

    The middle is rounded to bfloat16, then quantised to MXFP8 in blocks of 32. Cores share the tokens. For
    trn3. Read of the page: the signature, that the input is packed rows and weights are MXFP8, and for which
    shapes; the layouts of weights and scales are those of the kernels of latent attention, ours.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, words = np.zeros((1, 2, 640), ml_dtypes.float8_e4m3fn), np.zeros((128, 512), np.uint32)
    >>> scale, routed = np.full((16, 512), 127, np.uint8), np.ones((1, 2, 512), ml_dtypes.bfloat16)
    >>> (y,) = mlp_deepseek_mx(x, words, words, words, scale, scale, scale, routed_expert_output=routed)
    >>> y.shape, float(y[0, 0, 0])
    ((1, 2, 512), 1.0)
    """
    get_verified_program_sharding_info("mlp_deepseek_mx", (0, 1), 2)
    check_mx("mlp_deepseek_mx")
    weights = (gate_proj_weights_tensor, up_proj_weights_tensor, down_proj_weights_tensor)
    scales = (gate_w_scale, up_w_scale, down_w_scale)
    layer = MxLayer(hidden_tensor, weights, scales, activation_fn, compact_scales)
    dtype = nl.bfloat16 if output_dtype is None else resolve_dtype_to_nki(output_dtype)
    kernel_assert(dtype in FLOATS, f"output_dtype: got {dtype}, allowed are bfloat16, float32 and float16")
    batch, length = hidden_tensor.shape[0], hidden_tensor.shape[1]
    tokens, shape = batch * length, (batch, length, layer.size)
    routed = None
    if routed_expert_output is not None:
        assert_shape(routed_expert_output, shape, "routed_expert_output")
        routed = routed_expert_output.reshape((tokens, layer.size))
    out = nl.ndarray((tokens, layer.size), dtype, buffer=nl.shared_hbm)
    packed = hidden_tensor.reshape((tokens, hidden_tensor.shape[2]))
    for group in token_groups(tokens):
        start, count = group
        x = unpack_rows(load_tiles(packed, start, count), layer.size, layer.ones)
        middle = quantize_rows_mx(layer.middle(x, count), layer.ones)
        rows = project_all(middle, count, layer.down, nl.float32 if routed is not None else dtype)
        for i in range(len(rows)):
            first, last = start + i * PMAX, start + i * PMAX + rows[i].shape[0]
            result = rows[i]
            if routed is not None:
                result = like(rows[i], dtype)
                nisa.tensor_tensor(result, rows[i], load(routed[first:last]), nl.add)
            nisa.dma_copy(out[first:last], result)
    return [out.reshape(shape)]


class MxLayer(nl.NKIObject):
    """The weights of one call."""

    def __init__(self, x: Tensor, weights: tuple, scales: tuple, activation: ActFnType, compact: bool):
        names = ("gate", "up", "down")
        assert_tensors((("hidden_tensor", x),))
        self.size = check_packed(x, "hidden_tensor")[2]
        named: list = []
        for i in range(3):
            words, scale = f"{names[i]}_proj_weights_tensor", f"{names[i]}_w_scale"
            assert_tensors(((words, weights[i]), (scale, scales[i])))
            named.append((words, scale))
        kernel_assert(
            len(weights[0].shape) == 2 and weights[0].shape[1] % TILE == 0,
            f"gate_proj_weights_tensor: got shape {tuple(weights[0].shape)}, expected ({self.size // 4}, I), "
            f"I a multiple of {TILE}",
        )
        inner = weights[0].shape[1]
        sizes = ((self.size, inner), (self.size, inner), (inner, self.size))
        found: list = []
        for i in range(3):
            found.append(operand(named[i], weights[i], scales[i], sizes[i], compact))
        self.gate = found[0]
        self.up = found[1]
        self.down = found[2]
        self.inner = inner
        self.activation = get_nl_act_fn_from_type(activation)
        self.ones = ones_tile(BANK_COLUMNS)

    def middle(self, x: MxTokens, count: int) -> list:
        """act(x Wg) * (x Wu), rows in bfloat16, by tiles of 128 tokens."""
        rows = new_rows(count, self.inner, nl.bfloat16)
        for slab in slabs(self.gate, self.inner, BANK_COLUMNS):
            scales = []
            for weights in (self.gate, self.up):
                scales.append(load_scales(weights, slab.start_offset, slab.size, None))
            for span in TiledRange(slab, span_columns(count)):
                first, gates = span.start_offset, []
                for block in project_blocks(x, count, self.gate, first, span.size, scales[0]):
                    gate = like(block.sums)
                    nisa.activation(gate, self.activation, block.sums)
                    gates.append(gate)
                blocks = project_blocks(x, count, self.up, first, span.size, scales[1])
                for i in range(len(blocks)):
                    at = first + blocks[i].column
                    place = rows[blocks[i].token // PMAX][:, at : at + blocks[i].columns]
                    nisa.tensor_tensor(place, gates[i], blocks[i].sums, nl.multiply)
        return rows


def operand(names: tuple, words: Tensor, scales: Tensor, size: tuple, compact: bool) -> MxWeights:
    """Weights [K / 4, N] by tiles, with their scales in either layout."""
    if compact:
        return block_weights(names[0], words, scales, size[0], size[1], names[0], names[1])
    return mx_weights(names[0], words, scales, size[0], size[1], names[1])


def mlp_deepseek_mx_ref(
    x: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
    activation: Any,
    routed: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return y in float64 of plain x [B, S, H] and matrices [K, N]; nothing is quantised."""
    x = np.asarray(x, np.float64)
    return (activation(x @ gate) * (x @ up)) @ down + np.asarray(routed, np.float64)
