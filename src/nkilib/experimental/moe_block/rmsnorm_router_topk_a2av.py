"""RMSNorm and router, for decode of up to 128 tokens that are then sent to experts on other ranks."""

from __future__ import annotations

import numpy as np

import nki
import nki.language as nl
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.moe_block.rmsnorm_router import check_block, normalize_and_route
from nkilib.experimental.moe_block.rmsnorm_router_topk_tkg import rmsnorm_router_topk_ref


@nki.jit
def rmsnorm_router_topk_a2av(
    hidden_states: Tensor,
    gamma: Tensor,
    router_weights: Tensor,
    router_bias: Tensor | None = None,
    eps: float = 1e-06,
    top_k: int = 1,
    router_act_fn: RouterActFnType = RouterActFnType.SIGMOID,
) -> tuple:
    """Return (RMSNorm rows [T, H], top-k experts int32 [T, K], their affinities bfloat16 [T, E], else 0).

    hidden_states is [B, S, H] in bfloat16 or float16, T = B S up to 128, H a multiple of 128; gamma [1, H],
    router_weights [H, E] in its dtype with E up to 512, router_bias [1, E]; top_k is 1 to 8. The top k are
    those of the logits n w + bias; the activation is applied to them alone, so softmax is over the chosen.
    On two cores the page has both compute all; here they share the tokens.

    >>> import ml_dtypes
    >>> x, w = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((1, 2, 128), (128, 4)))
    >>> gamma, bias = np.ones((1, 128), x.dtype), np.array([[0, 3, 1, 2]], np.float32)
    >>> rmsnorm_router_topk_a2av(x, gamma, w, bias, top_k=2)[1].tolist()
    [[1, 3], [1, 3]]
    """
    get_verified_program_sharding_info("rmsnorm_router_topk_a2av", (0, 1), 2)
    check_block(hidden_states, gamma, router_weights, router_bias, top_k, router_act_fn)
    tokens = hidden_states.shape[0] * hidden_states.shape[1]
    kernel_assert(tokens <= PMAX, f"hidden_states: got {tokens} tokens, allowed are up to {PMAX}")
    kernel_assert(
        hidden_states.dtype in (nl.bfloat16, nl.float16),
        f"hidden_states: got {hidden_states.dtype}, allowed are bfloat16 and float16",
    )
    dtype = router_weights.dtype
    kernel_assert(
        dtype in (nl.bfloat16, nl.float16), f"router_weights: got {dtype}, allowed are bfloat16 and float16"
    )
    return normalize_and_route(
        hidden_states, gamma, router_weights, router_bias, eps, top_k, None, router_act_fn, dtype
    )


def rmsnorm_router_topk_a2av_ref(*arguments: np.ndarray, **options: object) -> tuple:
    """(rows, experts, affinities) in numpy, in float64."""
    return rmsnorm_router_topk_ref(*arguments, **options)  # type: ignore[arg-type]
