"""nki.isa: the instructions of a NeuronCore. One file per group, one place per instruction.

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

import numpy as _np
from collections.abc import Sequence
from nki.errors import NkiValidationError as NkiValidationError
from nki.ir.instruction import NkiInstruction as NkiInstruction
from nki.ir.layout import Int
from nki.ir.tensor import NkiTensor
from nki.isa import constants as constants
from nki.isa.enums import dge_mode as dge_mode
from nki.isa.enums import dma_engine as dma_engine
from nki.isa.enums import matmul_perf_mode as matmul_perf_mode
from nki.isa.enums import nc_version as nc_version
from nki.isa.enums import oob_mode as oob_mode
from nki.isa.enums import reduce_cmd as reduce_cmd
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

def activate2(dst: NkiTensor, op: OperatorLike, data: NkiTensor, imm0: TileOrNumber | None, imm1: TileOrNumber | None, op0: OperatorLike | None, op1: OperatorLike | None, relu_param: TileOrNumber = 0.0, reverse0: bool = False, reverse1: bool = False, reduce_op: OperatorLike | None = None, reduce_res: NkiTensor | None = None, reduce_cmd: reduce_cmd = ..., name: str | None = None) -> NkiInstruction:
    """dst = op((data <op0> imm0) <op1> imm1); its reduction may go to the registers and reduce_res.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `op`: a function of one operand; `nl.prelu` uses relu_param.
    - `data`: tile with the partitions and elements of dst.
    - `imm0`, `imm1`: numbers or [P, 1] tiles of one dtype; None with `nl.bypass`.
    - `op0`, `op1`: multiply then add or subtract; one of multiply, add, subtract with `nl.bypass`; or two `nl.bypass`. None is `nl.bypass`.
    - `relu_param`: slope of `nl.prelu` below 0: a number or a [P, 1] tile.
    - `reverse0`: True computes imm0 <op0> data.
    - `reverse1`: True computes imm1 <op1> result of the first stage.
    - `reduce_op`: `nl.add`, `nl.maximum`, `nl.minimum`, `nl.abs_max` or `nl.abs_min`.
    - `reduce_res`: [P, 1] tile for the reduction, or None.
    - `reduce_cmd`: as of `nisa.activation`.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        t = data[p, i] <op0> imm0[p]        # skipped by bypass
        dst[p, i] = op(t <op1> imm1[p])     # skipped by bypass
    reduce_res[p] = reduce_op over dst[p, :]
    ```

    Example:

    ```python
    @nki.jit
    def leaky(x):
        tile = nl.load(x)
        nisa.activate2(tile, nl.prelu, tile, 2.0, 1.0, nl.multiply, nl.subtract, relu_param=0.5)
        nl.device_print("tile", tile)

    leaky(np.array([[-1, 0, 1, 2]], np.float32))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[-1.5 -0.5  1.   3. ]]
    ```

    See also: `activation`, `activation_reduce`, `nl.prelu`.

    Facts:

    - Engines: scalar. Generations: trn3.
    - Cost: max(64, N); + 64 trn1, 185 ns trn2+ to read the registers. Source: spec/machine.md 4, 7.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `act-range`, `argument`, `dtype`, `enum`, `legacy`, `op`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def activation(dst: NkiTensor, op: OperatorLike, data: NkiTensor, bias: TileOrNumber | None = None, scale: TileOrNumber = 1.0, reduce_op: OperatorLike | None = None, reduce_res: NkiTensor | None = None, reduce_cmd: reduce_cmd = ..., name: str | None = None) -> NkiInstruction:
    """dst = op(data * scale + bias); the sum over each partition may go to the registers and reduce_res.

    The scale, the bias and the function cost one instruction. `nl.exp` with scale and bias is the inner step of a softmax.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `op`: a function of one operand: `nl.exp`, `nl.relu`, `nl.gelu`, `nl.sigmoid`, `nl.rsqrt`, `nl.copy`, ...
    - `data`: tile with the partitions and elements of dst.
    - `bias`: a number, a [P, 1] tile, or None for 0. trn1 takes a tile.
    - `scale`: a number, or a float32 [P, 1] tile.
    - `reduce_op`: `nl.add` alone, or None.
    - `reduce_res`: [P, 1] tile for the sum of the results, or None.
    - `reduce_cmd`: `reset_reduce` starts a sum, `reduce` continues it, `reset` clears it, `idle` leaves it (and may still read it out).
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        acc = start(reduce_cmd)
        for i:
            dst[p, i] = v = op(data[p, i] * scale[p] + bias[p])
            acc = acc + v               # unless idle
        reduce_res[p] = acc
    ```

    Example:

    ```python
    @nki.jit
    def positive_part(x):
        tile = nl.load(x)
        nisa.activation(tile, nl.relu, tile, bias=-1.0, scale=2.0)
        nl.device_print("tile", tile)

    positive_part(np.array([[-1, 0, 1, 2]], np.float32))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[0. 0. 1. 3.]]
    ```

    See also: `activation_reduce`, `activate2`, `tensor_scalar`, `exponential`.

    Facts:

    - Engines: scalar. Generations: trn1, trn2, trn3.
    - Cost: max(64, N); + 64 trn1, 185 ns trn2+ to read the registers. Source: spec/machine.md 4, 7.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `act-range`, `argument`, `bias-constant`, `dtype`, `enum`, `generation`, `legacy`, `op`, `operand-dtype`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def activation_reduce(dst: NkiTensor, op: OperatorLike, data: NkiTensor, reduce_op: OperatorLike, reduce_res: NkiTensor | None, bias: TileOrNumber | None = None, scale: TileOrNumber = 1.0, name: str | None = None) -> NkiInstruction:
    """dst = op(data * scale + bias), reduce_res = its sum over each partition.

    `nisa.activation` with `reduce_cmd.reset_reduce`; the order of the arguments differs.

    Parameters:

    - `dst`: tile in SBUF or PSUM.
    - `op`: a function of one operand, as of `nisa.activation`.
    - `data`: tile with the partitions and elements of dst.
    - `reduce_op`: `nl.add` alone.
    - `reduce_res`: [P, 1] tile for the sum, or None to leave it in the accumulator registers.
    - `bias`: a number, a [P, 1] tile, or None for 0.
    - `scale`: a number, or a float32 [P, 1] tile.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        dst[p, i] = op(data[p, i] * scale[p] + bias[p])  for every i
        reduce_res[p] = sum of dst[p, :]                    # before the cast to the dtype of dst
    ```

    Example:

    ```python
    @nki.jit
    def squares(x):
        tile, total = nl.load(x), nl.ndarray((2, 1), nl.float32)
        nisa.activation_reduce(tile, nl.square, tile, nl.add, total)
        nl.device_print("sums", total)

    squares(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    sums float32[2, 1] sbuf
    [[14.]
     [77.]]
    ```

    See also: `activation`, `tensor_scalar_reduce`, `nl.rms_norm`.

    Facts:

    - Engines: scalar. Generations: trn1, trn2, trn3.
    - Cost: max(64, N); + 64 trn1, 185 ns trn2+ to read the registers. Source: spec/machine.md 4, 7.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `act-range`, `argument`, `bias-constant`, `dtype`, `enum`, `generation`, `legacy`, `op`, `operand-dtype`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def affine_select(dst: NkiTensor, pattern: Sequence[Sequence[Int]], channel_multiplier: Int, on_true_tile: NkiTensor, on_false_value: Number, cmp_op: OperatorLike = ..., offset: Int | VirtualRegister = 0, name: str | None = None) -> NkiInstruction:
    """dst = on_true_tile where cmp_op(a, 0) holds, else on_false_value; a is the value iota would write.

    Selects triangles, diagonals and bands without a mask in memory. The pattern is that of `nisa.iota`: a pair [step, count] for each loop over the free elements.

    Parameters:

    - `dst`: tile in SBUF.
    - `pattern`: [[step, count], ...]; the counts multiply to the elements per partition of dst.
    - `channel_multiplier`: step of the value from a partition to the next.
    - `on_true_tile`: tile in SBUF with the partitions and elements of dst; may be dst itself.
    - `on_false_value`: a number for the other elements, converted to the dtype of dst.
    - `cmp_op`: comparison of the value with 0: `nl.equal`, `nl.not_equal`, `nl.greater`, `nl.greater_equal`, `nl.less` or `nl.less_equal`.
    - `offset`: an int or a register, added to every value.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        value = what iota(pattern, offset, channel_multiplier) writes to [p, i]
        dst[p, i] = on_true_tile[p, i] if value <cmp_op> 0 else on_false_value
    ```

    Notes:

    - Causal mask: pattern [[-1, F]] and channel_multiplier 1 give value = row - column; `nl.greater_equal` keeps the lower triangle.

    Example:

    ```python
    @nki.jit
    def causal(x):
        tile = nl.load(x)
        nisa.affine_select(tile, [[-1, 4]], 1, tile, 0.0, cmp_op=nl.greater_equal)
        nl.device_print("tile", tile)

    causal(np.ones((4, 4), np.float32))
    ```

    ```output
    tile float32[4, 4] sbuf
    [[1. 0. 0. 0.]
     [1. 1. 0. 0.]
     [1. 1. 1. 0.]
     [1. 1. 1. 1.]]
    ```

    See also: `iota`, `range_select`, `select_reduce`, `nl.where`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 150 + N. Source: spec/machine.md 8.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `legacy`, `op`, `pattern`, `shape`, and those of every instruction.
    """

def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = mean and population variance of what the (count, mean, M2) triples in data describe.

    Parameters:

    - `dst`: tile of 2 elements per partition: mean and variance.
    - `data`: tile of (count, mean, M2) triples as `nisa.bn_stats` writes them; any number of them per partition.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        n, m, M2 = data[p, 0::3], data[p, 1::3], data[p, 2::3]
        mean = sum(n * m) / sum(n)
        dst[p] = mean, (sum(M2) + sum(n * (m - mean)**2)) / sum(n)
    ```

    Example:

    ```python
    @nki.jit
    def mean_and_variance(x):
        tile, stats = nl.load(x), nl.ndarray((1, 6), nl.float32)
        result = nl.ndarray((1, 2), nl.float32)
        nisa.bn_stats(stats, tile)
        nisa.bn_aggr(result, stats)
        nl.device_print("mean, variance", result)

    mean_and_variance(np.array([[1, 10, 3, 30]], np.float32))
    ```

    ```output
    mean, variance float32[1, 2] sbuf
    [[ 11.  131.5]]
    ```

    See also: `bn_stats`, `nl.mean`, `nl.var`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, 13 N/3). Source: spec/machine.md 6.2.
    - Errors and warnings: `dtype`, `shape`, and those of every instruction.
    """

def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = count, mean and variance * count of the even elements of each partition, then of the odd ones.

    Combine the statistics of pieces with `nisa.bn_aggr`.

    Parameters:

    - `dst`: tile of 6 elements per partition, float32 for accurate results.
    - `data`: tile in SBUF or PSUM with at most `nl.tile_size.bn_stats_fmax` elements per partition.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        e, o = data[p, 0::2], data[p, 1::2]
        dst[p] = len(e), mean(e), sum((e - mean(e))**2), len(o), mean(o), sum((o - mean(o))**2)
    ```

    Example:

    ```python
    @nki.jit
    def statistics(x):
        tile, stats = nl.load(x), nl.ndarray((1, 6), nl.float32)
        nisa.bn_stats(stats, tile)
        nl.device_print("stats", stats)

    statistics(np.array([[1, 10, 3, 30]], np.float32))
    ```

    ```output
    stats float32[1, 6] sbuf
    [[  2.   2.   2.   2.  20. 200.]]
    ```

    See also: `bn_aggr`, `nl.mean`, `nl.var`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Limit `bn_stats_max`: 512.
    - Errors and warnings: `dtype`, `free-limit`, `shape`, and those of every instruction.
    """

