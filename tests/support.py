"""Running single instructions on tiles, for tests of their meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl


@contextmanager
def target(platform: str):
    """Kernels inside run on this platform."""
    before = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = platform
    try:
        yield
    finally:
        if before is None:
            del os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]
        else:
            os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = before


def loaded(tensor: Any, dtype: Any = None) -> Any:
    """A tile in SBUF that holds an HBM tensor; a copy may cast."""
    tile = nl.ndarray(tensor.shape, dtype or tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, tensor)
    return tile


def stored(tile: Any) -> Any:
    """A result that holds a tile."""
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def to_tile(tensor: Any, buffer: Any) -> Any:
    """An on-chip tile holding the contents of an HBM tensor."""
    tile = loaded(tensor)
    if buffer is nl.psum:
        psum = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.psum)
        nisa.tensor_copy(psum, tile)
        return psum
    return tile


def run_tiles(
    body: Callable[..., Any],
    inputs: Sequence[np.ndarray] = (),
    outputs: Sequence[Any] = (),
    on: str = "trn2",
    in_psum: Sequence[int] = (),
    out_psum: Sequence[int] = (),
) -> list[np.ndarray]:
    """Call `body(*output tiles, *input tiles)` in a kernel and return the output tiles' contents.

    An output is (shape, dtype), or an array: then the tile starts with its contents.
    `in_psum` and `out_psum` name the positions that go to PSUM instead of SBUF.
    """
    initial = [o if isinstance(o, np.ndarray) else None for o in outputs]
    specs = [(o.shape, o.dtype) if isinstance(o, np.ndarray) else o for o in outputs]

    @nki.jit
    def kernel(arrays, starts):
        tiles = [to_tile(a, nl.psum if i in in_psum else nl.sbuf) for i, a in enumerate(arrays)]
        outs = []
        for i, (shape, dtype) in enumerate(specs):
            where = nl.psum if i in out_psum else nl.sbuf
            outs.append(
                nl.ndarray(shape, dtype, buffer=where) if starts[i] is None else to_tile(starts[i], where)
            )
        body(*outs, *tiles)
        results = []
        for tile in outs:
            if tile.buffer is nl.psum:
                copy = nl.ndarray(tile.shape, tile.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(copy, tile)
                tile = copy
            hbm = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(hbm, tile)
            results.append(hbm)
        return results

    with target(on):
        return kernel(list(inputs), initial)


def unseen(found):
    """A function that appends to a list, and that the program cache takes for one of nki's own.

    So a test can count how often a kernel's Python runs: what a kernel reads otherwise is looked at.
    """
    namespace = {"__name__": "nki.language.tests", "found": found}
    exec("def ran(value=None):\n    found.append(value)\n", namespace)
    return namespace["ran"]


def refused(kind, text, action):
    """`action()` raises this kind of error with this piece of text; returns the error."""
    with pytest.raises(nki.NkiError) as caught:
        action()
    assert caught.value.kind == kind, caught.value
    assert text in str(caught.value), caught.value
    return caught.value


def refused_tiles(kind, text, body, inputs=(), outputs=(), **options):
    """The same of a body that runs on tiles: see `run_tiles`."""
    return refused(kind, text, lambda: run_tiles(body, inputs, outputs, **options))
