"""Gated delta rule (Gated DeltaNet, Qwen 3.5): prefill with its gradients, and decode."""

from .gdn_cte import gdn_cte, gdn_cte_ref
from .gdn_cte_bwd import gdn_cte_bwd
from .gdn_tkg import gdn_tkg, gdn_tkg_ref

__all__ = ["gdn_cte", "gdn_cte_bwd", "gdn_cte_ref", "gdn_tkg", "gdn_tkg_ref"]