def core_barrier(data: NkiTensor, cores: Int | Sequence[Int], engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Wait until all listed cores are here; then what each wrote to `data` is visible to all.

    Parameters:

    - `data`: tensor in shared HBM that the cores hand over.
    - `cores`: the numbers of the cores that meet, as (0, 1). One core alone does not wait.
    - `engine`: whose later instructions wait.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    arrive(data, cores)
    wait until every core of cores has arrived
    ```

    Example:

    ```python
    @nki.jit
    def exchange():
        out = nl.ndarray((2, 1), nl.int32, buffer=nl.shared_hbm)
        me, tile = nl.program_id(0), nl.ndarray((1, 1), nl.int32)
        nisa.memset(tile, 10 + me)
        nisa.dma_copy(out[me : me + 1], tile)
        nisa.core_barrier(out, (0, 1))
        return out

    print(exchange[2]())
    ```

    ```output
    [[10]
     [11]]
    ```

    See also: `sendrecv`, `nl.program_id`, `nl.shared_hbm`.

    Facts:

    - Engines: gpsimd, tensor, vector, scalar, sync (the first is the default). Generations: trn2, trn3.
    - Cost: core_barrier_ns. Source: spec/machine.md 8.
    - Errors and warnings: `argument`, `barrier-buffer`, `lnc`, and those of every instruction.
    """

def dma_compute(dst: NkiTensor, srcs: Sequence[NkiTensor], reduce_op: OperatorLike, scales: Sequence[Number] | None = None, unique_indices: bool = True, oob_mode: oob_mode = ..., name: str | None = None) -> NkiInstruction:
    """dst = the sum of up to 16 sources, in float32; with a vector of indices, add to or from HBM rows.

    One source is a plain copy: to accumulate, list dst among the sources.

    Parameters:

    - `dst`: tensor in HBM or tile in SBUF; with a vector of indices, rows of HBM to add to.
    - `srcs`: 1 to 16 tensors with as many elements as dst. With run-time indices two: one is dst itself.
    - `reduce_op`: `nl.add` alone.
    - `scales`: None, or 1.0 for each source.
    - `unique_indices`: True promises that no index occurs twice.
    - `oob_mode`: `skip` leaves out rows whose index is out of bounds; `error` reports them.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for k in range(number of elements):
        dst.flat[k] = srcs[0].flat[k] + srcs[1].flat[k] + ...      # in float32
    ```

    Example:

    ```python
    @nki.jit
    def add_in_flight(x, y):
        tile = nl.ndarray((1, 3), nl.float32)
        nisa.dma_compute(tile, [x, y], nl.add)
        nl.device_print("tile", tile)

    add_in_flight(np.array([[1, 2, 3]], np.float32), np.array([[10, 20, 30]], np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[11. 22. 33.]]
    ```

    See also: `dma_copy`, `tensor_tensor`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: as a copy of every source, at 50 % of its rate before trn3. Source: spec/machine.md 9.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `dma-compute-single`, `dtype`, `enum`, `index`, `indirect-view`, `legacy`, `oob-skip`, `op`, `partition-limit`, `scatter-dup`, `shape`, and those of every instruction.
    """

def dma_copy(dst: NkiTensor, src: NkiTensor, priority: Int | None = None, oob_mode: oob_mode = ..., dge_mode: dge_mode = ..., engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = src between HBM and SBUF, in any combination; casts when the dtypes differ.

    Element k of src goes to element k of dst, each in row-major order of its own view. Equal dtypes move bit by bit.

    Parameters:

    - `dst`: tensor in HBM or tile in SBUF with as many elements as src; a view with a run-time index scatters.
    - `src`: tensor in HBM or tile in SBUF; `t.ap(..., vector_offset=tile)` gathers rows, `scalar_offset=register` starts at a run-time place.
    - `priority`: 0 to 3 (trn3), or None.
    - `oob_mode`: `nisa.oob_mode.skip` leaves out rows whose run-time index is out of bounds; `error` reports them.
    - `dge_mode`: `nisa.dge_mode.hwdge` (trn2+; equal dtypes), `swdge` or `none`: what generates the descriptors. `unknown` lets the compiler choose.
    - `engine`: the queue of `hwdge` descriptors: `nisa.engine.sync` or `scalar`, or `unknown`.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for k in range(number of elements):
        dst.flat[k] = src.flat[k]       # cast to dst.dtype
    ```

    Example:

    ```python
    @nki.jit
    def gather_rows(table, index):
        rows, tile = nl.load(index), nl.ndarray((3, 2), nl.float32)
        nisa.dma_copy(tile, table.ap([[2, 3], [1, 2]], vector_offset=rows))
        nl.device_print("rows", tile)

    gather_rows(np.arange(8, dtype=np.float32).reshape(4, 2), np.array([[3], [0], [3]], np.int32))
    ```

    ```output
    rows float32[3, 2] sbuf
    [[6. 7.]
     [0. 1.]
     [6. 7.]]
    ```

    See also: `dma_transpose`, `dma_compute`, `tensor_copy`, `nl.load`, `nl.store`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: descriptors x (7 ns, 21 on trn1, + bytes / rate) per engine, + issue and latency. Source: spec/machine.md 9.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `buffer`, `dge-mode`, `dma-engine`, `dma-shape`, `dtype`, `engine`, `enum`, `generation`, `index`, `indirect-twice`, `legacy`, `oob-skip`, `partition-limit`, `priority`, `scatter-dup`, `shape`, `static-dma-offset`, and those of every instruction.
    """

def dma_transpose(dst: NkiTensor, src: NkiTensor, axes: Sequence[Int] | None = None, priority: Int | None = None, dge_mode: dge_mode = ..., oob_mode: oob_mode = ..., name: str | None = None) -> NkiInstruction:
    """dst = src with its first and last dimensions exchanged.

    Costs no engine, but the DMA queues move 2-byte elements slowly; `nisa.nc_transpose` is the way for tiles on the chip.

    Parameters:

    - `dst`: tile in SBUF of the dtype of src and the shape with first and last dimension exchanged.
    - `src`: tensor in HBM or tile in SBUF of a 2- or 4-byte dtype, with 2 to 4 dimensions; the last is at most 128.
    - `axes`: None, or the one permutation of its rank: (1, 0), (2, 1, 0) or (3, 1, 2, 0).
    - `priority`: 0 to 3 (trn3), or None.
    - `dge_mode`: `hwdge` (trn2+) takes 2-byte dtypes and whole blocks of 16 rows; `unknown` lets the compiler choose.
    - `oob_mode`: `skip` leaves out rows of an indirect src that are out of bounds.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for i, ..., j:
        dst[j, ..., i] = src[i, ..., j]
    ```

    Example:

    ```python
    @nki.jit
    def transposed(x):
        tile = nl.ndarray((3, 2), nl.float32)
        nisa.dma_transpose(tile, x)
        nl.device_print("tile", tile)

    transposed(np.arange(6, dtype=np.float32).reshape(2, 3))
    ```

    ```output
    tile float32[3, 2] sbuf
    [[0. 3.]
     [1. 4.]
     [2. 5.]]
    ```

    See also: `nc_transpose`, `dma_copy`, `nl.load_transpose2d`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: as a copy at 90 % (from HBM) or 50 % (from SBUF) of its rate; trn1: one descriptor per element. Source: spec/machine.md 9.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `hwdge_transpose_columns`: 128.
    - Limit `hwdge_transpose_rows`: 16.
    - Limit `partitions`: 128.
    - Errors and warnings: `axis`, `buffer`, `dge-mode`, `dtype`, `enum`, `generation`, `index`, `indirect-view`, `legacy`, `oob-skip`, `partition-limit`, `priority`, `rank`, `scatter-dup`, `shape`, `transpose-hbm`, and those of every instruction.
    """

def dropout(dst: NkiTensor, data: NkiTensor, prob: TileOrNumber, name: str | None = None) -> NkiInstruction:
    """dst = data with each element zeroed with probability prob; the others are not rescaled.

    Parameters:

    - `dst`: tile in SBUF or PSUM of the dtype of data.
    - `data`: tile with the partitions and elements of dst.
    - `prob`: probability of a 0: a number in [0, 1] or a [P, 1] tile (float32 for integer data).
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        u = next number of lane p, uniform in [0, 1)
        dst[p, i] = 0 if u < prob[p] else data[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def drop(x, seed):
        tile = nl.load(x)
        nisa.set_rng_seed(nl.load(seed))
        nisa.dropout(tile, tile, 0.5)
        nl.device_print("tile", tile)

    drop(np.ones((1, 8), np.float32), np.array([[7]], np.uint32))
    ```

    ```output
    tile float32[1, 8] sbuf
    [[0. 0. 1. 0. 0. 0. 1. 0.]]
    ```

    See also: `rng`, `set_rng_seed`, `nl.dropout`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Errors and warnings: `argument`, `dtype`, `probability`, `shape`, and those of every instruction.
    """

def exponential(dst: NkiTensor, src: NkiTensor, max_value: TileOrNumber = 0.0, reduce_res: NkiTensor | None = None, reduce_cmd: reduce_cmd = ..., reduce_init: TileOrNumber = 0.0, name: str | None = None) -> NkiInstruction:
    """dst = exp(src - max_value), and its sum over all free elements (trn3).

    The softmax step of trn3: four elements in a cycle, with the sum for nothing.

    Parameters:

    - `dst`: tile in SBUF or PSUM of a float or integer dtype (not uint32), at most 4 dimensions.
    - `src`: tile with the partitions and elements of dst (not tfloat32).
    - `max_value`: a number or float32 [P, 1] tile that is subtracted first.
    - `reduce_res`: [P, 1] tile of a float dtype for the sum, or None.
    - `reduce_cmd`: `reset_reduce`, `reduce`, `load_reduce`, or `idle` for no sum.
    - `reduce_init`: start of the sum, with `load_reduce` alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        dst[p, i] = exp(src[p, i] - max_value[p])
    reduce_res[p] = sum of dst[p, :]
    ```

    Example:

    ```python
    @nki.jit
    def exponentials(x):
        tile, total = nl.load(x), nl.ndarray((1, 1), nl.float32)
        start = nisa.reduce_cmd.reset_reduce
        nisa.exponential(tile, tile, max_value=2.0, reduce_res=total, reduce_cmd=start)
        nl.device_print("tile", tile)
        nl.device_print("total", total)

    exponentials(np.array([[2, -np.inf, 2]], np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[1. 0. 1.]]
    total float32[1, 1] sbuf
    [[2.]]
    ```

    See also: `activation`, `activation_reduce`, `nl.exp`, `nl.softmax`.

    Facts:

    - Engines: vector. Generations: trn3.
    - Cost: N/4, the sum included. Source: spec/machine.md 6.2.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `argument`, `dtype`, `enum`, `legacy`, `operand-dtype`, `rank`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def get_nc_sub_version() -> int:
    """The silicon revision: 0, the first.

    Returns: an int; 0 is the first revision.

    Operation:

    ```text
    return silicon revision of the target
    ```

    Example:

    ```python
    print(nisa.get_nc_sub_version())
    ```

    ```output
    0
    ```

    See also: `get_nc_version`, `nc_version`.

    Facts:

    - Errors and warnings: none.
    """

def get_nc_version() -> nc_version:
    """The NeuronCore generation of the running kernel, or of the platform a call would choose.

    Works outside a kernel too. `NEURON_PLATFORM_TARGET_OVERRIDE` and `nki.jit(platform_target=)` choose the target.

    Returns: a member of `nisa.nc_version`, which compares with other members and with ints.

    Operation:

    ```text
    return generation of the target
    ```

    Example:

    ```python
    print(nisa.get_nc_version(), nisa.get_nc_version() >= nisa.nc_version.gen3)
    ```

    ```output
    nc_version.gen4 True
    ```

    See also: `nc_version`, `get_nc_sub_version`, `nl.tile_size`.

    Facts:

    - Issues, depending on the arguments: `nisa.nc_version`.
    - Errors and warnings: those of `nl.ndarray`.
    """

gpsimd_engine: engine

def iota(dst: NkiTensor, pattern: Sequence[Sequence[Int]], offset: Int | VirtualRegister = 0, channel_multiplier: Int = 0, name: str | None = None) -> NkiInstruction:
    """dst[p, w, z, y, x] = offset + p * channel_multiplier + w * step_w + ... + x * step_x.

    A pattern is a list of at most four [step, count] pairs, the outermost first. It counts through the free elements of a partition like nested loops, and each loop adds its step.

    Parameters:

    - `dst`: tile in SBUF; int32 and uint32 are exact, other dtypes go through float32.
    - `pattern`: [[step, count], ...]; the counts multiply to the elements per partition of dst. A step may be 0 or negative.
    - `offset`: an int or a register, added to every value.
    - `channel_multiplier`: added once for each partition: the step from a partition to the next. Partitions count from the first one of dst.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, w, z, y, x:              # x < count of the last pair, y < count of the one before it, ...
        dst[p, w, z, y, x] = offset + p*channel_multiplier + w*step_w + z*step_z + y*step_y + x*step_x
    ```

    Example:

    ```python
    @nki.jit
    def numbers():
        tile = nl.ndarray((2, 6), nl.int32)
        nisa.iota(tile, [[10, 2], [1, 3]], offset=5, channel_multiplier=100)
        nl.device_print("tile", tile)

    numbers()
    ```

    ```output
    tile int32[2, 6] sbuf
    [[  5   6   7  15  16  17]
     [105 106 107 115 116 117]]
    ```

    See also: `affine_select`, `memset`, `nl.shared_identity_matrix`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 150 + N. Source: spec/machine.md 8.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `pattern`, `shape`, and those of every instruction.
    """

def local_gather(dst: NkiTensor, src_buffer: NkiTensor, index: NkiTensor, num_elem_per_idx: Int = 1, num_valid_indices: Int | None = None, name: str | None = None) -> NkiInstruction:
    """Gather runs of elements by offsets that the 16 partitions of a processor share.

    Offsets are read down the 16 partitions of a group, column by column.

    Parameters:

    - `dst`: tile in SBUF of the dtype of src_buffer with (indices x num_elem_per_idx) elements per partition.
    - `src_buffer`: tile in SBUF; its partitions are a multiple of 16.
    - `index`: uint16 tile in SBUF with the partitions of src_buffer: offsets of elements, not of runs.
    - `num_elem_per_idx`: length e of a run: 1, 2, 4, 8, 16 or 32.
    - `num_valid_indices`: how many indices each group uses; None: all 16 x columns of index. At most 4096.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for every group of 16 partitions:
        ids = index of the group, read down the partitions, column by column
        for p in the group, k:
            dst[p, k*e : (k+1)*e] = src_buffer[p, ids[k] : ids[k] + e]
    ```

    Example:

    ```python
    @nki.jit
    def gather(x, index):
        tile, offsets = nl.load(x), nl.load(index)
        result = nl.ndarray((16, 4), nl.float32)
        nisa.local_gather(result, tile, offsets, num_elem_per_idx=1, num_valid_indices=4)
        nl.device_print("row 1", result[1:2])

    index = np.zeros((16, 1), np.uint16)
    index[:4, 0] = 3, 0, 2, 2
    gather(np.arange(64, dtype=np.float32).reshape(16, 4), index)
    ```

    ```output
    row 1 float32[1, 4] sbuf
    [[7. 4. 6. 6.]]
    ```

    See also: `nc_n_gather`, `nl.gather_flattened`, `dma_copy`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 150 + n e ((28 + 4e) / 4e) / min(4 / itemsize, e). Source: spec/machine.md 8.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `free-limit`, `index`, `shape`, and those of every instruction.
    """

def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[P, 8] = the 8 largest elements of each partition of src, largest first.

    NaN counts as the smallest value.

    Parameters:

    - `dst`: tile of 8 elements per partition.
    - `src`: tile in SBUF or PSUM of 8 to 16384 elements per partition.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        dst[p] = sorted(src[p], largest first)[:8]      # a value that occurs twice is listed twice
    ```

    Example:

    ```python
    @nki.jit
    def largest(x):
        tile, top = nl.load(x), nl.ndarray((1, 8), nl.float32)
        nisa.max8(top, tile)
        nl.device_print("top", top)

    largest(np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]], np.float32))
    ```

    ```output
    top float32[1, 8] sbuf
    [[9. 6. 5. 5. 4. 3. 3. 2.]]
    ```

    See also: `nc_find_index8`, `nc_match_replace8`, `topk`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Errors and warnings: `dtype`, `free-limit`, `shape`, and those of every instruction.
    """

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
    """dst[P, 8] = where in data each of the 8 vals first occurs; a value given again takes its next place.

    Beside `nisa.max8` it finds the places of the 8 largest elements. A value that is not found gives all ones.

    Parameters:

    - `dst`: uint32 or uint16 tile of 8 elements per partition.
    - `data`: tile in SBUF or PSUM of 8 to 16384 elements per partition.
    - `vals`: tile of 8 elements per partition, the values to find. They are compared as float32.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, j in 0 .. 7:
        dst[p, j] = smallest i with data[p, i] == vals[p, j] that no equal value before j has taken
    ```

    Example:

    ```python
    @nki.jit
    def places_of_largest(x):
        tile, top = nl.load(x), nl.ndarray((1, 8), nl.float32)
        places = nl.ndarray((1, 8), nl.uint32)
        nisa.max8(top, tile)
        nisa.nc_find_index8(places, tile, top)
        nl.device_print("places", places)

    places_of_largest(np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]], np.float32))
    ```

    ```output
    places uint32[1, 8] sbuf
    [[5 7 4 8 2 0 9 6]]
    ```

    See also: `max8`, `nc_match_replace8`, `topk`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Errors and warnings: `dtype`, `extra-partitions`, `free-limit`, `shape`, and those of every instruction.
    """

def nc_match_replace8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: Number, dst_idx: NkiTensor | None = None, name: str | None = None) -> NkiInstruction:
    """dst = data with imm in the place of the 8 vals; dst_idx[P, 8] = where they were.

    The columns of vals take turns from 7 down to 0, so of equal ones the last gets the first place.

    Removes the 8 largest elements so that `nisa.max8` finds the next 8: the loop of a top-k.

    Parameters:

    - `dst`: tile with the partitions and elements of data; may be data itself.
    - `data`: tile in SBUF or PSUM of at most 16384 elements per partition.
    - `vals`: tile of 8 elements per partition, the values to replace.
    - `imm`: the number that replaces them.
    - `dst_idx`: uint32 tile of 8 elements per partition for the places, or None. Not found: all ones.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        dst[p] = data[p]
        for j in 7, 6, ..., 0:
            i = smallest i with data[p, i] == vals[p, j] that is not taken yet
            dst[p, i] = imm; dst_idx[p, j] = i
    ```

    Example:

    ```python
    @nki.jit
    def without_largest(x):
        tile, top = nl.load(x), nl.ndarray((1, 8), nl.float32)
        nisa.max8(top, tile)
        nisa.nc_match_replace8(tile, tile, top, imm=-1.0)
        nl.device_print("rest", tile)

    without_largest(np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]], np.float32))
    ```

    ```output
    rest float32[1, 10] sbuf
    [[-1.  1. -1.  1. -1. -1. -1. -1. -1. -1.]]
    ```

    See also: `max8`, `nc_find_index8`, `topk`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Errors and warnings: `argument`, `dtype`, `free-limit`, `shape`, and those of every instruction.
    """

