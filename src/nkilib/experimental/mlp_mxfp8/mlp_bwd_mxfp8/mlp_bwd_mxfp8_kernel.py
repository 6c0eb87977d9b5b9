"""Backward pass of the gated MLP in MXFP8: the checkpoints, then the four phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MlpBwdMatmulConfig, check_config
from nkilib.experimental.mlp_mxfp8.gate_up import GateUpCheckpoints, check_checkpoint, gate_up_rows
from nkilib.experimental.mlp_mxfp8.mlp_bwd_mxfp8.phases import (
    compute_phase1_down_proj_mm_grad_mxfp8,
    compute_phase2_hidden_states_grad_mxfp8,
    compute_phase3_gate_up_weight_grad_mxfp8,
    compute_phase4_down_weight_grad_mxfp8,
    gate_gradients,
    get_program_sharding_info,
)
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import describe, packed_dtype, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share

CORES = (0, 1)

__all__ = [
    "compute_phase1_down_proj_mm_grad_mxfp8",
    "compute_phase2_hidden_states_grad_mxfp8",
    "compute_phase3_gate_up_weight_grad_mxfp8",
    "compute_phase4_down_weight_grad_mxfp8",
    "get_program_sharding_info",
    "mlp_backward_mxfp8_base_nki",
    "mlp_backward_mxfp8_nki",
    "mlp_backward_mxfp8_nki_ref",
]


@nki.jit
def mlp_backward_mxfp8_nki(
    output_grad: Tensor,
    hidden_states: Tensor,
    down_proj_weight: Tensor | None = None,
    gate_up_weights: Tensor | None = None,
    gate_up_weight_T: Tensor | None = None,
    gate_up_weight_T_scales: Tensor | None = None,
    gate_up_weights_scales: Tensor | None = None,
    down_weight_T: Tensor | None = None,
    down_weight_T_scales: Tensor | None = None,
    output_grad_T: Tensor | None = None,
    output_grad_T_scales: Tensor | None = None,
    hidden_states_T: Tensor | None = None,
    hidden_states_T_scales: Tensor | None = None,
    gate_pre: Tensor | None = None,
    gate_act: Tensor | None = None,
    up: Tensor | None = None,
    intermediate: Tensor | None = None,
    run_with_lnc2: bool = True,
    matmul_config: MlpBwdMatmulConfig | None = None,
    fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    clamp_limits: ClampLimits | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX [S, H], d[Wg; Wu] [2I, H], dWd [H, I]) of y = (silu(x Wg^T) * (x Wu^T)) Wd^T, bfloat16.

    Args:
        output_grad: dY [S, H]. hidden_states: x [S, H].
        down_proj_weight or down_weight_T: [I, H], the transpose of Wd (the page names it both ways).
        gate_up_weights: [2I, H]. gate_up_weight_T: [H, 2I]; not needed unless the former has scales.
        output_grad_T, hidden_states_T: [H, S], not needed.
        *_scales: that operand is quantised, as quantize_block_mxfp8_kernel gives it.
        gate_pre, gate_act, up, intermediate: checkpoints [S, I] of the forward pass. Missing silu(g) and m
            are computed from g and u; missing g and u from hidden_states and gate_up_weights.
        clamp_limits: an object with {linear,non_linear}_clamp_{upper,lower}_limit; g and u are clamped to it,
            and have no gradient where they are not inside the open interval.
        run_with_lnc2: on a grid of two cores, share the rows (dX) and the rows of the weights.
        fp8_x4_dtype: float8_e4m3fn_x4 or float8_e5m2_x4.
        matmul_config (MlpBwdMatmulConfig), spill_reload, use_scale_packing: hints for the schedule, which
            this kernel chooses itself.

    S, H and I are multiples of 128 (best 512). Nothing is transposed: operands that contract their first
    dimension are quantised in place.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> ones = np.ones((128, 128), ml_dtypes.bfloat16)
    >>> gate_up = np.full((256, 128), 1 / 32, ones.dtype)
    >>> dx, d_gate_up, d_down = mlp_backward_mxfp8_nki(ones, ones, ones, gate_up)
    >>> d_down[0, 0]  # 128 m, where MXFP8 rounds m = 4 silu(4) = 15.7 to 16
    2048
    """
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    kernel_assert(
        down_weight_T is not None or down_proj_weight is not None,
        "down_proj_weight: got None, it or down_weight_T is needed",
    )
    kernel_assert(
        gate_up_weight_T is not None or (gate_up_weights is not None and gate_up_weights_scales is None),
        "gate_up_weight_T: got None, it or gate_up_weights in bfloat16 is needed",
    )
    down_td = TensorDescriptor(down_proj_weight)
    if down_weight_T is not None:
        down_td = TensorDescriptor(down_weight_T, down_weight_T_scales)
    tokens, width = tuple(output_grad.shape)
    inner = describe("down_weight_T", down_td, fp8).features
    assert_shape(hidden_states, (tokens, width), "hidden_states")
    places = checkpoints(gate_pre, gate_act, up, intermediate, tokens, inner)
    if gate_pre is None or up is None:
        kernel_assert(
            gate_up_weights is not None, "gate_up_weights: got None, checkpoints must be recomputed"
        )
        recompute(
            places, hidden_states, gate_up_weights, gate_up_weights_scales, fp8, clamp_limits, run_with_lnc2
        )
    has_inputs = gate_pre is not None and up is not None  # then phase 1 computes m, if it is missing
    weights_td = TensorDescriptor(gate_up_weights, None, False)
    if gate_up_weight_T is not None:
        weights_td = TensorDescriptor(gate_up_weight_T, gate_up_weight_T_scales)
    grads = nl.ndarray((tokens, 2 * inner), nl.bfloat16, buffer=nl.shared_hbm)
    hidden_grad = nl.ndarray((tokens, width), nl.bfloat16, buffer=nl.shared_hbm)
    weight_grad = nl.ndarray((2 * inner, width), nl.bfloat16, buffer=nl.shared_hbm)
    down_grad = nl.ndarray((width, inner), nl.bfloat16, buffer=nl.shared_hbm)
    tensors = Backward(
        output_grad=TensorDescriptor(output_grad),
        places=places,
        gate_up_weight_T=weights_td,
        down_weight_T=down_td,
        d_gate_up=TensorDescriptor(grads),
        grad_T=TensorDescriptor(grads, None, False),
        hidden_states_T=transposed(hidden_states_T, hidden_states_T_scales, hidden_states),
        output_grad_T=transposed(output_grad_T, output_grad_T_scales, output_grad),
        intermediate_T=TensorDescriptor(places.products[0], None, False),
        hidden_states_grad=TensorDescriptor(hidden_grad),
        weight_grad=TensorDescriptor(weight_grad),
        down_weight_grad=TensorDescriptor(down_grad),
        missing_products=places.products[0] if has_inputs and intermediate is None else None,
    )
    run_phases(tensors, run_with_lnc2, matmul_config, fp8, clamp_limits)
    return hidden_grad, weight_grad, down_grad


