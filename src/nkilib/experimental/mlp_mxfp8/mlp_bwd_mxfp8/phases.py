"""The four products of the backward pass, each a function on descriptors inside a kernel.

    1  dm = dY Wd,  [dg | du] of dm          contracts H, over rows S
    2  dX = [dg | du] [Wg; Wu]               contracts 2I, over rows S
    3  d[Wg; Wu] = [dg | du]^T X             contracts S, over 2I
    4  dWd = dY^T m                          contracts S, over H

Operands are quantised along what a product contracts. The tilings (`config`), spill_reload and
use_scale_packing are hints for the schedule, which is chosen here; dtype is that of what is written.

>>> import ml_dtypes, nki, os
>>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
>>> @nki.jit
... def weight_gradient(output_grad_T, intermediate_T):
...     shape = (output_grad_T.shape[0], intermediate_T.shape[0])
...     out = nl.ndarray(shape, nl.bfloat16, buffer=nl.shared_hbm)
...     operands = TensorDescriptor(output_grad_T), TensorDescriptor(intermediate_T)
...     fp8 = nl.float8_e4m3fn_x4
...     compute_phase4_down_weight_grad_mxfp8(TensorDescriptor(out), *operands, 0, nl.bfloat16, fp8)
...     return out
>>> weight_gradient(np.ones((8, 128), ml_dtypes.bfloat16), np.ones((16, 128), ml_dtypes.bfloat16))[0, 0]
128
"""

from __future__ import annotations

import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import MatmulMxfp8KernelConfig, check_config
from nkilib.experimental.mlp_mxfp8.gate_up import GateUpCheckpoints
from nkilib.experimental.mlp_mxfp8.mlp_bwd_mxfp8.gate_gradients import GateGradients, transpose_rows_to
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import MxOperand, describe, packed_dtype, part_of
from nkilib.experimental.mxfp_utils.mxfp8_utils.products import Stored, multiply
from nkilib.experimental.mxfp_utils.mxfp8_utils.sharding import core_share


def get_program_sharding_info(run_with_lnc2: bool) -> tuple:
    """Return (cores that share the work, index of this one): (1, 0) unless run_with_lnc2 on a grid of two.

    >>> get_program_sharding_info(False)
    (1, 0)
    """
    if not run_with_lnc2:
        return 1, 0
    return nl.num_programs(0), nl.program_id(0)


def rows_from(base: int, size: int, run_with_lnc2: bool) -> int:
    """Return how many of `size` rows, from `base` on, belong to this core."""
    start, end = core_share(size, 8, run_with_lnc2)
    return min(end - start, size - base)


def compute_phase1_down_proj_mm_grad_mxfp8(
    output_grad_td: TensorDescriptor,
    gate_pre_td: TensorDescriptor,
    gate_act_td: TensorDescriptor,
    up_td: TensorDescriptor,
    d_gate_up_td: TensorDescriptor,
    scratch_td: TensorDescriptor,
    down_weight_td: TensorDescriptor,
    s_base: int,
    dtype: DTypeLike,
    fp8_x4_dtype: DTypeLike,
    config: MatmulMxfp8KernelConfig | None = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
    clamp_limits: ClampLimits | None = None,
) -> None:
    """d_gate_up [S, 2I] = [dg | du] of dm = dY Wd, and its transpose in scratch [2I, S].

    output_grad [S, H], down_weight [I, H], gate_pre, gate_act, up [S, I]; rows s_base and on, this core's
    share. gate_act_td and scratch_td may be None.
    """
    check_dtype("d_gate_up", d_gate_up_td, dtype)
    places = GateUpCheckpoints(
        gate_pre_td.tensor, None if gate_act_td is None else gate_act_td.tensor, up_td.tensor
    )
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    gate_gradients(
        output_grad_td,
        places,
        None,
        d_gate_up_td,
        scratch_td,
        down_weight_td,
        s_base,
        fp8,
        config,
        run_with_lnc2,
        clamp_limits,
    )


def gate_gradients(
    output_grad_td: TensorDescriptor,
    places: GateUpCheckpoints,
    missing_products: Tensor | None,
    d_gate_up_td: TensorDescriptor,
    scratch_td: TensorDescriptor | None,
    down_weight_td: TensorDescriptor,
    row: int,
    fp8: DTypeLike,
    config: MatmulMxfp8KernelConfig | None,
    run_with_lnc2: bool,
    clamp_limits: ClampLimits | None,
) -> None:
    """Run phase 1. missing_products [S, I] receives m if the caller has none."""
    check_config("phase1_config.", config)
    grad = describe("output_grad", output_grad_td, fp8)
    down = describe("down_weight_T", down_weight_td, fp8)
    assert_shape(d_gate_up_td.tensor, (grad.features, 2 * down.features), "d_gate_up")
    check_contraction("down_weight_T", down, grad)
    rows = rows_from(row, grad.features, run_with_lnc2)
    results = GateGradients(
        places.gate_pre,
        places.gate_act,
        places.up,
        d_gate_up_td.tensor,
        clamp_limits,
        row,
        missing_products,
    )
    multiply(part_of(grad, row, rows), [down], results)
    if scratch_td is not None:
        assert_shape(scratch_td.tensor, (2 * down.features, grad.features), "scratch")
        transpose_rows_to(scratch_td.tensor, d_gate_up_td.tensor, row, rows)


