"""Backward pass of the gated MLP in MXFP8."""

from .mlp_bwd_mxfp8_kernel import (
    compute_phase1_down_proj_mm_grad_mxfp8,
    compute_phase2_hidden_states_grad_mxfp8,
    compute_phase3_gate_up_weight_grad_mxfp8,
    compute_phase4_down_weight_grad_mxfp8,
    get_program_sharding_info,
    mlp_backward_mxfp8_base_nki,
    mlp_backward_mxfp8_nki,
    mlp_backward_mxfp8_nki_ref,
)

__all__ = [
    "compute_phase1_down_proj_mm_grad_mxfp8",
    "compute_phase2_hidden_states_grad_mxfp8",
    "compute_phase3_gate_up_weight_grad_mxfp8",
    "compute_phase4_down_weight_grad_mxfp8",
    "get_program_sharding_info",
    "mlp_backward_mxfp8_base_nki",
    "mlp_backward_mxfp8_nki",
    "mlp_backward_mxfp8_nki_ref",
]
