"""Multi-scale deformable attention of vision detectors, and its gradients."""

from .ms_deformable_attention import ms_deformable_attention, ms_deformable_attention_ref
from .ms_deformable_attention_bwd import ms_deformable_attention_bwd

__all__ = ["ms_deformable_attention", "ms_deformable_attention_bwd", "ms_deformable_attention_ref"]
