"""float64 products from bfloat16 engine passes (after Ozaki).

Each row of A and column of B is scaled by a power of two and cut into slices of 8 bits: integers up to 128,
exact in bfloat16. A product of two slices over 1024 terms stays below 2**24, so that PSUM sums it without
rounding; only the sum of the 36 slice products, in float64, rounds. What the slices leave out is below
2**-63 of the largest element of a row or column, so that also sums whose terms cancel are right.
"""

from __future__ import annotations

import torch

from trnblas.nki.launches import product

BITS = 8  # of a slice: |slice| <= 2**7
SLICES = 8  # 7 + 7 * 8 = 63 bits
EXACT_TERMS = 1024  # 2**10 products of 2**7 * 2**7 are 2**24


def split_product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Return A @ B of float64 matrices [..., m, k] and [..., k, n] with products on TensorE."""
    if 0 in (*A.shape, *B.shape) or not (torch.isfinite(A).all() and torch.isfinite(B).all()):
        return torch.matmul(A, B)  # neither nothing nor infinity has slices
    rows, row_exponents = slices(A, dim=-1)
    columns, column_exponents = slices(B, dim=-2)
    total = torch.zeros((), dtype=torch.float64, device=A.device)
    for order in reversed(range(SLICES)):  # the smallest terms first
        total = total * 2.0**-BITS + slice_products(rows, columns, order)
    return scale(total, row_exponents + column_exponents)


def slices(x: torch.Tensor, dim: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Split x = 2**exponent * sum of slice[i] * 2**(-8 i), with one exponent for each row or column."""
    largest = x.abs().amax(dim=dim, keepdim=True)
    exponents = torch.frexp(largest).exponent - (BITS - 1)
    rest = scale(x, -exponents)
    found = []
    for _ in range(SLICES):
        part = torch.round(rest)
        found.append(part.to(torch.bfloat16))
        rest = (rest - part) * 2.0**BITS
    return found, exponents


def slice_products(rows: list[torch.Tensor], columns: list[torch.Tensor], order: int) -> torch.Tensor:
    """Return the exact sum of rows[i] @ columns[order - i] over all i, in one launch."""
    left = torch.stack([in_chunks(rows[i], -1) for i in range(order + 1)])
    right = torch.stack([in_chunks(columns[order - i], -2) for i in range(order + 1)])
    return product(left, right, torch.float32).double().sum(dim=(0, 1))


def in_chunks(part: torch.Tensor, dim: int) -> torch.Tensor:
    """Cut a slice along K into pieces that sum exactly: a new leading dimension."""
    count = max(1, -(-part.shape[dim] // EXACT_TERMS))
    size = -(-part.shape[dim] // count)
    missing = count * size - part.shape[dim]
    padding = (0, missing) if dim == -1 else (0, 0, 0, missing)
    padded = torch.nn.functional.pad(part, padding)
    return torch.stack(padded.split(size, dim=dim))


def scale(x: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return x * 2**exponents in four steps: 2**exponents itself may be out of range."""
    quarter = torch.div(exponents, 4, rounding_mode="floor")
    step = power_of_two(quarter)
    return x * step * step * step * power_of_two(exponents - 3 * quarter)


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2.0**exponents, built from its bits: torch's pow and ldexp are not exact far from 1."""
    return ((exponents.long() + 1023) << 52).view(torch.float64)
