"""What moe_block_tkg demands of its arguments, under the caller's names."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.router_topk.router_checks import MAX_K
from nkilib.core.utils.common_types import ActFnType, MoEBlockIOLayout, RouterActFnType
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
)
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


@dataclass
class SharedExpert(nl.NKIObject):
    """The weights of the shared expert, all or none, and its biases."""

    gate: Tensor | None
    up: Tensor | None
    down: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None


def check_tokens(
    inp: Tensor, layout: MoEBlockIOLayout, gamma: Tensor, residual: Tensor | None, hidden_actual: int | None
) -> None:
    """Check what is normalised."""
    assert_members(("inp_layout", layout, MoEBlockIOLayout))
    assert_tensors((("inp", inp), ("gamma", gamma)), (("residual", residual),))
    shape = tuple(inp.shape)
    if layout == MoEBlockIOLayout.B_S_H:
        kernel_assert(
            len(shape) == 3 and shape[2] % PMAX == 0,
            f"inp: got shape {shape}, expected (B, S, H) with H a multiple of 128",
        )
    else:
        kernel_assert(
            len(shape) == 4 and shape[0] == PMAX,
            f"inp: got shape {shape} with inp_layout {layout}, expected (128, n, H / 128 / n, T)",
        )
    size = shape[2] if len(shape) == 3 else PMAX * shape[1] * shape[2]
    assert_shape(gamma, (1, size), "gamma")
    if residual is not None:
        kernel_assert(
            residual.shape[-1] == size and residual.size == inp.size,
            f"residual: got shape {tuple(residual.shape)}, expected (B, S, {size}) with the tokens of inp",
        )
    kernel_assert(
        hidden_actual is None or 1 <= hidden_actual <= size,
        f"hidden_actual: got {hidden_actual}, allowed are 1 to H = {size}",
    )


def check_router(
    size: int, weights: Tensor, bias: Tensor | None, top_k: int, act_fn: RouterActFnType | None
) -> None:
    """Check what routes tokens of this size."""
    assert_tensors((("router_weights", weights),), (("router_bias", bias),))
    shape = tuple(weights.shape)
    kernel_assert(
        len(shape) == 2 and shape[0] == size, f"router_weights: got shape {shape}, expected ({size}, E)"
    )
    if bias is not None:
        kernel_assert(
            bias.size == shape[1], f"router_bias: got shape {tuple(bias.shape)}, expected (1, {shape[1]})"
        )
    most = min(MAX_K, shape[1])
    kernel_assert(1 <= top_k <= most, f"top_k: got {top_k}, allowed are 1 to {most}")
    if act_fn is not None:
        assert_members(("router_act_fn", act_fn, RouterActFnType))


def check_experts(gate_up: Tensor, down: Tensor, act_fn: ActFnType | None) -> None:
    """Check what moe_tkg does not name as this caller does."""
    assert_tensors((("expert_gate_up_weights", gate_up), ("expert_down_weights", down)))
    if act_fn is not None:
        assert_members(("hidden_act_fn", act_fn, ActFnType))


def check_layouts(out: MoEBlockIOLayout, dynamic_and_shared: bool) -> None:
    """Check the layout of the result, and what dynamic experts cannot do."""
    assert_members(("outp_layout", out, MoEBlockIOLayout))
    kernel_assert(
        not dynamic_and_shared, "is_all_expert_dynamic: got True with shared experts, allowed without them"
    )


def check_shared(shared: SharedExpert) -> None:
    """Weights are all given or none, and biases only with them."""
    kernel_assert(
        (shared.gate is None) == (shared.up is None) and (shared.up is None) == (shared.down is None),
        "shared_expert_gate_w, shared_expert_up_w, shared_expert_down_w: got some of them, "
        "expected all or none",
    )
    refuse_without_effect(
        shared.up is not None,
        "shared_expert_up_w",
        (
            ("shared_expert_gate_bias", shared.gate_bias),
            ("shared_expert_up_bias", shared.up_bias),
            ("shared_expert_down_bias", shared.down_bias),
        ),
    )
