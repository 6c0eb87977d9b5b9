"""RMSNorm of many tokens, quantised to packed MX rows, with an optional router."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import rms_norm
from nkilib.core.router_topk.noaux_tc import NoAux, check_noaux, noaux_tc_ref
from nkilib.core.router_topk.router_operands import Bias, Router
from nkilib.core.router_topk.router_tokens import route
from nkilib.core.router_topk.router_topk import (
    XHBMLayout_T_H__1,
    XSBLayout__128_Hdiv128_T__3,
    router_topk_input_w_load,
    router_topk_ref,
)
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
)
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_rows import (
    check_mx,
    element_dtype,
    new_operand,
    pack_rows,
    quantize_into,
    rows_to_columns,
    scale_columns,
)
from nkilib.core.utils.projection_results import broadcast_row
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import DTypeLike, Tensor

MAX_K, MAX_EXPERTS = 8, 512


@nki.jit
def rmsnorm_mx_prefill(
    hidden_states: Tensor,
    gamma: Tensor,
    router_weights: Tensor | None = None,
    router_bias: Tensor | None = None,
    eps: float = 1e-06,
    top_k: int = 1,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
    n_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
    qmx_output_dtype: DTypeLike = nl.float8_e4m3fn_x4,
    pack_scales: bool = True,
    pack_affinities: bool = False,
    unpadded_hidden_size: int | None = None,
    residual: Tensor | None = None,
    emit_norm_bf16: bool = False,
) -> Any:
    """Return n = RMSNorm(hidden_states + residual) as packed MX rows, and the experts that it is routed to.

    hidden_states and residual are bfloat16 [B, S, H], H a multiple of 512, T = B S; gamma is [1, H] or [H].
    unpadded_hidden_size counts the columns that are not padding. A packed row has H elements of
    qmx_output_dtype (E4M3 or E5M2) in the order of the columns, a scale for each 32 of them, then scales in
    blocks of 128: with pack_scales four tiles of 512 share a block, else each has its own. Scale j of
    quadrant g of tile t is in column 32 g + 4 (t % 4) + j of its block.

    router_weights [H, E], E up to 512, has row 512 t + 4 p + q at place 512 t + 128 q + p. SIGMOID and
    SOFTMAX return the top_k experts, up to 8, and act of their logits n w + router_bias, 0 elsewhere;
    NOAUX_TC chooses as router_topk does, divides by the sum of the chosen, and returns affinities alone.

    Returns packed rows [T, row] of FP8; then, as asked for, in this order: experts int32 [T, top_k];
    affinities bfloat16 [T, E], or with pack_affinities their bytes behind the scales of each row, which is
    filled up to a multiple of four; output_residual [B, S, H], the sum in bfloat16, of which n is computed;
    norm_bf16 [T, H] with emit_norm_bf16. A single result comes without a tuple. The page lists neither the
    order of results nor the place of scales inside a block: they are those of pack_scales in nki.mx.

    >>> import ml_dtypes, os
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> x, gamma = np.full((1, 2, 512), 3, ml_dtypes.bfloat16), np.ones((1, 512), ml_dtypes.bfloat16)
    >>> packed = rmsnorm_mx_prefill(x, gamma)
    >>> packed.shape, float(packed[0, 0]), int(packed.view(np.uint8)[0, 512])
    ((2, 640), 128.0, 120)
    """
    get_verified_program_sharding_info("rmsnorm_mx_prefill", (0, 1), 2)
    check_mx("rmsnorm_mx_prefill")
    check_tokens(hidden_states, gamma, residual, qmx_output_dtype, unpadded_hidden_size)
    routes = router_weights is not None
    refuse_without_effect(
        routes, "router_weights", (("router_bias", router_bias), ("pack_affinities", pack_affinities))
    )
    job = PrefillNorm(hidden_states, gamma, eps, unpadded_hidden_size, residual, emit_norm_bf16)
    if routes:
        rule = NoAux(n_group, topk_group, routed_scaling_factor)
        check_router(router_weights, router_bias, job.size, top_k, router_act_fn, rule)
        job.set_router(router_weights, router_bias, top_k, router_act_fn, rule, pack_affinities)
    job.set_rows(qmx_output_dtype, pack_scales)
    first, end = program_share(job.tokens)
    for tile in TiledRange(end - first, PMAX):
        job.run(first + tile.start_offset, tile.size)
    return job.results()


# ---- checks --------------------------------------------------------------------------------------


def check_tokens(
    hidden: Tensor, gamma: Tensor, residual: Tensor | None, dtype: DTypeLike, actual: int | None
) -> None:
    assert_tensors((("hidden_states", hidden), ("gamma", gamma)), (("residual", residual),))
    shape = tuple(hidden.shape)
    kernel_assert(
        len(shape) == 3 and shape[2] % TILE == 0,
        f"hidden_states: got shape {shape}, expected (B, S, H) with H a multiple of {TILE}",
    )
    kernel_assert(hidden.dtype == nl.bfloat16, f"hidden_states: got dtype {hidden.dtype}, expected bfloat16")
    check_row("gamma", gamma, shape[2])
    if residual is not None:
        assert_shape(residual, shape, "residual")
    kernel_assert(
        element_dtype(dtype) is not None,
        f"qmx_output_dtype: got {dtype}, allowed are float8_e4m3fn_x4 and float8_e5m2_x4",
    )
    kernel_assert(
        actual is None or 1 <= actual <= shape[2],
        f"unpadded_hidden_size: got {actual}, allowed are 1 to H = {shape[2]}",
    )


def check_row(name: str, row: Tensor, size: int) -> None:
    kernel_assert(
        tuple(row.shape) in ((1, size), (size,)),
        f"{name}: got shape {tuple(row.shape)}, expected (1, {size}) or ({size},)",
    )


def check_router(
    weights: Tensor, bias: Tensor | None, size: int, k: int, act_fn: RouterActFnType, rule: NoAux
) -> None:
    assert_members(("router_act_fn", act_fn, RouterActFnType))
    kernel_assert(
        len(weights.shape) == 2 and weights.shape[0] == size and weights.shape[1] <= MAX_EXPERTS,
        f"router_weights: got shape {tuple(weights.shape)}, expected ({size}, E), E <= {MAX_EXPERTS}",
    )
    experts = weights.shape[1]
    if bias is not None:
        check_row("router_bias", bias, experts)
    most = min(MAX_K, experts)
    kernel_assert(1 <= k <= most, f"top_k: got {k}, allowed are 1 to {most}")
    if act_fn == RouterActFnType.NOAUX_TC:
        kernel_assert(bias is not None, "router_bias: got None, NOAUX_TC needs the e_score_correction_bias")
        check_noaux(rule, experts, k, bias)


# ---- tokens --------------------------------------------------------------------------------------


class PrefillNorm(nl.NKIObject):
    """One call: where tokens come from and where results go."""

    def __init__(
        self,
        hidden: Tensor,
        gamma: Tensor,
        eps: float,
        actual: int | None,
        residual: Tensor | None,
        emits_norm: bool,
    ):
        shape = tuple(hidden.shape)
        self.tokens = shape[0] * shape[1]
        self.size = shape[2]
        flat = (self.tokens, self.size)
        self.x = hidden.reshape(flat)
        self.eps = eps
        self.actual = actual
        self.gamma = broadcast_row(gamma.reshape((1, self.size)), 0, self.size, min(PMAX, self.tokens))
        self.residual = None if residual is None else residual.reshape(flat)
        self.total: Any = None
        if residual is not None:
            self.total = nl.ndarray(shape, nl.bfloat16, buffer=nl.shared_hbm)
        self.normal: Any = nl.ndarray(flat, nl.bfloat16, buffer=nl.shared_hbm) if emits_norm else None
        self.router: Any = None
        self.experts: Any = None
        self.affinities: Any = None
        self.appended = 0  # columns of a packed row behind the scales

    def set_router(
        self,
        weights: Tensor,
        bias: Tensor | None,
        k: int,
        act_fn: RouterActFnType,
        rule: NoAux,
        packs: bool,
    ) -> None:
        experts, noaux = weights.shape[1], act_fn == RouterActFnType.NOAUX_TC
        self.router = Router(self.x, weights, act_fn, k, XHBMLayout_T_H__1, XSBLayout__128_Hdiv128_T__3)
        self.router.set_rule(False, noaux)
        self.weights = router_topk_input_w_load(weights, XSBLayout__128_Hdiv128_T__3)
        if self.weights.dtype != nl.bfloat16:
            wide = self.weights
            self.weights = nl.ndarray(wide.shape, nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_copy(self.weights, wide)
        self.bias = Bias(bias, False)
        if noaux:
            rule.bias = self.bias.rows
            self.router.noaux = rule
            self.bias = Bias(None, False)
        else:
            self.experts = nl.ndarray((self.tokens, k), nl.int32, buffer=nl.shared_hbm)
        if packs:
            self.appended = 2 * experts
        else:
            self.affinities = nl.ndarray((self.tokens, experts), nl.bfloat16, buffer=nl.shared_hbm)

    def set_rows(self, dtype: DTypeLike, shared: bool) -> None:
        """Allocate the packed rows."""
        self.dtype = dtype
        self.shared = shared
        self.start_of_affinities = self.size + scale_columns(self.size, shared)
        self.row = LANES * div_ceil(self.start_of_affinities + self.appended, LANES)
        self.packed = nl.ndarray((self.tokens, self.row), element_dtype(dtype), buffer=nl.shared_hbm)

    def run(self, start: int, count: int) -> None:
        """Process up to 128 tokens."""
        end = start + count
        normal = nl.ndarray((count, self.size), nl.bfloat16, buffer=nl.sbuf)
        rms_norm(normal, self.load_rows(start, end), self.gamma, self.eps, self.actual)
        if self.normal is not None:
            nisa.dma_copy(self.normal[start:end], normal)
        columns = rows_to_columns(normal)
        quantized = new_operand(self.size, count, None, self.dtype, self.shared)
        quantize_into(quantized, 0, 0, columns)
        packed = nl.ndarray((count, self.row), self.packed.dtype, buffer=nl.sbuf)
        pack_rows(packed[:, 0 : self.start_of_affinities], quantized)
        if self.router is not None:
            self.route(columns, packed, start, end)
        nisa.dma_copy(self.packed[start:end], packed)

    def load_rows(self, start: int, end: int) -> Tensor:
        rows = load(self.x[start:end])
        if self.residual is None:
            return rows
        total = nl.ndarray(rows.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_tensor(total, rows, load(self.residual[start:end]), nl.add)
        nisa.dma_copy(self.total.reshape((self.tokens, self.size))[start:end], total)
        return total

    def route(self, columns: Tensor, packed: Tensor, start: int, end: int) -> None:
        """Choose experts; affinities go to HBM or to the end of the packed rows."""
        router = self.router
        router.index = None if self.experts is None else self.experts[start:end]
        if self.affinities is not None:
            router.affinities = self.affinities[start:end]
            route(router, columns, self.weights, self.bias, 0)
            return
        router.affinities = nl.ndarray((end - start, router.experts), nl.bfloat16, buffer=nl.sbuf)
        route(router, columns, self.weights, self.bias, 0)
        after = self.start_of_affinities + self.appended
        nisa.tensor_copy(packed[:, self.start_of_affinities : after].view(nl.bfloat16), router.affinities)
        if after < self.row:
            nisa.memset(packed[:, after : self.row].view(nl.uint8), 0)

    def results(self) -> Any:
        found = [self.packed]
        for result in (self.experts, self.affinities, self.total, self.normal):
            if result is not None:
                found.append(result)
        return found[0] if len(found) == 1 else tuple(found)


def rmsnorm_mx_prefill_ref(
    hidden_states: np.ndarray,
    gamma: np.ndarray,
    router_weights: np.ndarray | None = None,
    router_bias: np.ndarray | None = None,
    eps: float = 1e-06,
    top_k: int = 1,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
    n_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
    unpadded_hidden_size: int | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (n [T, H], affinities [T, E] or None) in float64, n not rounded; router_weights are permuted."""
    size = hidden_states.shape[-1]
    x = np.asarray(hidden_states, np.float64).reshape(-1, size)
    mean = (x**2).sum(1, keepdims=True) / (unpadded_hidden_size or size)
    n = x / np.sqrt(mean + eps) * np.asarray(gamma, np.float64).reshape(1, -1)
    if router_weights is None:
        return n, None
    places = np.arange(size).reshape(-1, PMAX, LANES).swapaxes(1, 2).reshape(-1)
    logits = n[:, places] @ np.asarray(router_weights, np.float64)
    if router_act_fn == RouterActFnType.NOAUX_TC:
        rule = (n_group, topk_group, routed_scaling_factor, True)
        return n, noaux_tc_ref(logits, router_bias, top_k, *rule)[1]
    identity = np.eye(logits.shape[1])
    _, index, affinities, top = router_topk_ref(logits, identity, router_bias, router_act_fn, top_k, 1, False)
    masked = np.zeros(affinities.shape)
    np.put_along_axis(masked, index, top, 1)
    return n, masked
