"""The steps of a plan, in numbers alone.

Storages and instructions are the numbers that the Program gives them, and everything else is bytes, so
Programs of equal content share a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

from ...machine.dtypes import DType

BLOCK = 1024  # rows and columns of a product that one thread works on
MAX_PACKED = 4 << 20  # bytes of the packed factors of a product in a chain
ARENA = -1  # instead of a storage's number: the array of the values
REGION = -2  # the array of the values of one chain
COMMON = -3  # in a unit: the array of the values of the steps before it


class ArrayRef(NamedTuple):
    """An array: elements of a storage, an arena or a region. Offset and strides are in bytes."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


class PackedTile(NamedTuple):
    """A tile of a packed factor: rows `row`, `row + step`, ... and columns from `column` on."""

    row: int
    step: int
    rows: int
    column: int
    columns: int
    source: ArrayRef


class Matrix(NamedTuple):
    """A factor [K, M] of a product: a view of float32, or tiles to be packed side by side."""

    rows: int
    columns: int
    view: ArrayRef | None
    tiles: tuple[PackedTile, ...]
    transposed: bool  # packed column by column, as most of the tiles lie

    @property
    def nbytes(self) -> int:
        return 0 if self.view is not None else 4 * self.rows * self.columns


class StoredBlock(NamedTuple):
    """Rows and columns of a product, and where else they are stored."""

    row: int
    rows: int
    column: int
    columns: int
    target: ArrayRef


class GemmStep(NamedTuple):
    """left.T @ right, for the products of many tiles."""

    left: Matrix
    right: Matrix
    target: ArrayRef | None  # where the result goes, if it is one matrix in HBM
    result: int  # else its byte offset in the arena
    copies: tuple[StoredBlock, ...]
    tiles: int
    terms: int  # tile products in all

    @property
    def packed_bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    def refs(self) -> Iterator[ArrayRef]:
        """Iterate over the arrays that it touches, except its own buffer."""
        for factor in (self.left, self.right):
            if factor.view is not None:
                yield factor.view
            yield from (tile.source for tile in factor.tiles)
        if self.target is not None:
            yield self.target
        yield from (block.target for block in self.copies)


class PackStep(NamedTuple):
    """A factor of later products, packed as a matrix."""

    factor: Matrix
    target: ArrayRef

    def refs(self) -> Iterator[ArrayRef]:
        """Iterate over the arrays that it touches."""
        yield self.target
        yield from (tile.source for tile in self.factor.tiles)


class InputRef(NamedTuple):
    """An operand that is read: its number, and where it is; None: in the memory of its storage."""

    number: int
    source: ArrayRef | None


class OutputRef(NamedTuple):
    """An operand that is written; `before`: what it held, where the instruction keeps a part of that."""

    number: int
    target: ArrayRef | None
    before: ArrayRef | None


class InstructionStep(NamedTuple):
    """An instruction, a gather of parts, or a fence."""

    kind: str  # "compute", "move", "memory", "gather" or "fence"
    item: int  # among the items of the core; -1: none
    position: int  # in the walk of the core
    reads: tuple[InputRef, ...]
    outputs: tuple[OutputRef, ...]
    parts: tuple[tuple[ArrayRef, ArrayRef], ...]  # gather: target and source of each part
    written: bool | None  # a matmul: dst holds a sum; None: ask its memory
    order: Any  # move: how the dimensions of src are permuted; None, "transpose" or numbers
    nbytes: int  # of its outputs in the arena

    def refs(self) -> Iterator[ArrayRef]:
        """Iterate over the arrays that it touches, except memory in place."""
        for _, source in self.reads:
            if source is not None:
                yield source
        for _, target, before in self.outputs:
            yield from (ref for ref in (target, before) if ref is not None)
        for part in self.parts:
            yield from part


class ParallelSteps(NamedTuple):
    """Steps in chains that need nothing of each other."""

    ends: tuple[int, ...]  # number of the step after each chain
    storages: tuple[int, ...]  # what they touch
    registers: tuple[tuple[str, int], ...]  # the chain that uses each set of accumulator registers last


PlanStep = GemmStep | PackStep | InstructionStep


class CorePlan(NamedTuple):
    """What one core does, in order."""

    steps: tuple[PlanStep, ...]
    chains: dict[int, ParallelSteps]  # by the number of their first step
    arena: int  # bytes of the values
    region: int  # bytes of the values of the largest chain
    packed: int  # bytes of the largest pair of packed factors
    fused: dict[str, int]
    units: tuple[RepeatedUnit, ...] = ()  # what comes after the steps, in any order
    registers: tuple[tuple[str, int, int], ...] = ()  # the last use of each set: its unit and repetition

    @property
    def products(self) -> Iterator[GemmStep]:
        """All products, those of a unit as often as it is repeated."""
        yield from (step for step in self.steps if step.__class__ is GemmStep)  # type: ignore[misc]
        for unit in self.units:
            yield from chain.from_iterable(repeat(tuple(unit.plan.products), len(unit.shifts)))

    def memory(self, threads: int) -> int:
        """Return the bytes of values and packed factors, if so many threads share chains and units."""
        units = max((unit.plan.memory(1) for unit in self.units), default=0)
        return self.arena + self.packed + threads * (self.region + units)


class RepeatedUnit(NamedTuple):
    """Equal and independent parts of a core: the plan of the first one, and where the others are."""

    plan: CorePlan
    shifts: tuple[dict[int, int], ...]  # of each one: bytes by which its arrays in a storage are moved
    tiles: tuple[int, ...]  # its own ones that are not tracked: each repetition has memory for them


class WriteOnceResult(NamedTuple):
    """HBM of which every element is written at most once, and never read."""

    storage: int
    views: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] | None  # None: all of it is written


class FusedPlan(NamedTuple):
    """A program as a few large operations. It never changes; calls of equal programs share it."""

    cores: tuple[CorePlan, ...]
    results: tuple[WriteOnceResult, ...]
    in_place: tuple[tuple[int, str], ...]  # storages that are not tracked, and why
    parts: int  # tiles that are not tracked
    independent: bool  # no core writes what another one uses

    @property
    def products(self) -> Iterator[GemmStep]:
        return chain.from_iterable(core.products for core in self.cores)

    @property
    def flops(self) -> int:
        """Floating-point operations of the large products."""
        return sum(2 * p.left.rows * p.left.columns * p.right.columns for p in self.products)
