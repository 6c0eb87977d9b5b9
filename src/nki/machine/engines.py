"""The engines of a NeuronCore."""

from __future__ import annotations

from enum import Enum


class FastEnum(Enum):
    """An enum of nki.isa."""

    __hash__ = object.__hash__  # members are singletons; the inherited hash is a Python call

    def __repr__(self) -> str:
        return f"nisa.{self.__class__.__name__}.{self.name}"


class engine(FastEnum):
    """A NeuronCore engine.

    `nisa.vector_engine` and `nisa.VECTOR` are `nisa.engine.vector`, and so on.

    Members:

    - `unknown`: the compiler chooses among the engines that have the instruction.
    - `tensor`: matrix products and transposes, into PSUM.
    - `vector`: operations on tiles, reductions and searches.
    - `scalar`: functions of one input, with scale and bias.
    - `gpsimd`: eight processors for patterns, gathers and integers; they reach SBUF alone.
    - `dma`: the queues that move data between HBM and SBUF.
    - `sync`: the sequencer that issues transfers and waits.

    Example:

    ```python
    @nki.jit
    def on_gpsimd():
        tile = nl.ndarray((1, 2), nl.float32)
        nisa.memset(tile, 1.0, engine=nisa.engine.gpsimd)
        nl.device_print("tile", tile)

    on_gpsimd()
    ```

    ```output
    tile float32[1, 2] sbuf
    [[1. 1.]]
    ```

    See also: `tensor_copy`, `tensor_scalar`, `nc_transpose`.
    """

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


TENSOR, VECTOR, SCALAR = engine.tensor, engine.vector, engine.scalar
GPSIMD, SYNC, DMA, UNKNOWN = engine.gpsimd, engine.sync, engine.dma, engine.unknown