def checkpoints(
    gate_pre: Tensor | None,
    gate_act: Tensor | None,
    up: Tensor | None,
    intermediate: Tensor | None,
    rows: int,
    columns: int,
) -> GateUpCheckpoints:
    """Return the given checkpoints, and new tensors for the missing ones except silu(g)."""
    check_checkpoint("gate_pre", gate_pre, rows, columns)
    check_checkpoint("gate_act", gate_act, rows, columns)
    check_checkpoint("up", up, rows, columns)
    check_checkpoint("intermediate", intermediate, rows, columns)
    recomputed = gate_pre is None or up is None
    places = GateUpCheckpoints(gate_pre, gate_act, up, [intermediate])
    if recomputed:
        places.gate_pre = scratch(rows, columns)
        places.up = scratch(rows, columns)
        places.gate_act = None
    if recomputed or intermediate is None:
        places.products = [scratch(rows, columns)]
    return places


def scratch(rows: int, columns: int) -> Tensor:
    return nl.ndarray((rows, columns), nl.bfloat16, buffer=nl.shared_hbm)


def recompute(
    places: GateUpCheckpoints,
    hidden: Tensor,
    weights: Tensor,
    scales: Tensor | None,
    fp8: DTypeLike,
    clamp_limits: ClampLimits | None,
    run_with_lnc2: bool,
) -> None:
    """Recompute g, u and m of this core's rows."""
    x = describe("hidden_states", TensorDescriptor(hidden), fp8)
    gate_up = describe("gate_up_weights", TensorDescriptor(weights, scales), fp8)
    inner = places.gate_pre.shape[1]
    kernel_assert(
        gate_up.features == 2 * inner and gate_up.contraction == x.contraction,
        f"gate_up_weights: is [{gate_up.features}, {gate_up.contraction}], "
        f"expected [{2 * inner}, {x.contraction}]",
    )
    start, end = core_share(x.features, 8, run_with_lnc2)
    gate_up_rows(part_of(x, start, end - start), gate_up, places, clamp_limits, start)


