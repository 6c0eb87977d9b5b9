"""RMSNorm and router, for decode of many tokens."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.router_topk.router_topk import router_topk_ref
from nkilib.core.utils.common_types import QuantizationType, RouterActFnType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.mx_layout import TILE
from nkilib.core.utils.mx_rows import check_mx
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.moe_block.rmsnorm_router import check_block, normalize_and_route


@nki.jit
def rmsnorm_router_topk_tkg(
    hidden_states: Tensor,
    gamma: Tensor,
    router_weights: Tensor,
    router_bias: Tensor | None = None,
    eps: float = 1e-06,
    top_k: int = 1,
    hidden_actual: int | None = None,
    quantization_type: QuantizationType = QuantizationType.NONE,
    router_mm_dtype: DTypeLike = nl.bfloat16,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
) -> tuple:
    """Return (RMSNorm rows [T, H], top-k experts int32 [T, K], their affinities bfloat16 [T, E], else 0).

    hidden_states is [B, S, H], T = B S, H a multiple of 128; gamma [1, H], router_weights [H, E] with E up to
    512, router_bias [1, E]; top_k is 1 to 8. hidden_actual counts the columns that are not padding.
    Logits are n w + bias, of n and w in router_mm_dtype; the affinities are act of the top-k logits alone:
    softmax is over the chosen. With quantization_type MX (trn3), H a multiple of 512, rows are float8_e4m3fn
    [T, H + H / 4] as those of rmsnorm_mx_prefill without pack_scales, whose columns the page of this kernel
    does not describe; the router sees n before. Two cores and T in multiples of 256, which the page asks for,
    are not needed.

    >>> x, gamma, w = (np.ones(shape, np.float32) for shape in ((1, 2, 128), (1, 128), (128, 4)))
    >>> bias = np.array([[0, 3, 1, 2]], np.float32)
    >>> _, experts, affinities = rmsnorm_router_topk_tkg(x, gamma, w, bias, top_k=2)
    >>> experts.tolist(), affinities[0].tolist()
    ([[1, 3], [1, 3]], [0.0, 1.0, 0.0, 1.0])
    """
    get_verified_program_sharding_info("rmsnorm_router_topk_tkg", (0, 1), 2)
    check_block(hidden_states, gamma, router_weights, router_bias, top_k, router_act_fn)
    size = hidden_states.shape[2]
    kernel_assert(
        hidden_actual is None or 1 <= hidden_actual <= size,
        f"hidden_actual: got {hidden_actual}, allowed are 1 to H = {size}",
    )
    packs = quantization_type == QuantizationType.MX
    kernel_assert(
        packs or quantization_type == QuantizationType.NONE,
        f"quantization_type: got {quantization_type}, allowed are NONE and MX",
    )
    if packs:
        check_mx("rmsnorm_router_topk_tkg")
        kernel_assert(
            size % TILE == 0, f"hidden_states: got H = {size} with MX, allowed are multiples of {TILE}"
        )
    kernel_assert(
        router_mm_dtype in (nl.bfloat16, nl.float16, nl.float32),
        f"router_mm_dtype: got {router_mm_dtype}, allowed are bfloat16, float16 and float32",
    )
    return normalize_and_route(
        hidden_states,
        gamma,
        router_weights,
        router_bias,
        eps,
        top_k,
        hidden_actual,
        router_act_fn,
        router_mm_dtype,
        packs,
    )


def rmsnorm_router_topk_ref(
    hidden_states: np.ndarray,
    gamma: np.ndarray,
    router_weights: np.ndarray,
    router_bias: np.ndarray | None = None,
    eps: float = 1e-06,
    top_k: int = 1,
    hidden_actual: int | None = None,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, experts, affinities) in numpy, in float64; the rows are not rounded before they are routed."""
    x = np.asarray(hidden_states, np.float64).reshape(-1, hidden_states.shape[-1])
    count = x.shape[1] if hidden_actual is None else hidden_actual
    n = x / np.sqrt((x**2).sum(1, keepdims=True) / count + eps) * np.asarray(gamma, np.float64)
    _, index, affinities, top = router_topk_ref(
        n, router_weights, router_bias, router_act_fn, top_k, 1, False
    )
    masked = np.zeros(affinities.shape)
    np.put_along_axis(masked, index, top, 1)
    return n, index, masked