def nc_matmul(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_stationary_onezero: bool = False, is_moving_onezero: bool = False, is_transpose: bool = False, accumulate: bool | None = None, tile_position: Sequence[Int] = ..., tile_size: Sequence[Int] = ..., perf_mode: matmul_perf_mode = ..., name: str | None = None) -> NkiInstruction:
    """dst[M, N] = stationary[K, M].T @ moving[K, N] into PSUM, overwriting or accumulating.

    K is the contraction, in the partitions of both operands. Products and sums are float32. On float32 operands the array makes several passes, so bfloat16 is four times as fast.

    Parameters:

    - `dst`: PSUM tile [M, N], float32 (trn3: or bfloat16). On trn1 and trn2 it lies in one bank of 2 KiB per partition.
    - `stationary`: SBUF tile [K, M] of float32, tfloat32, bfloat16, float16 or fp8: K and M at most 128.
    - `moving`: SBUF tile [K, N]. float32 pairs with float32 alone. N is at most 512 on trn1 and trn2, 4096 on trn3 (8192 into bfloat16).
    - `is_stationary_onezero`, `is_moving_onezero`: hints that a float32 operand holds 0 and 1 alone, which saves passes. Wrong hints lose digits.
    - `is_transpose`: True moves stationary transposed into dst bit by bit; moving is then an identity matrix.
    - `accumulate`: False overwrites dst and True adds to it. None overwrites what no matmul has written yet, and adds to the rest.
    - `tile_position`: (row, column) where the work starts in the 128 x 128 array; with tile_size.
    - `tile_size`: (rows, columns) of the part of the array in use: 128 or 64 (trn2, trn3: also 32). Small products can run side by side.
    - `perf_mode`: `nisa.matmul_perf_mode.double_row` (trn2+) takes fp8 operands of shape [K, 2, ...] and contracts 2K rows.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for m, n:
        product = sum over k of stationary[k, m] * moving[k, n]
        dst[m, n] = product                     # overwriting
        dst[m, n] = dst[m, n] + product         # accumulating
    ```

    Example:

    ```python
    @nki.jit
    def product(a, b):
        left, right = nl.load(a), nl.load(b)    # [K, M] and [K, N]
        psum = nl.ndarray((2, 3), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, left, right)
        nl.device_print("a.T @ b", nl.copy(psum))

    product(np.array([[1, 0], [0, 2]], np.float32), np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    a.T @ b float32[2, 3] sbuf
    [[ 1.  2.  3.]
     [ 8. 10. 12.]]
    ```

    See also: `nc_matmul_mx`, `nc_transpose`, `matmul_perf_mode`, `nl.matmul`.

    Facts:

    - Engines: tensor. Generations: trn1, trn2, trn3.
    - Cost: max(N, 64) cycles; fp32 x4 (x2 with a one/zero operand); pairs overlap. Source: spec/machine.md 5.2.
    - Limit `gemm_moving_fmax`: 512.
    - Limit `matmul_moving_max`: 512 on trn1; 512 on trn2; 4096 on trn3.
    - Limit `matmul_moving_max_bf16`: 512 on trn1; 512 on trn2; 8192 on trn3.
    - Limit `matmul_stationary_max`: 128.
    - Limit `partitions`: 128.
    - Limit `pe_tile_sizes`: 128, 64 on trn1; 128, 64, 32 on trn2; 128, 64, 32 on trn3.
    - Limit `psum_bank_bytes`: 2048.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `dtype-differs`, `enum`, `free-limit`, `indirect-view`, `legacy`, `nan-transpose`, `onezero`, `op`, `pe-tile`, `perf-mode`, `psum-bank`, `psum-mixed`, `psum-uninit`, `shape`, `transpose-identity`, and those of every instruction.
    """

