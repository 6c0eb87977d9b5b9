"""nki.language (nl): tensors, loops, operators and functions built on instructions."""
# ruff: noqa: F401, F403, F405

import builtins as _builtins

from ..dtype import *
from ..errors import missing_name as _missing_name
from ..ir.tensor import NkiTensor
from ..machine.dtypes import DType
from ..machine.operators import OPERATORS as _OPERATORS
from ..reference import document as _document
from . import elementwise as _elementwise
from . import partitions as _partitions
from .buffers import (
    MemoryRegion,
    hbm,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    private_hbm,
    psum,
    sbuf,
    shared_hbm,
)
from .creation import (
    empty_like,
    full,
    ndarray,
    ones,
    rand,
    zeros,
    zeros_like,
)
from .history import REMOVED as _REMOVED
from .history import cast, fp32, nc, par_dim, spmd_dim
from .loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    no_reorder,
    sequential_range,
    static_range,
    while_loop,
)
from .movement import (
    broadcast_to,
    dropout,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    matmul,
    random_seed,
    store,
    transpose,
    where,
)
from .nki_object import NKIObject
from .programs import device_print, ds, num_programs, program_id, program_ndim
from .reductions import all, max, mean, min, prod, rms_norm, softmax, sum, var
from .shared_constants import shared_constant, shared_identity_matrix
from .tile_size import _TileSize, tile_size

globals().update(_OPERATORS)  # nl.add and its kind, which the import of `elementwise` made callable

bool = bool_  # old spellings, excluded from `import *`
range = _builtins.range

_LEGACY = ("bool", "cast", "fp32", "nc", "par_dim", "range", "spmd_dim")
__all__ = sorted(
    name
    for name, value in globals().items()
    if not name.startswith("_") and name not in _LEGACY and not isinstance(value, type(_builtins))
)
_document(globals())
del _document  # what a kernel can read of this module is followed


def __dir__():
    return __all__


def __getattr__(name: str):
    raise _missing_name(__name__, "nl", name, _REMOVED, __all__)
