"""What `nki migrate` knows of older APIs: their modules, names and keywords, and what replaces them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

OLD = "neuronxcc"

# module -> the short name of the tables below; the first of each is the old one
SHORT = {
    "neuronxcc.nki.isa.constants": "nisa.constants",
    "neuronxcc.nki.language": "nl",
    "neuronxcc.nki.isa": "nisa",
    "neuronxcc.nki.compiler": "ncc",
    "neuronxcc.nki.typing": "nt",
    "neuronxcc.nki": "nki",
    "nki.language": "nl",
    "nki.isa": "nisa",
    "nki.typing": "nt",
    "nki": "nki",
    "numpy": "np",
}
NEW = {
    "nisa.constants": "nki.isa.constants",
    "nl": "nki.language",
    "nisa": "nki.isa",
    "nt": "nki.typing",
    "nki": "nki",
}

ADVICE = {
    "nl.arange": "slices, nl.ds(start, size), or t.ap(pattern)",
    "nl.mgrid": "slices, nl.ds(start, size), or t.ap(pattern)",
    "nl.par_dim": "the first dimension of a tile is the partition dimension; blocks are a list of tiles",
    "nl.loop_reduce": "nl.add into a tile, or nisa.nc_matmul into one PSUM tile",
    "nl.atomic_rmw": "nisa.dma_compute(dst, [dst, src], reduce_op=nl.add)",
    "nl.all_reduce": "no successor: combine the programs' results in HBM",
    "nl.nc": "kernel[2]",
    "nl.spmd_dim": "kernel[2]",
    "nl.static_cast": "nl.copy(tile, dtype=...) in a kernel, x.astype(...) on arrays",
    "nl.cast": "nl.copy(tile, dtype=...)",
    "nl.dynamic_range": "nl.fori_loop(lower, upper, body) (NKI 0.6)",
    "nki.baremetal": "call the kernel",
    "nki.simulate_kernel": "nki.simulate(kernel)(...)",
    "nki.benchmark": "nki.profile(kernel)(...).total_us, modelled",
    "nisa.tensor_copy_dynamic_src": "nisa.tensor_copy with t.ap(pattern, scalar_offset=register) (NKI 0.4)",
    "nisa.tensor_copy_dynamic_dst": "nisa.tensor_copy with t.ap(pattern, scalar_offset=register) (NKI 0.4)",
    "ncc.sbuf": "nl.ndarray(..., buffer=nl.sbuf, address=(partition, byte))",
    "ncc.psum": "nl.ndarray(..., buffer=nl.psum, address=(partition, byte))",
}
ATTRIBUTES = {  # the last part of a name -> today's
    "nl.tile_size.psum_fmax": "psum_bank_fmax",
    "nl.tile_size.total_available_sbuf_size": "sbuf_fmax_bytes",
    "nki.trace": "jit",
}
RANGES = ("nl.affine_range", "nl.sequential_range", "nl.static_range")  # today: range
NUMPY_OPERATORS = {"amax": "maximum", "max": "maximum", "amin": "minimum", "min": "minimum"}
KEYWORDS = {
    "mask": "bound the slice: t[0:min(n, 128)]",
    "dst_rmw_op": "nisa.dma_compute(dst, [dst, src], reduce_op=nl.add) (NKI 0.3)",
    "use_gpsimd_dma": "dma_engine= (NKI 0.3)",
    "platform_target": "the environment variable NEURON_PLATFORM_TARGET_OVERRIDE (NKI 0.3)",
    "mode": "leave it out (NKI 0.3)",
}
LEFT_OUT = ("mode", "platform_target", "debug_kernel")  # of @nki.jit: they have no effect today
OPERATORS = {
    **{"Add": "nl.add", "Subtract": "nl.subtract", "Multiply": "nl.multiply", "Divide": "nl.divide"},
    **{"Power": "nl.power", "Modulo": "nl.mod", "MatrixMultiply": "nl.matmul", "Minus": "nl.negative"},
    **{"BitAnd": "nl.bitwise_and", "BitOr": "nl.bitwise_or", "BitXor": "nl.bitwise_xor"},
}
NOT_TILES = {  # functions of nl whose result is no tile
    *("arange", "mgrid", "ds", "par_dim", "program_id", "num_programs", "program_ndim", "nc", "spmd_dim"),
    *("affine_range", "sequential_range", "static_range", "dynamic_range", "store", "device_print", "finfo"),
    *("sizeinbytes", "static_cast"),
}


def short_name(full: str) -> str:
    """Return `nl.load` for `neuronxcc.nki.language.load`; empty for what these tables do not know."""
    for module, short in SHORT.items():
        if full == module or full.startswith(f"{module}."):
            return short + full[len(module) :]
    return ""


def advice(short: str) -> str | None:
    """Return what replaces a name, None if today's module has it as it is."""
    for known, text in ADVICE.items():
        if short == known or short.startswith(f"{known}."):
            return text
    module, _, path = short.partition(".")
    if module == "ncc":
        return "no successor: the compiler decides"
    if module not in NEW or not path or path.startswith("_"):
        return None
    return None if _has(NEW[module], path) else "no successor of this name"


def _has(module: str, path: str) -> bool:
    home: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(home, part):
            return False
        home = getattr(home, part)
    return True


def is_method(name: str) -> bool:
    """Return whether today's tiles have an attribute."""
    from nki.language import NkiTensor

    return hasattr(NkiTensor, name)


def public(module: str) -> list[str]:
    """Return what a star import of an old module defines."""
    home = f"nki_legacy.old_api{module.removeprefix('neuronxcc.nki')}"
    try:
        return [name for name in vars(importlib.import_module(home)) if not name.startswith("_")]
    except ImportError:
        return []


@functools.cache
def parameters(short: str, old: bool) -> tuple[str, ...] | None:
    """Return the parameters of a function of today's or the old API; None where anything is taken."""
    module, _, name = short.partition(".")
    homes = {"nl": "nki_legacy.old_api.language", "nisa": "nki_legacy.old_api.isa"} if old else NEW
    function: Callable | None = getattr(importlib.import_module(homes[module]), name, None)
    try:
        signature = inspect.signature(function) if function is not None else None
    except (TypeError, ValueError):
        return None
    if signature is None or (
        not old and any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in signature.parameters.values())
    ):
        return None
    return tuple(signature.parameters)


def returns_today_writes(short: str) -> bool:
    """Return whether an old instruction returned a tile that today is its argument dst."""
    old, new = parameters(short, old=True), parameters(short, old=False)
    return bool(old and new) and new[0] == "dst" and old[0] != "dst"  # type: ignore[index]
