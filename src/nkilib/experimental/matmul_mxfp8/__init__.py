"""Matrix products in MXFP8, and their gradients."""

from .matmul_mxfp8_config import MatmulMxfp8KernelConfig, MlpBwdMatmulConfig
from .matmul_mxfp8_generic_backward_kernel import matmul_mxfp8_backward, matmul_mxfp8_backward_ref
from .matmul_mxfp8_generic_kernel import matmul_mxfp8, matmul_mxfp8_ref

__all__ = [
    "MatmulMxfp8KernelConfig",
    "MlpBwdMatmulConfig",
    "matmul_mxfp8",
    "matmul_mxfp8_backward",
    "matmul_mxfp8_backward_ref",
    "matmul_mxfp8_ref",
]
