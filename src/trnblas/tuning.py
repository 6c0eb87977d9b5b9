"""Tile choice by the timing model, remembered on disk.

A shape is tuned by its bucket (powers of two up to 2048): the blocks are chosen by modelling each candidate
there. `TRNBLAS_AUTOTUNE=0` takes the default; `TRNBLAS_CACHE_DIR` says where the choices are kept.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from trnblas.backend import flag

DEFAULT = (512, 512)  # block_m, block_n
SYMMETRIC = DEFAULT  # of syrk: equal blocks, so that one load serves both operands
CANDIDATES = (DEFAULT, (512, 1024), (1024, 512), (1024, 1024), (512, 2048), (2048, 512))
SMALLEST, LARGEST = 128, 2048  # sizes of a bucket
FORMAT = 1

log = logging.getLogger("trnblas")
_known: dict[str, tuple[int, int]] = {}


def gemm_tiles(m: int, k: int, n: int, dtype: torch.dtype, layout: tuple[bool, bool]) -> tuple[int, int]:
    """(block_m, block_n) for a product of [m, k] and [k, n], stored transposed or not as `layout` says."""
    m, k, n = bucket(m), bucket(k), bucket(n)
    candidates = distinct(m, n)
    if len(candidates) == 1 or not flag("TRNBLAS_AUTOTUNE", default=True):
        return DEFAULT
    key = _key(m, k, n, dtype, layout)
    if key not in _known:
        _known.update(_read())
    if key not in _known:
        _known[key] = min(candidates, key=lambda tiles: modelled_us(m, k, n, dtype, layout, tiles))
        _write()
    return _known[key]


def bucket(size: int) -> int:
    """The next power of two, from 128 to 2048."""
    return min(LARGEST, max(SMALLEST, 1 << (max(1, size) - 1).bit_length()))


def distinct(m: int, n: int) -> list[tuple[int, int]]:
    """The candidates that cut these sizes differently."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for block_m, block_n in CANDIDATES:
        found.setdefault((min(m, block_m), min(n, block_n)), (block_m, block_n))
    return list(found.values())


def modelled_us(m: int, k: int, n: int, dtype: torch.dtype, layout: tuple[bool, bool], tiles: Any) -> float:
    """What the timing model says of the kernel; nothing is computed."""
    import nki
    from trnblas.nki.gemm import gemm_kernel

    name = str(dtype).removeprefix("torch.")
    a = nki.TensorSpec((k, m) if layout[0] else (m, k), name)
    b = nki.TensorSpec((n, k) if layout[1] else (k, n), name)
    return nki.profile(gemm_kernel)(a, b, *layout, *tiles).total_us


def _key(m: int, k: int, n: int, dtype: torch.dtype, layout: tuple[bool, bool]) -> str:
    import nki
    import nki.isa as nisa

    name = str(dtype).removeprefix("torch.")
    stored = "".join("t" if transposed else "n" for transposed in layout)
    return f"{nki.__version__} {nisa.get_nc_version().name} {name} {stored} {m}x{k}x{n}"


# ---- the file ------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where choices are kept between processes."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TRNBLAS_CACHE_DIR") or Path(home) / "trnblas") / "tiles.json"


def forget() -> None:
    """Forget what this process knows; the file stays."""
    _known.clear()


def _read() -> dict[str, tuple[int, int]]:
    """The choices on disk. A file that is not ours to understand is told of and built anew."""
    file = cache_file()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return _checked(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        log.warning("the tile cache %s cannot be used (%s); it is built anew", file, problem)
        return {}


def _checked(content: Any) -> dict[str, tuple[int, int]]:
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
    found = {str(key): tuple(tiles) for key, tiles in content["tiles"].items()}
    wrong = [key for key, tiles in found.items() if tiles not in CANDIDATES]
    if wrong:
        raise ValueError(f"no such tiles: {found[wrong[0]]}")
    return found  # type: ignore[return-value]


def _write() -> None:
    """Write all choices to a new file and put it in place at once: readers see the old file or the new."""
    file = cache_file()
    content = {"format": FORMAT, "tiles": {**_read_quietly(file), **_known}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            json.dump(content, new, indent=1, sort_keys=True)
        os.replace(name, file)
    except OSError as problem:
        log.warning("the tile cache %s cannot be written: %s", file, problem)


def _read_quietly(file: Path) -> dict[str, tuple[int, int]]:
    """What other processes wrote since."""
    try:
        return _checked(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
