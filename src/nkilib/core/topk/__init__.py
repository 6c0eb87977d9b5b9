"""The largest elements of rows."""

from .rotational_topk import (
    RotationalTopkConfig,
    create_rotational_topk_config,
    rotational_topk,
    rotational_topk_ref,
)

__all__ = ["RotationalTopkConfig", "create_rotational_topk_config", "rotational_topk", "rotational_topk_ref"]
