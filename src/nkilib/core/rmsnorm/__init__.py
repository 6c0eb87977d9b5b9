"""RMSNorm kernels."""
