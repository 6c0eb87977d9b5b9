"""Forward pass of the gated MLP in MXFP8, with the checkpoints that a backward pass wants."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MatmulMxfp8KernelConfig, check_config
from nkilib.experimental.mlp_mxfp8.gate_up import GateUpCheckpoints, check_checkpoint, gate_up_rows
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import WIDE, describe, packed_dtype, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import Stored, multiply
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share


@nki.jit
def mlp_forward_mxfp8_nki(
    hidden: Tensor,
    gate_up_weights: Tensor,
    down_weights: Tensor,
    intermediate_hbm: Tensor,
    run_with_lnc2: bool = True,
    gate_up_tiles_m: int = 8,
    gate_up_tiles_n: int = 1,
    gate_up_tiles_k: int = 8,
    down_tiles_m: int = 8,
    down_tiles_n: int = 1,
    down_tiles_k: int = 8,
    fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    save_gate_pre: Tensor | None = None,
    save_gate_act: Tensor | None = None,
    save_up: Tensor | None = None,
    save_hidden: Tensor | None = None,
    dtype: DTypeLike = nl.bfloat16,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    hidden_scales: Tensor | None = None,
    gate_up_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
    hidden_is_swizzled: bool = False,
    gate_up_is_swizzled: bool = False,
    down_is_swizzled: bool = False,
) -> Tensor:
    """y = mx(silu(g) * u) mx(Wd)^T with g = mx(x) mx(Wg)^T, u = mx(x) mx(Wu)^T: MXFP8 products, float32 sums.

    mx() quantises to fp8_x4_dtype in blocks of 32 along the contraction, wrapX layout. m = silu(g) * u is
    rounded to the dtype of intermediate_hbm, which must be 16 bits wide, before the last product.

    Args:
        hidden: x [S, H]. gate_up_weights: [2I, H], first I rows Wg, then Wu. down_weights: Wd [H, I].
            Each bfloat16, or swizzled [K/4, 4F] (*_is_swizzled), or with *_scales as
            quantize_block_mxfp8_kernel gives them, packed or not.
        intermediate_hbm: [S, I], receives m.
        save_gate_pre, save_gate_act, save_up, save_hidden: [S, I], receive g, silu(g), u and m.
        dtype: of the result.
        run_with_lnc2: on a grid of two cores, share the rows.
        fp8_x4_dtype: float8_e4m3fn_x4 or float8_e5m2_x4.
        *_tiles_*, spill_reload, use_scale_packing: hints for the schedule, which this kernel chooses itself.

    H and I are multiples of 128 (best 512), S of 8. Returns [S, H].

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, m = np.ones((8, 128), ml_dtypes.bfloat16), np.zeros((8, 128), ml_dtypes.bfloat16)
    >>> gate_up, down = np.full((256, 128), 1 / 32, x.dtype), np.full((128, 128), 1 / 64, x.dtype)
    >>> mlp_forward_mxfp8_nki(x, gate_up, down, m)[0, 0], m[0, 0]  # silu(4) * 4 = 15.7
    (32, 15.6875)
    """
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    hidden_td = TensorDescriptor(hidden, hidden_scales, True, hidden_is_swizzled, False, fp8)
    gate_up_td = TensorDescriptor(gate_up_weights, gate_up_scales, True, gate_up_is_swizzled, False, fp8)
    down_td = TensorDescriptor(down_weights, down_scales, True, down_is_swizzled, False, fp8)
    x = describe("hidden", hidden_td, fp8)
    out = nl.ndarray((x.features, x.contraction), dtype, buffer=nl.shared_hbm)
    start, end = core_share(x.features, 8, run_with_lnc2)
    check_checkpoint("save_hidden", save_hidden, intermediate_hbm.shape[0], intermediate_hbm.shape[1])
    fused_rows(
        hidden_td,
        gate_up_td,
        down_td,
        intermediate_hbm,
        out[start:end] if end > start else None,
        start,
        end - start,
        GateUpCheckpoints(
            save_gate_pre, save_gate_act, save_up, [] if save_hidden is None else [save_hidden]
        ),
        MatmulMxfp8KernelConfig(gate_up_tiles_m, gate_up_tiles_n, gate_up_tiles_k),
        MatmulMxfp8KernelConfig(down_tiles_m, down_tiles_n, down_tiles_k),
    )
    return out


def compute_fused_gate_up_down_mxfp8(
    hidden_td: TensorDescriptor,
    gate_up_td: TensorDescriptor,
    down_w_td: TensorDescriptor,
    int_td: TensorDescriptor,
    output_td: TensorDescriptor,
    s_base_offset: int,
    dtype: DTypeLike,
    TILES_IN_BLOCK_M: int = 8,
    TILES_IN_BLOCK_N_GU: int = 1,
    TILES_IN_BLOCK_K_GU: int = 8,
    TILES_IN_BLOCK_M_DOWN: int = 8,
    TILES_IN_BLOCK_N_DOWN: int = 1,
    TILES_IN_BLOCK_K_DOWN: int = 8,
    save_gate_pre_td: TensorDescriptor | None = None,
    save_gate_act_td: TensorDescriptor | None = None,
    save_up_td: TensorDescriptor | None = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """Run mlp_forward_mxfp8_nki inside a kernel: output_td receives the rows from s_base_offset on.

    Descriptors (mxfp8_utils.TensorDescriptor) hold hidden [S, H], gate_up [2I, H], down [H, I], the place of
    m [S, I], and the output [S_local, H] of dtype `dtype`. Numbers are quantised to hidden_td.fp8_x4_dtype,
    float8_e4m3fn_x4 when None. Cores are shared by the caller, through s_base_offset and the output's rows:
    run_with_lnc2 changes nothing here, nor do the tilings, spill_reload and use_scale_packing.
    """
    kernel_assert(
        output_td.tensor.dtype == dtype, f"dtype: got {dtype}, output_td has {output_td.tensor.dtype}"
    )
    fused_rows(
        hidden_td,
        gate_up_td,
        down_w_td,
        int_td.tensor,
        output_td.tensor,
        s_base_offset,
        output_td.tensor.shape[0],
        GateUpCheckpoints(tensor_of(save_gate_pre_td), tensor_of(save_gate_act_td), tensor_of(save_up_td)),
        MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M, TILES_IN_BLOCK_N_GU, TILES_IN_BLOCK_K_GU),
        MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M_DOWN, TILES_IN_BLOCK_N_DOWN, TILES_IN_BLOCK_K_DOWN),
    )


def tensor_of(td: TensorDescriptor | None) -> Tensor | None:
    return None if td is None else td.tensor


def fused_rows(
    hidden_td: TensorDescriptor,
    gate_up_td: TensorDescriptor,
    down_td: TensorDescriptor,
    intermediate: Tensor,
    out: Tensor | None,
    row: int,
    rows: int,
    saved: GateUpCheckpoints,
    gate_up_config: MatmulMxfp8KernelConfig,
    down_config: MatmulMxfp8KernelConfig,
) -> None:
    """Compute some rows of the MLP: gate and up, then down. `saved.products` also receive m."""
    fp8 = packed_dtype("fp8_x4_dtype", hidden_td.fp8_x4_dtype or nl.float8_e4m3fn_x4)
    check_config("gate_up ", gate_up_config)
    check_config("down ", down_config)
    hidden = describe("hidden", hidden_td, fp8)
    gate_up = describe("gate_up_weights", gate_up_td, fp8)
    down = describe("down_weights", down_td, fp8)
    tokens, inner = hidden.features, down.contraction
    kernel_assert(
        gate_up.features == 2 * inner,
        f"gate_up_weights: has {gate_up.features} rows, expected 2 I = {2 * inner}, with I of down_weights",
    )
    kernel_assert(
        gate_up.contraction == hidden.contraction == down.features,
        f"gate_up_weights: contracts {gate_up.contraction}, hidden has H = {hidden.contraction}, "
        f"down_weights gives {down.features}",
    )
    assert_shape(intermediate, (tokens, inner), "intermediate_hbm")
    kernel_assert(
        intermediate.dtype in WIDE,
        f"intermediate_hbm: got {intermediate.dtype}, expected bfloat16 or float16",
    )
    check_checkpoint("save_gate_pre", saved.gate_pre, tokens, inner)
    check_checkpoint("save_gate_act", saved.gate_act, tokens, inner)
    check_checkpoint("save_up", saved.up, tokens, inner)
    if rows == 0:
        return
    places = GateUpCheckpoints(saved.gate_pre, saved.gate_act, saved.up, [intermediate] + saved.products)
    gate_up_rows(part_of(hidden, row, rows), gate_up, places, None, row)
    m = describe("intermediate_hbm", TensorDescriptor(intermediate), fp8)
    multiply(part_of(m, row, rows), [down], Stored(out))


def mlp_forward_mxfp8_nki_ref(
    hidden: np.ndarray,
    gate_up_weights: np.ndarray,
    down_weights: np.ndarray,
    fp8_dtype: str = "float8_e4m3fn",
) -> dict[str, np.ndarray]:
    """Compute gate_pre, gate_act, up, m and y of plain operands on the host in float64."""
    from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel import matmul_mxfp8_ref

    inner = down_weights.shape[1]
    both = matmul_mxfp8_ref(hidden, gate_up_weights, fp8_dtype)
    gate, up = both[:, :inner], both[:, inner:]
    act = gate / (1 + np.exp(-gate))
    m = (act * up).astype(np.float32).astype(hidden.dtype)
    return {
        "gate_pre": gate,
        "gate_act": act,
        "up": up,
        "m": m,
        "y": matmul_mxfp8_ref(m, down_weights, fp8_dtype),
    }
