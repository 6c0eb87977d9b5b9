"""nki.language (nl): tensors, loops, operators and functions built on instructions.

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

import builtins as _builtins
import numpy as _np
import os as _os
from builtins import range as range
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from nki.ir.indexing import DynamicSlice
from nki.ir.layout import Int
from nki.ir.layout import Layout
from nki.ir.layout import Register
from nki.ir.tensor import NkiTensor as NkiTensor
from nki.isa.virtual_register import VirtualRegister
from nki.language.dynamic_loop import Bound
from nki.language.history import cast as cast
from nki.language.history import nc as nc
from nki.language.history import par_dim as par_dim
from nki.language.history import spmd_dim as spmd_dim
from nki.language.nki_object import NKIObject as NKIObject
from nki.language.reductions import Axis
from nki.language.tile_size import _TileSize
from nki.machine.dtypes import DType as DType
from nki.machine.memories import MemoryRegion as MemoryRegion
from nki.machine.operators import Operator
from nki.typing import DTypeLike
from nki.typing import Number
from nki.typing import TileOrNumber
from types import SimpleNamespace

def abs(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the absolute value of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = abs(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("abs", nl.abs(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    abs float32[1, 4] sbuf
    [[2.  0.5 0.  1.5]]
    ```

    See also: `sign`, `negative`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3) and `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def abs_max(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x if abs(x) > abs(y) else y (trn3); element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] if abs(x[p, i]) > abs(y[p, i]) else y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("abs_max", nl.abs_max(nl.load(a), nl.load(b)))

    example(np.array([[1, -4, 2]], np.float32), np.array([[-3, 2, -2]], np.float32))
    ```

    ```output
    abs_max float32[1, 3] sbuf
    [[-3. -4. -2.]]
    ```

    See also: `abs_min`, `maximum`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def abs_min(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x if abs(x) < abs(y) else y (trn3); element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] if abs(x[p, i]) < abs(y[p, i]) else y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("abs_min", nl.abs_min(nl.load(a), nl.load(b)))

    example(np.array([[1, -4, 2]], np.float32), np.array([[-3, 2, -2]], np.float32))
    ```

    ```output
    abs_min float32[1, 3] sbuf
    [[ 1.  2. -2.]]
    ```

    See also: `abs_max`, `minimum`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def add(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x + y; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] + y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("add", nl.add(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    add float32[1, 3] sbuf
    [[3. 4. 6.]]
    ```

    See also: `subtract`, `multiply`, `nisa.tensor_tensor`, `nisa.tensor_scalar`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def affine_range(start: Int, stop: Int | None = None, step: Int = 1) -> _builtins.range:
    """Python's range: the loop is unrolled.

    Deprecated: use `range`. Its name tells a compiler that the iterations are independent; here, and in current compilers, all static loops are unrolled in order.

    Parameters:

    - `start`: first value; the end, if it is given alone.
    - `stop`: one past the last value, or None.
    - `step`: distance between values.

    Returns: a Python range.

    Operation:

    ```text
    for i in range(start, stop, step): issue the body with the number i
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        for i in nl.affine_range(3):
            nisa.tensor_scalar(tile[:, i : i + 1], tile[:, i : i + 1], nl.add, float(i))
        nl.device_print("tile", tile)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        example(np.zeros((1, 3), np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[0. 1. 2.]]
    ```

    See also: `sequential_range`, `static_range`, `fori_loop`.

    Facts:

    - Errors and warnings: `register-value`, and those of `nl.ndarray`.
    """

def all(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where every element over trailing free dimensions is non-zero, else 0.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = 1 if every element of x[p, :] is not 0 else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("all", nl.all(nl.load(x), axis=1))

    example(np.array([[1, 2], [3, 0]], np.float32))
    ```

    ```output
    all float32[2, 1] sbuf
    [[1.]
     [0.]]
    ```

    See also: `logical_and`, `nisa.tensor_reduce`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_partition_reduce`, `nisa.tensor_reduce`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def arctan(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the inverse tangent of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = arctan(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("arctan", nl.arctan(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-1, -0.5, 0, 1]], np.float32))
    ```

    ```output
    arctan bfloat16[1, 4] sbuf
    [[-0.785156 -0.462891 0 0.785156]]
    ```

    See also: `tan`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

average: Operator

bfloat16: DType

def bitwise_and(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x & y of integers; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: integer tile, or an int; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default. The tiles have one width.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] & y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("bitwise_and", nl.bitwise_and(nl.load(a), nl.load(b)))

    example(np.array([[12, 10, 255]], np.int32), np.array([[10, 6, 15]], np.int32))
    ```

    ```output
    bitwise_and int32[1, 3] sbuf
    [[ 8  2 15]]
    ```

    See also: `bitwise_or`, `invert`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def bitwise_or(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x | y of integers; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: integer tile, or an int; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default. The tiles have one width.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] | y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("bitwise_or", nl.bitwise_or(nl.load(a), nl.load(b)))

    example(np.array([[12, 10, 255]], np.int32), np.array([[10, 6, 15]], np.int32))
    ```

    ```output
    bitwise_or int32[1, 3] sbuf
    [[ 14  14 255]]
    ```

    See also: `bitwise_and`, `bitwise_xor`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def bitwise_xor(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x ^ y of integers; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: integer tile, or an int; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default. The tiles have one width.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] ^ y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("bitwise_xor", nl.bitwise_xor(nl.load(a), nl.load(b)))

    example(np.array([[12, 10, 255]], np.int32), np.array([[10, 6, 15]], np.int32))
    ```

    ```output
    bitwise_xor int32[1, 3] sbuf
    [[  6  12 240]]
    ```

    See also: `bitwise_or`, `invert`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

bool: DType

bool_: DType

def broadcast_to(x: NkiTensor, shape: Int | Sequence[Int], dtype: DTypeLike | None = None) -> NkiTensor:
    """x with its size-1 dimensions repeated, in a new SBUF tile; x itself if nothing changes.

    Parameters:

    - `x`: tile.
    - `shape`: the new shape; dimensions of x with size 1 may grow, partitions too.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile; x itself if nothing changes.

    Operation:

    ```text
    for every index: out[index] = x[index with 0 where x has size 1]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("rows", nl.broadcast_to(nl.load(x), (3, 2)))

    example(np.array([[1, 2]], np.float32))
    ```

    ```output
    rows float32[3, 2] sbuf
    [[1. 2.]
     [1. 2.]
     [1. 2.]]
    ```

    See also: `expand_dims`, `nisa.nc_stream_shuffle`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, and those of `nl.ndarray`.
    """

bypass: Operator

def ceil(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the smallest integer >= x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = ceil(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("ceil", nl.ceil(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    ceil float32[1, 4] sbuf
    [[-2. -0.  0.  2.]]
    ```

    See also: `floor`, `trunc`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def copy(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x, in a new SBUF tile; bit by bit for equal dtypes; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("copy", nl.copy(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[1.004, 2, 3]], np.float32))
    ```

    ```output
    copy bfloat16[1, 3] sbuf
    [[1.00781 2 3]]
    ```

    See also: `nisa.tensor_copy`, `nisa.activation`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def cos(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the cosine of x, accurate everywhere; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = cos(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("cos", nl.cos(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    cos bfloat16[1, 4] sbuf
    [[-0.416016 0.878906 1 0.0708008]]
    ```

    See also: `sin`, `tan`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor's values from the device, when the program gets there.

    Larger tiles are shown by their corners. `NEURON_RT_DEBUG_OUTPUT_DIR` also writes .npy files.

    Parameters:

    - `print_prefix`: a text before the values.
    - `tensor`: tensor in HBM or SBUF; hardware prints no PSUM.

    Operation:

    ```text
    print(print_prefix, dtype, shape, memory)
    print(values)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("x is", nl.load(x))

    example(np.arange(256, dtype=np.float32).reshape(128, 2))
    ```

    ```output
    x is float32[128, 2] sbuf
    [[  0.   1.]
     [  2.   3.]
     [  4.   5.]
     ...
     [250. 251.]
     [252. 253.]
     [254. 255.]]
    ```

    See also: `copy`.

    Facts:

    - Errors and warnings: those of `nl.ndarray`.
    """

