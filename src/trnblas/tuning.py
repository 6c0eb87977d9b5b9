"""Tile choice by the timing model, cached on disk by `nki.tune`.

A shape is tuned by its bucket (powers of two up to 2048): the blocks are chosen by modelling each candidate
there. `TRNBLAS_AUTOTUNE=0` takes the default; `TRNBLAS_CACHE_DIR` is the directory of the cache.
"""

from __future__ import annotations

import os

import torch

from trnblas.backend import flag

DEFAULT = (512, 512)  # block_m, block_n
SYMMETRIC = DEFAULT  # of syrk: equal blocks, so that one load serves both operands
CANDIDATES = (DEFAULT, (512, 1024), (1024, 512), (1024, 1024), (512, 2048), (2048, 512))
SMALLEST, LARGEST = 128, 2048  # sizes of a bucket

_known: dict[tuple, tuple[int, int]] = {}


def gemm_tiles(m: int, k: int, n: int, dtype: torch.dtype, layout: tuple[bool, bool]) -> tuple[int, int]:
    """Return (block_m, block_n) for a product of [m, k] and [k, n]; `layout` says which are transposed."""
    m, k, n = bucket(m), bucket(k), bucket(n)
    candidates = distinct(m, n)
    if len(candidates) == 1 or not flag("TRNBLAS_AUTOTUNE", default=True):
        return DEFAULT
    import nki.isa as nisa

    key = (nisa.get_nc_version().name, m, k, n, dtype, layout)
    if key not in _known:
        _known[key] = fastest(m, k, n, dtype, layout, candidates)
    return _known[key]


def bucket(size: int) -> int:
    """Return the next power of two, from 128 to 2048."""
    return min(LARGEST, max(SMALLEST, 1 << (max(1, size) - 1).bit_length()))


def distinct(m: int, n: int) -> list[tuple[int, int]]:
    """Return the candidates that divide these sizes differently."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for block_m, block_n in CANDIDATES:
        found.setdefault((min(m, block_m), min(n, block_n)), (block_m, block_n))
    return list(found.values())


def fastest(
    m: int,
    k: int,
    n: int,
    dtype: torch.dtype,
    layout: tuple[bool, bool],
    candidates: list[tuple[int, int]],
) -> tuple[int, int]:
    """Return the candidate that the model finds fastest; nothing is computed."""
    import nki
    from nki.tune import tune
    from trnblas.nki.gemm import gemm_kernel

    name = str(dtype).removeprefix("torch.")
    a = nki.TensorSpec((k, m) if layout[0] else (m, k), name)
    b = nki.TensorSpec((n, k) if layout[1] else (k, n), name)
    blocks = {"block_m": sorted({c[0] for c in candidates}), "block_n": sorted({c[1] for c in candidates})}
    found = tune(
        gemm_kernel,
        (a, b, *layout),
        vary=blocks,
        where=lambda config: (config["block_m"], config["block_n"]) in candidates,
        jobs=1,
        cache=os.environ.get("TRNBLAS_CACHE_DIR") or True,
    )
    return found.best["block_m"], found.best["block_n"]


def forget() -> None:
    """Clear this process's choices; the files stay."""
    _known.clear()
