"""The enums of nki.isa (spec/isa.md 1.9), which `nki.isa.constants` has too."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

from ..errors import error
from ..ir.context import warn
from ..machine.engines import (  # noqa: F401  public names of nki.isa
    DMA,
    GPSIMD,
    SCALAR,
    SYNC,
    TENSOR,
    UNKNOWN,
    VECTOR,
    FastEnum,
    engine,
)


class reduce_cmd(FastEnum):
    """What an instruction does with its accumulator registers.

    Each partition has an accumulator register on VectorE and one on ScalarE. A chain of instructions can
    reduce into it.

    Members:

    - `idle`: leave the registers alone; VectorE then uses them for itself.
    - `reset`: set them to the identity of the reduction; reduce nothing.
    - `reduce`: continue with what they hold.
    - `reset_reduce`: set them to the identity, then reduce.
    - `load_reduce`: set them to reduce_init, then reduce (VectorE).

    Example:

    ```python
    @nki.jit
    def sum_of_two_tiles(x, y):
        a, b, total = nl.load(x), nl.load(y), nl.ndarray((1, 1), nl.float32)
        start, go_on = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce
        nisa.activation(a, nl.copy, a, reduce_op=nl.add, reduce_cmd=start)
        nisa.activation(b, nl.copy, b, reduce_op=nl.add, reduce_cmd=go_on, reduce_res=total)
        nl.device_print("total", total)

    sum_of_two_tiles(np.ones((1, 3), np.float32), np.ones((1, 4), np.float32))
    ```

    ```output
    total float32[1, 1] sbuf
    [[7.]]
    ```

    See also: `activation`, `tensor_scalar_reduce`, `exponential`, `range_select`.
    """

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


IDLE, REDUCE = reduce_cmd.idle, reduce_cmd.reduce
RESET_REDUCE, LOAD_REDUCE = reduce_cmd.reset_reduce, reduce_cmd.load_reduce


class dge_mode(FastEnum):
    """How DMA descriptors are generated.

    Members:

    - `unknown`: the compiler chooses.
    - `swdge`: GpSimdE writes the descriptors while the kernel runs; it can follow a vector of indices.
    - `hwdge`: hardware writes them (trn2+); equal dtypes, no vector of indices.
    - `none`: they are written before the kernel starts.

    Example:

    ```python
    @nki.jit
    def by_hardware(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x, dge_mode=nisa.dge_mode.hwdge)
        nl.device_print("tile", tile)

    by_hardware(np.array([[1, 2]], np.float32))
    ```

    ```output
    tile float32[1, 2] sbuf
    [[1. 2.]]
    ```

    See also: `dma_copy`, `dma_transpose`.
    """

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(FastEnum):
    """What an out-of-bounds run-time index does.

    Members:

    - `error`: report an index that is out of bounds.
    - `skip`: leave its row out; the destination keeps its bytes.

    Example:

    ```python
    @nki.jit
    def known_rows(table, index):
        rows, tile = nl.load(index), nl.zeros((2, 2), nl.float32)
        source = table.ap([[2, 2], [1, 2]], vector_offset=rows)
        nisa.dma_copy(tile, source, oob_mode=nisa.oob_mode.skip)
        nl.device_print("rows", tile)

    known_rows(np.ones((4, 2), np.float32), np.array([[1], [-1]], np.int32))
    ```

    ```output
    rows float32[2, 2] sbuf
    [[1. 1.]
     [0. 0.]]
    ```

    See also: `dma_copy`, `dma_transpose`, `dma_compute`.
    """

    error = 0
    skip = 1


class matmul_perf_mode(FastEnum):
    """Fast modes of nc_matmul.

    Members:

    - `none`: the usual matmul.
    - `double_row`: fp8 operands of shape [K, 2, ...]: two rows of the contraction in a partition, at twice
      the rate (trn2+).

    Example:

    ```python
    @nki.jit
    def double_rows(a, b):
        left, right = nl.load(a), nl.load(b)
        psum = nl.ndarray((1, 2), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, left, right, perf_mode=nisa.matmul_perf_mode.double_row)
        nl.device_print("product", nl.copy(psum))

    double_rows(np.ones((4, 2, 1), nl.float8_e5m2), np.ones((4, 2, 2), nl.float8_e5m2))
    ```

    ```output
    product float32[1, 2] sbuf
    [[8. 8.]]
    ```

    See also: `nc_matmul`.
    """

    none = "none"
    double_row = "double_row"


class dma_engine(FastEnum):
    """Who moves the data of sendrecv.

    Members:

    - `dma`: the DMA queues.
    - `gpsimd_dma`: the queues of GpSimdE, with less latency for at most 256 elements per partition.

    Example:

    ```python
    print([member.name for member in nisa.dma_engine])
    ```

    ```output
    ['dma', 'gpsimd_dma']
    ```

    See also: `sendrecv`.
    """

    dma = 1
    gpsimd_dma = 2


@functools.total_ordering
class nc_version(FastEnum):
    """NeuronCore generations; compare with each other and with ints.

    Members compare with each other and with ints.

    Members:

    - `gen2`: NeuronCore-v2, trn1 and inf2.
    - `gen3`: NeuronCore-v3, trn2.
    - `gen4`: NeuronCore-v4, trn3.

    Example:

    ```python
    print(nisa.nc_version.gen3 < nisa.nc_version.gen4, int(nisa.nc_version.gen3))
    ```

    ```output
    True 3
    ```

    See also: `get_nc_version`, `get_nc_sub_version`.
    """

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, nc_version) else other)

    def __lt__(self, other: Any) -> bool:
        return self.value < (other.value if isinstance(other, nc_version) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return self.value


_LEGACY_VALUES = (dge_mode, matmul_perf_mode)  # AWS's own library passes their plain values


def member(value: object, cls: type[Enum], function: str, argument: str) -> Any:
    """`value` as a member of `cls`; the plain value is accepted where public code passes it."""
    if value.__class__ is cls:
        return value
    if cls in _LEGACY_VALUES and not isinstance(value, bool):
        for candidate in cls:
            if candidate.value == value and type(candidate.value) is type(value):
                warn(
                    "legacy",
                    f"{function}: {argument}={value!r} is an old form",
                    help=f"write nisa.{cls.__name__}.{candidate.name}",
                )
                return candidate
    names = ", ".join(f"nisa.{cls.__name__}.{m.name}" for m in cls)
    raise error("enum", f"{function}: {argument} must be one of {names}, got {value!r}")
