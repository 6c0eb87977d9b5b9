"""Ring attention and its gradients: every rank calls both directions."""

from __future__ import annotations

from typing import Any

from nkilib.autograd.first_result import with_gradients
from nkilib.experimental.attention.ring_attention_bwd import ring_attention_spmd_bwd
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd as forward_ring


def _ring_backward(
    dy: Any,
    _dlse: Any,
    q: Any,
    k: Any,
    v: Any,
    groups: Any,
    workers: int,
    scale: float | None,
    causal: bool,
    striped: bool,
    bound_min: Any,
    bound_max: Any,
    out: Any,
    lse: Any,
) -> tuple:
    given: Any = {  # [b, h, d, S]
        f"{name}_ref": x.transpose(2, 3).contiguous()
        for name, x in (("q", q), ("k", k), ("v", v), ("o", out), ("dy", dy))
    }
    found = ring_attention_spmd_bwd(
        **given,
        lse_ref=lse,
        use_causal_mask=causal,
        softmax_scale=scale,
        num_workers=workers,
        replica_groups=groups,
        striped_attention=striped,
        bound_min=bound_min,
        bound_max=bound_max,
    )
    gradients = [d.transpose(2, 3).to(x.dtype) for d, x in zip(found, (q, k, v), strict=True)]
    return *gradients, *(None for bound in (bound_min, bound_max) if bound is not None)


@with_gradients(_ring_backward)
def ring_attention_spmd_fwd(
    q: Any,
    k: Any,
    v: Any,
    replica_groups: Any = None,
    num_workers: int = 1,
    softmax_scale: float | None = None,
    use_causal_mask: bool = False,
    striped_input: bool = False,
    bound_min: Any = None,
    bound_max: Any = None,
) -> Any:
    """ring_attention_spmd_fwd of q, k and v [b, h, S, d]; with a causal mask the scale is 1."""
    options = (replica_groups, num_workers, softmax_scale, use_causal_mask, striped_input)
    bounds = {"bound_min": bound_min, "bound_max": bound_max}
    return forward_ring(q, k, v, *options, training=True, tp_q=True, tp_k=True, **bounds)