def nc_matmul_mx(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, stationary_scale: NkiTensor, moving_scale: NkiTensor, tile_position: Sequence[Int] | None = None, tile_size: Sequence[Int] | None = None, accumulate: bool | None = None, name: str | None = None) -> NkiInstruction:
    """dst[M, N] = stationary[K, M].T @ moving[K, N] of packed MX elements times their scales, into PSUM.

    An element of an operand packs four numbers, so the contraction is 4K. 8 partitions x 4 numbers share a scale, a power of two.

    Parameters:

    - `dst`: PSUM tile [M, N] of float32 or bfloat16.
    - `stationary`: SBUF tile [K, M] of float8_e5m2_x4, float8_e4m3fn_x4 or float4_e2m1fn_x4. K is a multiple of 32, M even and at most 128.
    - `moving`: SBUF tile [K, N] of a packed dtype, which may be another one.
    - `stationary_scale`, `moving_scale`: SBUF tiles of float8_e8m0fnu or uint8; of every 32 partitions the first 4 rows hold scales.
    - `tile_position`: (row, 0) where the work starts in the array, or None.
    - `tile_size`: (rows, 128) with 32, 64 or 128 rows, or None.
    - `accumulate`: as of `nisa.nc_matmul`.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    s(scale, k, j) = 2 ** (scale[32*(k // 32) + (k % 32) // 8, j] - 127)
    for m, n:
        product = sum over k, q of stationary[k, m].q * s(stationary_scale, k, m)
                                 * moving[k, n].q * s(moving_scale, k, n)       # q = 0 .. 3
        dst[m, n] = product, or dst[m, n] + product
    ```

    Example:

    ```python
    @nki.jit
    def mx_product(x):
        tile, data = nl.load(x), nl.ndarray((32, 2), nl.float8_e4m3fn_x4)
        scale = nl.ndarray((4, 2), nl.float8_e8m0fnu)
        psum = nl.ndarray((2, 2), nl.float32, buffer=nl.psum)
        nisa.quantize_mx(data, tile, scale)
        nisa.nc_matmul_mx(psum, data, data, scale, scale)
        nl.device_print("x.T @ x", nl.copy(psum))

    mx_product(np.ones((32, 8), nl.bfloat16))
    ```

    ```output
    x.T @ x float32[2, 2] sbuf
    [[128. 128.]
     [128. 128.]]
    ```

    See also: `quantize_mx`, `nc_matmul`.

    Facts:

    - Engines: tensor. Generations: trn3.
    - Cost: max(N, 64) cycles. Source: spec/machine.md 5.2.
    - Limit `gemm_moving_fmax`: 512.
    - Limit `matmul_moving_max`: 512 on trn1; 512 on trn2; 4096 on trn3.
    - Limit `matmul_moving_max_bf16`: 512 on trn1; 512 on trn2; 8192 on trn3.
    - Limit `matmul_stationary_max`: 128.
    - Limit `partitions`: 128.
    - Limit `pe_tile_sizes`: 128, 64 on trn1; 128, 64, 32 on trn2; 128, 64, 32 on trn3.
    - Limit `psum_bank_bytes`: 2048.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `free-limit`, `indirect-view`, `mx-scale`, `pe-tile`, `psum-bank`, `psum-mixed`, `psum-uninit`, `shape`, `start-partition`, and those of every instruction.
    """

