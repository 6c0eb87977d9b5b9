"""The largest elements of rows."""

from .rotational_topk import (
    RotationalTopkConfig,
    TopkConfig,
    cleanup_rotational_constants,
    create_rotational_topk_config,
    create_topk_config,
    prepare_rotational_constants,
    rotational_topk,
    rotational_topk_ref,
)

__all__ = [
    "RotationalTopkConfig",
    "TopkConfig",
    "cleanup_rotational_constants",
    "create_rotational_topk_config",
    "create_topk_config",
    "prepare_rotational_constants",
    "rotational_topk",
    "rotational_topk_ref",
]
