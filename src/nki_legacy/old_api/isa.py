"""`neuronxcc.nki.isa`: the old `nisa`, whose instructions return their result."""
# ruff: noqa: F401

from __future__ import annotations

from typing import Any

from nki.ir.context import current_machine
from nki.isa.enums import dge_mode, engine, nc_version, oob_mode, reduce_cmd

from .isa_gather import (
    dma_copy,
    dma_transpose,
    local_gather,
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_stream_shuffle,
    sequence_bounds,
    tensor_copy_dynamic_dst,
    tensor_copy_dynamic_src,
)
from .scalar_engine import activation, activation_reduce
from .selects import (
    affine_select,
    iota,
    memset,
    range_select,
    select_reduce,
    tensor_scalar_cumulative,
    tensor_tensor_scan,
)
from .tensor_engine import nc_matmul, nc_transpose
from .vector_engine import (
    bn_aggr,
    bn_stats,
    dropout,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar,
    tensor_scalar_reduce,
    tensor_tensor,
)

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown
dma_engine = engine.unknown


def get_nc_version() -> Any:
    return {2: nc_version.gen2, 3: nc_version.gen3}.get(current_machine().generation, nc_version.gen3)