def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[p, k] = data[p, indices[p, k]], free dimensions flattened.

    Parameters:

    - `dst`: tile in SBUF of the dtype of data with the partitions and elements of indices.
    - `data`: tile in SBUF.
    - `indices`: uint32 tile in SBUF: positions among the elements of the same partition.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, k:
        dst[p, k] = data[p, indices[p, k]]
    ```

    Example:

    ```python
    @nki.jit
    def pick(x, index):
        tile, places = nl.load(x), nl.load(index)
        result = nl.ndarray(places.shape, nl.float32)
        nisa.nc_n_gather(result, tile, places)
        nl.device_print("result", result)

    pick(np.array([[10, 20, 30], [40, 50, 60]], np.float32), np.array([[2, 0], [1, 1]], np.uint32))
    ```

    ```output
    result float32[2, 2] sbuf
    [[30. 10.]
     [50. 50.]]
    ```

    See also: `local_gather`, `nl.gather_flattened`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 150 + 4 N (assumed). Source: spec/machine.md 8.
    - Errors and warnings: `buffer`, `dtype`, `index`, `operand-dtype`, `shape`, and those of every instruction.
    """

def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[Int] | _np.ndarray, name: str | None = None) -> NkiInstruction:
    """Partition i of a quadrant of dst = partition shuffle_mask[i] of that quadrant of src; 255 keeps it.

    Moves rows inside every quadrant of 32 partitions. A [1, F] source with a mask of zeros broadcasts its row.

    Parameters:

    - `dst`: tile in SBUF or PSUM with the elements per partition of src.
    - `src`: tile in SBUF or PSUM of the dtype of dst.
    - `shuffle_mask`: 32 ints from 0 to 31; 255 leaves a partition of dst as it is.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for every quadrant q, i in 0 .. 31:
        if shuffle_mask[i] != 255:
            dst[32*q + i] = src[32*q + shuffle_mask[i]]
    ```

    Example:

    ```python
    @nki.jit
    def broadcast_row(x):
        row, tile = nl.load(x), nl.ndarray((3, 2), nl.float32)
        nisa.nc_stream_shuffle(tile, row, [0] * 32)
        nl.device_print("tile", tile)

    broadcast_row(np.array([[1, 2]], np.float32))
    ```

    ```output
    tile float32[3, 2] sbuf
    [[1. 2.]
     [1. 2.]
     [1. 2.]]
    ```

    See also: `nc_transpose`, `nl.broadcast_to`, `dma_copy`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N). Source: spec/machine.md 6.2.
    - Limit `quadrant_partitions`: 32.
    - Errors and warnings: `argument`, `dtype`, `shape`, `shuffle-source`, `start-partition`, and those of every instruction.
    """

def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst[j, i] = data[i, j], the free dimensions of data taken as one.

    Parameters:

    - `dst`: tile [F, P] of the dtype of data. TensorE writes PSUM; VectorE writes SBUF or PSUM.
    - `data`: tile [P, F]; further dimensions count as one. TensorE takes up to 128 x 128 from SBUF, VectorE up to 32 x 32.
    - `engine`: `nisa.engine.tensor` or `vector`; `unknown` takes TensorE if dst is in PSUM and data in SBUF.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for i, j:
        dst[j, i] = data[i, j]      # bit by bit; trn1 multiplies with an identity
    ```

    Example:

    ```python
    @nki.jit
    def transposed(x):
        tile = nl.load(x)
        psum = nl.ndarray((3, 2), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(psum, tile)
        nl.device_print("transposed", nl.copy(psum))

    transposed(np.arange(6, dtype=np.float32).reshape(2, 3))
    ```

    ```output
    transposed float32[3, 2] sbuf
    [[0. 3.]
     [1. 4.]
     [2. 5.]]
    ```

    See also: `dma_transpose`, `nc_matmul`, `nl.transpose`, `nl.load_transpose2d`.

    Facts:

    - Engines: tensor, vector (the first is the default). Generations: trn1, trn2, trn3.
    - Cost: Tensor max(P, min(64, F)), fp32 x4 trn1, x2 trn2+; Vector max(64, F). Source: spec/machine.md 4, 5.2, 6.2.
    - Limit `matmul_stationary_max`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Errors and warnings: `buffer`, `dtype`, `free-limit`, `nan-transpose`, `psum-bank`, `shape`, and those of every instruction.
    """

def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: Int = 0, padding_val: Int = -1, name: str | None = None) -> NkiInstruction:
    """Positions of nonzero elements, padding, and their count, in partitions 0, 16, 32, ... only.

    Rows other than 0, 16, 32, ... of dst keep their bytes.

    Parameters:

    - `dst`: int32 tile in SBUF with one element per partition more than src.
    - `src`: float32 or int32 tile in SBUF.
    - `index_offset`: added to every position.
    - `padding_val`: fills the places after the last position.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p in 0, 16, 32, ...:
        found = [i for i if src[p, i] != 0]
        dst[p] = [i + index_offset for i in found], padding_val ..., len(found)
    ```

    Example:

    ```python
    @nki.jit
    def nonzeros(x):
        tile, found = nl.load(x), nl.ndarray((1, 6), nl.int32)
        nisa.nonzero_with_count(found, tile)
        nl.device_print("found", found)

    nonzeros(np.array([[0, 7, 0, 8, 9]], np.float32))
    ```

    ```output
    found int32[1, 6] sbuf
    [[ 1  3  4 -1 -1  3]]
    ```

    See also: `local_gather`, `sequence_bounds`.

    Facts:

    - Engines: gpsimd. Generations: trn2, trn3.
    - Cost: 150 + 4 N (assumed). Source: spec/machine.md 8.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `shape`, `start-partition`, and those of every instruction.
    """

