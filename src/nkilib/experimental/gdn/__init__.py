"""Gated delta rule (Gated DeltaNet, Qwen 3.5): prefill with its gradients, decode, and its convolution."""

from .gdn_block_tkg import gdn_block_tkg, gdn_block_tkg_ref
from .gdn_conv1d import (
    gdn_conv1d_decode,
    gdn_conv1d_decode_ref,
    gdn_conv1d_prefill,
    gdn_conv1d_prefill_ref,
)
from .gdn_conv1d_bwd import gdn_conv1d_prefill_bwd, gdn_conv1d_prefill_bwd_ref
from .gdn_cte import gdn_cte, gdn_cte_ref
from .gdn_cte_bwd import gdn_cte_bwd
from .gdn_tkg import gdn_tkg, gdn_tkg_ref

__all__ = [
    "gdn_block_tkg",
    "gdn_block_tkg_ref",
    "gdn_conv1d_decode",
    "gdn_conv1d_decode_ref",
    "gdn_conv1d_prefill",
    "gdn_conv1d_prefill_bwd",
    "gdn_conv1d_prefill_bwd_ref",
    "gdn_conv1d_prefill_ref",
    "gdn_cte",
    "gdn_cte_bwd",
    "gdn_cte_ref",
    "gdn_tkg",
    "gdn_tkg_ref",
]
