"""The MLP of DeepSeek V3.2 for prefill."""

from .mlp_deepseek_mx import mlp_deepseek_mx, mlp_deepseek_mx_ref

__all__ = ["mlp_deepseek_mx", "mlp_deepseek_mx_ref"]