def transposed(given: Tensor | None, scales: Tensor | None, plain: Tensor) -> TensorDescriptor:
    """Return [H, S] if it is given; else [S, H], whose first dimension a product contracts."""
    if given is None:
        return TensorDescriptor(plain, None, False)
    return TensorDescriptor(given, scales)


# ---- the phases -----------------------------------------------------------------------------------


@dataclass
class Backward(nl.NKIObject):
    """The operands and results of the phases."""

    output_grad: TensorDescriptor
    places: GateUpCheckpoints
    gate_up_weight_T: TensorDescriptor
    down_weight_T: TensorDescriptor
    d_gate_up: TensorDescriptor
    grad_T: TensorDescriptor  # what phase 3 reads of it
    hidden_states_T: TensorDescriptor
    output_grad_T: TensorDescriptor
    intermediate_T: TensorDescriptor
    hidden_states_grad: TensorDescriptor
    weight_grad: TensorDescriptor
    down_weight_grad: TensorDescriptor
    scratch: TensorDescriptor | None = None  # receives the transpose of d_gate_up
    missing_products: Tensor | None = None  # receives m, if phase 1 has to compute it


def mlp_backward_mxfp8_base_nki(
    output_grad_td: TensorDescriptor,
    gate_pre_td: TensorDescriptor,
    gate_act_td: TensorDescriptor,
    up_td: TensorDescriptor,
    gate_up_weight_T_td: TensorDescriptor,
    down_weight_T_td: TensorDescriptor,
    d_gate_up_td: TensorDescriptor,
    hidden_states_T_td: TensorDescriptor,
    output_grad_T_td: TensorDescriptor,
    intermediate_T_td: TensorDescriptor,
    scratch_td: TensorDescriptor,
    hidden_states_grad_td: TensorDescriptor,
    weight_grad_td: TensorDescriptor,
    down_weight_grad_td: TensorDescriptor,
    run_with_lnc2: bool = True,
    matmul_config: MlpBwdMatmulConfig | None = None,
    fp8_x4_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    clamp_limits: ClampLimits | None = None,
) -> tuple:
    """Run the four phases inside a kernel, on descriptors of tensors that the caller allocated in shared HBM.

    Shapes: output_grad, hidden_states_grad [S, H]; gate_pre, gate_act, up [S, I]; gate_up_weight_T [H, 2I];
    down_weight_T [I, H]; d_gate_up [S, 2I] and scratch [2I, S] receive [dg | du] and its transpose;
    hidden_states_T, output_grad_T [H, S]; intermediate_T [I, S]; weight_grad [2I, H]; down_weight_grad
    [H, I]. gate_act_td may be None, so may scratch_td: phase 3 then contracts d_gate_up itself.
    Returns the three gradients.
    """
    gate_act = None if gate_act_td is None else gate_act_td.tensor
    grad_T = TensorDescriptor(d_gate_up_td.tensor, None, False) if scratch_td is None else scratch_td
    tensors = Backward(
        output_grad=output_grad_td,
        places=GateUpCheckpoints(gate_pre_td.tensor, gate_act, up_td.tensor),
        gate_up_weight_T=gate_up_weight_T_td,
        down_weight_T=down_weight_T_td,
        d_gate_up=d_gate_up_td,
        grad_T=grad_T,
        hidden_states_T=hidden_states_T_td,
        output_grad_T=output_grad_T_td,
        intermediate_T=intermediate_T_td,
        hidden_states_grad=hidden_states_grad_td,
        weight_grad=weight_grad_td,
        down_weight_grad=down_weight_grad_td,
        scratch=scratch_td,
    )
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    run_phases(tensors, run_with_lnc2, matmul_config, fp8, clamp_limits)
    return hidden_states_grad_td.tensor, weight_grad_td.tensor, down_weight_grad_td.tensor


