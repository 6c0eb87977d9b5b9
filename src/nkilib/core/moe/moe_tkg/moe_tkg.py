"""The experts of a mixture for few tokens: bound by the weights, which stream from HBM.

Of two experts each core computes one middle, act(gate) * up, and sends it to the other; both then take their
half of the columns of the down projections. An expert that is left over is shared by columns of its middle.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.moe_tkg.affinities import Broadcast, local_affinities, selected_affinities
from nkilib.core.moe.moe_tkg.dynamic import check_dynamic, dynamic_experts
from nkilib.core.moe.moe_tkg.experts import Item, Tokens
from nkilib.core.moe.moe_tkg.mx_tokens import as_mx
from nkilib.core.moe.moe_tkg.parameters import (
    BLOCK_TOKENS,
    MoEParameters,
    arrives_packed,
    check,
    hidden_size,
    input_in_sbuf,
    intermediate_size,
    local_experts,
    scales_outputs,
    token_count,
    working_cores,
)
from nkilib.core.moe.moe_tkg.reference import moe_tkg_ref
from nkilib.core.moe.moe_tkg.steps import add_ready, step_middles
from nkilib.core.moe.moe_tkg.tokens import (
    load_tokens,
    new_output,
    new_total,
    result_in_sbuf,
    store_result,
)
from nkilib.core.utils.common_types import (
    ActFnType,
    DtypeMode,
    ExpertAffinityScaleMode,
    MoEAllToAllVStrategy,
    MoEBlockIOLayout,
)
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_tensors,
    kernel_assert,
    not_built,
    refuse_without_effect,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.types import DTypeLike, Tensor

FP8_TOKENS = "the page says that static quantization of inputs is not currently supported"
BLOCK_BYTES = 96 * 1024  # of sums in each partition: how many tokens a pass over the weights serves


@nki.jit
def moe_tkg(
    hidden_input: Tensor,
    expert_gate_up_weights: Tensor,
    expert_down_weights: Tensor,
    expert_affinities: Tensor,
    expert_index: Tensor,
    is_all_expert: bool,
    rank_id: Tensor | None = None,
    expert_gate_up_bias: Tensor | None = None,
    expert_down_bias: Tensor | None = None,
    expert_gate_up_weights_scale: Tensor | None = None,
    expert_down_weights_scale: Tensor | None = None,
    hidden_input_scale: Tensor | None = None,
    expert_gate_up_input_scale: Tensor | None = None,
    expert_down_input_scale: Tensor | None = None,
    mask_unselected_experts: bool = False,
    expert_affinities_eager: Tensor | None = None,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.NO_SCALE,
    activation_fn: ActFnType = ActFnType.SiLU,
    output_dtype: DTypeLike | None = None,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    output_in_sbuf: bool = False,
    is_all_expert_dynamic: bool = False,
    block_size: int | None = None,
    input_dequant_scale: Tensor | None = None,
    all_to_all_v_strategy: MoEAllToAllVStrategy = MoEAllToAllVStrategy.DISABLED,
    output_layout: MoEBlockIOLayout = MoEBlockIOLayout.B_S_H,
    output: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    gate_up_input_scale: Tensor | None = None,
    down_input_scale: Tensor | None = None,
    outp_layout: MoEBlockIOLayout | None = None,
):
    """out[t] = sum over experts e of w[t, e] f_e(x_t), f(x) = down(act(gate(x)) * up(x)); [T, H].

    hidden_input is [T, H] in HBM, or [128, T, J] in SBUF with x[t, J p + j] at [p, t, j], J = H / 128; there
    a core may also have its half of H alone, laid out so. Weights are [E_L, H, 2, I] and [E_L, I, H], biases
    [E_L, 2, I] and [E_L, H]; FP8 weights have scales [E_L, 2, I] and [E_L, H] (ROW), or [E_L, 2, 1] and
    [E_L, 1] (STATIC), and activations stay in 16 bits.

    MX weights (trn3) are words of four FP8 or FP4 elements (or uint32, uint16, or FP8 with four lanes as a
    last axis): [E_L, 128, 2, H / 512, I] and [E_L, I_p, I / 512 rounded up, H], I_p = I / 4 rounded up to 8
    and at most 128, with E8M0 scales for 8 rows each, and biases [E_L, I_p, 2, I / 512, 4] and [E_L, H];
    layouts are those of mlp in decode. H is a multiple of 512, I of 8. Tokens and the middle become MXFP8.

    Without is_all_expert each token goes to the experts of its row of expert_index [T, K], with w its
    expert_affinities [T, E] there, or expert_affinities_eager [T, K]. With is_all_expert all local experts
    take all tokens; w are the columns of rank_id [1, 1] in expert_affinities, and with
    mask_unselected_experts 0 unless expert_index has the expert. expert_affinities_scaling_mode NO_SCALE
    makes w 1 (POST_SCALE multiplies). The documented 128 tokens hold for selected experts and for SBUF alone.

    is_all_expert_dynamic gives the same, but each expert takes only tokens whose w is not 0, block_size (or
    128, if that is less) at a time, and an expert without any is not loaded: for many tokens and few of them
    here. It takes tokens from HBM and returns [T, H].

    The result is [T, H], or of output_layout _128_Nprgs_Hfree_T [128, n, H / 128 / n, T] for n cores, or,
    with output_in_sbuf, a tile as hidden_input has in SBUF; `output` is written to if given.
    gate_up_input_scale, down_input_scale and outp_layout are older names.

    all_to_all_v_strategy takes rows that came from other ranks, [R, H + 3] as permute_routed_tokens packs
    them, to all local experts: w is the packed affinity for the expert that expert_index [R, 1] names by its
    global number (not needed for one local expert), 0 for rows whose token is -1. PRESERVE_ROW_ORDER gives
    their results [R, H], PACK_OUTPUT_ROWS [R, H + 2] with the token, counted from 1, behind each: what
    topk_reduce takes. (The page does not describe the strategies; this is ours.)

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def random(*shape): return rng.standard_normal(shape, np.float32) / 16
    >>> x, gate_up, down = random(2, 256), random(4, 256, 2, 32), random(4, 32, 256)
    >>> affinities, index = random(2, 4), np.array([[3, 0], [1, 2]], np.int32)
    >>> out = moe_tkg(x, gate_up, down, affinities, index, False)
    >>> bool(np.allclose(out, moe_tkg_ref(x, gate_up, down, affinities, index, False), atol=1e-5))
    True
    """
    p = MoEParameters(
        hidden_input,
        expert_gate_up_weights,
        expert_down_weights,
        expert_affinities,
        expert_index,
        is_all_expert,
        rank_id,
        expert_gate_up_bias,
        expert_down_bias,
        expert_gate_up_weights_scale,
        expert_down_weights_scale,
        mask_unselected_experts,
        expert_affinities_eager,
        expert_affinities_scaling_mode,
        activation_fn,
        Linear(None, upper=gate_clamp_upper_limit, lower=gate_clamp_lower_limit),
        Linear(None, upper=up_clamp_upper_limit, lower=up_clamp_lower_limit),
        output_dtype,
        output_in_sbuf,
        output_layout if outp_layout is None else outp_layout,
        output,
        dtype_mode,
        all_to_all_v_strategy,
    )
    check_given(p, block_size, is_all_expert_dynamic)
    refuse("hidden_input_scale", hidden_input_scale, FP8_TOKENS)
    refuse("input_dequant_scale", input_dequant_scale, FP8_TOKENS)
    refuse("expert_gate_up_input_scale", expert_gate_up_input_scale, FP8_TOKENS)
    refuse("expert_gate_up_input_scale", gate_up_input_scale, FP8_TOKENS)
    refuse("expert_down_input_scale", expert_down_input_scale, FP8_TOKENS)
    refuse("expert_down_input_scale", down_input_scale, FP8_TOKENS)
    n_prgs, core = get_verified_program_sharding_info("moe_tkg", (0, 1), 2)[1:]
    if is_all_expert_dynamic:
        check_dynamic(p, block_size)
    return experts_of(p, n_prgs, core, block_size=block_size or 0 if is_all_expert_dynamic else 0)


def check_given(p: MoEParameters, block_size: int | None, dynamic: bool) -> None:
    """What must be a tensor is one, and what would have no effect is not given."""
    assert_tensors(
        (
            ("hidden_input", p.hidden),
            ("expert_gate_up_weights", p.gate_up),
            ("expert_down_weights", p.down),
        ),
        (("expert_affinities", p.affinities), ("expert_index", p.index)),
    )
    assert_members(("activation_fn", p.act_fn, ActFnType), ("dtype_mode", p.dtype_mode, DtypeMode))
    weighted = arrives_packed(p) or scales_outputs(p)
    kernel_assert(
        not weighted or arrives_packed(p) or p.affinities is not None or p.eager is not None,
        "expert_affinities: got None, needed by POST_SCALE",
    )
    refuse_without_effect(p.all_expert, "is_all_expert", (("mask_unselected_experts", p.masked),))
    warn_without_effect(p.all_expert, "is_all_expert", (("rank_id", p.rank_id),))
    warn_without_effect(dynamic, "is_all_expert_dynamic", (("block_size", block_size),))
    warn_without_effect(weighted, "POST_SCALE", (("expert_affinities_eager", p.eager),))


def refuse(name: str, value: Tensor | None, why: str) -> None:
    """Of this argument only None is built."""
    if value is not None:
        not_built(name, why)


def experts_of(
    p: MoEParameters, n_prgs: int, core: int, addend: Tensor | None = None, block_size: int = 0
) -> Any:
    """The kernel, once its arguments are collected; addend [T, H] float32 in HBM is added to the result.

    With a block_size all experts take only the tokens that weigh something with them.
    """
    as_mx(p)
    check(p, n_prgs)
    out, cores = new_output(p, n_prgs), working_cores(p, n_prgs)
    if core >= cores:
        return out
    if block_size > 0:
        return dynamic_experts(p, out, cores, core, block_size)
    if p.all_expert:
        return all_experts(p, out, cores, core, addend)
    return selected_experts(p, out, cores, core, addend)


# ---- who does what -------------------------------------------------------------------------------


def selected_experts(
    p: MoEParameters, out: Tensor | None, cores: int, core: int, addend: Tensor | None
) -> Any:
    """For each token its K experts, whose numbers address the weights."""
    tokens, k = p.index.shape
    index = nl.ndarray((1, tokens * k), nl.int32, buffer=nl.sbuf)
    numbers = p.index if p.index.dtype == nl.int32 else p.index.view(nl.int32)
    nisa.dma_copy(index.reshape_dim(1, (tokens, k)), numbers)
    x = load_tokens(p, cores, 0, tokens)
    weights = selected_affinities(p) if scales_outputs(p) else None
    items = []
    for token in range(tokens):
        for rank in range(k):
            pair = token * k + rank
            weight = None if weights is None else weights[:, rank, token : token + 1]
            items.append(Item(index[0:1, pair : pair + 1], 0, intermediate_size(p), token, 1, weight))
    total = new_total(p, x, core, 0, addend)
    return run_items(p, out, total, x, items, core, 0)


def all_experts(p: MoEParameters, out: Tensor | None, cores: int, core: int, addend: Tensor | None) -> Any:
    """For each block of tokens all local experts."""
    result = None
    for block in TiledRange(token_count(p), block_tokens(p)):
        x = load_tokens(p, cores, block.start_offset, block.size)
        weights = expert_weights(p, block) if scales_outputs(p) else None
        items = []
        for expert in range(local_experts(p)):
            weight = None if weights is None else weights[:, expert, :]
            items.append(Item(expert, 0, intermediate_size(p), 0, block.size, weight))
        total = new_total(p, x, core, block.start_offset, addend)
        result = run_items(p, out, total, x, items, core, block.start_offset)
    return result


def block_tokens(p: MoEParameters) -> int:
    """Tokens that one pass over the weights serves."""
    if input_in_sbuf(p) or p.output_in_sbuf:
        return BLOCK_TOKENS
    fit = min(BLOCK_TOKENS, BLOCK_BYTES // (4 * hidden_size(p) // PMAX))
    return fit if fit < PMAX else fit // PMAX * PMAX


def expert_weights(p: MoEParameters, block: TiledRangeIterator) -> Tensor:
    """Affinities of the local experts, [128, E_L, tokens], the same in every partition."""
    result = nl.ndarray((PMAX, local_experts(p), block.size), nl.float32, buffer=nl.sbuf)
    broadcast = Broadcast(min(block.size, PMAX))
    for token in TiledRange(block.size, PMAX):
        rows = local_affinities(p, block.start_offset + token.start_offset, token.size)
        for expert in range(local_experts(p)):
            dst = result[:, expert, token.start_offset : token.end_offset]
            broadcast.put(dst, rows[:, expert : expert + 1])
    return result


# ---- the work ------------------------------------------------------------------------------------


def run_items(
    p: MoEParameters, out: Tensor | None, total: Tensor, x: Tokens, items: list, core: int, first: int
) -> Any:
    """All items, as many at once as there are cores. The next middle is computed before the last is used."""
    waiting: list = []
    for step in TiledRange(len(items), x.cores):
        ready = step_middles(p, x, items[step.start_offset : step.end_offset], core)
        add_ready(p, total, x, waiting, core)
        waiting = ready
    add_ready(p, total, x, waiting, core)
    if p.output_in_sbuf:
        return result_in_sbuf(p, total, x, core)
    store_result(p, out, total, x, core, first)
    return out


__all__ = ["moe_tkg", "moe_tkg_ref"]