def compute_phase2_hidden_states_grad_mxfp8(
    hidden_states_grad_td: TensorDescriptor,
    gate_up_weight_td: TensorDescriptor,
    d_gate_up_td: TensorDescriptor,
    s_base: int,
    dtype: DTypeLike,
    fp8_x4_dtype: DTypeLike,
    config: MatmulMxfp8KernelConfig | None = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """hidden_states_grad [S, H] = d_gate_up [S, 2I] x gate_up_weight [H, 2I]: rows s_base and on."""
    check_config("phase2_config.", config)
    grads, weights = operands_of(
        ("d_gate_up", d_gate_up_td), ("gate_up_weight_T", gate_up_weight_td), fp8_x4_dtype
    )
    check_result("hidden_states_grad", hidden_states_grad_td, dtype, grads, weights)
    rows = rows_from(s_base, grads.features, run_with_lnc2)
    multiply(part_of(grads, s_base, rows), [weights], Stored(hidden_states_grad_td.tensor, s_base))


def compute_phase3_gate_up_weight_grad_mxfp8(
    weight_grad_td: TensorDescriptor,
    hidden_states_T_td: TensorDescriptor,
    grad_T_td: TensorDescriptor,
    dtype: DTypeLike,
    fp8_x4_dtype: DTypeLike,
    config: MatmulMxfp8KernelConfig | None = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """weight_grad [2I, H] = grad_T [2I, S] x hidden_states_T [H, S]: this core's share of 2I."""
    check_config("phase3_config.", config)
    grads, hidden = operands_of(("grad_T", grad_T_td), ("hidden_states_T", hidden_states_T_td), fp8_x4_dtype)
    check_result("weight_grad", weight_grad_td, dtype, grads, hidden)
    start, end = core_share(grads.features, 8, run_with_lnc2)
    multiply(part_of(grads, start, end - start), [hidden], Stored(weight_grad_td.tensor, start))


def compute_phase4_down_weight_grad_mxfp8(
    down_weight_grad_td: TensorDescriptor,
    output_grad_T_td: TensorDescriptor,
    intermediate_T_td: TensorDescriptor,
    h_base: int,
    dtype: DTypeLike,
    fp8_x4_dtype: DTypeLike,
    config: MatmulMxfp8KernelConfig | None = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """down_weight_grad [H, I] = output_grad_T [H, S] x intermediate_T [I, S]: rows h_base and on."""
    check_config("phase4_config.", config)
    grads, middle = operands_of(
        ("output_grad_T", output_grad_T_td), ("intermediate_T", intermediate_T_td), fp8_x4_dtype
    )
    check_result("down_weight_grad", down_weight_grad_td, dtype, grads, middle)
    rows = rows_from(h_base, grads.features, run_with_lnc2)
    multiply(part_of(grads, h_base, rows), [middle], Stored(down_weight_grad_td.tensor, h_base))


def operands_of(
    left: tuple[str, TensorDescriptor], right: tuple[str, TensorDescriptor], fp8_x4_dtype: DTypeLike
) -> tuple[MxOperand, MxOperand]:
    """Return both operands of a product, given as (name, descriptor); they contract the same size."""
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    first, second = describe(left[0], left[1], fp8), describe(right[0], right[1], fp8)
    check_contraction(right[0], second, first)
    return first, second


def check_result(
    name: str, td: TensorDescriptor, dtype: DTypeLike, left: MxOperand, right: MxOperand
) -> None:
    """Check that a tensor can receive the product of two operands."""
    check_dtype(name, td, dtype)
    assert_shape(td.tensor, (left.features, right.features), name)


def check_contraction(name: str, operand: MxOperand, other: MxOperand) -> None:
    kernel_assert(
        operand.contraction == other.contraction,
        f"{name}: contracts {operand.contraction}, the other operand {other.contraction}",
    )


def check_dtype(name: str, td: TensorDescriptor, dtype: DTypeLike) -> None:
    kernel_assert(td.tensor.dtype == dtype, f"dtype: got {dtype}, {name} has {td.tensor.dtype}")
