"""`neuronxcc.nki.kernels`: kernels that came with the old compiler, where nkilib has such a kernel.

Names below `_private_kernels`, `_private` and `nccl` can be imported; a call raises an error that
names the replacement, because their contracts were never published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from nki.errors import error

_ATTENTION = "nkilib.core.attention.attention_cte.attention_cte"
_MLP = "nkilib.core.mlp.mlp.mlp"
_QKV = "nkilib.core.qkv.qkv.qkv"
SUCCESSORS: dict[str, str | None] = {
    "flash_attn_bwd": None,
    "fused_self_attn_for_SD_small_head_size": _ATTENTION,
    "resize_nearest_fixed_dma_kernel": None,
    "select_and_scatter_kernel": None,
    "attention_isa_kernel": _ATTENTION,
    "mlp_isa_kernel": _MLP,
    "mlp_fused_add_isa_kernel": _MLP,
    "quant_mlp_isa_kernel": _MLP,
    "quant_mlp_fused_add_isa_kernel": _MLP,
    "rmsnorm_qkv_isa_kernel": _QKV,
    "rmsnorm_qkv_isa_fused_add_kernel": _QKV,
    "sendrecv": "nki.isa.sendrecv",
    "core_barrier": "nki.isa.core_barrier",
    "do_while": "nki.language.while_loop",
    "all_reduce": "nki.collectives.all_reduce",
    "all_gather": "nki.collectives.all_gather",
    "reduce_scatter": "nki.collectives.reduce_scatter",
    "all_to_all": "nki.collectives.all_to_all",
}


@dataclass(frozen=True)
class FlashConfig:
    """Options of flash_fwd. Sizes of tiles are hints, which nkilib chooses itself."""

    seq_tile_size: int = 2048
    attn_core_tile_size: int = 256
    training: bool = True
    should_transpose_v: bool = False
    lse_dtype: str = ""


class FlashForward:
    """flash_fwd[batch, key_heads](q, k, v, seed, ...): nkilib's prefill attention under the old contract.

    q (batch, heads, d, Sq), k (batch, key_heads, d, Skv), v (batch, key_heads, Skv, d), or as k with
    `should_transpose_v`; the result is (batch, heads, Sq, d), when training with the logarithms of the sums,
    (batch, heads, 128, Sq / 128). The grid is not needed here.
    """

    __name__ = "flash_fwd"

    def __getitem__(self, grid: object) -> FlashForward:
        return self

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        seed: object = None,
        logit_bias: Any = None,
        softmax_scale: float | None = None,
        use_causal_mask: bool = True,
        mixed_precision: bool = True,
        dropout_p: float = 0.0,
        config: FlashConfig | None = None,
    ) -> Any:
        attention_cte = import_module(
            "nkilib.core.attention.attention_cte"
        ).attention_cte  # late: only this stub needs nkilib

        config = config or FlashConfig()
        if dropout_p:
            raise error("argument", f"flash_fwd: the stub of Open NKI has no dropout, got {dropout_p}")
        batch, heads, depth, queries = q.shape
        found = attention_cte(
            q.reshape(batch * heads, depth, queries),
            _heads(k),
            _heads(v.swapaxes(-1, -2) if config.should_transpose_v else v),
            scale=1 / depth**0.5 if softmax_scale is None else softmax_scale,
            causal_mask=use_causal_mask,
            tp_q=False,
            position_bias=None if logit_bias is None else _heads(logit_bias),
            cache_softmax=config.training,
        )
        if not config.training:
            return found.reshape(batch, heads, queries, depth)
        out, negative_maximum, reciprocal = found
        sums = -(reciprocal.log() if hasattr(reciprocal, "log") else np.log(reciprocal)) - negative_maximum
        return out.reshape(batch, heads, queries, depth), sums.reshape(batch, heads, *sums.shape[1:])


def _heads(x: Any) -> Any:
    """(batch, heads, ...) as (batch * heads, ...)."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


flash_fwd = FlashForward()


def _absent(name: str, successor: str | None) -> Callable[..., Any]:
    def absent(*args: object, **kwargs: object) -> NoReturn:
        help = f"use {successor}" if successor else "nkilib has no replacement"
        raise error("removed-name", f"the stub of Open NKI for neuronxcc lacks {name}", help=help)

    class Absent:
        """Can be imported and launched, not called."""

        __call__ = staticmethod(absent)

        def __getitem__(self, grid: object) -> Any:
            return absent

    Absent.__name__ = name
    return Absent()


def __getattr__(name: str) -> Any:
    if name in SUCCESSORS:
        return _absent(name, SUCCESSORS[name])
    raise AttributeError(f"the stub of Open NKI for neuronxcc lacks {name}")
