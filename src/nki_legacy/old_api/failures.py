"""Errors of the old API: they carry the old names, at the user's line."""

from __future__ import annotations

from nki.errors import NkiError, error

# old name -> the kind of NkiError
KINDS = {
    "err_num_partition_exceed_arch_limit": "partition-limit",
    "err_size_of_dimension_exceed_arch_limit": "free-limit",
    "err_exceed_max_supported_dimension": "rank",
    "err_num_partition_mismatch": "shape",
    "err_tensor_access_out_of_bound": "index",
    "err_unsupported_memory": "buffer",
    "err_failed_to_infer_tile_from_local_tensor": "block-dimension",
    "err_unsupported_mixing_basic_advanced_tensor_indexing": "index",
    "err_store_dst_shape_smaller_than_other_shape": "shape",
    "err_ambiguous_tensor_truth_value": "tensor-value",
    "err_hbm_tensor_with_init_value_not_supported": "buffer",
    "err_nested_kernel_with_spmd_grid": "launch-grid",
    "err_nki_api_outside_of_nki_kernel": "no-kernel",
    "err_indirect_indices_free_dim": "indirect-dim",
    "err_no_successor": "removed",
}


def failure(name: str, message: str, help: str | None = None, notes: list[str] | None = None) -> NkiError:
    """Return the error with an old name."""
    return error(KINDS[name], f"{name}: {message}", notes=notes or [], help=help)
