"""nki.isa: the instructions of a NeuronCore. One file per group, one place per instruction."""
# ruff: noqa: F401, F403

from ..errors import NkiValidationError
from ..errors import missing_name as _missing_name
from ..program.instruction import NkiInstruction
from . import assignment as _assignment  # noqa: F401  provides it to tensors
from . import constants
from .computing_dma import *
from .copies import *
from .dma import *
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
from .gather import *
from .gpsimd import *
from .legacy import REMOVED as _REMOVED
from .mx import *
from .random import *
from .reduce import *
from .registers import *
from .scalar import *
from .search import *
from .select import *
from .statistics import *
from .sync import *
from .tensor import *
from .transpose import *
from .transposing_dma import *
from .vector import *

tensor_engine, vector_engine, scalar_engine = TENSOR, VECTOR, SCALAR
gpsimd_engine, unknown_engine = GPSIMD, UNKNOWN


def __getattr__(name: str):
    raise _missing_name(__name__, "nisa", name, _REMOVED, globals())