def run_phases(
    t: Backward,
    run_with_lnc2: bool,
    matmul_config: MlpBwdMatmulConfig | None,
    fp8: DTypeLike,
    clamp_limits: ClampLimits | None,
) -> None:
    """Run the phases. In 1 and 2 each core has its own rows; 3 and 4 read what both cores have written."""
    configs = MlpBwdMatmulConfig() if matmul_config is None else matmul_config
    check_config("recompute_config.", configs.recompute_config)
    tokens, width = t.hidden_states_grad.tensor.shape
    row = core_share(tokens, 8, run_with_lnc2)[0]
    gate_gradients(
        t.output_grad,
        t.places,
        t.missing_products,
        t.d_gate_up,
        t.scratch,
        t.down_weight_T,
        row,
        fp8,
        configs.phase1_config,
        run_with_lnc2,
        clamp_limits,
    )
    compute_phase2_hidden_states_grad_mxfp8(
        t.hidden_states_grad,
        t.gate_up_weight_T,
        t.d_gate_up,
        row,
        t.hidden_states_grad.tensor.dtype,
        fp8,
        configs.phase2_config,
        run_with_lnc2=run_with_lnc2,
    )
    if run_with_lnc2 and nl.num_programs(0) == 2:
        nisa.core_barrier(t.grad_T.tensor, CORES)
        nisa.core_barrier(t.intermediate_T.tensor, CORES)
    compute_phase3_gate_up_weight_grad_mxfp8(
        t.weight_grad,
        t.hidden_states_T,
        t.grad_T,
        t.weight_grad.tensor.dtype,
        fp8,
        configs.phase3_config,
        run_with_lnc2=run_with_lnc2,
    )
    compute_phase4_down_weight_grad_mxfp8(
        t.down_weight_grad,
        t.output_grad_T,
        t.intermediate_T,
        core_share(width, 8, run_with_lnc2)[0],
        t.down_weight_grad.tensor.dtype,
        fp8,
        configs.phase4_config,
        run_with_lnc2=run_with_lnc2,
    )


# ---- reference ------------------------------------------------------------------------------------


def mlp_backward_mxfp8_nki_ref(
    output_grad: np.ndarray,
    hidden_states: np.ndarray,
    down_weight_T: np.ndarray,
    gate_up_weights: np.ndarray,
    fp8_dtype: str = "float8_e4m3fn",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the gradients on the host in float64, with the kernel's quantisation and rounding."""
    from nkilib.experimental.mlp_mxfp8.mlp_fwd_mxfp8.mlp_fwd_mxfp8_kernel import mlp_forward_mxfp8_nki_ref

    return host_gradients(
        mlp_forward_mxfp8_nki_ref(hidden_states, gate_up_weights, down_weight_T.T, fp8_dtype),
        (output_grad, hidden_states, down_weight_T, gate_up_weights),
        fp8_dtype,
    )


def host_gradients(
    forward: dict, operands: tuple, fp8_dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel import matmul_mxfp8_ref

    grad, x, down, gate_up = operands
    g, u = (
        forward[name].astype(np.float32).astype(x.dtype).astype(np.float64) for name in ("gate_pre", "up")
    )
    sigmoid = 1 / (1 + np.exp(-g))
    dm = matmul_mxfp8_ref(grad, down, fp8_dtype)
    both = np.concatenate([dm * u * sigmoid * (1 + g * (1 - sigmoid)), dm * g * sigmoid], axis=1)
    both = both.astype(np.float32).astype(x.dtype)
    return (
        matmul_mxfp8_ref(both, gate_up.T, fp8_dtype),
        matmul_mxfp8_ref(both.T, x.T, fp8_dtype),
        matmul_mxfp8_ref(grad.T, forward["m"].T, fp8_dtype),
    )
