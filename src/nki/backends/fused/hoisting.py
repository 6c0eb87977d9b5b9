"""Hoisting: packs the factors that all repetitions of a unit share once, before the units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.layout import Shape
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.dtypes import float32
from ...machine.memories import SBUF
from .products import Factor, Gemm, Pack
from .values import Elements, SSAValue

MAX_BYTES = 32 << 20  # of all hoisted factors


class Hoisting:
    """The factors that are packed before the units. The beginning of one is not packed again."""

    def __init__(self) -> None:
        self.packs: list[Pack] = []
        self.nbytes = 0

    def hoist(self, steps: Sequence[Any], is_common: Callable[[Elements], bool]) -> list[Any]:
        """Return the steps of a unit with views of hoisted factors, those of which all tiles are common."""
        gemms = [step for step in steps if step.__class__ is Gemm]
        factors = [factor for gemm in gemms for factor in (gemm.left, gemm.right)]
        views = {}
        for factor in sorted(factors, key=lambda factor: -factor.nbytes):
            if factor.tiles and all(is_common(tile.elements) for tile in factor.tiles):
                views[id(factor)] = self._view(factor)
        return [
            step._replace(
                left=views.get(id(step.left), step.left), right=views.get(id(step.right), step.right)
            )
            if step.__class__ is Gemm
            else step
            for step in steps
        ]

    def _view(self, factor: Factor) -> Factor:
        for pack in self.packs:
            if _begins(factor, pack.factor):
                return _view(factor, pack)
        if self.nbytes + factor.nbytes > MAX_BYTES:
            return factor
        self.nbytes += factor.nbytes
        shape = Shape((factor.rows, factor.columns))
        value = SSAValue(View(Storage(SBUF, shape, float32), 0, shape, (factor.columns, 1), float32))
        self.packs.append(Pack(factor, value))
        return _view(factor, self.packs[-1])


def _begins(factor: Factor, other: Factor) -> bool:
    """Return whether a factor is the same as the first rows, or the first columns, of another one."""
    if factor.terms != other.terms:
        return False
    if factor.columns == other.columns:
        return factor.tiles == (other.tiles if factor.terms > 1 else other.tiles[: len(factor.tiles)])
    if len(factor.tiles) != 1 or len(other.tiles) != 1:
        return False
    (one,), (two,) = factor.tiles, other.tiles
    start, there = one.elements, two.elements
    return (
        one.strides is not None
        and (one.rows, one.strides) == (two.rows, two.strides)
        and one.columns <= two.columns
        and (start.base, start.offset, start.dtype) == (there.base, there.offset, there.dtype)
    )


def _view(factor: Factor, pack: Pack) -> Factor:
    """Return a factor as the first rows and columns of a packed one."""
    strides = (pack.factor.columns, 1)
    elements = Elements(pack.value, 0, (factor.rows, factor.columns), strides, float32)
    return Factor(factor.rows, factor.columns, elements, [], 1)