def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = src in packed MXFP8, dst_scale = a power of two for each group of 8 partitions x 4 elements.

    The scale puts the largest number of a group just below the largest of the format, so that nothing saturates.

    Parameters:

    - `dst`: SBUF tile [P, F/4] of float8_e4m3fn_x4 or float8_e5m2_x4.
    - `src`: SBUF tile [P, F] of bfloat16 or float16; P is a multiple of 32, F of 4.
    - `dst_scale`: SBUF tile of float8_e8m0fnu or uint8 with F/4 columns; of every 32 partitions the first 4 rows are written.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for every group of 8 partitions x 4 elements:
        e = floor(log2(largest magnitude)) - (Emax - 1)     # Emax is 8 for e4m3fn, 15 for e5m2
        dst_scale[group] = clip(e + 127, 0, 254)
        dst[group] = fp8(src[group] / 2**e)
    ```

    Example:

    ```python
    @nki.jit
    def quantize(x):
        tile, data = nl.load(x), nl.ndarray((32, 1), nl.float8_e4m3fn_x4)
        scale = nl.ndarray((4, 1), nl.uint8)
        nisa.quantize_mx(data, tile, scale)
        nl.device_print("scale", scale)

    quantize(np.full((32, 4), 256, nl.bfloat16))
    ```

    ```output
    scale uint8[4, 1] sbuf
    [[128]
     [128]
     [128]
     [128]]
    ```

    See also: `nc_matmul_mx`, `nl.float8_e4m3fn_x4`.

    Facts:

    - Engines: vector. Generations: trn3.
    - Cost: max(64, N/4). Source: spec/machine.md 6.2.
    - Errors and warnings: `buffer`, `dtype`, `mx-scale`, `shape`, `start-partition`, and those of every instruction.
    """

def rand2(dst: NkiTensor, min: TileOrNumber, max: TileOrNumber, name: str | None = None) -> NkiInstruction:
    """Fill dst with uniform random numbers between min and max.

    Parameters:

    - `dst`: tile in SBUF or PSUM of a float or integer dtype.
    - `min`, `max`: numbers or float32 [P, 1] tiles; min is below max.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i:
        u = next number of lane p, uniform in [0, 1)
        dst[p, i] = min[p] + u * (max[p] - min[p])
    ```

    Example:

    ```python
    @nki.jit
    def uniform(seed):
        tile = nl.ndarray((1, 4), nl.int32)
        nisa.set_rng_seed(nl.load(seed))
        nisa.rand2(tile, 0, 100)
        nl.device_print("tile", tile)

    uniform(np.array([[42]], np.uint32))
    ```

    ```output
    tile int32[1, 4] sbuf
    [[86 60 36 20]]
    ```

    See also: `rng`, `set_rng_seed`, `nl.rand`.

    Facts:

    - Engines: vector. Generations: trn3.
    - Cost: max(64, N/4). Source: spec/machine.md 6.2.
    - Errors and warnings: `argument`, `dtype`, `operand-dtype`, `rand-range`, `shape`, and those of every instruction.
    """

def rand_get_state(dst: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """dst = the words of the generator of each lane.

    Parameters:

    - `dst`: uint32 tile: 6 words per partition for GpSimdE (in SBUF), 24 for VectorE.
    - `engine`: `nisa.engine.gpsimd`, or `vector` (trn3).
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p in partitions of dst:
        dst[p] = state[p]
    ```

    Example:

    ```python
    @nki.jit
    def state_after_one_word(words):
        tile, drawn = nl.load(words), nl.ndarray((1, 1), nl.uint32)
        nisa.rand_set_state(tile)
        nisa.rng(drawn, engine=nisa.engine.gpsimd)
        nisa.rand_get_state(tile)
        nl.device_print("state", tile)

    state_after_one_word(np.array([[1, 2, 3, 4, 5, 6]], np.uint32))
    ```

    ```output
    state uint32[1, 6] sbuf
    [[     2      3      4      5     86 362443]]
    ```

    See also: `rand_set_state`, `rng`.

    Facts:

    - Engines: gpsimd, vector (the first is the default). Generations: trn2, trn3.
    - Cost: 64. Source: spec/machine.md 6.2.
    - Errors and warnings: `dtype`, `generation`, `shape`, and those of every instruction.
    """

def rand_set_state(src_seeds: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Set the generator of each lane to the words in that partition of src_seeds.

    Words read by `nisa.rand_get_state` restore a generator. Five zero words give a generator that only counts.

    Parameters:

    - `src_seeds`: uint32 tile in SBUF: 6 words per partition for GpSimdE, 24 for VectorE. Partition p is lane p.
    - `engine`: `nisa.engine.gpsimd`, or `vector` (trn3).
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p in partitions of src_seeds:
        state[p] = src_seeds[p]             # the other lanes keep theirs
    ```

    Example:

    ```python
    @nki.jit
    def restored(words):
        tile, state = nl.load(words), nl.ndarray((1, 6), nl.uint32)
        nisa.rand_set_state(tile)
        nisa.rand_get_state(state)
        nl.device_print("state", state)

    restored(np.array([[1, 2, 3, 4, 5, 6]], np.uint32))
    ```

    ```output
    state uint32[1, 6] sbuf
    [[1 2 3 4 5 6]]
    ```

    See also: `rand_get_state`, `set_rng_seed`, `rng`.

    Facts:

    - Engines: gpsimd, vector (the first is the default). Generations: trn2, trn3.
    - Cost: 64. Source: spec/machine.md 6.2.
    - Errors and warnings: `buffer`, `dtype`, `generation`, `rng-dead`, `shape`, and those of every instruction.
    """

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

def register_alloc(x: Int | VirtualRegister | NkiTensor | None = None) -> VirtualRegister:
    """A register: uninitialised, or holding an int, a copy of a register, or a one-element tensor's value.

    Parameters:

    - `x`: None for an uninitialised register; an int; a register to copy; or a one-element tensor whose value is loaded.

    Returns: a `nisa.VirtualRegister`.

    Operation:

    ```text
    r = new 32-bit cell of the sequencer
    r = x                       # unless None
    ```

    Example:

    ```python
    @nki.jit
    def from_number():
        result = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(result, nisa.register_alloc(7))
        nl.device_print("result", result)

    from_number()
    ```

    ```output
    result int32[1, 1] sbuf
    [[7]]
    ```

    See also: `register_move`, `register_load`, `register_store`, `VirtualRegister`.

    Facts:

    - Issues, depending on the arguments: `nisa.VirtualRegister`, `nisa.register_load`, `nisa.register_move`.
    - Errors and warnings: `frozen-register`, `legacy`, `register-range`, and those of `nl.ndarray`.
    """

def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """dst = the value of a one-element tensor in HBM or SBUF.

    The value exists while the kernel runs: use it as a loop bound or as `scalar_offset`, never as a Python number.

    Parameters:

    - `dst`: a register; not that of a loop.
    - `src`: one-element tensor in HBM or SBUF, of an integer dtype or float32.

    Operation:

    ```text
    dst = src[0]                # integers are extended to 32 bits
    ```

    Example:

    ```python
    @nki.jit
    def row(table, number):
        register, tile = nisa.register_alloc(), nl.ndarray((1, 2), nl.float32)
        nisa.register_load(register, number)
        nisa.dma_copy(tile, table.ap([[2, 1], [1, 2]], scalar_offset=register))
        nl.device_print("row", tile)

    row(np.arange(8, dtype=np.float32).reshape(4, 2), np.array([[2]], np.int32))
    ```

    ```output
    row float32[1, 2] sbuf
    [[4. 5.]]
    ```

    See also: `register_store`, `register_alloc`, `nl.fori_loop`, `nl.while_loop`.

    Facts:

    - Engines: sequencer. Generations: trn1, trn2, trn3.
    - Cost: register_load_ns. Source: spec/machine.md 10.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `frozen-register`, `register-float`, `shape`, and those of every instruction.
    """

def register_move(dst: VirtualRegister, src: Int | VirtualRegister) -> NkiInstruction:
    """dst = src, a compile-time int or another register.

    Parameters:

    - `dst`: a register; not that of a loop.
    - `src`: a compile-time int from -2**31 to 2**32 - 1, or another register.

    Operation:

    ```text
    dst = src
    ```

    Example:

    ```python
    @nki.jit
    def moved():
        register, result = nisa.register_alloc(7), nl.ndarray((1, 1), nl.int32)
        nisa.register_move(register, 8)
        nisa.register_store(result, register)
        nl.device_print("result", result)

    moved()
    ```

    ```output
    result int32[1, 1] sbuf
    [[8]]
    ```

    See also: `register_alloc`, `register_load`, `register_store`.

    Facts:

    - Engines: sequencer. Generations: trn1, trn2, trn3.
    - Cost: register_move_ns. Source: spec/machine.md 4, 10.
    - Errors and warnings: `argument`, `frozen-register`, `legacy`, `register-range`, and those of every instruction.
    """

def register_store(dst: NkiTensor, src: Int | VirtualRegister) -> NkiInstruction:
    """A one-element tensor in HBM or SBUF = the value of a register; integer dtypes keep its low bits.

    Parameters:

    - `dst`: one-element tensor in HBM or SBUF, of an integer dtype or float32.
    - `src`: a register, or an int.

    Operation:

    ```text
    dst[0] = src                # the low bits, in a narrow integer dtype
    ```

    Example:

    ```python
    @nki.jit
    def low_bits():
        result = nl.ndarray((1, 1), nl.uint8)
        nisa.register_store(result, nisa.register_alloc(258))
        nl.device_print("result", result)

    low_bits()
    ```

    ```output
    result uint8[1, 1] sbuf
    [[2]]
    ```

    See also: `register_load`, `register_alloc`.

    Facts:

    - Engines: sequencer. Generations: trn1, trn2, trn3.
    - Cost: register_ns. Source: spec/machine.md 10.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `shape`, and those of every instruction.
    """

def rng(dst: NkiTensor, engine: engine = ..., name: str | None = None) -> NkiInstruction:
    """Fill dst with random bits; a narrow dtype takes the low bits of a 32-bit word per element.

    Hardware does not document its bits: the same seed gives the same numbers here, others on a device.

    Parameters:

    - `dst`: tile in SBUF or PSUM (GpSimdE: SBUF) of an 8-, 16- or 32-bit integer dtype.
    - `engine`: `nisa.engine.vector` or `gpsimd` (trn2+); each has a generator of its own.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, i in order:
        dst[p, i] = low bits of the next 32-bit word of lane p
    ```

    Example:

    ```python
    @nki.jit
    def random_words(seed):
        tile = nl.ndarray((1, 2), nl.uint32)
        nisa.set_rng_seed(nl.load(seed))
        nisa.rng(tile)
        nl.device_print("words", tile)

    random_words(np.array([[42]], np.uint32))
    ```

    ```output
    words uint32[1, 2] sbuf
    [[3711585355 2583772954]]
    ```

    See also: `set_rng_seed`, `rand2`, `rand_set_state`, `nl.rand`.

    Facts:

    - Engines: vector, gpsimd (the first is the default). Generations: trn1, trn2, trn3.
    - Cost: max(64, N); GpSimd 150 + N. Source: spec/machine.md 6.2, 8.
    - Errors and warnings: `dtype`, `generation`, and those of every instruction.
    """

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

def sendrecv(src: NkiTensor, dst: NkiTensor, send_to_rank: Int, recv_from_rank: Int, pipe_id: Int, dma_engine: dma_engine = ..., name: str | None = None) -> NkiInstruction:
    """Send my `src` to a core and store in my `dst` what a core sent to me.

    Parameters:

    - `src`: tile in SBUF to send.
    - `dst`: another tile in SBUF of the same shape and dtype, for what arrives.
    - `send_to_rank`: the core that gets src: 0 or 1.
    - `recv_from_rank`: the core whose src arrives in dst.
    - `pipe_id`: a number that both cores pass; calls with one number match in order.
    - `dma_engine`: `nisa.dma_engine.dma`, or `gpsimd_dma` for at most 256 elements per partition.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    send src to core send_to_rank
    dst = src of core recv_from_rank
    ```

    Example:

    ```python
    @nki.jit
    def swap():
        out = nl.ndarray((2, 1), nl.int32, buffer=nl.shared_hbm)
        me, mine, theirs = nl.program_id(0), nl.ndarray((1, 1), nl.int32), nl.ndarray((1, 1), nl.int32)
        nisa.memset(mine, 10 + me)
        nisa.sendrecv(mine, theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.dma_copy(out[me : me + 1], theirs)
        return out

    print(swap[2]())
    ```

    ```output
    [[11]
     [10]]
    ```

    See also: `core_barrier`, `nl.program_id`, `dma_engine`.

    Facts:

    - Engines: DMA. Generations: trn2, trn3.
    - Cost: sendrecv_ns + bytes / gpsimd_dma_gbs. Source: spec/machine.md 9.5.
    - Limit `sendrecv_max_elements`: 256.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `enum`, `free-limit`, `legacy`, `lnc`, `shape`, and those of every instruction.
    """

def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst[0, 0] and dst[0, 1]: where the run of equal ids around each element starts and ends.

    Ends are exclusive; padding (id 0) gets (n, -1).

    Gives each token of packed sequences the range of its own sequence: the bounds that `nisa.range_select` masks with.

    Parameters:

    - `dst`: float32 or int32 tile in SBUF of one partition and 2n elements: n starts, then n ends.
    - `segment_ids`: float32 or int32 tile in SBUF of one partition and n elements. 0 is padding.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for i in 0 .. n-1, where segment_ids[i] lies in a run of equal ids:
        dst[0, 0, i] = first index of the run       # n for padding
        dst[0, 1, i] = one past its last index      # -1 for padding
    ```

    Example:

    ```python
    @nki.jit
    def bounds(ids):
        tile, result = nl.load(ids), nl.ndarray((1, 2, 6), nl.int32)
        nisa.sequence_bounds(result, tile)
        nl.device_print("bounds", result)

    bounds(np.array([[0, 1, 1, 2, 2, 2]], np.int32))
    ```

    ```output
    bounds int32[1, 2, 6] sbuf
    [[[ 6  1  1  3  3  3]
      [-1  3  3  6  6  6]]]
    ```

    See also: `range_select`, `nonzero_with_count`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 150 + 4 N (assumed). Source: spec/machine.md 8.
    - Errors and warnings: `buffer`, `dtype`, `shape`, and those of every instruction.
    """

