"""What router_topk demands of its arguments, and the layouts it takes them in."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

from ..utils.common_types import RouterActFnType
from ..utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from ..utils.kernel_helpers import get_program_sharding_info, is_hbm_buffer
from .noaux_tc import check_noaux

MAX_K = 8  # what max8 finds
MAX_EXPERTS = 512  # one PSUM bank of float32 logits
MAX_TOKENS = 2048

XHBMLayout_H_T__0 = 0  # x [H, T] in HBM
XHBMLayout_T_H__1 = 1  # x [T, H] in HBM
XSBLayout_tp102__0 = 0  # [128, T, H/128] in SBUF, x[t, p * H/128 + j] at [p, t, j]
XSBLayout_tp2013__1 = 1  # the same for each half of H: first one, then the other
XSBLayout_tp201__2 = 2  # [128, T, H/128], x[t, 128 j + p] at [p, t, j]
XSBLayout__128_Hdiv128_T__3 = 3  # [128, H/128, T], x[t, 128 j + p] at [p, j, t]


def check_tensors(x: Tensor, w: Tensor, w_bias: Tensor | None, outputs: tuple) -> None:
    """All are tensors, and those of the product have as many dimensions as documented."""
    names = ("router_logits", "expert_affinities", "expert_index")
    given = (("x", x), ("w", w), (names[0], outputs[0]), (names[1], outputs[1]), (names[2], outputs[2]))
    assert_tensors(given, (("w_bias", w_bias),))
    kernel_assert(
        len(w.shape) == 2 and w.shape[0] >= PMAX,
        f"w: got shape {tuple(w.shape)}, expected (H, E) with H a multiple of 128",
    )
    dimensions = 2 if is_hbm_buffer(x) else 3
    kernel_assert(
        len(x.shape) == dimensions, f"x: got shape {tuple(x.shape)}, expected {dimensions} dimensions"
    )


def check_arguments(router: Any, x: Tensor, w: Tensor, w_bias: Tensor | None) -> None:
    known = (RouterActFnType.SIGMOID, RouterActFnType.SOFTMAX, RouterActFnType.NOAUX_TC)
    kernel_assert(
        router.act_fn in known, f"act_fn: got {router.act_fn}, allowed are SIGMOID, SOFTMAX and NOAUX_TC"
    )
    hidden, tokens, experts = router.hidden, router.tokens, router.experts
    check_hidden(hidden, router.x_sb_layout if router.x_in_sbuf else XSBLayout__128_Hdiv128_T__3, "w")
    kernel_assert(experts <= MAX_EXPERTS, f"w: got {experts} experts, allowed are at most {MAX_EXPERTS}")
    kernel_assert(tokens <= MAX_TOKENS, f"x: got {tokens} tokens, allowed are at most {MAX_TOKENS}")
    most = min(MAX_K, experts)
    kernel_assert(1 <= router.k <= most, f"k: got {router.k}, allowed are 1 to {most}")
    kernel_assert(x.dtype == w.dtype, f"x: got dtype {x.dtype}, expected {w.dtype} like w")
    if router.x_in_sbuf:
        last = router.x_sb_layout == XSBLayout__128_Hdiv128_T__3
        assert_shape(x, (PMAX, hidden // PMAX, tokens) if last else (PMAX, tokens, hidden // PMAX), "x")
    else:
        by_column = router.x_hbm_layout == XHBMLayout_H_T__0
        assert_shape(x, (hidden, tokens) if by_column else (tokens, hidden), "x")
    if w_bias is not None:
        allowed = ((1, experts), (experts,))
        kernel_assert(
            tuple(w_bias.shape) in allowed, f"w_bias: got shape {tuple(w_bias.shape)}, allowed are {allowed}"
        )
    if router.noaux is not None:
        check_noaux(router.noaux, experts, router.k, w_bias)


def check_hidden(hidden: int, sb_layout: int, name: str) -> None:
    multiple = 2 * PMAX if sb_layout == XSBLayout_tp2013__1 else PMAX
    kernel_assert(
        hidden % multiple == 0,
        f"{name}: got hidden size {hidden}, allowed for x_sb_layout {sb_layout} are multiples of {multiple}",
    )


def check_layouts(hbm_layout: int, sb_layout: int) -> None:
    kernel_assert(hbm_layout in (0, 1), f"x_hbm_layout: got {hbm_layout}, allowed are 0 and 1")
    kernel_assert(sb_layout in (0, 1, 2, 3), f"x_sb_layout: got {sb_layout}, allowed are 0 to 3")


def check_results(router: Any, logits: Tensor, affinities: Tensor, index: Tensor) -> None:
    wide, narrow = (router.tokens, router.experts), (router.tokens, router.k)
    for result in (
        (logits, wide, "router_logits"),
        (affinities, wide, "expert_affinities"),
        (index, narrow, "expert_index"),
    ):
        tensor, shape, name = result
        assert_shape(tensor, shape, name)
        kernel_assert(
            is_hbm_buffer(tensor) or router.tokens <= PMAX,
            f"{name}: got an SBUF tile for {router.tokens} tokens, allowed up to {PMAX}",
        )
    kernel_assert(
        index.dtype in (nl.int32, nl.uint32),
        f"expert_index: got dtype {index.dtype}, allowed are int32 and uint32",
    )


def check_mechanisms(router: Any, scatter: bool, shard_on_tokens: bool, all_in_hbm: bool) -> None:
    tokens, n_prgs = router.tokens, get_program_sharding_info()[1]
    kernel_assert(
        not scatter or tokens <= PMAX or tokens % PMAX == 0,
        f"use_indirect_dma_scatter: got {tokens} tokens, allowed are up to {PMAX} and multiples of it",
    )
    kernel_assert(
        not shard_on_tokens or (n_prgs > 1 and (tokens % 2 == 0 or not all_in_hbm)),
        f"shard_on_tokens: got {tokens} tokens on {n_prgs} cores, allowed is an even number on two",
    )


def check_groups(router: Any, n_group: int, topk_group: int, routed_scaling_factor: float) -> None:
    """The arguments of NOAUX_TC have no effect on other rules."""
    for argument in (
        ("n_group", n_group),
        ("topk_group", topk_group),
        ("routed_scaling_factor", routed_scaling_factor),
    ):
        kernel_assert(
            router.noaux is not None or argument[1] == 1,
            f"{argument[0]}: got {argument[1]} with {router.act_fn}, allowed is 1: only NOAUX_TC has groups",
        )


def check_rule(router: Any, pre_norm: bool, norm_topk_prob: bool) -> None:
    kernel_assert(
        pre_norm or not norm_topk_prob or router.noaux is not None,
        "norm_topk_prob: got True with router_pre_norm=False, allowed only with router_pre_norm or NOAUX_TC",
    )
