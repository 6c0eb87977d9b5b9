"""trnblas.explain: which kernel, tiles, padding and backend would serve a call, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trnblas.arguments import check_precision
from trnblas.backend import PYTORCH, Choice, choose
from trnblas.tuning import SYMMETRIC, gemm_tiles

# operation -> its kernel; None: no kernel, PyTorch on every backend
KERNELS: dict[str, str | None] = {
    **dict.fromkeys(("axpy", "dot", "nrm2", "scal", "asum", "iamax"), None),
    **dict.fromkeys(("gemv", "symv", "trmv", "ger", "gemm", "symm", "trmm", "nki_gemm"), "gemm_kernel"),
    **dict.fromkeys(("batched_gemm", "nki_batched_gemm"), "batched_gemm_kernel"),
    **dict.fromkeys(("syrk", "nki_syrk"), "syrk_kernel"),
    **dict.fromkeys(("trsm", "nki_trsm"), "trsm_kernel"),
    "nki_mp2_energy": "mp2_energy_kernel",
}
TILE = 128


@dataclass(frozen=True)
class Explanation:
    """How a call would be served."""

    op: str
    backend: str  # "simulator", "device" or "PyTorch"
    kernel: str  # empty for PyTorch
    tiles: tuple[int, ...] | None  # (block_m, block_n); None without blocks of that kind
    padding: str
    why: str

    def __str__(self) -> str:
        tiles = "" if self.tiles is None else f", blocks of {' x '.join(map(str, self.tiles))}"
        where = f"{self.kernel} on the {self.backend}" if self.kernel else self.backend
        return f"{self.op}: {where}{tiles}; padding: {self.padding}. {self.why}"


class Flags(NamedTuple):
    """The flags of a call that change the sizes of its product."""

    transA: bool = False
    transB: bool = False
    trans: bool = False
    side: str = "left"


def explain(
    op: str,
    *shapes: torch.Tensor | Sequence[int],
    dtype: torch.dtype = torch.float32,
    precision: str | None = None,
    transA: bool = False,
    transB: bool = False,
    trans: bool = False,
    side: str = "left",
) -> Explanation:
    """Explain how `op` on operands of these shapes (or on these tensors) would be served now.

    The shapes are those of the operands in the order of the call: explain("gemm", (1000, 700), (700, 900)).
    """
    if op not in KERNELS:
        raise ValueError(f"explain: {op!r} is not an operation; there are {', '.join(KERNELS)}")
    check_precision("explain", precision)
    tensors = [shape for shape in shapes if isinstance(shape, torch.Tensor)]
    dtype, device = (tensors[0].dtype, tensors[0].device.type) if tensors else (dtype, "cpu")
    sizes = [tuple(shape.shape if isinstance(shape, torch.Tensor) else shape) for shape in shapes]
    if KERNELS[op] is None:
        return _in_torch(op, "one pass over memory: PyTorch serves level 1 on every backend")
    choice = choose(dtype, device, precision)
    if not choice.nki:
        return _in_torch(op, choice.why)
    if any(0 in size for size in sizes):
        return _in_torch(op, "an operand is empty: the result is zeros, or scaled C")
    flags = Flags(transA, transB, trans, side)
    return _by_kernel(op, sizes, dtype, precision, flags, choice)


def _in_torch(op: str, why: str) -> Explanation:
    return Explanation(op, PYTORCH, "", None, "none", why)


def _by_kernel(
    op: str, sizes: list[tuple], dtype: torch.dtype, precision: str | None, flags: Flags, choice: Choice
) -> Explanation:
    place, why = choice
    kernel = KERNELS[op] or ""
    if kernel == "mp2_energy_kernel":
        return Explanation(op, place, kernel, None, "none: the last tile of virtuals is cut", why)
    if kernel == "trsm_kernel":
        n = sizes[0][-1]
        return Explanation(op, place, kernel, None, f"n {n} -> {_up(n)} in HBM, result sliced back", why)
    m, k, n = product_sizes(op, sizes, flags)
    layout = (flags.transA or (flags.trans and flags.side == "left"), flags.transB)
    array = f"{_up(m)} x {_up(k)} x {n}"
    padding = f"none in HBM: edge tiles are cut; the PE array computes {array} for {m} x {k} x {n}"
    if precision == "fp64":
        count = "36 bfloat16 products of slices"
        return Explanation(
            op,
            place,
            f"batched_gemm_kernel, {count}",
            gemm_tiles(m, k, n, torch.bfloat16, (False, False)),
            padding,
            why,
        )
    if kernel == "syrk_kernel":
        return Explanation(op, place, kernel, SYMMETRIC, padding, why)
    return Explanation(op, place, kernel, gemm_tiles(m, k, n, dtype, layout), padding, why)


def _up(size: int) -> int:
    return -(-size // TILE) * TILE


def product_sizes(op: str, sizes: list[tuple], flags: Flags) -> tuple[int, int, int]:
    """Return (m, k, n) of the product that an operation computes."""
    name = op.removeprefix("nki_")
    if name == "ger":
        return sizes[0][-1], 1, sizes[1][-1]
    if name == "syrk":
        n, k = _matrix_size(sizes[0], flags.trans)
        return n, k, n
    left = _matrix_size(sizes[0], flags.transA or flags.trans)
    if name in ("gemv", "symv", "trmv"):
        return *left, 1
    right = _matrix_size(sizes[1], flags.transB)
    if name in ("symm", "trmm") and flags.side == "right":
        left, right = right, left
    if left[1] != right[0]:
        raise ValueError(f"explain: {op} of {sizes[0]} and {sizes[1]}: {left[1]} != {right[0]}")
    return *left, right[1]


def _matrix_size(size: tuple, trans: bool) -> tuple[int, int]:
    return (size[-1], size[-2]) if trans else (size[-2], size[-1])