def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seed all lanes of the vector engine's generator with the 32 bits of a [1, 1] tile.

    The generator of GpSimdE keeps its state; `nisa.rand_set_state` sets that one.

    Parameters:

    - `src_seeds`: [1, 1] tile in SBUF or PSUM of a 32-bit dtype; its bits are the seed.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for every lane p of VectorE:
        state[p] = numbers derived from (seed, p)
    ```

    Example:

    ```python
    @nki.jit
    def twice_the_same(seed):
        first, again = nl.ndarray((1, 2), nl.uint8), nl.ndarray((1, 2), nl.uint8)
        tile = nl.load(seed)
        for words in (first, again):
            nisa.set_rng_seed(tile)
            nisa.rng(words)
        nl.device_print("equal", nl.equal(first, again))

    twice_the_same(np.array([[1]], np.uint32))
    ```

    ```output
    equal uint8[1, 2] sbuf
    [[1 1]]
    ```

    See also: `rng`, `rand_set_state`, `nl.random_seed`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: 64. Source: spec/machine.md 6.2.
    - Errors and warnings: `dtype`, `shape`, and those of every instruction.
    """

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

    Slow: GpSimdE reads row after row. A matmul with a column of ones sums partitions faster.

    Parameters:

    - `dst`: tile in SBUF of one partition with the elements per partition of data.
    - `op`: `nl.add`, `nl.average`, `nl.maximum`, `nl.bitwise_or` or `nl.bitwise_and`.
    - `data`: tile in SBUF.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for i:
        dst[0, i] = op over data[0, i], data[1, i], ...
    ```

    Example:

    ```python
    @nki.jit
    def column_sums(x):
        tile, sums = nl.load(x), nl.ndarray((1, 3), nl.float32)
        nisa.tensor_partition_reduce(sums, nl.add, tile)
        nl.device_print("sums", sums)

    column_sums(np.arange(6, dtype=np.float32).reshape(2, 3))
    ```

    ```output
    sums float32[1, 3] sbuf
    [[3. 5. 7.]]
    ```

    See also: `tensor_reduce`, `nc_matmul`, `nc_transpose`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 150 + 16 N (assumed). Source: spec/machine.md 8.
    - Errors and warnings: `buffer`, `dtype`, `op`, `shape`, and those of every instruction.
    """

def tensor_reduce(dst: NkiTensor, op: OperatorLike, data: NkiTensor, axis: Int | Sequence[Int], negate: bool = False, keepdims: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data reduced by op over its trailing axes; negate changes the sign of the result.

    Parameters:

    - `dst`: tile in SBUF or PSUM with the partitions of data and one element for each result.
    - `op`: arithmetic, logical or bitwise operator: `nl.add`, `nl.maximum`, `nl.minimum`, `nl.multiply`, ... `nl.subtract` computes x0 - x1 - x2 - ...
    - `data`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, never the partition dimension 0.
    - `negate`: True changes the sign of the result; not with bitwise operators.
    - `keepdims`: documents that dst has the reduced dimensions with size 1; both shapes are accepted.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p, and every index of the dimensions that stay:
        dst[p, ...] = op over data[p, ..., all reduced elements]      # in float32
    ```

    Example:

    ```python
    @nki.jit
    def row_sums(x):
        tile = nl.load(x)
        sums = nl.ndarray((tile.shape[0], 1), nl.float32)
        nisa.tensor_reduce(sums, nl.add, tile, axis=1)
        nl.device_print("sums", sums)

    row_sums(np.arange(6, dtype=np.float32).reshape(2, 3))
    ```

    ```output
    sums float32[2, 1] sbuf
    [[ 3.]
     [12.]]
    ```

    See also: `tensor_scalar_reduce`, `tensor_partition_reduce`, `activation_reduce`, `nl.sum`, `nl.max`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: N; N/2 for add or max of bf16 into bf16 on trn1. Source: spec/machine.md 6.2.
    - Errors and warnings: `axis`, `dtype`, `generation`, `op`, `shape`, and those of every instruction.
    """

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
    """dst = the running reduction of src <op0> imm0: acc = op1(value, acc).

    Parameters:

    - `dst`: tile in SBUF or PSUM for the running values.
    - `src`: tile with the partitions and elements of dst. No 32-bit integers.
    - `op0`: arithmetic operator with imm0, or `nl.abs`.
    - `op1`: `nl.add`, `nl.subtract`, `nl.multiply`, `nl.maximum` or `nl.minimum`.
    - `imm0`: a number, or a float32 [P, 1] tile.
    - `imm1`: start of the accumulator, with `load_reduce` alone.
    - `reduce_cmd`: `reset_reduce` starts from the identity of op1, `reduce` continues, `load_reduce` starts from imm1.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        acc = start(reduce_cmd)
        for i in order:
            acc = (src[p, i] <op0> imm0[p]) <op1> acc
            dst[p, i] = acc
    ```

    Example:

    ```python
    @nki.jit
    def running_sum(x):
        tile = nl.load(x)
        nisa.tensor_scalar_cumulative(tile, tile, nl.multiply, nl.add, 1.0)
        nl.device_print("tile", tile)

    running_sum(np.array([[1, 2, 3, 4]], np.float32))
    ```

    ```output
    tile float32[1, 4] sbuf
    [[ 1.  3.  6. 10.]]
    ```

    See also: `tensor_tensor_scan`, `tensor_reduce`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: 2N. Source: spec/machine.md 6.2.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `argument`, `dtype`, `enum`, `generation`, `legacy`, `op`, `operand-dtype`, `reduce-cmd`, `shape`, and those of every instruction.
    """

