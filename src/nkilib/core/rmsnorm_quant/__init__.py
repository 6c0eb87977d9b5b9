"""The path that the documentation's header names for core.rmsnorm.rmsnorm_quant."""
