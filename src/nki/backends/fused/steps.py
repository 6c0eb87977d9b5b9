"""Steps: what a finished plan says, in numbers alone.

Storages and instructions are counted as the Program counts them, and everything else is bytes, so a plan
belongs to every Program of equal content, in this process or in another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...machine.dtypes import DType

ARENA = -1  # in the place of a storage's number: the array of the values


class Spot(NamedTuple):
    """An array: elements of a storage, or of the arena. Offset and strides are in bytes."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


class Packing(NamedTuple):
    """A tile of a packed factor: rows `row`, `row + step`, ... and columns from `column` on."""

    row: int
    step: int
    rows: int
    column: int
    columns: int
    source: Spot


class Matrix(NamedTuple):
    """A factor [K, M] of a product: float32 that is there, or tiles to be packed side by side."""

    rows: int
    columns: int
    there: Spot | None
    tiles: tuple[Packing, ...]
    turned: bool  # packed column by column: the tiles lie so

    @property
    def nbytes(self) -> int:
        return 0 if self.there is not None else 4 * self.rows * self.columns


class Part(NamedTuple):
    """Rows and columns of a product, and where else they are stored."""

    row: int
    rows: int
    column: int
    columns: int
    target: Spot


class Product(NamedTuple):
    """left.T @ right, for the products of many tiles."""

    left: Matrix
    right: Matrix
    target: Spot | None  # where the result goes, if it is one matrix in HBM
    result: int  # else its byte in the arena
    copies: tuple[Part, ...]
    tiles: int
    terms: int  # products of tiles in all


class Operand(NamedTuple):
    """An operand that is read: its number, and where it is; None: in the memory of its storage."""

    number: int
    source: Spot | None


class Made(NamedTuple):
    """An operand that is written, and where what it held before is, where that counts."""

    number: int
    target: Spot | None
    before: Spot | None


class Work(NamedTuple):
    """What is done by itself: an instruction, a gathering of pieces, or a fence."""

    kind: str  # "compute", "move", "memory", "gather" or "fence"
    item: int  # among the items of the core; -1: none
    position: int  # in the walk of the core
    reads: tuple[Operand, ...]
    outs: tuple[Made, ...]
    parts: tuple[tuple[Spot, Spot], ...]  # gather: where each piece goes, and whence it comes
    written: bool | None  # a matmul: dst holds a sum; None: its memory knows
    order: Any  # move: how the dimensions of src are permuted; None, "transpose" or numbers
    nbytes: int  # of what it makes in the arena


Step = Product | Work


class CorePlan(NamedTuple):
    """What one core does, in order."""

    steps: tuple[Step, ...]
    arena: int  # bytes of the values
    packed: int  # bytes of the largest pair of packed factors
    folded: dict[str, int]


class Result(NamedTuple):
    """HBM that is written once everywhere and read by nobody."""

    storage: int
    views: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] | None  # None: all of it is written


class Plan(NamedTuple):
    """A program as a few large operations. It never changes; calls of equal programs share it."""

    cores: tuple[CorePlan, ...]
    results: tuple[Result, ...]
    in_place: tuple[tuple[int, str], ...]  # storages that are not followed value by value, and why
    parts: int  # tiles that are not
    independent: bool  # nothing that one core writes matters to another

    @property
    def products(self) -> Iterator[Product]:
        return (step for core in self.cores for step in core.steps if step.__class__ is Product)  # type: ignore[misc]

    @property
    def flops(self) -> int:
        """Floating-point operations of its large products."""
        return sum(2 * p.left.rows * p.left.columns * p.right.columns for p in self.products)


__all__ = [
    "ARENA",
    "CorePlan",
    "Made",
    "Matrix",
    "Operand",
    "Packing",
    "Part",
    "Plan",
    "Product",
    "Result",
    "Spot",
    "Step",
    "Work",
]
