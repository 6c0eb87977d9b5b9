"""3-D pooling and its gradients."""

from .avg_pooling_3d import avg_pooling_3d, avg_pooling_3d_ref
from .avg_pooling_3d_backward import avg_pooling_3d_backward, avg_pooling_3d_backward_ref
from .max_pooling_3d import max_pooling_3d, max_pooling_3d_ref
from .max_pooling_3d_backward import max_pooling_3d_backward, max_pooling_3d_backward_ref

__all__ = [
    "avg_pooling_3d",
    "avg_pooling_3d_backward",
    "avg_pooling_3d_backward_ref",
    "avg_pooling_3d_ref",
    "max_pooling_3d",
    "max_pooling_3d_backward",
    "max_pooling_3d_backward_ref",
    "max_pooling_3d_ref",
]
