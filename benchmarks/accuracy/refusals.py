"""What trn1 lacks, and whether a kernel that asks for it is told so."""

import warnings

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError

from .experiments import spec, tile


def refusals():
    """Return how many of the five things that trn1 lacks are reported there."""

    def hardware(x):
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x, dge_mode=nisa.dge_mode.hwdge)

    def scalar_copy(x):
        a = tile((128, 64))
        nisa.tensor_copy(a, a, engine=nisa.engine.scalar)

    def small_tile(x):
        a, b = tile((32, 32), nl.bfloat16), nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(b, a, a, tile_position=(0, 0), tile_size=(32, 32))

    def two_banks(x):
        a, b = tile((128, 64), buffer=nl.psum), tile((128, 64), buffer=nl.psum)
        nisa.tensor_tensor(tile((128, 64)), a, b, op=nl.add)

    def exchange(x):
        a = tile((128, 64))
        nisa.sendrecv(src=a, dst=a, send_to_rank=0, recv_from_rank=0, pipe_id=0)

    return sum(map(reported, (hardware, scalar_copy, small_tile, two_banks, exchange)))


def reported(kernel):
    """Return True when a kernel is refused on trn1, or warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            nki.profile(kernel, target="trn1")(spec(128, 64, dtype="float32"))
        except NkiError:
            return True
    return any(getattr(w.message, "kind", "") == "scalar-copy" for w in seen)
