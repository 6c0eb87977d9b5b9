"""nki.isa: the instructions of a NeuronCore. One file per group, one place per instruction."""
# ruff: noqa: F401

from inspect import ismodule as _is_module

from ..errors import NkiValidationError
from ..errors import missing_name as _missing_name
from ..ir.instruction import NkiInstruction
from ..reference import document as _document
from . import constants
from .affine import affine_select, iota
from .computing_dma import dma_compute
from .copies import memset, tensor_copy, tensor_copy_predicated
from .deprecated import REMOVED as _REMOVED
from .dma import dma_copy
from .enums import (
    GPSIMD,
    SCALAR,
    TENSOR,
    UNKNOWN,
    VECTOR,
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from .gather import local_gather, nc_n_gather
from .gpsimd import (
    nonzero_with_count,
    sequence_bounds,
    tensor_partition_reduce,
    topk,
)
from .mx import nc_matmul_mx, quantize_mx
from .random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from .reduce import (
    exponential,
    tensor_reduce,
    tensor_scalar_reduce,
)
from .registers import (
    get_nc_sub_version,
    get_nc_version,
    register_alloc,
    register_load,
    register_move,
    register_store,
)
from .scalar import activate2, activation, activation_reduce
from .scan import tensor_scalar_cumulative, tensor_tensor_scan
from .search import max8, nc_find_index8, nc_match_replace8, nc_stream_shuffle
from .select import range_select, select_reduce
from .statistics import bn_aggr, bn_stats
from .sync import core_barrier, sendrecv
from .tensor import nc_matmul
from .transpose import nc_transpose
from .transposing_dma import dma_transpose
from .vector import reciprocal, scalar_tensor_tensor, tensor_scalar, tensor_tensor
from .virtual_register import VirtualRegister

tensor_engine, vector_engine, scalar_engine = TENSOR, VECTOR, SCALAR
gpsimd_engine, unknown_engine = GPSIMD, UNKNOWN

__all__ = sorted(
    name
    for name, value in globals().items()
    if name[0] != "_" and (name == "constants" or not _is_module(value))
)
_document(globals())
del _document  # what a kernel can read of this module is followed


def __dir__():
    return __all__


def __getattr__(name: str):
    raise _missing_name(__name__, "nisa", name, _REMOVED, globals())
