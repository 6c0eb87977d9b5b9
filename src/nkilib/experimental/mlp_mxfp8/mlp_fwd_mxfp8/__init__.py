"""Forward pass of the gated MLP in MXFP8."""

from .mlp_fwd_mxfp8_kernel import (
    compute_fused_gate_up_down_mxfp8,
    mlp_forward_mxfp8_nki,
    mlp_forward_mxfp8_nki_ref,
)

__all__ = ["compute_fused_gate_up_down_mxfp8", "mlp_forward_mxfp8_nki", "mlp_forward_mxfp8_nki_ref"]