def tensor_scalar_reduce(dst: NkiTensor, data: NkiTensor, op0: OperatorLike, operand0: TileOrNumber | None, reduce_op: OperatorLike, reduce_res: NkiTensor | None = None, reverse0: bool = False, reduce_cmd: reduce_cmd = ..., reduce_init: TileOrNumber | None = None, reduce_res_negate: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data <op0> operand0, and its reduction by reduce_op over all free elements.

    One pass where `nisa.tensor_scalar` and `nisa.tensor_reduce` take two.

    Parameters:

    - `dst`: tile in SBUF or PSUM for data <op0> operand0.
    - `data`: tile with the partitions and elements of dst.
    - `op0`: arithmetic, comparison or logical operator, or `nl.abs`, `nl.square`, `nl.relu`, `nl.reciprocal` with operand0=None.
    - `operand0`: a number, or a float32 [P, 1] tile.
    - `reduce_op`: `nl.add`, `nl.multiply`, `nl.maximum` or `nl.minimum`.
    - `reduce_res`: [P, 1] tile for the result, or None to leave it in the accumulator registers.
    - `reverse0`: False alone.
    - `reduce_cmd`: `reset_reduce` starts anew, `reduce` continues, `load_reduce` starts from reduce_init.
    - `reduce_init`: a number or float32 [P, 1] tile, with `load_reduce` alone.
    - `reduce_res_negate`: True writes the result with the other sign; the registers keep theirs.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        acc = start(reduce_cmd)                 # identity of reduce_op, the registers, or reduce_init
        for i:
            dst[p, i] = v = data[p, i] <op0> operand0[p]
            acc = acc <reduce_op> v
        reduce_res[p] = acc
    ```

    Example:

    ```python
    @nki.jit
    def sum_of_squares(x):
        tile, total = nl.load(x), nl.ndarray((1, 1), nl.float32)
        nisa.tensor_scalar_reduce(tile, tile, nl.square, None, nl.add, reduce_res=total)
        nl.device_print("total", total)

    sum_of_squares(np.array([[1, 2, 3]], np.float32))
    ```

    ```output
    total float32[1, 1] sbuf
    [[14.]]
    ```

    See also: `tensor_scalar`, `tensor_reduce`, `activation_reduce`, `reduce_cmd`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, N) + 64. Source: spec/machine.md 6.2.
    - Errors and warnings: `acc-shared`, `acc-undefined`, `argument`, `dtype`, `enum`, `generation`, `legacy`, `op`, `operand-dtype`, `reduce-cmd`, `shape`, and those of every instruction.
    """

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
    """dst[i] = (data0[i] <op0> dst[i-1]) <op1> data1[i] along the free axis, in float32.

    A linear recurrence along each partition: with `nl.multiply` and `nl.add` it computes s = a * s + b, the step of state space models.

    Parameters:

    - `dst`: tile in SBUF or PSUM for the states.
    - `data0`, `data1`: tiles with the partitions and elements of dst; at most one of them in PSUM.
    - `initial`: the state before the first element: a number or a [P, 1] tile. Pass the last column of one tile to continue in the next.
    - `op0`: operator between data0 and the state.
    - `op1`: operator between that and data1.
    - `reverse0`: True puts the state to the left of op0.
    - `reverse1`: True puts data1 to the left of op1.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for p:
        s = initial[p]                          # float32, whatever the dtype of dst
        for i in order:
            s = (data0[p, i] <op0> s) <op1> data1[p, i]
            dst[p, i] = s
    ```

    Example:

    ```python
    @nki.jit
    def recurrence(a, b):
        decay, tile = nl.load(a), nl.load(b)
        nisa.tensor_tensor_scan(tile, decay, tile, 0.0, nl.multiply, nl.add)
        nl.device_print("states", tile)

    recurrence(np.full((1, 4), 0.5, np.float32), np.ones((1, 4), np.float32))
    ```

    ```output
    states float32[1, 4] sbuf
    [[1.    1.5   1.75  1.875]]
    ```

    See also: `tensor_scalar_cumulative`, `tensor_reduce`.

    Facts:

    - Engines: vector. Generations: trn1, trn2, trn3.
    - Cost: max(64, 2N). Source: spec/machine.md 6.2.
    - Errors and warnings: `argument`, `dtype`, `generation`, `op`, `psum-both`, `shape`, and those of every instruction.
    """

def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: Int, name: str | None = None) -> NkiInstruction:
    """The K largest of the n elements in each group of 16 partitions, ascending, and where they were.

    Element e of a group is in partition e % 16, column e // 16. All 16 partitions get the result.

    Parameters:

    - `val_dst`: bfloat16 tile in SBUF of K elements per partition, smallest first.
    - `idx_dst`: uint32 tile in SBUF with the partitions and elements of val_dst.
    - `src`: bfloat16 tile in SBUF; its partitions are a multiple of 16.
    - `n`: how many elements of each group to search: 8 to 65535, at most those it holds.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for every group of 16 partitions:
        x[e] = src[e % 16, e // 16]  for e in 0 .. n-1
        chosen = the K largest, ascending; of equal ones the smaller e is larger
        val_dst[p] = x[chosen]; idx_dst[p] = chosen       # in all 16 partitions
    ```

    Example:

    ```python
    @nki.jit
    def largest_of_group(x):
        tile = nl.load(x)
        values, places = nl.ndarray((16, 2), nl.bfloat16), nl.ndarray((16, 2), nl.uint32)
        nisa.topk(values, places, tile, n=16)
        nl.device_print("values", values[0:1])
        nl.device_print("places", places[0:1])

    largest_of_group(np.arange(16, dtype=nl.bfloat16).reshape(16, 1) % 10)
    ```

    ```output
    values bfloat16[1, 2] sbuf
    [[8 9]]
    places uint32[1, 2] sbuf
    [[8 9]]
    ```

    See also: `max8`, `nc_find_index8`.

    Facts:

    - Engines: gpsimd. Generations: trn1, trn2, trn3.
    - Cost: 4 n + K. Source: spec/machine.md 8.
    - Errors and warnings: `argument`, `buffer`, `dtype`, `free-limit`, `shape`, and those of every instruction.
    """

unknown_engine: engine

vector_engine: engine
