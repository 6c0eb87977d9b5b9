"""nki.isa: the instructions of a NeuronCore. One file per group, one place per instruction."""

from ..errors import NkiValidationError
from ..program import NkiInstruction
from .dma import *  # noqa: F403
from .enums import GPSIMD, SCALAR, TENSOR, UNKNOWN, VECTOR
from .enums import dge_mode, dma_engine, engine, matmul_perf_mode, nc_version, oob_mode, reduce_cmd
from .gpsimd import *  # noqa: F403
from .mx import *  # noqa: F403
from .random import *  # noqa: F403
from .reduce import *  # noqa: F403
from .registers import *  # noqa: F403
from .scalar import *  # noqa: F403
from .search import *  # noqa: F403
from .sync import *  # noqa: F403
from .tensor import *  # noqa: F403
from .vector import *  # noqa: F403

tensor_engine, vector_engine, scalar_engine = TENSOR, VECTOR, SCALAR
gpsimd_engine, unknown_engine = GPSIMD, UNKNOWN
