"""A plan as text and back: plain data (JSON), of which nothing is executed."""

from __future__ import annotations

import json
from typing import Any

from ...machine.dtypes import NAMES
from .steps import CorePlan, Made, Matrix, Operand, Packing, Part, Plan, Product, Result, Spot, Step, Work

Data = Any  # what JSON can hold


def text(plan: Plan) -> str:
    """One JSON object. Layouts that many operands share stand in it once."""
    writer = _Writer()
    cores = [writer.core(core) for core in plan.cores]
    content = {
        "layouts": list(writer.layouts),
        "cores": cores,
        "results": plan.results,
        "in_place": plan.in_place,
        "parts": plan.parts,
        "independent": plan.independent,
    }
    return json.dumps(content, separators=(",", ":"))


def parsed(text: str) -> Plan:
    """The plan of a text. Whatever is no plan raises ValueError, TypeError, KeyError or IndexError."""
    content = json.loads(text)
    reader = _Reader(content["layouts"])
    return Plan(
        tuple([reader.core(core) for core in content["cores"]]),
        tuple([Result(number, views and _views(views)) for number, views in content["results"]]),
        tuple([(number, why) for number, why in content["in_place"]]),
        content["parts"],
        content["independent"],
    )


def _views(views: Data) -> tuple:
    return tuple([(offset, tuple(shape), tuple(strides)) for offset, shape, strides in views])


class _Writer:
    def __init__(self) -> None:
        self.layouts: dict[tuple, int] = {}  # shape, strides, dtype

    def core(self, core: CorePlan) -> Data:
        steps = [self.product(s) if isinstance(s, Product) else self.work(s) for s in core.steps]
        return {"steps": steps, "arena": core.arena, "packed": core.packed, "folded": core.folded}

    def spot(self, spot: Spot | None) -> Data:
        if spot is None:
            return None
        layout = self.layouts.setdefault((spot.shape, spot.strides, str(spot.dtype)), len(self.layouts))
        return spot.storage, spot.offset, layout

    def product(self, product: Product) -> Data:
        copies = [(*part[:-1], self.spot(part.target)) for part in product.copies]
        left, right = self.matrix(product.left), self.matrix(product.right)
        target = self.spot(product.target)
        return "product", left, right, target, product.result, copies, product.tiles, product.terms

    def matrix(self, matrix: Matrix) -> Data:
        tiles = [(*tile[:-1], self.spot(tile.source)) for tile in matrix.tiles]
        return matrix.rows, matrix.columns, self.spot(matrix.there), tiles, matrix.turned

    def work(self, work: Work) -> Data:
        reads = [(number, self.spot(source)) for number, source in work.reads]
        outs = [(number, self.spot(target), self.spot(before)) for number, target, before in work.outs]
        parts = [(self.spot(target), self.spot(source)) for target, source in work.parts]
        return (*work[:3], reads, outs, parts, work.written, work.order, work.nbytes)


class _Reader:
    def __init__(self, layouts: Data):
        self.layouts = [(tuple(shape), tuple(strides), NAMES[dtype]) for shape, strides, dtype in layouts]

    def core(self, core: Data) -> CorePlan:
        steps = tuple([self.step(*step) for step in core["steps"]])
        return CorePlan(steps, core["arena"], core["packed"], core["folded"])

    def spot(self, spot: Data) -> Any:
        if spot is None:
            return None
        storage, offset, layout = spot
        return Spot(storage, offset, *self.layouts[layout])

    def step(self, kind: str, *parts: Data) -> Step:
        return self.product(*parts) if kind == "product" else self.work(kind, *parts)

    def product(
        self, left: Data, right: Data, target: Data, result: int, copies: Data, tiles: int, terms: int
    ) -> Product:
        found = tuple([Part(r, m, c, n, self.spot(at)) for r, m, c, n, at in copies])
        return Product(
            self.matrix(*left), self.matrix(*right), self.spot(target), result, found, tiles, terms
        )

    def matrix(self, rows: int, columns: int, there: Data, tiles: Data, turned: bool) -> Matrix:
        packings = tuple([Packing(r, step, m, c, n, self.spot(at)) for r, step, m, c, n, at in tiles])
        return Matrix(rows, columns, self.spot(there), packings, turned)

    def work(
        self,
        kind: str,
        item: int,
        position: int,
        reads: Data,
        outs: Data,
        parts: Data,
        written: bool | None,
        order: Data,
        nbytes: int,
    ) -> Work:
        spot = self.spot
        return Work(
            kind,
            item,
            position,
            tuple([Operand(number, spot(source)) for number, source in reads]),
            tuple([Made(number, spot(target), spot(before)) for number, target, before in outs]),
            tuple([(spot(target), spot(source)) for target, source in parts]),
            written,
            tuple(order) if isinstance(order, list) else order,
            nbytes,
        )


__all__ = ["parsed", "text"]
