"""Another path of nkilib.core.rmsnorm.rmsnorm_quant."""

from nkilib.core.rmsnorm.rmsnorm_quant import RmsNormQuantKernelArgs, rmsnorm_quant_kernel

__all__ = ["RmsNormQuantKernelArgs", "rmsnorm_quant_kernel"]
