"""The mixture-of-experts block of a decoder layer for few tokens: norm, router, experts, shared experts.

Tokens stay in SBUF between the stages. Both cores normalise and route all of them, and share the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mlp import act_ref, mlp
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.moe.moe_tkg.dynamic import check_dynamic
from nkilib.core.moe.moe_tkg.moe_tkg import experts_of, refuse
from nkilib.core.moe.moe_tkg.parameters import MoEParameters
from nkilib.core.moe.moe_tkg.reference import moe_tkg_ref
from nkilib.core.moe_block.block_checks import (
    SharedExpert,
    check_experts,
    check_layouts,
    check_router,
    check_shared,
    check_tokens,
)
from nkilib.core.moe_block.block_tokens import BlockTokens
from nkilib.core.router_topk.router_topk import (
    XHBMLayout_T_H__1,
    XSBLayout_tp102__0,
    router_topk,
    router_topk_ref,
)
from nkilib.core.utils.common_types import (
    ActFnType,
    ComputationMode,
    DtypeMode,
    ExpertAffinityScaleMode,
    MoEBlockIOLayout,
    RouterActFnType,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load, store
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.transposes import spread_rows_into
from nkilib.core.utils.types import DTypeLike, Tensor

UNDEFINED = "the page lists it without a shape or a meaning"


@nki.jit
def moe_block_tkg(
    inp: Tensor,
    gamma: Tensor,
    router_weights: Tensor,
    expert_gate_up_weights: Tensor,
    expert_down_weights: Tensor,
    shared_expert_gate_w: Tensor | None = None,
    shared_expert_up_w: Tensor | None = None,
    shared_expert_down_w: Tensor | None = None,
    expert_gate_up_weights_scale: Tensor | None = None,
    expert_down_weights_scale: Tensor | None = None,
    router_bias: Tensor | None = None,
    expert_gate_up_bias: Tensor | None = None,
    expert_down_bias: Tensor | None = None,
    shared_expert_gate_bias: Tensor | None = None,
    shared_expert_up_bias: Tensor | None = None,
    shared_expert_down_bias: Tensor | None = None,
    eps: float = 1e-6,
    top_k: int = 1,
    router_act_fn: RouterActFnType | None = RouterActFnType.SIGMOID,
    router_pre_norm: bool = True,
    norm_topk_prob: bool = False,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode | None = ExpertAffinityScaleMode.NO_SCALE,
    hidden_act_fn: ActFnType | None = ActFnType.SiLU,
    hidden_act_scale_factor: float | None = None,
    hidden_act_bias: float | None = None,
    gate_clamp_upper_limit: float | None = None,
    gate_clamp_lower_limit: float | None = None,
    up_clamp_upper_limit: float | None = None,
    up_clamp_lower_limit: float | None = None,
    router_mm_dtype: DTypeLike | None = nl.bfloat16,
    hidden_actual: int | None = None,
    skip_router_logits: bool = False,
    is_all_expert: bool = False,
    rank_id: Tensor | None = None,
    residual: Tensor | None = None,
    expert_gate_up_input_scale: Tensor | None = None,
    expert_down_input_scale: Tensor | None = None,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    is_all_expert_dynamic: bool = False,
    block_size: int | None = None,
    inp_layout: MoEBlockIOLayout = MoEBlockIOLayout.B_S_H,
    outp_layout: MoEBlockIOLayout = MoEBlockIOLayout.B_S_H,
):
    """Norm, router, experts: out = sum of w[t, e] f_e(n_t) + shared(n_t), n = RMSNorm(inp + residual) gamma.

    inp is [B, S, H] (T = B S tokens), gamma [1, H]; n is rounded to the dtype of inp, and hidden_actual
    counts the elements that are not padding. Router as router_topk: router_weights [H, E], router_bias
    [1, E], top_k, router_act_fn, router_pre_norm, norm_topk_prob; n and the weights are rounded to
    router_mm_dtype first. Experts as moe_tkg; with is_all_expert those of rank_id, for the tokens that chose
    them (router_pre_norm); their weights may be MX. Shared experts are a plain MLP with weights [H, I],
    [H, I], [I, H].

    is_all_expert_dynamic and block_size are those of moe_tkg, outp_layout is its output_layout. inp_layout
    _128_Nprgs_Hfree_T is inp [128, n, J, T], whose [p, c, j, t] is column 128 J c + J p + j of token t. These
    four are named in the release notes alone: their place in the signature is ours.

    Returns (out [T, H], router_logits [T, E]), without the latter if skip_router_logits; with residual
    [B, S, H] also inp + residual [T, H]. None means the default for router_act_fn,
    expert_affinities_scaling_mode, hidden_act_fn and router_mm_dtype.

    >>> rng = np.random.default_rng(0)
    >>> def random(*shape): return rng.standard_normal(shape, np.float32) / 16
    >>> x, gamma, router = random(1, 2, 256), random(1, 256), random(256, 4)
    >>> args = (x, gamma, router, random(4, 256, 2, 32), random(4, 32, 256))
    >>> out, logits = moe_block_tkg(*args, top_k=2, router_mm_dtype=nl.float32)
    >>> bool(np.allclose(out, moe_block_tkg_ref(*args, top_k=2)[0], atol=1e-5))
    True
    """
    refuse("hidden_act_scale_factor", hidden_act_scale_factor, "what it scales is not documented")
    refuse("hidden_act_bias", hidden_act_bias, "where it is added is not documented")
    refuse("expert_gate_up_input_scale", expert_gate_up_input_scale, UNDEFINED)
    refuse("expert_down_input_scale", expert_down_input_scale, UNDEFINED)
    check_tokens(inp, inp_layout, gamma, residual, hidden_actual)
    given = BlockTokens(inp, inp_layout)
    check_router(given.size, router_weights, router_bias, top_k, router_act_fn)
    check_experts(expert_gate_up_weights, expert_down_weights, hidden_act_fn)
    shared = SharedExpert(
        shared_expert_gate_w,
        shared_expert_up_w,
        shared_expert_down_w,
        shared_expert_gate_bias,
        shared_expert_up_bias,
        shared_expert_down_bias,
    )
    check_shared(shared)
    check_layouts(outp_layout, is_all_expert_dynamic and shared.up is not None)
    n_prgs, core = get_verified_program_sharding_info("moe_block_tkg", (0, 1), 2)[1:]
    in_rows = is_all_expert_dynamic or shared_expert_up_w is not None
    tokens = normalized(given, residual, gamma, eps, hidden_actual, core, in_rows)
    router = BlockRouting(
        RouterActFnType.SIGMOID if router_act_fn is None else router_act_fn,
        top_k,
        router_pre_norm,
        norm_topk_prob,
        nl.bfloat16 if router_mm_dtype is None else router_mm_dtype,
    )
    routed = route(tokens, router_weights, router_bias, router, core == 0 and not skip_router_logits)
    addend = None
    act_fn = ActFnType.SiLU if hidden_act_fn is None else hidden_act_fn
    if shared_expert_up_w is not None:
        addend = mlp(
            tokens.rows.expand_dim(0),
            shared_expert_gate_w,
            shared_expert_up_w,
            shared_expert_down_w,
            gate_proj_bias_tensor=as_row(shared_expert_gate_bias),
            up_proj_bias_tensor=as_row(shared_expert_up_bias),
            down_proj_bias_tensor=as_row(shared_expert_down_bias),
            activation_fn=act_fn,
            output_dtype=nl.float32,
            mode=ComputationMode.DECODE,
        )[0].reshape(tokens.rows.shape)
    scaling = expert_affinities_scaling_mode
    p = MoEParameters(
        tokens.rows if is_all_expert_dynamic or tokens.tile is None else tokens.tile,
        expert_gate_up_weights,
        expert_down_weights,
        routed.affinities,
        routed.index,
        is_all_expert,
        rank_id,
        expert_gate_up_bias,
        expert_down_bias,
        expert_gate_up_weights_scale,
        expert_down_weights_scale,
        router_pre_norm,
        None,
        ExpertAffinityScaleMode.NO_SCALE if scaling is None else scaling,
        act_fn,
        Linear(None, upper=gate_clamp_upper_limit, lower=gate_clamp_lower_limit),
        Linear(None, upper=up_clamp_upper_limit, lower=up_clamp_lower_limit),
        inp.dtype,
        False,
        outp_layout,
        None,
        dtype_mode,
    )
    if is_all_expert_dynamic:
        check_dynamic(p, block_size)
    results = [experts_of(p, n_prgs, core, addend, block_size or 0 if is_all_expert_dynamic else 0)]
    if not skip_router_logits:
        results.append(routed.logits)
    if residual is not None:
        results.append(tokens.total)
    return results[0] if len(results) == 1 else tuple(results)


def as_row(bias: Tensor | None) -> Any:
    """A bias as [1, columns]; None stays None."""
    return bias if bias is None else bias.reshape((1, bias.size))


# ---- norm ----------------------------------------------------------------------------------------


@dataclass
class Normalized(nl.NKIObject):
    """n in SBUF, [128, T, H / 128], up to 128 tokens; its rows in HBM, if needed; and inp + residual."""

    tile: Any
    rows: Any
    total: Any
    tokens: int


def normalized(
    inp: BlockTokens,
    residual: Tensor | None,
    gamma: Tensor,
    eps: float,
    actual: int | None,
    core: int,
    rows_needed: bool,
) -> Normalized:
    """RMSNorm of all tokens."""
    tokens, size, dtype = inp.count, inp.size, inp.inp.dtype
    result = Normalized(None, None, None, tokens)
    if residual is not None:
        result.total = nl.ndarray((tokens, size), dtype, buffer=nl.shared_hbm)
    if rows_needed or tokens > PMAX:
        result.rows = nl.ndarray((tokens, size), dtype, buffer=nl.private_hbm)
    factors = broadcast_row(gamma, 0, size, min(tokens, PMAX))
    for token in TiledRange(tokens, PMAX):
        start, end = token.start_offset, token.end_offset
        rows = inp.rows(start, end)
        if residual is not None:
            rows = with_residual(rows, residual.reshape((tokens, size))[start:end])
            if core == 0:
                store(result.total[start:end], rows)
        out = nl.ndarray(rows.shape, dtype, buffer=nl.sbuf)
        rms_norm(out, rows, factors, eps, actual)
        if result.rows is not None:
            nisa.dma_copy(result.rows[start:end], out)
        if tokens <= PMAX:
            result.tile = nl.ndarray((PMAX, tokens, size // PMAX), dtype, buffer=nl.sbuf)
            spread_rows_into(result.tile.permute((0, 2, 1)), [out])
    return result


def with_residual(rows: Tensor, residual: Tensor) -> Tensor:
    """rows + residual in float32."""
    total = nl.ndarray(rows.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(total, rows, load(residual), op=nl.add)
    return total


# ---- router --------------------------------------------------------------------------------------


@dataclass
class BlockRouting(nl.NKIObject):
    """The rule of the router."""

    act_fn: RouterActFnType
    k: int
    pre_norm: bool
    norm_topk_prob: bool
    dtype: DTypeLike


@dataclass
class Routed(nl.NKIObject):
    """Where tokens go: logits in HBM, affinities [T, E] and index [T, K] in SBUF up to 128 tokens."""

    logits: Any
    affinities: Any
    index: Any


def route(
    n: Normalized, weights: Tensor, bias: Tensor | None, rule: BlockRouting, store_logits: bool
) -> Routed:
    experts = weights.shape[1]
    buffer = nl.sbuf if n.tokens <= PMAX else nl.private_hbm
    routed = Routed(
        nl.ndarray((n.tokens, experts), rule.dtype, buffer=nl.shared_hbm),
        nl.ndarray((n.tokens, experts), nl.float32, buffer=buffer),
        nl.ndarray((n.tokens, rule.k), nl.int32, buffer=buffer),
    )
    x = n.rows if n.tile is None else n.tile
    router_topk(
        as_dtype(x, rule.dtype),
        as_dtype(weights, rule.dtype),
        bias,
        routed.logits,
        routed.affinities,
        routed.index,
        rule.act_fn,
        rule.k,
        XHBMLayout_T_H__1,
        XSBLayout_tp102__0,
        router_pre_norm=rule.pre_norm,
        norm_topk_prob=rule.norm_topk_prob,
        skip_store_router_logits=not store_logits,
    )
    return routed


def as_dtype(tensor: Tensor, dtype: DTypeLike) -> Any:
    """A tensor in another dtype, where it is: a copy, if it has not that already."""
    if tensor.dtype == dtype:
        return tensor
    if tensor.buffer == nl.sbuf:
        return cast_tile(tensor, dtype)
    copy = nl.ndarray(tensor.shape, dtype, buffer=nl.private_hbm)
    for rows in TiledRange(tensor.shape[0], PMAX):
        nisa.dma_copy(
            copy[rows.start_offset : rows.end_offset],
            load(tensor[rows.start_offset : rows.end_offset], dtype),
        )
    return copy


def cast_tile(tile: Tensor, dtype: DTypeLike) -> Tensor:
    copy = nl.ndarray(tile.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_copy(copy, tile)
    return copy


# ---- in numpy ------------------------------------------------------------------------------------


def moe_block_tkg_ref(
    inp: np.ndarray,
    gamma: np.ndarray,
    router_weights: np.ndarray,
    expert_gate_up_weights: np.ndarray,
    expert_down_weights: np.ndarray,
    shared_expert_gate_w: np.ndarray | None = None,
    shared_expert_up_w: np.ndarray | None = None,
    shared_expert_down_w: np.ndarray | None = None,
    router_bias: np.ndarray | None = None,
    eps: float = 1e-6,
    top_k: int = 1,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
    router_pre_norm: bool = True,
    norm_topk_prob: bool = False,
    hidden_act_fn: ActFnType = ActFnType.SiLU,
    hidden_actual: int | None = None,
    residual: np.ndarray | None = None,
    is_all_expert: bool = False,
    **experts,
):
    """(out, logits, inp + residual) in numpy, in float64; n is rounded to the dtype of inp."""
    total = np.asarray(inp, np.float64).reshape(-1, inp.shape[2])
    if residual is not None:
        total = total + np.asarray(residual, np.float64).reshape(total.shape)
    count = inp.shape[2] if hidden_actual is None else hidden_actual
    n = total / np.sqrt((total**2).sum(axis=1, keepdims=True) / count + eps) * np.asarray(gamma, np.float64)
    n = n.astype(inp.dtype)
    logits, index, affinities, _ = router_topk_ref(
        n, router_weights, router_bias, router_act_fn, top_k, 1, router_pre_norm, norm_topk_prob
    )
    out = moe_tkg_ref(
        n,
        expert_gate_up_weights,
        expert_down_weights,
        affinities,
        index,
        is_all_expert,
        mask_unselected_experts=router_pre_norm,
        activation_fn=hidden_act_fn,
        **experts,
    )
    if shared_expert_up_w is not None:
        weights = (shared_expert_gate_w, shared_expert_up_w, shared_expert_down_w)
        gate, up, down = (np.asarray(w, np.float64) for w in weights)
        x = n.astype(np.float64)
        out = out + (act_ref(x @ gate, hidden_act_fn) * (x @ up)) @ down
    return out, logits, total
