"""Transformer layers decoded in one kernel: hidden states stay in SBUF from the first to the last."""

from __future__ import annotations

from collections.abc import Sequence

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.decode import swap
from nkilib.core.mlp.mlp import mlp
from nkilib.core.qkv.qkv_tokens import by_parts, spread
from nkilib.core.utils.common_types import ActFnType, ComputationMode, DtypeMode, NormType, QuantizationType
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups
from nkilib.experimental.transformer.attention_block_parameters import (
    AttentionBlock,
    BlockCaches,
    BlockInput,
    BlockInputNorm,
    BlockMasks,
    BlockOutput,
    RotaryTables,
)
from nkilib.experimental.transformer.attention_block_run import run_block
from nkilib.experimental.transformer.transformer_ref import transformer_tkg_ref

__all__ = ["transformer_tkg", "transformer_tkg_ref"]

LISTS = (  # arguments that have a tensor for each layer
    "W_qkvs",
    "W_outs",
    "W_gates",
    "W_ups",
    "W_downs",
    "W_gamma_qkvs",
    "W_gamma_mlps",
    "K_caches",
    "V_caches",
)
SCALES = ("W_gate_scales", "W_up_scales", "W_down_scales")  # of W_gates, W_ups, W_downs


@nki.jit
def transformer_tkg(
    X: Tensor,
    W_qkvs: Sequence[Tensor],
    W_outs: Sequence[Tensor],
    W_gates: Sequence[Tensor],
    W_ups: Sequence[Tensor],
    W_downs: Sequence[Tensor],
    W_gamma_qkvs: Sequence[Tensor],
    W_gamma_mlps: Sequence[Tensor],
    K_caches: Sequence[Tensor],
    V_caches: Sequence[Tensor],
    RoPE_cos: Tensor,
    RoPE_sin: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    num_layers: int = 0,
    eps: float = 1e-6,
    replica_groups: ReplicaGroups | None = None,
    sbuf_residual_and_cc: bool = False,
    clamp_bound: float = 0.0,
    W_gate_scales: Sequence[Tensor | None] | None = None,
    W_up_scales: Sequence[Tensor | None] | None = None,
    W_down_scales: Sequence[Tensor | None] | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    mask_cache: Tensor | None = None,
    mask_active: Tensor | None = None,
) -> Tensor:
    """num_layers layers of a transformer for the new tokens X [B, S, H]. Returns hidden states [B, S, H].

        x = x + attention_block(x)      # RMSNorm, QKV, RoPE, attention over the cache, output projection
        x = x + mlp(x)                  # RMSNorm, (silu(x Wg) * (x Wu)) Wd

    Lists of at least num_layers tensors: W_qkv [H, (N + 2) d], W_out [N d, H], W_gate and W_up [H, I],
    W_down [I, H], gammas [1, H], key caches [B, 1, d, Smax], value caches [B, 1, Smax, d]. For all layers:
    cos and sin [d / 2, B, S] of pairs (i, i + d / 2), attention_mask [S_ctx, B, N, S] of 0 and 1 whose last S
    keys are the new tokens, position_ids [B, 1]: their slots in the caches, which are updated in place; None
    writes nothing. The mask hides those slots, as two cores write while they read. The softmax scale is
    1 / sqrt(d). Every sum is rounded to the dtype of X.

    FP8 weights of an MLP have scales, [128, I], [128, I] and [128, H], one for each column. W_gate_scales,
    W_up_scales and W_down_scales are lists with an entry for each layer, None where its weights are not FP8
    (an entry there has no effect, and a warning says so); clamp_bound is `mlp`'s quant_clipping_bound of the
    others.

    Ranks of a group of replica_groups have different heads (W_qkv, W_out, caches) and different columns I
    (W_gate, W_up, W_down): what they add to x is summed over the group, in the dtype of X, from SBUF to SBUF.
    None or groups of one: nothing to sum. sbuf_residual_and_cc has no effect, as hidden states and sums stay
    in SBUF anyway. mask_cache is the former name of attention_mask; mask_active, which came with it, has no
    effect, as mask_cache already has its keys.

    >>> import numpy as np
    >>> shapes = [(128, 6 * 32), (128, 128), (128, 64), (128, 64), (64, 128), (1, 128), (1, 128)]
    >>> weights = [[np.full(shape, 0.01, np.float16)] for shape in shapes]
    >>> caches = [[np.zeros((2, 1, *shape), np.float16)] for shape in ((32, 128), (128, 32))]
    >>> cos, sin = np.ones((16, 2, 1), np.float16), np.zeros((16, 2, 1), np.float16)
    >>> x, mask = np.ones((2, 1, 128), np.float16), np.ones((128, 2, 4, 1), np.uint8)
    >>> at = np.array([[5], [9]], np.int32)
    >>> mask[5, 0] = mask[9, 1] = 0
    >>> y = transformer_tkg(x, *weights, *caches, cos, sin, mask, at, num_layers=1)
    >>> y.shape, bool(caches[1][0][1, 0, 9].any()), bool(caches[1][0][1, 0, 10].any())
    ((2, 1, 128), True, False)
    """
    refuse_without_effect(attention_mask is None, "attention_mask=None", (("mask_cache", mask_cache),))
    refuse_without_effect(mask_cache is not None, "mask_cache", (("mask_active", mask_active),))
    mask = mask_cache if attention_mask is None else attention_mask
    weights = (W_gates, W_ups, W_downs)
    scales = (W_gate_scales, W_up_scales, W_down_scales)
    assert_tensors(
        (("X", X), ("RoPE_cos", RoPE_cos), ("RoPE_sin", RoPE_sin), ("attention_mask", mask)),
        (("position_ids", position_ids),),
    )
    kernel_assert(
        len(X.shape) == 3 and X.shape[2] % PMAX == 0,
        f"X: got shape {tuple(X.shape)}, expected [B, S, H] with H a multiple of {PMAX}",
    )
    check_lists(
        num_layers, (W_qkvs, W_outs, W_gates, W_ups, W_downs, W_gamma_qkvs, W_gamma_mlps, K_caches, V_caches)
    )
    check_scales(num_layers, scales, clamp_bound)
    for layer in range(num_layers):
        check_attention(layer, X.shape[2], W_qkvs[layer], W_outs[layer], K_caches[layer], V_caches[layer])
        check_mlp(layer, X.shape[2], weights, scales)
        for gamma in (("W_gamma_qkvs", W_gamma_qkvs[layer]), ("W_gamma_mlps", W_gamma_mlps[layer])):
            assert_shape(gamma[1], (1, X.shape[2]), f"{gamma[0]}[{layer}]")
    check_tables(X, RoPE_cos, RoPE_sin, V_caches[0], position_ids)
    sharding = get_verified_program_sharding_info("transformer_tkg", (0, 1), 2)
    n_prgs, core = sharding[1], sharding[2]
    kernel_assert(
        X.shape[2] % (PMAX * n_prgs) == 0,
        f"X: got H = {X.shape[2]}, {n_prgs} cores take multiples of {PMAX * n_prgs}",
    )
    x = loaded(X, n_prgs)
    updates: list = []  # of the caches
    for layer in range(num_layers):
        a = attended(
            x,
            (W_qkvs[layer], W_outs[layer], W_gamma_qkvs[layer]),
            (K_caches[layer], V_caches[layer], mask, position_ids),
            RotaryTables(RoPE_cos, RoPE_sin),
            eps,
            dtype_mode,
            updates,
        )
        a = summed(a, replica_groups)
        x = plus(x, a if n_prgs == 1 else both_halves(a, core))
        quantized = W_gates[layer].dtype in FP8
        m = mlp(
            x,
            W_gates[layer],
            W_ups[layer],
            W_downs[layer],
            normalization_weights_tensor=W_gamma_mlps[layer],
            normalization_type=NormType.RMS_NORM,
            activation_fn=ActFnType.SiLU,
            quantization_type=QuantizationType.ROW if quantized else QuantizationType.NONE,
            gate_w_scale=scale_of(W_gate_scales, layer) if quantized else None,
            up_w_scale=scale_of(W_up_scales, layer) if quantized else None,
            down_w_scale=scale_of(W_down_scales, layer) if quantized else None,
            quant_clipping_bound=clamp_bound if quantized else 0.0,
            store_output_in_sbuf=True,
            use_tkg_down_proj_column_tiling=False,
            eps=eps,
            mode=ComputationMode.DECODE,
            dtype_mode=dtype_mode,
        )
        x = plus(x, summed(m[0], replica_groups))
        if len(updates) > 0:
            updates[layer].write()
    out = nl.ndarray(X.shape, X.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(spread(rows_of(out), n_prgs)[:, :, core], by_parts(x, n_prgs)[:, :, core])
    return out


def scale_of(scales: Sequence[Tensor | None] | None, layer: int) -> Tensor | None:
    """Return the scale of a layer's weight, None if it is not quantised."""
    return None if scales is None else scales[layer]


# ---- checks --------------------------------------------------------------------------------------


def check_lists(num_layers: int, lists: tuple) -> None:
    kernel_assert(num_layers > 0, f"num_layers: got {num_layers}, allowed are positive numbers")
    for i in range(len(LISTS)):
        kernel_assert(
            isinstance(lists[i], (list, tuple)),
            f"{LISTS[i]}: got one value, expected a list of num_layers = {num_layers} tensors",
        )
        got = len(lists[i])
        kernel_assert(got >= num_layers, f"{LISTS[i]}: got {got} tensors, expected num_layers = {num_layers}")
        for layer in range(num_layers):
            assert_tensors(((f"{LISTS[i]}[{layer}]", lists[i][layer]),))


def check_scales(num_layers: int, scales: tuple, clamp_bound: float) -> None:
    """Each list has an entry for every layer, and the layers that have scales are the same in all."""
    quantized = False
    for i in range(len(SCALES)):
        given = scales[i] is None or len(scales[i]) >= num_layers
        kernel_assert(given, f"{SCALES[i]}: got fewer than num_layers = {num_layers} entries")
        for layer in range(num_layers):
            own = scale_of(scales[i], layer) is not None
            quantized = quantized or own
            kernel_assert(
                own == (scale_of(scales[0], layer) is not None),
                f"{SCALES[i]}[{layer}]: expected all three scales of a layer or none of them",
            )
    kernel_assert(
        quantized or clamp_bound == 0,
        f"clamp_bound: got {clamp_bound}, a value without effect, allowed only with scales",
    )


def check_attention(
    layer: int, hidden: int, w_qkv: Tensor, w_out: Tensor, k_cache: Tensor, v_cache: Tensor
) -> None:
    """The weights and caches of the attention of one layer, by their own names."""
    shape = tuple(k_cache.shape)
    kernel_assert(len(shape) == 4, f"K_caches[{layer}]: got shape {shape}, expected (B, 1, d, Smax)")
    depth = shape[2]
    assert_shape(v_cache, (shape[0], 1, shape[3], depth), f"V_caches[{layer}]")
    assert_shape(w_qkv, (hidden, w_qkv.shape[-1] // depth * depth), f"W_qkvs[{layer}]")
    assert_shape(w_out, (w_qkv.shape[-1] - 2 * depth, hidden), f"W_outs[{layer}]")


def check_mlp(layer: int, hidden: int, weights: tuple, scales: tuple) -> None:
    """The weights of the MLP of one layer, by their own names."""
    columns = weights[0][layer].shape[-1]
    for i in range(len(SCALES)):
        weight, scale, name = weights[i][layer], scale_of(scales[i], layer), LISTS[2 + i]
        inner = (hidden, columns) if i < 2 else (columns, hidden)
        assert_shape(weight, inner, f"{name}[{layer}]")
        if scale is None:
            kernel_assert(
                weight.dtype not in FP8, f"{SCALES[i]}[{layer}]: got None, needed by {weight.dtype} weights"
            )
            continue
        assert_tensors(((f"{SCALES[i]}[{layer}]", scale),))
        assert_shape(scale, (PMAX, inner[1]), f"{SCALES[i]}[{layer}]")
        kernel_assert(
            (weight.dtype in FP8) == (weights[0][layer].dtype in FP8),
            f"{name}[{layer}]: got {weight.dtype}, expected FP8 weights of a layer together or not at all",
        )
        # published callers pass scales of all layers, though the weights of some are not FP8
        warn_without_effect(weight.dtype in FP8, "FP8 weights", ((f"{SCALES[i]}[{layer}]", scale),))


def check_tables(x: Tensor, cos: Tensor, sin: Tensor, v_cache: Tensor, position_ids: Tensor | None) -> None:
    shape = (v_cache.shape[-1] // 2, x.shape[0], x.shape[1])
    assert_shape(cos, shape, "RoPE_cos")
    assert_shape(sin, shape, "RoPE_sin")
    if position_ids is not None:
        kernel_assert(
            position_ids.size == x.shape[0],
            f"position_ids: got shape {tuple(position_ids.shape)}, expected ({x.shape[0]}, 1)",
        )


# ---- hidden states, [128, tokens, H / 128] in SBUF -----------------------------------------------


def rows_of(hidden: Tensor) -> Tensor:
    return hidden.reshape((hidden.shape[0] * hidden.shape[1], hidden.shape[2]))


def loaded(hidden: Tensor, n_prgs: int) -> Tensor:
    """Load [B, S, H] as [128, B S, H / 128]: neighbours share a partition, by halves of H on two cores."""
    rows = rows_of(hidden)
    tile = nl.ndarray((PMAX, rows.shape[0], rows.shape[1] // PMAX), rows.dtype, buffer=nl.sbuf)
    nisa.dma_copy(by_parts(tile, n_prgs), spread(rows, n_prgs), dge_mode=hardware_queue())
    return tile


def plus(x: Tensor, update: Tensor) -> Tensor:
    """Return x + update in the dtype of x; the update is [128, H / 128, tokens]."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(out, x, update.permute((0, 2, 1)), op=nl.add)
    return out


def summed(update: Tensor, replica_groups: ReplicaGroups | None) -> Tensor:
    """Return the sum of the ranks' updates of x, [128, columns, tokens], from SBUF to SBUF."""
    if replica_groups is None or len(replica_groups[0]) == 1:
        return update
    flat = (PMAX, update.shape[1] * update.shape[2])
    total = nl.ndarray(update.shape, update.dtype, buffer=nl.sbuf)
    ncc.all_reduce([update.reshape(flat)], [total.reshape(flat)], replica_groups, nl.add)
    return total


def both_halves(own: Tensor, core: int) -> Tensor:
    """Return the columns of both cores, [128, H / 128, tokens], from this core's half."""
    width, tokens = own.shape[1], own.shape[2]
    out = nl.ndarray((PMAX, 2 * width, tokens), own.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(out[:, core * width : (core + 1) * width, :], own)
    nisa.tensor_copy(out[:, (1 - core) * width : (2 - core) * width, :], swap(own, core, 0))
    return out


def attended(
    x: Tensor,
    weights: tuple,
    cached: tuple,
    rotary: RotaryTables,
    eps: float,
    dtype_mode: DtypeMode,
    updates: list,
) -> Tensor:
    """Return the attention block's update of x, this core's columns as [128, H / 128 / cores, tokens]."""
    w_qkv, w_out, gamma = weights
    keys, values, mask, position_ids = cached
    tokens = BlockInput(x, w_qkv, norm=BlockInputNorm(True, eps, gamma))
    caches = BlockCaches(keys, values, True, update=position_ids is not None, index=position_ids)
    output = BlockOutput(w_out, transposed=True, in_sbuf=True)
    block = AttentionBlock(tokens, caches, BlockMasks(mask), output, rotary, dtype_mode=dtype_mode)
    result = run_block(block)
    if result[3] is not None:
        updates.append(result[3])
    return result[0]
