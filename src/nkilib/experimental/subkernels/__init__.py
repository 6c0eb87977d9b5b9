"""Parts of mixtures of experts whose experts live on several ranks: sort, pack, count and sum tokens."""

from .argsort_unstable import argsort_unstable, argsort_unstable_ref
from .build_all_to_all_v_metadata import build_all_to_all_v_metadata, build_all_to_all_v_metadata_ref
from .permute_routed_tokens import permute_routed_tokens, permute_routed_tokens_ref
from .topk_reduce import topk_reduce, topk_reduce_ref

__all__ = [
    "argsort_unstable",
    "argsort_unstable_ref",
    "build_all_to_all_v_metadata",
    "build_all_to_all_v_metadata_ref",
    "permute_routed_tokens",
    "permute_routed_tokens_ref",
    "topk_reduce",
    "topk_reduce_ref",
]
