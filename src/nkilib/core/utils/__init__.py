"""What kernels share: option enums, validation, helpers."""
