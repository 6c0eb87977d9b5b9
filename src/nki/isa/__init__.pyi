"""nki.isa: the instructions of a NeuronCore. One file per group, one place per instruction.

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

from collections.abc import Sequence
from nki.errors import NkiValidationError as NkiValidationError
from nki.ir.instruction import NkiInstruction as NkiInstruction
from nki.ir.layout import Int
from nki.ir.tensor import NkiTensor
from nki.isa import constants as constants
from nki.isa.affine import affine_select as affine_select
from nki.isa.affine import iota as iota
from nki.isa.computing_dma import dma_compute as dma_compute
from nki.isa.dma import dma_copy as dma_copy
from nki.isa.enums import dge_mode as dge_mode
from nki.isa.enums import dma_engine as dma_engine
from nki.isa.enums import matmul_perf_mode as matmul_perf_mode
from nki.isa.enums import nc_version as nc_version
from nki.isa.enums import oob_mode as oob_mode
from nki.isa.enums import reduce_cmd as reduce_cmd
from nki.isa.mx import nc_matmul_mx as nc_matmul_mx
from nki.isa.mx import quantize_mx as quantize_mx
from nki.isa.registers import get_nc_sub_version as get_nc_sub_version
from nki.isa.registers import get_nc_version as get_nc_version
from nki.isa.registers import register_alloc as register_alloc
from nki.isa.registers import register_load as register_load
from nki.isa.registers import register_move as register_move
from nki.isa.registers import register_store as register_store
from nki.isa.scalar import activate2 as activate2
from nki.isa.scalar import activation as activation
from nki.isa.scalar import activation_reduce as activation_reduce
from nki.isa.search import nc_stream_shuffle as nc_stream_shuffle
from nki.isa.sync import core_barrier as core_barrier
from nki.isa.sync import sendrecv as sendrecv
from nki.isa.tensor import nc_matmul as nc_matmul
from nki.isa.transposing_dma import dma_transpose as dma_transpose
from nki.isa.vector import tensor_scalar as tensor_scalar
from nki.isa.virtual_register import VirtualRegister as VirtualRegister
from nki.machine.engines import engine as engine
from nki.typing import Number
from nki.typing import OperatorLike
from nki.typing import TileOrNumber

GPSIMD: engine

SCALAR: engine

TENSOR: engine

UNKNOWN: engine

VECTOR: engine

def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = mean and population variance of what the (count, mean, M2) triples in data describe."""

def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = count, mean and variance * count of the even elements of each partition, then of the odd ones."""

def dropout(dst: NkiTensor, data: NkiTensor, prob: TileOrNumber, name: str | None = None) -> NkiInstruction:
    """dst = data with each element zeroed with probability prob; the others are not rescaled."""

def exponential(dst: NkiTensor, src: NkiTensor, max_value: TileOrNumber = 0.0, reduce_res: NkiTensor | None = None, reduce_cmd: reduce_cmd = ..., reduce_init: TileOrNumber = 0.0, name: str | None = None) -> NkiInstruction:
    """dst = exp(src - max_value), and its sum over all free elements (trn3)."""

gpsimd_engine: engine

def local_gather(dst: NkiTensor, src_buffer: NkiTensor, index: NkiTensor, num_elem_per_idx: Int = 1, num_valid_indices: Int | None = None, name: str | None = None) -> NkiInstruction:
    """Gather runs of elements by offsets that the 16 partitions of a processor share.

    Offsets are read down the 16 partitions of a group, column by column.
    """

def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 8] = the 8 largest elements of each partition of src, largest first."""

def memset(dst: NkiTensor, value: Number, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Fill every element of dst with a compile-time number."""

def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 8] = where in data each of the 8 vals first occurs; a value given again takes its next place."""

def nc_match_replace8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: Number, dst_idx: NkiTensor | None = None, name: str | None = None) -> NkiInstruction:
    """dst = data with imm in the place of the 8 vals; dst_idx[P, 8] = where they were.

    The columns of vals take turns from 7 down to 0, so of equal ones the last gets the first place.
    """

def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[p, k] = data[p, indices[p, k]], free dimensions flattened."""

def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst[j, i] = data[i, j], the free dimensions of data taken as one."""

def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: Int = 0, padding_val: Int = -1, name: str | None = None) -> NkiInstruction:
    """Positions of nonzero elements, padding, and their count, in partitions 0, 16, 32, ... only."""

