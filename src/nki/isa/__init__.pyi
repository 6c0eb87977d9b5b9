"""nki.isa: the instructions of a NeuronCore. One file per group, one place per instruction.

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

from nki.errors import NkiValidationError as NkiValidationError
from nki.ir.instruction import NkiInstruction as NkiInstruction
from nki.isa import constants as constants
from nki.isa.affine import affine_select as affine_select
from nki.isa.affine import iota as iota
from nki.isa.computing_dma import dma_compute as dma_compute
from nki.isa.copies import memset as memset
from nki.isa.copies import tensor_copy as tensor_copy
from nki.isa.copies import tensor_copy_predicated as tensor_copy_predicated
from nki.isa.dma import dma_copy as dma_copy
from nki.isa.enums import dge_mode as dge_mode
from nki.isa.enums import dma_engine as dma_engine
from nki.isa.enums import matmul_perf_mode as matmul_perf_mode
from nki.isa.enums import nc_version as nc_version
from nki.isa.enums import oob_mode as oob_mode
from nki.isa.enums import reduce_cmd as reduce_cmd
from nki.isa.gather import local_gather as local_gather
from nki.isa.gather import nc_n_gather as nc_n_gather
from nki.isa.gpsimd import nonzero_with_count as nonzero_with_count
from nki.isa.gpsimd import sequence_bounds as sequence_bounds
from nki.isa.gpsimd import tensor_partition_reduce as tensor_partition_reduce
from nki.isa.gpsimd import topk as topk
from nki.isa.mx import nc_matmul_mx as nc_matmul_mx
from nki.isa.mx import quantize_mx as quantize_mx
from nki.isa.random import dropout as dropout
from nki.isa.random import rand2 as rand2
from nki.isa.random import rand_get_state as rand_get_state
from nki.isa.random import rand_set_state as rand_set_state
from nki.isa.random import rng as rng
from nki.isa.random import set_rng_seed as set_rng_seed
from nki.isa.reduce import exponential as exponential
from nki.isa.reduce import tensor_reduce as tensor_reduce
from nki.isa.reduce import tensor_scalar_reduce as tensor_scalar_reduce
from nki.isa.registers import get_nc_sub_version as get_nc_sub_version
from nki.isa.registers import get_nc_version as get_nc_version
from nki.isa.registers import register_alloc as register_alloc
from nki.isa.registers import register_load as register_load
from nki.isa.registers import register_move as register_move
from nki.isa.registers import register_store as register_store
from nki.isa.scalar import activate2 as activate2
from nki.isa.scalar import activation as activation
from nki.isa.scalar import activation_reduce as activation_reduce
from nki.isa.scan import tensor_scalar_cumulative as tensor_scalar_cumulative
from nki.isa.scan import tensor_tensor_scan as tensor_tensor_scan
from nki.isa.search import max8 as max8
from nki.isa.search import nc_find_index8 as nc_find_index8
from nki.isa.search import nc_match_replace8 as nc_match_replace8
from nki.isa.search import nc_stream_shuffle as nc_stream_shuffle
from nki.isa.select import range_select as range_select
from nki.isa.select import select_reduce as select_reduce
from nki.isa.statistics import bn_aggr as bn_aggr
from nki.isa.statistics import bn_stats as bn_stats
from nki.isa.sync import core_barrier as core_barrier
from nki.isa.sync import sendrecv as sendrecv
from nki.isa.tensor import nc_matmul as nc_matmul
from nki.isa.transpose import nc_transpose as nc_transpose
from nki.isa.transposing_dma import dma_transpose as dma_transpose
from nki.isa.vector import reciprocal as reciprocal
from nki.isa.vector import scalar_tensor_tensor as scalar_tensor_tensor
from nki.isa.vector import tensor_scalar as tensor_scalar
from nki.isa.vector import tensor_tensor as tensor_tensor
from nki.isa.virtual_register import VirtualRegister as VirtualRegister
from nki.machine.engines import engine as engine

GPSIMD: engine

SCALAR: engine

TENSOR: engine

UNKNOWN: engine

VECTOR: engine

gpsimd_engine: engine

scalar_engine: engine

tensor_engine: engine

unknown_engine: engine

vector_engine: engine
