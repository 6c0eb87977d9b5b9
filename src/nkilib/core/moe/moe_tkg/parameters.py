"""What moe_tkg was asked for, its sizes, and what is demanded of the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.mx_weights import hidden_size, intermediate_size, is_mx
from nkilib.core.utils import token_shapes
from nkilib.core.utils.clamping import check_limits
from nkilib.core.utils.common_types import (
    ActFnType,
    ExpertAffinityScaleMode,
    MoEAllToAllVStrategy,
    MoEBlockIOLayout,
)
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import resolve_fp8_dtype
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.token_shapes import is_in_sbuf
from nkilib.core.utils.types import DTypeLike, Tensor

FLOATS = (nl.float32, nl.bfloat16, nl.float16)
MAX_TOKENS = 128  # of a call that selects experts
MAX_K = 16
PACKED_COLUMNS = 3  # of 16 bits behind a row: its affinity, and its token's number in two
TOKEN_COLUMNS = 2
BLOCK_TOKENS = 512  # that a pass over the weights serves at most: one bank of PSUM


@dataclass
class MoEParameters(nl.NKIObject):
    """Weights are those of the local experts: gate_up [E_L, H, 2, I], down [E_L, I, H]."""

    hidden: Any
    gate_up: Any
    down: Any
    affinities: Any
    index: Any
    all_expert: bool
    rank_id: Any
    gate_up_bias: Any
    down_bias: Any
    gate_up_scale: Any
    down_scale: Any
    masked: bool
    eager: Any
    scaling: ExpertAffinityScaleMode
    act_fn: ActFnType
    gate: Linear  # the limits alone
    up: Linear
    output_dtype: DTypeLike
    output_in_sbuf: bool
    layout: MoEBlockIOLayout
    output: Any
    dtype_mode: Any
    strategy: MoEAllToAllVStrategy = MoEAllToAllVStrategy.DISABLED


# ---- sizes and dtypes ----------------------------------------------------------------------------


def local_experts(p: MoEParameters) -> int:
    return p.gate_up.shape[0]


def input_in_sbuf(p: MoEParameters) -> bool:
    return is_in_sbuf(p.hidden)


def token_count(p: MoEParameters) -> int:
    return token_shapes.token_count(p.hidden)


def shares_input(p: MoEParameters) -> bool:
    """Each core has its part of H of the tokens in SBUF, and keeps as much of the result."""
    return input_in_sbuf(p) and p.hidden.shape[2] < hidden_size(p) // PMAX


def arrives_packed(p: MoEParameters) -> bool:
    """Rows of hidden are [hidden | affinity | token], as permute_routed_tokens makes them."""
    return p.strategy != MoEAllToAllVStrategy.DISABLED


def leaves_packed(p: MoEParameters) -> bool:
    """Rows of the result are [result | token], as topk_reduce takes them."""
    return p.strategy == MoEAllToAllVStrategy.PACK_OUTPUT_ROWS


def scales_outputs(p: MoEParameters) -> bool:
    return p.scaling == ExpertAffinityScaleMode.POST_SCALE


def quantized(p: MoEParameters) -> bool:
    return p.gate_up_scale is not None or p.down_scale is not None


def matmul_dtype(p: MoEParameters) -> Any:
    """Of the activations: that of the weights, or 16 bits where those are FP8 or MX."""
    if p.gate_up.dtype not in FP8 and not is_mx(p):
        return p.gate_up.dtype
    return nl.bfloat16 if p.hidden.dtype == nl.float32 else p.hidden.dtype


def result_dtype(p: MoEParameters) -> Any:
    if p.output is not None:
        return p.output.dtype
    return p.hidden.dtype if p.output_dtype is None else p.output_dtype


def working_cores(p: MoEParameters, n_prgs: int) -> int:
    """How many cores share the work: each has a part of H, in whole tiles. Else one does it all."""
    return n_prgs if hidden_size(p) // PMAX % n_prgs == 0 else 1


# ---- checks --------------------------------------------------------------------------------------


def check(p: MoEParameters, n_prgs: int) -> None:
    """Weights and scales of MX have been checked before, where they became words."""
    if not is_mx(p):
        check_weights(p)
    if arrives_packed(p):
        check_packed(p)
    check_tokens(p, n_prgs)
    check_routing(p)
    check_limits((p.gate.upper, p.gate.lower), (p.up.upper, p.up.lower))
    if not is_mx(p):
        check_scales(p)


def check_weights(p: MoEParameters) -> None:
    shape = tuple(p.gate_up.shape)
    kernel_assert(
        len(shape) == 4 and shape[2] == 2,
        f"expert_gate_up_weights: got shape {shape}, expected (E_L, H, 2, I)",
    )
    experts, size, inner = local_experts(p), hidden_size(p), intermediate_size(p)
    kernel_assert(size % PMAX == 0, f"expert_gate_up_weights: got H = {size}, allowed are multiples of 128")
    assert_shape(p.down, (experts, inner, size), "expert_down_weights")
    if p.gate_up_bias is not None:
        assert_shape(p.gate_up_bias, (experts, 2, inner), "expert_gate_up_bias")
    if p.down_bias is not None:
        assert_shape(p.down_bias, (experts, size), "expert_down_bias")
    kernel_assert(
        p.down.dtype == p.gate_up.dtype,
        f"expert_down_weights: got {p.down.dtype}, expected {p.gate_up.dtype} as expert_gate_up_weights has",
    )


def check_tokens(p: MoEParameters, n_prgs: int) -> None:
    size, shape = hidden_size(p), tuple(p.hidden.shape)
    tiles = size // PMAX
    if input_in_sbuf(p):
        kernel_assert(
            len(shape) == 3 and shape[0] == PMAX and shape[2] in (tiles, tiles // n_prgs),
            f"hidden_input: got shape {shape} in SBUF, expected (128, T, {tiles}) or a core's part of it",
        )
    else:
        width = size + PACKED_COLUMNS if arrives_packed(p) else size
        kernel_assert(
            len(shape) == 2 and shape[1] == width, f"hidden_input: got shape {shape}, expected (T, {width})"
        )
    kernel_assert(p.hidden.dtype in FLOATS, f"hidden_input: got {p.hidden.dtype}, allowed are {FLOATS}")
    tokens = token_count(p)
    in_sbuf = input_in_sbuf(p) or p.output_in_sbuf
    most = BLOCK_TOKENS if in_sbuf else tokens
    kernel_assert(
        tokens <= MAX_TOKENS or (p.all_expert and tokens <= most),
        f"hidden_input: got {tokens} tokens, allowed are {MAX_TOKENS}, more with all experts in HBM",
    )
    spread = p.output_in_sbuf or p.layout == MoEBlockIOLayout._128_Nprgs_Hfree_T
    kernel_assert(
        not (spread or input_in_sbuf(p)) or tiles % n_prgs == 0,
        f"hidden_input: got H = {size}, this layout on {n_prgs} cores takes multiples of {128 * n_prgs}",
    )
    kernel_assert(
        p.output is None or not p.output_in_sbuf, "output: got one with output_in_sbuf, allowed is None"
    )


def check_packed(p: MoEParameters) -> None:
    """Rows that an all-to-all brought."""
    name = f"all_to_all_v_strategy: got {p.strategy}"
    kernel_assert(p.all_expert, f"{name} without is_all_expert, allowed only with it")
    kernel_assert(
        not input_in_sbuf(p) and not p.output_in_sbuf and p.layout == MoEBlockIOLayout.B_S_H,
        f"{name}, allowed only with rows in HBM and output_layout B_S_H",
    )
    kernel_assert(
        p.hidden.dtype in (nl.bfloat16, nl.float16), f"{name} with {p.hidden.dtype}, allowed are 16 bits"
    )
    if local_experts(p) > 1:
        kernel_assert(
            p.index is not None and p.rank_id is not None, f"{name}, needs expert_index and rank_id"
        )
        assert_shape(p.index, (token_count(p), 1), "expert_index")


def check_routing(p: MoEParameters) -> None:
    tokens = token_count(p)
    if arrives_packed(p):
        return
    kernel_assert(
        p.scaling in (ExpertAffinityScaleMode.NO_SCALE, ExpertAffinityScaleMode.POST_SCALE),
        f"expert_affinities_scaling_mode: got {p.scaling}, allowed are NO_SCALE and POST_SCALE",
    )
    if p.all_expert:
        kernel_assert(p.eager is None, "expert_affinities_eager: got one with all experts, allowed is None")
        if scales_outputs(p):
            kernel_assert(p.rank_id is not None, "rank_id: got None, needed by all experts with POST_SCALE")
            check_columns(p)
        return
    kernel_assert(p.index is not None, "expert_index: got None, needed to select experts")
    k = p.index.shape[1]
    assert_shape(p.index, (tokens, k), "expert_index")
    kernel_assert(1 <= k <= MAX_K, f"expert_index: got K = {k}, allowed are 1 to {MAX_K}")
    if p.eager is not None:
        assert_shape(p.eager, (tokens, k), "expert_affinities_eager")


def check_columns(p: MoEParameters) -> None:
    tokens, local = token_count(p), local_experts(p)
    columns = p.affinities.shape[1]
    assert_shape(p.affinities, (tokens, columns), "expert_affinities")
    kernel_assert(
        columns % local == 0,
        f"expert_affinities: got {columns} experts, allowed are multiples of the {local} local ones",
    )
    kernel_assert(
        not p.masked or p.index is not None, "expert_index: got None, needed by mask_unselected_experts"
    )


def check_scales(p: MoEParameters) -> None:
    fp8 = resolve_fp8_dtype(p.dtype_mode)
    if not quantized(p):
        kernel_assert(
            p.gate_up.dtype in FLOATS,
            f"expert_gate_up_weights: got {p.gate_up.dtype} without scales, allowed are {FLOATS}",
        )
        return
    kernel_assert(
        p.gate_up_scale is not None and p.down_scale is not None,
        "expert_gate_up_weights_scale, expert_down_weights_scale: got one of them, expected both or none",
    )
    kernel_assert(
        p.gate_up.dtype == fp8,
        f"expert_gate_up_weights: got {p.gate_up.dtype} with scales, expected {fp8} with {p.dtype_mode}",
    )
    experts, size, inner = local_experts(p), hidden_size(p), intermediate_size(p)
    check_scale("expert_gate_up_weights_scale", p.gate_up_scale, ((experts, 2, inner), (experts, 2, 1)))
    check_scale("expert_down_weights_scale", p.down_scale, ((experts, size), (experts, 1)))


def check_scale(name: str, scale: Tensor, allowed: tuple) -> None:
    shape = tuple(scale.shape)
    kernel_assert(shape in allowed, f"{name}: got shape {shape}, allowed are {allowed} (ROW, STATIC)")