def rand2(dst: NkiTensor, min: TileOrNumber, max: TileOrNumber, name: str | None = None) -> NkiInstruction:
    """Fill dst with uniform random numbers between min and max."""

def rand_get_state(dst: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = the words of the generator of each lane."""

def rand_set_state(src_seeds: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Set the generator of each lane to the words in that partition of src_seeds."""

def range_select(dst: NkiTensor, on_true_tile: NkiTensor, comp_op0: OperatorLike, comp_op1: OperatorLike, bound0: NkiTensor, bound1: NkiTensor, reduce_cmd: reduce_cmd = ..., reduce_res: NkiTensor | None = None, reduce_op: OperatorLike = ..., range_start: TileOrNumber = 0, on_false_value: Number = -3.4028234663852886e+38, name: str | None = None) -> NkiInstruction:
    """dst = on_true_tile where the index satisfies both bounds, else FP32_MIN; and the maximum (trn2)."""

def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = 1 / data, accurate in float32."""

def rng(dst: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Fill dst with random bits; a narrow dtype takes the low bits of a 32-bit word per element."""

scalar_engine: engine

def scalar_tensor_tensor(dst: NkiTensor, data: NkiTensor, op0: OperatorLike, operand0: TileOrNumber | None, op1: OperatorLike, operand1: NkiTensor, reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1: a number or column first, then a tile."""

def select_reduce(dst: NkiTensor, predicate: NkiTensor, on_true: NkiTensor, on_false: TileOrNumber, reduce_res: NkiTensor | None = None, reduce_cmd: reduce_cmd = ..., reduce_op: OperatorLike = ..., reverse_pred: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = on_true where predicate is not 0, else on_false (a number or column); and the maximum."""

def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[0, 0] and dst[0, 1]: where the run of equal ids around each element starts and ends.

    Ends are exclusive; padding (id 0) gets (n, -1).
    """

def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seed all lanes of the vector engine's generator with the 32 bits of a [1, 1] tile."""

def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = src, cast to the dtype of dst. Equal dtypes are copied bit by bit."""

def tensor_copy_predicated(dst: NkiTensor, src: TileOrNumber, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = src where predicate is not 0 (or is 0, with reverse_pred); elsewhere dst stays as it is."""

tensor_engine: engine

def tensor_partition_reduce(dst: NkiTensor, op: OperatorLike, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[0] = the rows of data reduced by op.

    float32 sums and maxima; bit patterns for bitwise operators.
    """

def tensor_reduce(dst: NkiTensor, op: OperatorLike, data: NkiTensor, axis: Int | Sequence[Int], negate: bool = False, keepdims: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data reduced by op over its trailing axes; negate changes the sign of the result."""

def tensor_scalar_cumulative(dst: NkiTensor, src: NkiTensor, op0: OperatorLike, op1: OperatorLike, imm0: TileOrNumber, imm1: TileOrNumber | None = None, reduce_cmd: reduce_cmd = ..., name: str | None = None) -> NkiInstruction:
    """dst = the running reduction of src <op0> imm0: acc = op1(value, acc)."""

def tensor_scalar_reduce(dst: NkiTensor, data: NkiTensor, op0: OperatorLike, operand0: TileOrNumber | None, reduce_op: OperatorLike, reduce_res: NkiTensor | None = None, reverse0: bool = False, reduce_cmd: reduce_cmd = ..., reduce_init: TileOrNumber | None = None, reduce_res_negate: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data <op0> operand0, and its reduction by reduce_op over all free elements."""

def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: OperatorLike, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = data1 <op> data2, element by element.

    float32 arithmetic; exact 32-bit integers on GpSimd; bit patterns for bitwise operators.
    """

def tensor_tensor_scan(dst: NkiTensor, data0: NkiTensor, data1: NkiTensor, initial: TileOrNumber, op0: OperatorLike, op1: OperatorLike, reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> NkiInstruction:
    """dst[i] = (data0[i] <op0> dst[i-1]) <op1> data1[i] along the free axis, in float32."""

def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: Int, name: str | None = None) -> NkiInstruction:
    """The K largest of the n elements in each group of 16 partitions, ascending, and where they were.

    Element e of a group is in partition e % 16, column e // 16. All 16 partitions get the result.
    """

unknown_engine: engine

vector_engine: engine
