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
    """Fill every element of dst with a compile-time number.

    The number is converted directly to the dtype of dst, not through float32.

    Parameters:

    - `dst`: tile in SBUF or PSUM (not PSUM on GpSimdE), any dtype.
    - `value`: a compile-time number. An integer dtype takes an int in its range; packed dtypes take 0 alone.
    - `engine`: `nisa.engine.vector` or `gpsimd`; `unknown` lets the compiler choose.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    dst[...] = value
    ```

    Example:

    ```python
    @nki.jit
    def fill():
        tile = nl.ndarray((2, 3), nl.float32)
        nisa.memset(tile, 1.5)
        nl.device_print("tile", tile)

    fill()
    ```

    ```output
    tile float32[2, 3] sbuf
    [[1.5 1.5 1.5]
     [1.5 1.5 1.5]]
    ```

    See also: `nl.zeros`, `nl.full`, `iota`, `tensor_copy`.

    Facts:

    - Engines: vector, gpsimd (the first is the default). Generations: trn1, trn2, trn3.
    - Cost: max(64, 0.8 N) on trn2; N/2 for a 16-bit zero on trn1; GpSimd 150 + N. Source: spec/machine.md 6.2, 8.
    - Errors and warnings: `dtype`, `memset-type`, and those of every instruction.
    """

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
    """dst = on_true_tile where the index satisfies both bounds, else FP32_MIN; and the maximum (trn2).

    Masks a row to a range of column numbers that differs between partitions, and finds the maximum of what is left: the step before a masked softmax.

    Parameters:

    - `dst`: tile in SBUF or PSUM, of a float dtype.
    - `on_true_tile`: tile of a float dtype with the partitions and elements of dst.
    - `comp_op0`, `comp_op1`: `nl.equal`, `nl.less`, `nl.less_equal`, `nl.greater` or `nl.greater_equal`; the column number is their left side.
    - `bound0`, `bound1`: float32 [P, 1] tiles.
    - `reduce_cmd`: `reset_reduce` starts a maximum, `reduce` continues the one before, `idle` computes none.
    - `reduce_res`: [P, 1] tile for the maximum, or None.
    - `reduce_op`: `nl.maximum` alone.
    - `range_start`: number of the first column, a compile-time int. Numbers stay below 2**24.
    - `on_false_value`: the smallest float32 alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        k = range_start + i
        chosen = (k <comp_op0> bound0[p]) and (k <comp_op1> bound1[p])
        dst[p, i] = on_true_tile[p, i] if chosen else -3.4028235e38
    reduce_res[p] = max of dst[p, :]
    ```

    Example:

    ```python
    @nki.jit
    def between(x, low, high):
        tile, largest = nl.load(x), nl.ndarray((1, 1), nl.float32)
        low, high = nl.load(low), nl.load(high)
        nisa.range_select(tile, tile, nl.greater_equal, nl.less, low, high, reduce_res=largest)
        nl.device_print("tile", tile)
        nl.device_print("largest", largest)

    between(np.array([[5, 6, 7, 8]], np.float32), np.float32([[1]]), np.float32([[3]]))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[-3.4028235e+38  6.0000000e+00  7.0000000e+00 -3.4028235e+38]]
    largest float32[1, 1] sbuf
    [[7.]]
    ```

    See also: `affine_select`, `select_reduce`, `nl.where`.

    Facts:

    - Engines: vector. Generations: trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `argument`, `dtype`, `enum`, `fp32-min`, `legacy`, `op`, `range-index`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = 1 / data, accurate in float32.

    More accurate than `nisa.activation` with `nl.reciprocal`, and slower.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `data`: tile with the partitions and elements of dst.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    dst[p, i] = 1 / data[p, i]      # 1 / 0 is inf with the sign of the zero
    ```

    Example:

    ```python
    @nki.jit
    def inverse(x):
        tile = nl.load(x)
        nisa.reciprocal(tile, tile)
        nl.device_print("tile", tile)

    inverse(np.array([[1, 2, 4, 0]], np.float32))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[1.   0.5  0.25  inf]]
    ```

    See also: `activation`, `nl.reciprocal`, `nl.rsqrt`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: 8N trn1, 6N trn2+. Source: spec/machine.md 6.2.
    - Errors and warnings: `dtype`, `shape`, and those of every instruction.
    """

