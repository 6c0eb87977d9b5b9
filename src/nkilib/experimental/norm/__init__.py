"""RMSNorm and LayerNorm for training: forward and backward."""

from .norms import layer_norm, layer_norm_bwd, rms_norm, rms_norm_bwd

__all__ = ["layer_norm", "layer_norm_bwd", "rms_norm", "rms_norm_bwd"]
