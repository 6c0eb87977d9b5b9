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

from typing import Any

import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import check_config
from nkilib.experimental.mlp_mxfp8.gate_up import Checkpoints, limits_of
from nkilib.experimental.mlp_mxfp8.mlp_bwd_mxfp8.gate_gradients import GateGradients, transpose_rows_to
from nkilib.experimental.mxfp_utils.mxfp8_utils.common_dataclasses import TensorDescriptor
from nkilib.experimental.mxfp_utils.mxfp8_utils.operands import Operand, describe, packed_dtype, part_of
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
    dtype: Any,
    fp8_x4_dtype: Any,
    config: Any = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
    clamp_limits: Any = None,
) -> None:
    """d_gate_up [S, 2I] = [dg | du] of dm = dY Wd, and its transpose in scratch [2I, S].

    output_grad [S, H], down_weight [I, H], gate_pre, gate_act, up [S, I]; rows s_base and on, this core's
    share. gate_act_td and scratch_td may be None.
    """
    check_dtype("d_gate_up", d_gate_up_td, dtype)
    places = Checkpoints(
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
    places: Checkpoints,
    missing_products: Any,
    d_gate_up_td: TensorDescriptor,
    scratch_td: Any,
    down_weight_td: TensorDescriptor,
    row: int,
    fp8: Any,
    config: Any,
    run_with_lnc2: bool,
    clamp_limits: Any,
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
        limits_of(clamp_limits),
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
    dtype: Any,
    fp8_x4_dtype: Any,
    config: Any = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """hidden_states_grad [S, H] = d_gate_up [S, 2I] x gate_up_weight [H, 2I]: rows s_base and on."""
    check_config("phase2_config.", config)
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    grads = describe("d_gate_up", d_gate_up_td, fp8)
    weights = describe("gate_up_weight_T", gate_up_weight_td, fp8)
    check_contraction("gate_up_weight_T", weights, grads)
    check_dtype("hidden_states_grad", hidden_states_grad_td, dtype)
    assert_shape(hidden_states_grad_td.tensor, (grads.features, weights.features), "hidden_states_grad")
    rows = rows_from(s_base, grads.features, run_with_lnc2)
    multiply(part_of(grads, s_base, rows), [weights], Stored(hidden_states_grad_td.tensor, s_base))


def compute_phase3_gate_up_weight_grad_mxfp8(
    weight_grad_td: TensorDescriptor,
    hidden_states_T_td: TensorDescriptor,
    grad_T_td: TensorDescriptor,
    dtype: Any,
    fp8_x4_dtype: Any,
    config: Any = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """weight_grad [2I, H] = grad_T [2I, S] x hidden_states_T [H, S]: this core's share of 2I."""
    check_config("phase3_config.", config)
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    grads = describe("grad_T", grad_T_td, fp8)
    hidden = describe("hidden_states_T", hidden_states_T_td, fp8)
    check_contraction("hidden_states_T", hidden, grads)
    check_dtype("weight_grad", weight_grad_td, dtype)
    assert_shape(weight_grad_td.tensor, (grads.features, hidden.features), "weight_grad")
    start, end = core_share(grads.features, 8, run_with_lnc2)
    multiply(part_of(grads, start, end - start), [hidden], Stored(weight_grad_td.tensor, start))


def compute_phase4_down_weight_grad_mxfp8(
    down_weight_grad_td: TensorDescriptor,
    output_grad_T_td: TensorDescriptor,
    intermediate_T_td: TensorDescriptor,
    h_base: int,
    dtype: Any,
    fp8_x4_dtype: Any,
    config: Any = None,
    spill_reload: bool = True,
    use_scale_packing: bool = True,
    run_with_lnc2: bool = True,
) -> None:
    """down_weight_grad [H, I] = output_grad_T [H, S] x intermediate_T [I, S]: rows h_base and on."""
    check_config("phase4_config.", config)
    fp8 = packed_dtype("fp8_x4_dtype", fp8_x4_dtype)
    grads = describe("output_grad_T", output_grad_T_td, fp8)
    middle = describe("intermediate_T", intermediate_T_td, fp8)
    check_contraction("intermediate_T", middle, grads)
    check_dtype("down_weight_grad", down_weight_grad_td, dtype)
    assert_shape(down_weight_grad_td.tensor, (grads.features, middle.features), "down_weight_grad")
    rows = rows_from(h_base, grads.features, run_with_lnc2)
    multiply(part_of(grads, h_base, rows), [middle], Stored(down_weight_grad_td.tensor, h_base))


def check_contraction(name: str, operand: Operand, other: Operand) -> None:
    kernel_assert(
        operand.contraction == other.contraction,
        f"{name}: contracts {operand.contraction}, the other operand {other.contraction}",
    )


def check_dtype(name: str, td: TensorDescriptor, dtype: Any) -> None:
    kernel_assert(td.tensor.dtype == dtype, f"dtype: got {dtype}, {name} has {td.tensor.dtype}")