def rng(dst: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Fill dst with random bits; a narrow dtype takes the low bits of a 32-bit word per element."""

scalar_engine: engine

def scalar_tensor_tensor(dst: NkiTensor, data: NkiTensor, op0: OperatorLike, operand0: TileOrNumber | None, op1: OperatorLike, operand1: NkiTensor, reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1: a number or column first, then a tile.

    Fuses an operation with a number or column and one with a tile, for example (x - mean) * weight.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `data`: tile with the partitions and elements of dst.
    - `op0`: arithmetic, comparison or logical operator of the first stage.
    - `operand0`: a number, or a float32 [P, 1] tile.
    - `op1`: operator of the second stage, with two operands.
    - `operand1`: tile with the partitions and elements of dst. Not in PSUM together with data.
    - `reverse0`: True computes operand0 <op0> data.
    - `reverse1`: True computes operand1 <op1> result of the first stage.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        t = data[p, i] <op0> operand0[p]
        dst[p, i] = t <op1> operand1[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def centre_and_weigh(x, w):
        tile = nl.load(x)
        nisa.scalar_tensor_tensor(tile, tile, nl.subtract, 2.0, nl.multiply, nl.load(w))
        nl.device_print("tile", tile)

    centre_and_weigh(np.array([[1, 2, 3]], np.float32), np.array([[10, 20, 30]], np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[-10.   0.  30.]]
    ```

    See also: `tensor_scalar`, `tensor_tensor`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: 2N trn1, N trn2+; N for bf16 subtract then multiply of an even N. Source: spec/machine.md 6.2.
    - Errors and warnings: `argument`, `dtype`, `generation`, `op`, `operand-dtype`, `psum-both`, `shape`, and those of every instruction.
    """

def select_reduce(dst: NkiTensor, predicate: NkiTensor, on_true: NkiTensor, on_false: TileOrNumber, reduce_res: NkiTensor | None = None, reduce_cmd: reduce_cmd = ..., reduce_op: OperatorLike = ..., reverse_pred: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = on_true where predicate is not 0, else on_false (a number or column); and the maximum.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `predicate`: tile of an 8- or 16-bit integer dtype with the partitions and elements of dst. Not in PSUM together with on_true.
    - `on_true`: tile of any dtype but tfloat32, int32 and uint32.
    - `on_false`: a number, or a float32 [P, 1] tile.
    - `reduce_res`: [P, 1] tile of a float dtype for the maximum, or None.
    - `reduce_cmd`: `reset_reduce` starts a maximum, `reduce` continues the one before, `idle` computes none.
    - `reduce_op`: `nl.maximum` alone.
    - `reverse_pred`: True selects on_true where the predicate is 0.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        chosen = (predicate[p, i] != 0) != reverse_pred
        dst[p, i] = on_true[p, i] if chosen else on_false[p]
    reduce_res[p] = max of dst[p, :]
    ```

    Example:

    ```python
    @nki.jit
    def choose(x, mask):
        tile, predicate = nl.load(x), nl.load(mask)
        nisa.select_reduce(tile, predicate, tile, -1.0)
        nl.device_print("tile", tile)

    choose(np.array([[1, 2, 3, 4]], np.float32), np.array([[0, 1, 0, 1]], np.uint8))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[-1.  2. -1.  4.]]
    ```

    See also: `tensor_copy_predicated`, `range_select`, `affine_select`, `nl.where`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: as tensor_copy_predicated: 2N; N with on_true or predicate in PSUM. Source: spec/machine.md 6.2.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `argument`, `dtype`, `enum`, `legacy`, `op`, `operand-dtype`, `psum-both`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[0, 0] and dst[0, 1]: where the run of equal ids around each element starts and ends.

    Ends are exclusive; padding (id 0) gets (n, -1).
    """

def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seed all lanes of the vector engine's generator with the 32 bits of a [1, 1] tile."""

def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = src, cast to the dtype of dst. Equal dtypes are copied bit by bit.

    Converting between dtypes goes through float32: integers beyond 2**24 are rounded, values out of range saturate.

    Parameters:

    - `dst`: tile in SBUF or PSUM (not PSUM on GpSimdE) of any dtype; the same partitions and elements per partition as src.
    - `src`: tile in SBUF or PSUM. Packed `_x4` and scale dtypes only into the same dtype.
    - `engine`: `nisa.engine.vector`, `scalar` or `gpsimd`; `unknown` lets the compiler choose.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:                       # i counts all free elements in order; shapes may differ
        dst[p, i] = src[p, i]       # cast to dst.dtype
    ```

    Example:

    ```python
    @nki.jit
    def to_integers(x):
        tile = nl.load(x)
        rounded = nl.ndarray(tile.shape, nl.int32)
        nisa.tensor_copy(rounded, tile)
        nl.device_print("rounded", rounded)

    to_integers(np.array([[0.5, 1.5, 2.5, -3.7]], np.float32))
    ```

    ```output
    rounded int32[1, 4] sbuf
    [[ 0  2  2 -4]]
    ```

    See also: `tensor_copy_predicated`, `activation`, `dma_copy`, `nl.copy`.

    Facts:

    - Engines: vector, scalar, gpsimd (the first is the default). Generations: trn1, trn2, trn3.
    - Cost: N x mode (fp32 1/2, 16-bit 1/4, PSUM 1); GpSimd 150 + N. Source: spec/machine.md 6.1, 7, 8.
    - Errors and warnings: `dtype`, `engine`, `scalar-copy`, `shape`, and those of every instruction.
    """

def tensor_copy_predicated(dst: NkiTensor, src: TileOrNumber, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = src where predicate is not 0 (or is 0, with reverse_pred); elsewhere dst stays as it is.

    dst is read and written: what the predicate does not select keeps its old bytes.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `src`: tile of the dtype of dst, or a number.
    - `predicate`: tile of uint8, uint16 or uint32 with the partitions and elements of dst. Not in PSUM together with src.
    - `reverse_pred`: True selects where the predicate is 0.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        if (predicate[p, i] != 0) != reverse_pred:
            dst[p, i] = src[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def overwrite(x, mask):
        tile, predicate = nl.load(x), nl.load(mask)
        nisa.tensor_copy_predicated(tile, 0.0, predicate)
        nl.device_print("tile", tile)

    overwrite(np.array([[1, 2, 3, 4]], np.float32), np.array([[0, 1, 0, 1]], np.uint8))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[1. 0. 3. 0.]]
    ```

    See also: `select_reduce`, `affine_select`, `range_select`, `nl.where`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: 2N; N with src or predicate in PSUM; about N for a scalar src. Source: spec/machine.md 6.2.
    - Errors and warnings: `argument`, `dtype`, `dtype-differs`, `psum-both`, `shape`, and those of every instruction.
    """

tensor_engine: engine

def tensor_partition_reduce(dst: NkiTensor, op: OperatorLike, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[0] = the rows of data reduced by op.

    float32 sums and maxima; bit patterns for bitwise operators.
    """

def tensor_reduce(dst: NkiTensor, op: OperatorLike, data: NkiTensor, axis: Int | Sequence[Int], negate: bool = False, keepdims: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data reduced by op over its trailing axes; negate changes the sign of the result."""

def tensor_scalar(dst: NkiTensor, data: NkiTensor, op0: OperatorLike | None, operand0: TileOrNumber | None, reverse0: bool = False, op1: OperatorLike | None = None, operand1: TileOrNumber | None = None, reverse1: bool = False, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1, where an operand is a number or one value per partition.

    Two operators cost as much as one, and nothing is rounded between them. Exact 32-bit integer arithmetic is used if all tiles are int32 or uint32.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `data`: tile with the partitions and elements of dst.
    - `op0`: the first operator, or None to skip this stage. An operator of one operand (`nl.abs`, `nl.rsqrt`) takes operand0=None.
    - `operand0`: a number, or a float32 [P, 1] tile: one value for each partition.
    - `reverse0`: True computes operand0 <op0> data.
    - `op1`: the second operator, or None.
    - `operand1`: as operand0, for op1.
    - `reverse1`: True computes operand1 <op1> result of the first stage.
    - `engine`: `nisa.engine.vector`, `scalar` (trn2: multiply and add alone) or `gpsimd` (rsqrt, power and 32-bit integers); `unknown` lets the compiler choose.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        t = data[p, i] <op0> operand0[p]        # operand0[p] <op0> data[p, i] with reverse0
        dst[p, i] = t <op1> operand1[p]         # operand1[p] <op1> t with reverse1
    ```

    Example:

    ```python
    @nki.jit
    def scale_and_shift(x):
        tile = nl.load(x)
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0, op1=nl.add, operand1=1.0)
        nl.device_print("tile", tile)

    scale_and_shift(np.array([[1, 2, 3]], np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[3. 5. 7.]]
    ```

    See also: `tensor_tensor`, `scalar_tensor_tensor`, `tensor_scalar_reduce`, `activation`.

    Facts:

    - Engines: vector, scalar, gpsimd (the first is the default). Generations: trn1, trn2, trn3.
    - Cost: as tensor_copy, one operator or two; GpSimd 150 + 2N, rsqrt 150 + 4N. Source: spec/machine.md 6.1, 6.2, 7, 8.
    - Limit `scalar_tensor_scalar`: none on trn1; multiply-add on trn2; all on trn3.
    - Errors and warnings: `argument`, `dtype`, `engine`, `generation`, `indirect-view`, `op`, `operand-dtype`, `shape`, and those of every instruction.
    """

def tensor_scalar_cumulative(dst: NkiTensor, src: NkiTensor, op0: OperatorLike, op1: OperatorLike, imm0: TileOrNumber, imm1: TileOrNumber | None = None, reduce_cmd: reduce_cmd = ..., name: str | None = None) -> NkiInstruction:
    """dst = the running reduction of src <op0> imm0: acc = op1(value, acc)."""

def tensor_scalar_reduce(dst: NkiTensor, data: NkiTensor, op0: OperatorLike, operand0: TileOrNumber | None, reduce_op: OperatorLike, reduce_res: NkiTensor | None = None, reverse0: bool = False, reduce_cmd: reduce_cmd = ..., reduce_init: TileOrNumber | None = None, reduce_res_negate: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data <op0> operand0, and its reduction by reduce_op over all free elements."""

def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: OperatorLike, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = data1 <op> data2, element by element.

    float32 arithmetic; exact 32-bit integers on GpSimd; bit patterns for bitwise operators.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `data1`, `data2`: tiles with the partitions and elements per partition of dst; tiles are not broadcast. At most one of them in PSUM.
    - `op`: an operator of two operands: arithmetic, comparison, logical or bitwise (`nl.add`, `nl.less`, ...). Bitwise operators take integers, on VectorE alone.
    - `engine`: `nisa.engine.vector` or `gpsimd`; `unknown` takes GpSimdE for `nl.power` and for three 32-bit integer tiles in SBUF, else VectorE.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        dst[p, i] = data1[p, i] <op> data2[p, i]    # float32, one cast at the end; bits for bitwise operators
    ```

    Example:

    ```python
    @nki.jit
    def add(x, y):
        total = nl.load(x)
        nisa.tensor_tensor(total, total, nl.load(y), nl.add)
        nl.device_print("total", total)

    add(np.array([[1, 2, 3]], np.float32), np.array([[10, 20, 30]], np.float32))
    ```

    ```output
    total float32[1, 3] sbuf
    [[11. 22. 33.]]
    ```

    See also: `tensor_scalar`, `scalar_tensor_tensor`, `nl.add`.

    Facts:

    - Engines: vector, gpsimd (the first is the default). Generations: trn1, trn2, trn3.
    - Cost: 2N trn1, N trn2+; N with a PSUM operand; N/2 all 16-bit in SBUF trn2+; GpSimd 150 + 2N. Source: spec/machine.md 6.1, 6.2, 8.
    - Errors and warnings: `buffer`, `dtype`, `engine`, `generation`, `op`, `psum-both`, `shape`, and those of every instruction.
    """

def tensor_tensor_scan(dst: NkiTensor, data0: NkiTensor, data1: NkiTensor, initial: TileOrNumber, op0: OperatorLike, op1: OperatorLike, reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> NkiInstruction:
    """dst[i] = (data0[i] <op0> dst[i-1]) <op1> data1[i] along the free axis, in float32."""

def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: Int, name: str | None = None) -> NkiInstruction:
    """The K largest of the n elements in each group of 16 partitions, ascending, and where they were.

    Element e of a group is in partition e % 16, column e // 16. All 16 partitions get the result.
    """

unknown_engine: engine

vector_engine: engine