def divide(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x / y; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] / y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        out = nl.divide(nl.load(a), nl.load(b))  # nki: ignore[not-on-hardware, release-refused]
        nl.device_print("divide", out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no engine has it; multiply by nl.reciprocal(b)
        example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    divide float32[1, 3] sbuf
    [[0.5 1.  2. ]]
    ```

    See also: `reciprocal`, `multiply`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def dropout(x: NkiTensor, rate: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """Each element of x becomes 0 with probability `rate`: a number in [0, 1], or a (P, 1) tile.

    The others are not rescaled: multiply by 1 / (1 - rate) for the usual dropout.

    Parameters:

    - `x`: tile.
    - `rate`: probability of a 0: a number in [0, 1], or a [P, 1] tile.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        u = next random number, uniform in [0, 1)
        out[p, i] = 0 if u < rate else x[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x, seed):
        nl.random_seed(nl.load(seed))  # nki: ignore[release-defect]
        nl.device_print("dropped", nl.dropout(nl.load(x), 0.5))

    example(np.ones((1, 8), np.float32), np.array([[7]], np.uint32))
    ```

    ```output
    dropped float32[1, 8] sbuf
    [[0. 0. 1. 0. 0. 0. 1. 0.]]
    ```

    See also: `random_seed`, `rand`, `nisa.dropout`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.dropout`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, and those of `nl.ndarray`.
    """

def ds(start: Int | Register | Layout, size: Int) -> DynamicSlice:
    """The index range start : start + size; start may be an int, a register or a one-element tile.

    `t[:, nl.ds(start, size)]` is `t[:, start : start + size]` with a start that may be known only at run time.

    Parameters:

    - `start`: an int, a register or a one-element integer tile.
    - `size`: a compile-time int.

    Returns: an index for `t[...]`.

    Operation:

    ```text
    start : start + size
    ```

    Example:

    ```python
    @nki.jit
    def example(x, first):
        start, tile = nisa.register_alloc(first), nl.ndarray((1, 2), nl.float32)
        nisa.dma_copy(tile, x[:, nl.ds(start, 2)])
        nl.device_print("tile", tile)

    example(np.array([[1, 2, 3, 4]], np.float32), np.array([[1]], np.int32))
    ```

    ```output
    tile float32[1, 2] sbuf
    [[2. 3.]]
    ```

    See also: `NkiTensor`, `fori_loop`, `nisa.register_load`.

    Facts:

    - Errors and warnings: none.
    """

def dynamic_range(start: Bound, stop: Bound | None = None, step: Int = 1) -> Iterator[VirtualRegister]:
    """Iterate at run time over start, start + step, ... below stop, which may be registers.

    Deprecated: use `nl.fori_loop`.

    Parameters:

    - `start`: first value; the end, if it is given alone. An int or a register.
    - `stop`: one past the last value: an int, a register, or None.
    - `step`: a compile-time int of at least 1.

    Returns: an iterator of registers, which cannot be written.

    Operation:

    ```text
    i = start
    while i < stop:                 # on the device: the body is issued once
        run the body with the register i
        i = i + step
    ```

    Example:

    ```python
    @nki.jit
    def example():
        last = nl.ndarray((1, 1), nl.int32)
        for i in nl.dynamic_range(3):  # nki: ignore
            nisa.register_store(last, i)
        nl.device_print("last", last)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        example()
    ```

    ```output
    last int32[1, 1] sbuf
    [[2]]
    ```

    See also: `fori_loop`, `while_loop`, `static_range`.

    Facts:

    - Issues, depending on the arguments: `nisa.VirtualRegister`.
    - Errors and warnings: `loop-step`, `nested-dynamic-range`, `register-range`, and those of `nl.ndarray`.
    """

def empty_like(x: NkiTensor, dtype: DTypeLike | None = None, buffer: MemoryRegion | None = None, name: str | None = '') -> NkiTensor:
    """A new tensor with undefined contents and the shape, dtype and buffer of x unless given.

    Parameters:

    - `x`: a tensor.
    - `dtype`: another dtype, or None for that of x.
    - `buffer`: another memory, or None for that of x.
    - `name`: a label in listings and errors.

    Returns: a `nl.NkiTensor` with undefined contents.

    Operation:

    ```text
    return nl.ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        out = nl.empty_like(x, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    print(example(np.array([[1, 2]], np.float32)))
    ```

    ```output
    [[1. 2.]]
    ```

    See also: `ndarray`, `zeros_like`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `memory`, `one-dimensional-tile`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """

def equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x == y, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] == y[p, i] else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("equal", nl.equal(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    equal float32[1, 3] sbuf
    [[0. 1. 0.]]
    ```

    See also: `not_equal`, `where`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def erf(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the error function of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = erf(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("erf", nl.erf(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    erf bfloat16[1, 4] sbuf
    [[-0.996094 -0.519531 0 0.964844]]
    ```

    See also: `erf_dx`, `gelu`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def erf_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of erf; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = 2 / sqrt(pi) * exp(-x[p, i] * x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("erf_dx", nl.erf_dx(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    erf_dx bfloat16[1, 4] sbuf
    [[0.0206299 0.878906 1.125 0.119141]]
    ```

    See also: `erf`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def exp(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """e to the power of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = exp(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("exp", nl.exp(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    exp bfloat16[1, 4] sbuf
    [[0.135742 0.605469 1 4.46875]]
    ```

    See also: `log`, `nisa.activation`, `nisa.exponential`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def expand_dims(x: NkiTensor, axis: Int) -> NkiTensor:
    """A view of x with a dimension of size 1 at `axis`.

    Nothing is copied: the result is a view of x.

    Parameters:

    - `x`: tensor.
    - `axis`: where the dimension of size 1 goes; not 0 for a tile.

    Returns: a view.

    Operation:

    ```text
    return view of x with shape (..., 1, ...)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("expanded", nl.expand_dims(nl.load(x), 1))

    example(np.array([[1, 2]], np.float32))
    ```

    ```output
    expanded float32[1, 1, 2] sbuf
    [[[1. 2.]]]
    ```

    See also: `broadcast_to`, `NkiTensor`.

    Facts:

    - Errors and warnings: none.
    """

float16: DType

float32: DType

float4_e2m1fn_x4: DType

float8_e4m3: DType

float8_e4m3fn: DType

float8_e4m3fn_x4: DType

float8_e5m2: DType

float8_e5m2_x4: DType

float8_e8m0fnu: DType

def floor(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the largest integer <= x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = floor(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("floor", nl.floor(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    floor float32[1, 4] sbuf
    [[-2. -1.  0.  1.]]
    ```

    See also: `ceil`, `trunc`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def fmod(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the remainder of x / y, with the sign of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] - trunc(x[p, i] / y[p, i]) * y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        out = nl.fmod(nl.load(a), nl.load(b))  # nki: ignore[not-on-hardware, release-refused]
        nl.device_print("fmod", out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no engine has it; use nl.trunc(a * nl.reciprocal(b))
        example(np.array([[7, -7, 5]], np.float32), np.array([[4, 4, 2]], np.float32))
    ```

    ```output
    fmod float32[1, 3] sbuf
    [[ 3. -3.  1.]]
    ```

    See also: `mod`, `divide`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def fori_loop(lower: Bound, upper: Bound, body_fun: Callable[[VirtualRegister], None], step: Int = 1) -> None:
    """Call body_fun(i) for i = lower, lower + step, ... below upper; i is a register, passed by value.

    The body is issued once and repeated on the device, so the program stays short and bounds may be known only at run time.

    Parameters:

    - `lower`: first value: an int or a register.
    - `upper`: one past the last value: an int or a register.
    - `body_fun`: function of one register; it returns None. State is carried in tensors.
    - `step`: a compile-time int of at least 1.

    Operation:

    ```text
    i = lower
    while i < upper:                # on the device
        body_fun(i)
        i = i + step
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile, total = nl.ndarray((1, 1), nl.float32), nl.zeros((1, 1), nl.float32)

        def body(i):
            nisa.dma_copy(tile, x.ap([[4, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
            nisa.tensor_tensor(total, total, tile, nl.add)

        nl.fori_loop(0, 4, body)
        nl.device_print("total", total)

    example(np.array([[1, 2, 3, 4]], np.float32))
    ```

    ```output
    total float32[1, 1] sbuf
    [[10.]]
    ```

    See also: `while_loop`, `static_range`, `nisa.VirtualRegister`.

    Facts:

    - Issues, depending on the arguments: `nisa.VirtualRegister`.
    - Errors and warnings: `loop-body`, `loop-step`, `register-range`, and those of `nl.ndarray`.
    """

fp32: SimpleNamespace

def full(shape: Sequence[Int], fill_value: Number, dtype: DTypeLike, buffer: MemoryRegion = ..., name: str | None = '') -> NkiTensor:
    """A new tensor filled with a number; an integer dtype takes an int.

    Parameters:

    - `shape`: tuple of positive ints.
    - `fill_value`: a compile-time number; an int for an integer dtype.
    - `dtype`: an nl dtype.
    - `buffer`: the memory; SBUF by default. HBM is written through a tile.
    - `name`: a label in listings and errors.

    Returns: a `nl.NkiTensor`.

    Operation:

    ```text
    out = nl.ndarray(shape, dtype, buffer, name)
    out[...] = fill_value
    ```

    Example:

    ```python
    @nki.jit
    def example():
        nl.device_print("tile", nl.full((1, 3), 2.5, nl.float32))

    example()
    ```

    ```output
    tile float32[1, 3] sbuf
    [[2.5 2.5 2.5]]
    ```

    See also: `zeros`, `ones`, `nisa.memset`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `enum`, `legacy`, `memory`, `one-dimensional-tile`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """

def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: Int = 0, dtype: DTypeLike | None = None) -> NkiTensor:
    """out[p, j] = data[p] flattened, at indices[p, j]; the shape is that of the indices.

    Parameters:

    - `data`: tile; its free dimensions count as one.
    - `indices`: tile of an integer dtype with the partitions of data.
    - `axis`: 0 alone.
    - `dtype`: dtype of the result; that of data by default.

    Returns: a new SBUF tile of the shape of indices.

    Operation:

    ```text
    for p, j:
        out[p, j] = data[p].flat[indices[p, j]]
    ```

    Example:

    ```python
    @nki.jit
    def example(x, index):
        nl.device_print("picked", nl.gather_flattened(nl.load(x), nl.load(index)))

    example(np.array([[10, 20, 30]], np.float32), np.array([[2, 0]], np.uint32))
    ```

    ```output
    picked float32[1, 2] sbuf
    [[30. 10.]]
    ```

    See also: `nisa.nc_n_gather`, `nisa.local_gather`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.nc_n_gather`, `nisa.tensor_copy`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def gelu(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * Phi(x), Phi the normal distribution; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] * (1 + erf(x[p, i] / sqrt(2))) / 2
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("gelu", nl.gelu(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    gelu bfloat16[1, 4] sbuf
    [[-0.0454102 -0.154297 0 1.39844]]
    ```

    See also: `gelu_dx`, `gelu_apprx_tanh`, `gelu_apprx_sigmoid`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def gelu_apprx_sigmoid(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * sigmoid(1.702 x); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] * sigmoid(1.702 * x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("gelu_apprx_sigmoid", nl.gelu_apprx_sigmoid(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    gelu_apprx_sigmoid bfloat16[1, 4] sbuf
    [[-0.0644531 -0.149414 0 1.39062]]
    ```

    See also: `gelu`, `gelu_apprx_sigmoid_dx`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def gelu_apprx_sigmoid_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of gelu_apprx_sigmoid; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = s + 1.702 * x[p, i] * s * (1 - s)        # s = sigmoid(1.702 * x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("gelu_apprx_sigmoid_dx", nl.gelu_apprx_sigmoid_dx(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    gelu_apprx_sigmoid_dx bfloat16[1, 4] sbuf
    [[-0.0737305 0.120605 0.5 1.10156]]
    ```

    See also: `gelu_apprx_sigmoid`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def gelu_apprx_tanh(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = 0.5 * x[p, i] * (1 + tanh(sqrt(2 / pi) * (x[p, i] + 0.044715 * x[p, i]**3)))
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("gelu_apprx_tanh", nl.gelu_apprx_tanh(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    gelu_apprx_tanh bfloat16[1, 4] sbuf
    [[-0.0454102 -0.154297 0 1.39844]]
    ```

    See also: `gelu`, `tanh`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def gelu_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of gelu; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = (1 + erf(x[p, i] / sqrt(2))) / 2 + x[p, i] * exp(-x[p, i] * x[p, i] / 2) / sqrt(2 * pi)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("gelu_dx", nl.gelu_dx(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    gelu_dx bfloat16[1, 4] sbuf
    [[-0.0854492 0.132812 0.5 1.125]]
    ```

    See also: `gelu`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def greater(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x > y, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] > y[p, i] else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("greater", nl.greater(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    greater float32[1, 3] sbuf
    [[0. 0. 1.]]
    ```

    See also: `greater_equal`, `less`, `where`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def greater_equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x >= y, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] >= y[p, i] else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("greater_equal", nl.greater_equal(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    greater_equal float32[1, 3] sbuf
    [[0. 1. 1.]]
    ```

    See also: `greater`, `less_equal`, `where`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

hbm: MemoryRegion

int16: DType

int32: DType

int8: DType

def invert(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x with every bit flipped, of integers; element by element, in a new SBUF tile.

    Parameters:

    - `x`: integer tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = ~x[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("invert", nl.invert(nl.load(x)))

    example(np.array([[0, 1, 255]], np.int32))
    ```

    ```output
    invert int32[1, 3] sbuf
    [[  -1   -2 -256]]
    ```

    See also: `bitwise_xor`, `logical_not`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def is_hbm(buffer: MemoryRegion | str | NkiTensor) -> _builtins.bool:
    """Whether it is HBM, private or shared: of a region, its name, or a tensor.

    Parameters:

    - `buffer`: a memory (`nl.sbuf`), its name, or a tensor.

    Returns: a bool.

    Operation:

    ```text
    return memory of buffer is private or shared HBM
    ```

    Example:

    ```python
    print(nl.is_hbm(nl.shared_hbm))
    ```

    ```output
    True
    ```

    See also: `is_on_chip`, `hbm`, `shared_hbm`.

    Facts:

    - Errors and warnings: none.
    """

def is_on_chip(buffer: MemoryRegion | str | NkiTensor) -> _builtins.bool:
    """Whether it is SBUF and PSUM: of a region, its name, or a tensor.

    Parameters:

    - `buffer`: a memory (`nl.sbuf`), its name, or a tensor.

    Returns: a bool.

    Operation:

    ```text
    return memory of buffer is SBUF or PSUM
    ```

    Example:

    ```python
    print(nl.is_on_chip(nl.psum))
    ```

    ```output
    True
    ```

    See also: `is_sbuf`, `is_psum`, `is_hbm`.

    Facts:

    - Errors and warnings: none.
    """

def is_psum(buffer: MemoryRegion | str | NkiTensor) -> _builtins.bool:
    """Whether it is PSUM: of a region, its name, or a tensor.

    Parameters:

    - `buffer`: a memory (`nl.sbuf`), its name, or a tensor.

    Returns: a bool.

    Operation:

    ```text
    return memory of buffer is PSUM
    ```

    Example:

    ```python
    print(nl.is_psum(nl.sbuf))
    ```

    ```output
    False
    ```

    See also: `is_sbuf`, `is_on_chip`, `psum`.

    Facts:

    - Errors and warnings: none.
    """

def is_sbuf(buffer: MemoryRegion | str | NkiTensor) -> _builtins.bool:
    """Whether it is SBUF: of a region, its name, or a tensor.

    Parameters:

    - `buffer`: a memory (`nl.sbuf`), its name, or a tensor.

    Returns: a bool.

    Operation:

    ```text
    return memory of buffer is SBUF
    ```

    Example:

    ```python
    print(nl.is_sbuf(nl.sbuf))
    ```

    ```output
    True
    ```

    See also: `is_psum`, `is_on_chip`, `sbuf`.

    Facts:

    - Errors and warnings: none.
    """

def left_shift(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x << y of integers; zeros enter, a count of the width or more gives 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: integer tile, or an int; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default. The tiles have one width.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] << y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("left_shift", nl.left_shift(nl.load(a), nl.load(b)))

    example(np.array([[12, 10, 255]], np.int32), np.array([[1, 2, 4]], np.int32))
    ```

    ```output
    left_shift int32[1, 3] sbuf
    [[  24   40 4080]]
    ```

    See also: `right_shift`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def less(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x < y, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] < y[p, i] else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("less", nl.less(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    less float32[1, 3] sbuf
    [[1. 0. 0.]]
    ```

    See also: `less_equal`, `greater`, `where`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def less_equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x <= y, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] <= y[p, i] else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("less_equal", nl.less_equal(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    less_equal float32[1, 3] sbuf
    [[1. 1. 0.]]
    ```

    See also: `less`, `greater_equal`, `where`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def load(src: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """A new SBUF tile with the contents of an HBM tensor.

    Parameters:

    - `src`: tensor in HBM; at most 128 in its first dimension.
    - `dtype`: dtype of the tile; that of src by default.

    Returns: a new SBUF tile of the shape of src.

    Operation:

    ```text
    tile = nl.ndarray(src.shape, dtype)
    nisa.dma_copy(tile, src)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("tile", nl.load(x, dtype=nl.bfloat16))

    example(np.array([[1, 2, 3]], np.float32))
    ```

    ```output
    tile bfloat16[1, 3] sbuf
    [[1 2 3]]
    ```

    See also: `store`, `load_transpose2d`, `nisa.dma_copy`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`.
    - Errors and warnings: `enum`, `legacy`, and those of `nl.ndarray`.
    """

def load_transpose2d(src: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """A new SBUF tile with the transpose of a 2-D HBM tensor.

    Parameters:

    - `src`: tensor in HBM with two dimensions; at most 128 in the second.
    - `dtype`: dtype of the tile; that of src by default.

    Returns: a new SBUF tile with the two dimensions exchanged.

    Operation:

    ```text
    for i, j:
        tile[j, i] = src[i, j]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("tile", nl.load_transpose2d(x))

    example(np.arange(6, dtype=np.float32).reshape(2, 3))
    ```

    ```output
    tile float32[3, 2] sbuf
    [[0. 3.]
     [1. 4.]
     [2. 5.]]
    ```

    See also: `load`, `transpose`, `nisa.dma_transpose`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.dma_transpose`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, and those of `nl.ndarray`.
    """

def log(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the natural logarithm of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = log(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("log", nl.log(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[1, 2, 4]], np.float32))
    ```

    ```output
    log bfloat16[1, 3] sbuf
    [[0 0.691406 1.38281]]
    ```

    See also: `exp`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def logical_and(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x and y are both non-zero, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] != 0 and y[p, i] != 0 else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("logical_and", nl.logical_and(nl.load(a), nl.load(b)))

    example(np.array([[0, 0, 1, 2]], np.float32), np.array([[0, 3, 0, 4]], np.float32))
    ```

    ```output
    logical_and float32[1, 4] sbuf
    [[0. 0. 0. 1.]]
    ```

    See also: `logical_or`, `logical_not`, `all`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def logical_not(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x xor 1 for integers, x == 0 for floats; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] ^ 1 for integers, 1 if x[p, i] == 0 else 0 for floats
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("logical_not", nl.logical_not(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    logical_not float32[1, 4] sbuf
    [[0. 0. 1. 0.]]
    ```

    See also: `logical_and`, `invert`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def logical_or(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x or y is non-zero, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] != 0 or y[p, i] != 0 else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("logical_or", nl.logical_or(nl.load(a), nl.load(b)))

    example(np.array([[0, 0, 1, 2]], np.float32), np.array([[0, 3, 0, 4]], np.float32))
    ```

    ```output
    logical_or float32[1, 4] sbuf
    [[0. 1. 1. 1.]]
    ```

    See also: `logical_and`, `logical_xor`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def logical_xor(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where exactly one of x and y is non-zero, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if (x[p, i] != 0) != (y[p, i] != 0) else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("logical_xor", nl.logical_xor(nl.load(a), nl.load(b)))

    example(np.array([[0, 0, 1, 2]], np.float32), np.array([[0, 3, 0, 4]], np.float32))
    ```

    ```output
    logical_xor float32[1, 4] sbuf
    [[0. 1. 1. 0.]]
    ```

    See also: `logical_or`, `logical_not`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def matmul(x: NkiTensor, y: NkiTensor, transpose_x: _builtins.bool = False) -> NkiTensor:
    """x @ y, or x.T @ y with transpose_x, as float32 in PSUM; x and y are 2-D tiles in SBUF.

    TensorE contracts over the partitions of both operands. Without transpose_x the x tile is transposed first: that costs a pass, and some compilers refuse it.

    Parameters:

    - `x`: SBUF tile [M, K], or [K, M] with transpose_x; K and M at most 128.
    - `y`: SBUF tile [K, N]; N at most `nl.tile_size.gemm_moving_fmax`.
    - `transpose_x`: True takes x as [K, M], as TensorE does.

    Returns: a new float32 PSUM tile [M, N].

    Operation:

    ```text
    for m, n:
        out[m, n] = sum over k of x[m, k] * y[k, n]     # x[k, m] with transpose_x
    ```

    Example:

    ```python
    @nki.jit
    def example(x, y):
        nl.device_print("x.T @ y", nl.copy(nl.matmul(nl.load(x), nl.load(y), transpose_x=True)))

    example(np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 0, 1], [0, 1, 1]], np.float32))
    ```

    ```output
    x.T @ y float32[2, 3] sbuf
    [[1. 3. 4.]
     [2. 4. 6.]]
    ```

    See also: `nisa.nc_matmul`, `transpose`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.nc_matmul`, `nisa.nc_transpose`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `free-limit`, `legacy`, `matmul-transpose`, and those of `nl.ndarray`.
    """

def max(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: _builtins.bool = False) -> NkiTensor:
    """The largest element over trailing free dimensions; NaN if one is NaN.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions (sum and max reduce them too, with a warning).
    - `dtype`: dtype of the result; that of x by default.
    - `keepdims`: True leaves the reduced dimensions with size 1. A tile always has two dimensions.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = largest of x[p, :]        # NaN if one is NaN
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("max", nl.max(nl.load(x), axis=1))

    example(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    max float32[2, 1] sbuf
    [[3.]
     [6.]]
    ```

    See also: `min`, `maximum`, `nisa.tensor_reduce`, `nisa.max8`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_partition_reduce`, `nisa.tensor_reduce`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def maximum(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the larger of x and y; NaN if either is NaN; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = max(x[p, i], y[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("maximum", nl.maximum(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    maximum float32[1, 3] sbuf
    [[2. 2. 4.]]
    ```

    See also: `minimum`, `max`, `abs_max`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def mean(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: _builtins.bool = False) -> NkiTensor:
    """The mean over trailing free dimensions.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions.
    - `dtype`: dtype of the result; that of x by default.
    - `keepdims`: True leaves the reduced dimensions with size 1. A tile always has two dimensions.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = sum of x[p, :] / count
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("mean", nl.mean(nl.load(x), axis=1))

    example(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    mean float32[2, 1] sbuf
    [[2.]
     [5.]]
    ```

    See also: `var`, `sum`, `nisa.bn_stats`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_reduce`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def min(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: _builtins.bool = False) -> NkiTensor:
    """The smallest element over trailing free dimensions; NaN if one is NaN.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions.
    - `dtype`: dtype of the result; that of x by default.
    - `keepdims`: True leaves the reduced dimensions with size 1. A tile always has two dimensions.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = smallest of x[p, :]       # NaN if one is NaN
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("min", nl.min(nl.load(x), axis=1))

    example(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    min float32[2, 1] sbuf
    [[1.]
     [4.]]
    ```

    See also: `max`, `minimum`, `nisa.tensor_reduce`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_partition_reduce`, `nisa.tensor_reduce`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def minimum(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the smaller of x and y; NaN if either is NaN; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = min(x[p, i], y[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("minimum", nl.minimum(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    minimum float32[1, 3] sbuf
    [[1. 2. 2.]]
    ```

    See also: `maximum`, `min`, `abs_min`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def mish(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * tanh(softplus(x)); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] * tanh(log(1 + exp(x[p, i])))
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("mish", nl.mish(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    mish bfloat16[1, 4] sbuf
    [[-0.251953 -0.220703 0 1.40625]]
    ```

    See also: `softplus`, `tanh`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def mod(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """the remainder of x / y, with the sign of y; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] - floor(x[p, i] / y[p, i]) * y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        out = nl.mod(nl.load(a), nl.load(b))  # nki: ignore[not-on-hardware, release-refused]
        nl.device_print("mod", out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no engine has it; use nl.floor(a * nl.reciprocal(b))
        example(np.array([[7, -7, 5]], np.float32), np.array([[4, 4, 2]], np.float32))
    ```

    ```output
    mod float32[1, 3] sbuf
    [[3. 1. 1.]]
    ```

    See also: `fmod`, `divide`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def multiply(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * y; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] * y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("multiply", nl.multiply(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    multiply float32[1, 3] sbuf
    [[2. 4. 8.]]
    ```

    See also: `divide`, `add`, `nisa.tensor_tensor`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def ndarray(shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = ..., name: str | None = '', address: Sequence[Int] | None = None) -> NkiTensor:
    """A new tensor with undefined contents; `address=(partition, byte)` places a tile.

    The first dimension of a tile is its partitions, the others are free dimensions. What was never written reads as NaN, and `nki check` reports it. `nl.ndarray` also serves as an annotation.

    Parameters:

    - `shape`: tuple of positive ints. On chip 2 to 5 dimensions, the first at most 128.
    - `dtype`: an nl dtype (`nl.float32`), or its numpy dtype or name.
    - `buffer`: `nl.sbuf`, `nl.psum`, `nl.hbm` or `nl.shared_hbm`. A result of the kernel is in `nl.shared_hbm`.
    - `name`: a label in listings and errors.
    - `address`: (partition, byte) where a tile lies; None leaves it to the compiler. Tiles at one address share their bytes.

    Returns: a `nl.NkiTensor`.

    Operation:

    ```text
    reserve shape[0] partitions x (product of the others * itemsize) bytes      # on chip
    reserve (product of shape * itemsize) bytes                                 # in HBM
    ```

    Example:

    ```python
    @nki.jit
    def example():
        tile = nl.ndarray((2, 3), nl.float32)
        nisa.memset(tile, 1.0)
        nl.device_print("tile", tile)

    example()
    ```

    ```output
    tile float32[2, 3] sbuf
    [[1. 1. 1.]
     [1. 1. 1.]]
    ```

    See also: `empty_like`, `zeros`, `full`, `NkiTensor`, `tile_size`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `memory`, `one-dimensional-tile`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """

def negative(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """-x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = -x[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("negative", nl.negative(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    negative float32[1, 4] sbuf
    [[ 2.   0.5 -0.  -1.5]]
    ```

    See also: `subtract`, `abs`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions issued in this block, in any function called, stay in program order.

    Operation:

    ```text
    with nl.no_reorder(): instructions start in the order they are issued
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        with nl.no_reorder():
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
            nisa.activation(tile, nl.square, tile)
        nl.device_print("tile", tile)

    example(np.array([[1, 2]], np.float32))
    ```

    ```output
    tile float32[1, 2] sbuf
    [[4. 9.]]
    ```

    See also: `nisa.NkiInstruction`.

    Facts:

    - Errors and warnings: none.
    """

def not_equal(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 where x != y, else 0; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the first tile by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 if x[p, i] != y[p, i] else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("not_equal", nl.not_equal(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    not_equal float32[1, 3] sbuf
    [[1. 0. 1.]]
    ```

    See also: `equal`, `where`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def num_programs(axes: Int | Sequence[Int] | None = 0) -> int:
    """How many programs run: the launch degree, 1 without brackets. `None` or several axes: all of them.

    Parameters:

    - `axes`: 0; None or several axes count all programs.

    Returns: an int: 1, or 2 for `kernel[2](...)`.

    Operation:

    ```text
    return number of cores in the launch
    ```

    Example:

    ```python
    @nki.jit
    def example():
        nl.device_print("programs", nl.full((1, 1), nl.num_programs(), nl.int32))

    example()
    ```

    ```output
    programs int32[1, 1] sbuf
    [[1]]
    ```

    See also: `program_id`, `program_ndim`.

    Facts:

    - Errors and warnings: `launch-grid`.
    """

def ones(shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = ..., name: str | None = '') -> NkiTensor:
    """A new tensor filled with ones.

    Parameters:

    - `shape`: tuple of positive ints.
    - `dtype`: an nl dtype.
    - `buffer`: the memory; SBUF by default. HBM is written through a tile.
    - `name`: a label in listings and errors.

    Returns: a `nl.NkiTensor`.

    Operation:

    ```text
    out = nl.ndarray(shape, dtype, buffer, name)
    out[...] = 1
    ```

    Example:

    ```python
    @nki.jit
    def example():
        nl.device_print("tile", nl.ones((1, 3), nl.bfloat16))

    example()
    ```

    ```output
    tile bfloat16[1, 3] sbuf
    [[1 1 1]]
    ```

    See also: `zeros`, `full`, `nisa.memset`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `enum`, `legacy`, `memory`, `one-dimensional-tile`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """

def power(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x to the power of y; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] ** y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("power", nl.power(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 3]], np.float32), np.array([[3, 2, 2]], np.float32))
    ```

    ```output
    power float32[1, 3] sbuf
    [[1. 4. 9.]]
    ```

    See also: `square`, `sqrt`, `exp`, `log`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

prelu: Operator

private_hbm: MemoryRegion

def prod(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: _builtins.bool = False) -> NkiTensor:
    """The product over trailing free dimensions.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions.
    - `dtype`: dtype of the result; that of x by default.
    - `keepdims`: True leaves the reduced dimensions with size 1. A tile always has two dimensions.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = product of x[p, :]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("prod", nl.prod(nl.load(x), axis=1))

    example(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    prod float32[2, 1] sbuf
    [[  6.]
     [120.]]
    ```

    See also: `sum`, `nisa.tensor_reduce`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_partition_reduce`, `nisa.tensor_reduce`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def program_id(axis: Int = 0) -> int:
    """The number of this program in the launch grid: 0 or 1.

    Parameters:

    - `axis`: 0 alone.

    Returns: an int: 0, or 0 and 1 in a launch on two cores.

    Operation:

    ```text
    return number of this core in the launch
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        out, me = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.program_id(0)
        tile = nl.load(x[me : me + 1])
        nisa.tensor_scalar(tile, tile, nl.add, 10.0 * me)
        nl.store(out[me : me + 1], tile)
        return out

    print(example[2](np.zeros((2, 2), np.float32)))
    ```

    ```output
    [[ 0.  0.]
     [10. 10.]]
    ```

    See also: `num_programs`, `program_ndim`, `nisa.core_barrier`.

    Facts:

    - Errors and warnings: `launch-grid`.
    """

def program_ndim() -> int:
    """Dimensions of the launch grid: 0 for kernel(...), 1 for kernel[n](...).

    Returns: 0 for `kernel(...)`, 1 for `kernel[n](...)`.

    Operation:

    ```text
    return number of axes of the launch grid
    ```

    Example:

    ```python
    @nki.jit
    def example():
        nl.device_print("axes", nl.full((1, 1), nl.program_ndim(), nl.int32))

    example()
    ```

    ```output
    axes int32[1, 1] sbuf
    [[0]]
    ```

    See also: `program_id`, `num_programs`.

    Facts:

    - Errors and warnings: none.
    """

psum: MemoryRegion

def rand(shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = ..., name: str | None = '') -> NkiTensor:
    """A new tensor of random numbers, uniform in [0, 1).

    Parameters:

    - `shape`: tuple of positive ints.
    - `dtype`: a float dtype.
    - `buffer`: the memory; SBUF by default. HBM is written through a tile.
    - `name`: a label in listings and errors.

    Returns: a `nl.NkiTensor`.

    Operation:

    ```text
    for every element: out[...] = next number of the generator of VectorE, in [0, 1)
    ```

    Example:

    ```python
    @nki.jit
    def example(seed):
        nl.random_seed(nl.load(seed))  # nki: ignore[release-defect]
        nl.device_print("tile", nl.rand((1, 3), nl.bfloat16))

    example(np.array([[42]], np.uint32))
    ```

    ```output
    tile bfloat16[1, 3] sbuf
    [[0.863281 0.601562 0.359375]]
    ```

    See also: `random_seed`, `dropout`, `nisa.rng`, `nisa.rand2`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.rand2`, `nisa.rng`, `nisa.tensor_scalar`.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `enum`, `legacy`, `memory`, `one-dimensional-tile`, `op`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """

def random_seed(seed: NkiTensor) -> None:
    """Seed the generator behind nl.rand and nl.dropout with a (1, 1) tile of a 32-bit dtype.

    Before trn3 AWS's NKI 0.6 may run `nl.rand` on another engine, which ignores the seed; `nki check --for aws-0.6` reports it.

    Parameters:

    - `seed`: [1, 1] tile of a 32-bit dtype.

    Operation:

    ```text
    state of VectorE's generator = numbers derived from the seed
    ```

    Example:

    ```python
    @nki.jit
    def example(seed):
        nl.random_seed(nl.load(seed))  # nki: ignore[release-defect]
        nl.device_print("number", nl.rand((1, 1), nl.bfloat16))

    example(np.array([[1]], np.uint32))
    ```

    ```output
    number bfloat16[1, 1] sbuf
    [[0.824219]]
    ```

    See also: `rand`, `dropout`, `nisa.set_rng_seed`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.set_rng_seed`.
    - Errors and warnings: `enum`, `legacy`, `seed-engine`, and those of `nl.ndarray`.
    """

def reciprocal(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 / x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 / x[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("reciprocal", nl.reciprocal(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[1, 2, -4]], np.float32))
    ```

    ```output
    reciprocal bfloat16[1, 3] sbuf
    [[1 0.5 -0.25]]
    ```

    See also: `divide`, `rsqrt`, `nisa.reciprocal`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3) and `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def relu(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """max(x, 0); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = max(x[p, i], 0)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("relu", nl.relu(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    relu float32[1, 4] sbuf
    [[0.  0.  0.  1.5]]
    ```

    See also: `prelu`, `gelu`, `nisa.activation`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn3) and `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def right_shift(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x >> y of integers; zeros enter even for signed types; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: integer tile, or an int; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default. The tiles have one width.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] >> y[p, i]        # zeros enter
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("right_shift", nl.right_shift(nl.load(a), nl.load(b)))

    example(np.array([[12, 10, 255]], np.int32), np.array([[1, 2, 4]], np.int32))
    ```

    ```output
    right_shift int32[1, 3] sbuf
    [[ 6  2 15]]
    ```

    See also: `left_shift`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def rms_norm(x: NkiTensor, w: NkiTensor, axis: Axis, n: Number, epsilon: TileOrNumber = 1e-06, dtype: DTypeLike | None = None, compute_dtype: DTypeLike | None = None) -> NkiTensor:
    """x / sqrt(sum(x * x) / n + epsilon) * w over trailing free dimensions; w is broadcast to x.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `w`: tile of weights that broadcasts to x.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap.
    - `n`: the number that the sum of squares is divided by: usually the elements reduced.
    - `epsilon`: a number or a float32 [P, 1] tile added under the root.
    - `dtype`: dtype of the result; that of x by default.
    - `compute_dtype`: dtype of squares and products; float32 by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] / sqrt(sum of x[p, :]**2 / n + epsilon) * w[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x, w):
        tile, weights = nl.load(x), nl.load(w)
        nl.device_print("norm", nl.rms_norm(tile, weights, axis=1, n=2, dtype=nl.bfloat16))

    example(np.array([[3, 4]], np.float32), np.ones((1, 2), np.float32))
    ```

    ```output
    norm bfloat16[1, 2] sbuf
    [[0.847656 1.13281]]
    ```

    See also: `mean`, `rsqrt`, `nisa.activation_reduce`.

    Facts:

    - Issues, depending on the arguments: `nisa.activation`, `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_reduce`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `axis`, `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def rsqrt(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 / sqrt(x); x in SBUF; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 / sqrt(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("rsqrt", nl.rsqrt(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[1, 2, 4]], np.float32))
    ```

    ```output
    rsqrt bfloat16[1, 3] sbuf
    [[1 0.707031 0.5]]
    ```

    See also: `sqrt`, `reciprocal`, `nisa.activation`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3) and `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

sbuf: MemoryRegion

def sequential_range(start: Int, stop: Int | None = None, step: Int = 1) -> _builtins.range:
    """Python's range: the loop is unrolled.

    Deprecated: use `range`. Its name says that an iteration uses what the one before wrote.

    Parameters:

    - `start`: first value; the end, if it is given alone.
    - `stop`: one past the last value, or None.
    - `step`: distance between values.

    Returns: a Python range.

    Operation:

    ```text
    for i in range(start, stop, step): issue the body with the number i
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        for i in nl.sequential_range(3):
            nisa.tensor_scalar(tile[:, i : i + 1], tile[:, i : i + 1], nl.add, float(i))
        nl.device_print("tile", tile)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        example(np.zeros((1, 3), np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[0. 1. 2.]]
    ```

    See also: `affine_range`, `static_range`, `fori_loop`.

    Facts:

    - Errors and warnings: `register-value`, and those of `nl.ndarray`.
    """

def shared_constant(constant: _np.ndarray | str | _os.PathLike[str]) -> NkiTensor:
    """A shared HBM tensor holding a numpy array, or the contents of a .npy file. It cannot be written.

    The array is part of the compiled kernel. Equal arrays are stored once.

    Parameters:

    - `constant`: numpy array, or the path of a .npy file. It is the same on all cores.

    Returns: a tensor in shared HBM, which cannot be written.

    Operation:

    ```text
    return HBM tensor with the bytes of constant
    ```

    Example:

    ```python
    @nki.jit
    def example():
        table = nl.shared_constant(np.array([[1, 2, 3]], np.float32))
        nl.device_print("table", nl.load(table))

    example()
    ```

    ```output
    table float32[1, 3] sbuf
    [[1. 2. 3.]]
    ```

    See also: `shared_identity_matrix`, `shared_hbm`.

    Facts:

    - Errors and warnings: `lnc-divergence`, `untested-on-hardware`.
    """

shared_hbm: MemoryRegion

def shared_identity_matrix(n: Int, dtype: DTypeLike = ..., dst: NkiTensor | None = None) -> NkiTensor:
    """An n x n identity in SBUF, or in the tile `dst`, whose dtype then counts.

    Parameters:

    - `n`: number of rows and columns, at most 128.
    - `dtype`: an nl dtype; uint8 by default, which no matmul takes.
    - `dst`: an n x n tile in SBUF or PSUM to write, or None for a new tile in SBUF. Its dtype then counts.

    Returns: dst, or the new tile.

    Operation:

    ```text
    for i, j:
        out[i, j] = 1 if i == j else 0
    ```

    Example:

    ```python
    @nki.jit
    def example():
        nl.device_print("identity", nl.shared_identity_matrix(3, nl.float32))

    example()
    ```

    ```output
    identity float32[3, 3] sbuf
    [[1. 0. 0.]
     [0. 1. 0.]
     [0. 0. 1.]]
    ```

    See also: `shared_constant`, `nisa.nc_matmul`, `nisa.affine_select`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, and those of `nl.ndarray`.
    """

def sigmoid(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """1 / (1 + exp(-x)); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = 1 / (1 + exp(-x[p, i]))
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("sigmoid", nl.sigmoid(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    sigmoid bfloat16[1, 4] sbuf
    [[0.119141 0.376953 0.5 0.816406]]
    ```

    See also: `silu`, `tanh`, `nisa.activation`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def sign(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """-1, 0 or 1; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = -1 if x[p, i] < 0 else 1 if x[p, i] > 0 else 0
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("sign", nl.sign(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    sign float32[1, 4] sbuf
    [[-1. -1.  0.  1.]]
    ```

    See also: `abs`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def silu(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * sigmoid(x); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] * sigmoid(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("silu", nl.silu(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    silu bfloat16[1, 4] sbuf
    [[-0.238281 -0.188477 0 1.22656]]
    ```

    See also: `silu_dx`, `sigmoid`, `gelu`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def silu_dx(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the derivative of silu; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = s + x[p, i] * s * (1 - s)        # s = sigmoid(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("silu_dx", nl.silu_dx(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    silu_dx bfloat16[1, 4] sbuf
    [[-0.0908203 0.259766 0.5 1.03906]]
    ```

    See also: `silu`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def sin(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the sine of x, accurate everywhere; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = sin(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("sin", nl.sin(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    sin bfloat16[1, 4] sbuf
    [[-0.910156 -0.478516 0 0.996094]]
    ```

    See also: `cos`, `tan`, `nisa.activation`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def softmax(x: NkiTensor, axis: Axis = -1, dtype: DTypeLike | None = None) -> NkiTensor:
    """exp(x - max) / sum(exp(x - max)) over trailing free dimensions.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap.
    - `dtype`: dtype of the result; that of x by default. It is computed in float32.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p:
        e = exp(x[p, :] - max of x[p, :])
        out[p, :] = e / sum of e
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("softmax", nl.softmax(nl.load(x), axis=1, dtype=nl.bfloat16))

    example(np.array([[1, 2, 3]], np.float32))
    ```

    ```output
    softmax bfloat16[1, 3] sbuf
    [[0.0898438 0.245117 0.664062]]
    ```

    See also: `exp`, `nisa.activation_reduce`, `nisa.exponential`.

    Facts:

    - Issues, depending on the arguments: `nisa.activation`, `nisa.dma_copy`, `nisa.reciprocal`, `nisa.tensor_reduce`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `axis`, `enum`, `legacy`, `op`, and those of `nl.ndarray`.
    """

def softplus(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """log(1 + exp(x)); element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = log(1 + exp(x[p, i]))
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("softplus", nl.softplus(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    softplus bfloat16[1, 4] sbuf
    [[0.126953 0.474609 0.691406 1.70312]]
    ```

    See also: `mish`, `log`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def sqrt(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the square root of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = sqrt(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("sqrt", nl.sqrt(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[1, 2, 4]], np.float32))
    ```

    ```output
    sqrt bfloat16[1, 3] sbuf
    [[1 1.41406 2]]
    ```

    See also: `rsqrt`, `square`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def square(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x * x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] * x[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("square", nl.square(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    square float32[1, 4] sbuf
    [[4.   0.25 0.   2.25]]
    ```

    See also: `sqrt`, `power`, `nisa.activation`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn3) and `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def static_range(start: Int, stop: Int | None = None, step: Int = 1) -> _builtins.range:
    """Python's range: the loop is unrolled.

    Deprecated: use `range`. The body is issued once for each value.

    Parameters:

    - `start`: first value; the end, if it is given alone.
    - `stop`: one past the last value, or None.
    - `step`: distance between values.

    Returns: a Python range.

    Operation:

    ```text
    for i in range(start, stop, step): issue the body with the number i
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        for i in nl.static_range(3):
            nisa.tensor_scalar(tile[:, i : i + 1], tile[:, i : i + 1], nl.add, float(i))
        nl.device_print("tile", tile)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        example(np.zeros((1, 3), np.float32))
    ```

    ```output
    tile float32[1, 3] sbuf
    [[0. 1. 2.]]
    ```

    See also: `affine_range`, `sequential_range`, `fori_loop`.

    Facts:

    - Errors and warnings: `register-value`, and those of `nl.ndarray`.
    """

def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write an SBUF tile to an HBM tensor.

    Parameters:

    - `dst`: tensor in HBM.
    - `value`: SBUF tile with as many elements; its dtype is cast to that of dst.

    Operation:

    ```text
    nisa.dma_copy(dst, value)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(x), 1.0))
        return out

    print(example(np.array([[1, 2, 3]], np.float32)))
    ```

    ```output
    [[2. 3. 4.]]
    ```

    See also: `load`, `nisa.dma_copy`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`.
    - Errors and warnings: `enum`, `legacy`, and those of `nl.ndarray`.
    """

def subtract(x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x - y; element by element, in a new SBUF tile.

    Parameters:

    - `x`, `y`: tile in SBUF or PSUM, or a number; at least one is a tile. Dimensions of size 1 are broadcast, partitions too.
    - `dtype`: dtype of the result; that of the tiles by default, the wider of two.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] - y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(a, b):
        nl.device_print("subtract", nl.subtract(nl.load(a), nl.load(b)))

    example(np.array([[1, 2, 4]], np.float32), np.array([[2, 2, 2]], np.float32))
    ```

    ```output
    subtract float32[1, 3] sbuf
    [[-1.  0.  2.]]
    ```

    See also: `add`, `negative`, `nisa.tensor_tensor`.

    Facts:

    - As `op=`: the ALU of VectorE and GpSimdE (trn1, trn2, trn3).
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `not-on-hardware`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def sum(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: _builtins.bool = False) -> NkiTensor:
    """The sum over trailing free dimensions.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions (sum and max reduce them too, with a warning).
    - `dtype`: dtype of the result; that of x by default.
    - `keepdims`: True leaves the reduced dimensions with size 1. A tile always has two dimensions.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = sum of x[p, :]            # in float32
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("sum", nl.sum(nl.load(x), axis=1))

    example(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    sum float32[2, 1] sbuf
    [[ 6.]
     [15.]]
    ```

    See also: `mean`, `max`, `nisa.tensor_reduce`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_partition_reduce`, `nisa.tensor_reduce`.
    - Errors and warnings: `axis`, `enum`, `legacy`, and those of `nl.ndarray`.
    """

def tan(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the tangent of x, accurate everywhere; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = tan(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("tan", nl.tan(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    tan bfloat16[1, 4] sbuf
    [[2.1875 -0.546875 0 14.125]]
    ```

    See also: `sin`, `cos`, `arctan`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

def tanh(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """the hyperbolic tangent of x; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = tanh(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("tanh", nl.tanh(nl.load(x), dtype=nl.bfloat16))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    tanh bfloat16[1, 4] sbuf
    [[-0.964844 -0.462891 0 0.90625]]
    ```

    See also: `sigmoid`, `nisa.activation`.

    Facts:

    - As `op=`: `nisa.activation`.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

tfloat32: DType

tile_size: _TileSize

def transpose(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """The transpose of a 2-D tile of at most 128 x 128, in PSUM.

    Parameters:

    - `x`: tile with two dimensions, at most 128 x 128.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new PSUM tile.

    Operation:

    ```text
    for i, j:
        out[j, i] = x[i, j]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("transposed", nl.copy(nl.transpose(nl.load(x))))

    example(np.arange(6, dtype=np.float32).reshape(2, 3))
    ```

    ```output
    transposed float32[3, 2] sbuf
    [[0. 3.]
     [1. 4.]
     [2. 5.]]
    ```

    See also: `load_transpose2d`, `nisa.nc_transpose`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.nc_transpose`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `free-limit`, `legacy`, and those of `nl.ndarray`.
    """

def trunc(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """x without its fraction; element by element, in a new SBUF tile.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `dtype`: dtype of the result; that of x by default.

    Returns: a new SBUF tile of the shape of x.

    Operation:

    ```text
    for p, i:
        out[p, i] = trunc(x[p, i])
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("trunc", nl.trunc(nl.load(x)))

    example(np.array([[-2, -0.5, 0, 1.5]], np.float32))
    ```

    ```output
    trunc float32[1, 4] sbuf
    [[-2. -0.  0.  1.]]
    ```

    See also: `floor`, `ceil`.

    Facts:

    - As `op=`: the instructions that name it.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_copy`.
    - Errors and warnings: `enum`, `legacy`, `weak-scalar`, and those of `nl.ndarray`.
    """

uint16: DType

uint32: DType

uint8: DType

def var(x: NkiTensor, axis: Axis, dtype: DTypeLike | None = None, keepdims: _builtins.bool = False) -> NkiTensor:
    """The variance (divisor n) over trailing free dimensions, which stay with size 1 whatever keepdims.

    Parameters:

    - `x`: tile in SBUF or PSUM.
    - `axis`: an int or a tuple of ints: the last dimensions without a gap, not the partitions.
    - `dtype`: dtype of the result; that of x by default.
    - `keepdims`: has no effect: the reduced dimensions stay with size 1.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p:
        out[p] = sum of (x[p, :] - mean)**2 / count
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        nl.device_print("var", nl.var(nl.load(x), axis=1))

    example(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    ```

    ```output
    var float32[2, 1] sbuf
    [[0.6666667]
     [0.6666667]]
    ```

    See also: `mean`, `nisa.bn_stats`, `nisa.bn_aggr`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.tensor_reduce`, `nisa.tensor_scalar`, `nisa.tensor_tensor`.
    - Errors and warnings: `axis`, `enum`, `legacy`, `op`, and those of `nl.ndarray`.
    """

def where(condition: NkiTensor, x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """x where condition is non-zero, else y; x and y are tiles or numbers.

    Parameters:

    - `condition`: tile; 0 is false.
    - `x`, `y`: tiles or numbers, broadcast to the condition.
    - `dtype`: dtype of the result; that of the tiles by default.

    Returns: a new SBUF tile.

    Operation:

    ```text
    for p, i:
        out[p, i] = x[p, i] if condition[p, i] != 0 else y[p, i]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        nl.device_print("positive part", nl.where(nl.greater(tile, 0.0), tile, 0.0))

    example(np.array([[-1, 2, -3]], np.float32))
    ```

    ```output
    positive part float32[1, 3] sbuf
    [[0. 2. 0.]]
    ```

    See also: `nisa.tensor_copy_predicated`, `nisa.affine_select`, `nisa.range_select`.

    Facts:

    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`, `nisa.nc_matmul`, `nisa.nc_stream_shuffle`, `nisa.tensor_copy`, `nisa.tensor_copy_predicated`, `nisa.tensor_scalar`.
    - Errors and warnings: `broadcast`, `enum`, `legacy`, `op`, `weak-scalar`, and those of `nl.ndarray`.
    """

def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Call r = body_fun(r) while the register r is not zero; r is passed by value.

    Parameters:

    - `init`: register with the first condition.
    - `body_fun`: function of the register; it returns the register of the next condition.

    Operation:

    ```text
    r = init
    while r != 0:                   # on the device
        r = body_fun(r)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        left, turns = nl.load(x), nl.zeros((1, 1), nl.int32)

        def body(r):
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.tensor_scalar(turns, turns, nl.add, 1)
            return nisa.register_alloc(left)

        nl.while_loop(nisa.register_alloc(left), body)
        nl.device_print("turns", turns)

    example(np.array([[3]], np.int32))
    ```

    ```output
    turns int32[1, 1] sbuf
    [[3]]
    ```

    See also: `fori_loop`, `nisa.register_load`, `nisa.VirtualRegister`.

    Facts:

    - Issues, depending on the arguments: `nisa.VirtualRegister`.
    - Errors and warnings: `endless-loop`, `loop-body`, and those of `nl.ndarray`.
    """

def zeros(shape: Sequence[Int], dtype: DTypeLike, buffer: MemoryRegion = ..., name: str | None = '') -> NkiTensor:
    """A new tensor filled with zeros.

    Parameters:

    - `shape`: tuple of positive ints.
    - `dtype`: an nl dtype.
    - `buffer`: the memory; SBUF by default. HBM is written through a tile.
    - `name`: a label in listings and errors.

    Returns: a `nl.NkiTensor`.

    Operation:

    ```text
    out = nl.ndarray(shape, dtype, buffer, name)
    out[...] = 0
    ```

    Example:

    ```python
    @nki.jit
    def example():
        nl.device_print("tile", nl.zeros((1, 3), nl.int32))

    example()
    ```

    ```output
    tile int32[1, 3] sbuf
    [[0 0 0]]
    ```

    See also: `ones`, `full`, `zeros_like`, `nisa.memset`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `enum`, `legacy`, `memory`, `one-dimensional-tile`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """

def zeros_like(x: NkiTensor, dtype: DTypeLike | None = None, buffer: MemoryRegion | None = None, name: str | None = '') -> NkiTensor:
    """A new tensor of zeros with the shape, dtype and buffer of x unless given.

    Parameters:

    - `x`: a tensor.
    - `dtype`: another dtype, or None for that of x.
    - `buffer`: another memory, or None for that of x.
    - `name`: a label in listings and errors.

    Returns: a `nl.NkiTensor`.

    Operation:

    ```text
    out = nl.empty_like(x, dtype, buffer, name)
    out[...] = 0
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        nl.device_print("zeros", nl.zeros_like(tile))

    example(np.array([[1, 2]], np.float32))
    ```

    ```output
    zeros float32[1, 2] sbuf
    [[0. 0.]]
    ```

    See also: `zeros`, `empty_like`.

    Facts:

    - Limit `hbm_bytes_per_core`: 17179869184 on trn1; 25769803776 on trn2; 38654705664 on trn3.
    - Limit `partitions`: 128.
    - Limit `psum_bank_bytes`: 2048.
    - Limit `psum_bytes`: 16384.
    - Limit `psum_min_align`: 4.
    - Limit `sbuf_usable_bytes`: 180224 on trn1; 212984 on trn2; 245752 on trn3.
    - Issues, depending on the arguments: `nisa.dma_copy`, `nisa.memset`.
    - Errors and warnings: `address`, `argument`, `block-dimension`, `buffer`, `capacity`, `dtype`, `enum`, `legacy`, `memory`, `one-dimensional-tile`, `partition-limit`, `psum-bank-start`, `rank`, `shape`.
    """
