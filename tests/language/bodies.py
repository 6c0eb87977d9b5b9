"""Running small pieces of kernel code, for tests of `nl`."""

from __future__ import annotations

import warnings

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target, to_tile


def run(body, *arrays, on="trn2"):
    """`body(*HBM tensors)` in a kernel; the tensors it returns come back as arrays, other values do not."""

    @nki.jit
    def kernel(inputs):
        result = body(*inputs)
        return [out_of(t) for t in result] if isinstance(result, (list, tuple)) else out_of(result)

    with target(on), warnings.catch_warnings():
        warnings.simplefilter("ignore", nki.NkiWarning)
        return kernel(list(arrays))


def out_of(tile):
    """A shared HBM tensor with the contents of a tile; anything but a tensor becomes None."""
    if not isinstance(tile, nl.NkiTensor):
        return None
    if tile.buffer is nl.shared_hbm:
        return tile
    if tile.buffer is nl.psum:
        tile = nl.copy(tile)
    hbm = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, tile)
    return hbm


def on_tiles(function, *arrays, on="trn2", psum=()):
    """`function(*tiles)` on tiles holding the arrays, those at the positions `psum` in PSUM."""

    def body(*tensors):
        return function(*(to_tile(t, nl.psum if i in psum else nl.sbuf) for i, t in enumerate(tensors)))

    return run(body, *arrays, on=on)


def kinds(body, *arrays, on="trn2"):
    """The kinds of the diagnostics that `body(*HBM tensors)` causes, in order."""

    @nki.jit
    def kernel(inputs):
        body(*inputs)

    with target(on), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = [d.kind for d in kernel.run(list(arrays)).diagnostics]
    return [kind for kind in kinds if kind != "no-effect"]  # these kernels return nothing


def kinds_on_tiles(function, *arrays, on="trn2"):
    """The kinds of the diagnostics that `function(*tiles)` causes."""
    return kinds(lambda *tensors: function(*(to_tile(t, nl.sbuf) for t in tensors)), *arrays, on=on)


def issued(function, *arrays, on="trn2"):
    """How often each instruction was issued for `function(*tiles)`, the loads of the tiles apart."""

    @nki.jit
    def kernel(inputs):
        function(*(to_tile(t, nl.sbuf) for t in inputs))

    with target(on), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = kernel.run(list(arrays)).statistics.by_instruction
    counts["dma_copy"] -= len(arrays)
    return {name: count for name, count in counts.items() if count}


def refusal(body, *arrays, on="trn2"):
    """The NkiError that `body(*HBM tensors)` raises."""
    with pytest.raises(nki.NkiError) as caught:
        run(body, *arrays, on=on)
    return caught.value


def refusal_when_strict(body, *arrays, on="trn2"):
    """The same in strict mode, which refuses what is a warning elsewhere, such as an operand in HBM."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPEN_NKI_STRICT", "1")
        return refusal(body, *arrays, on=on)


def refusal_on_tiles(function, *arrays, on="trn2", psum=()):
    with pytest.raises(nki.NkiError) as caught:
        on_tiles(function, *arrays, on=on, psum=psum)
    return caught.value
