"""nki.isa: the instructions of a NeuronCore, by engine."""

from ..errors import NkiValidationError
from ..program import NkiInstruction
from .dma import dma_copy
from .enums import (
    GPSIMD as gpsimd_engine,
)
from .enums import (
    SCALAR as scalar_engine,
)
from .enums import (
    TENSOR as tensor_engine,
)
from .enums import (
    UNKNOWN as unknown_engine,
)
from .enums import (
    VECTOR as vector_engine,
)
from .enums import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from .tensor import nc_matmul
from .vector import memset, tensor_copy, tensor_tensor
