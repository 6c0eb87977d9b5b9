"""Matrix products in MXFP8."""

from .matmul_mxfp8_config import MatmulMxfp8KernelConfig, MlpBwdMatmulConfig
from .matmul_mxfp8_generic_kernel import matmul_mxfp8, matmul_mxfp8_ref

__all__ = ["MatmulMxfp8KernelConfig", "MlpBwdMatmulConfig", "matmul_mxfp8", "matmul_mxfp8_ref"]
