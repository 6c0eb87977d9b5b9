"""Which expressions of a file are tiles: results of instructions, and what is computed from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import libcst as cst

from .old_names import NOT_TILES

Resolver = Callable[[cst.CSTNode], str]  # an expression -> `nl.load`, or empty


class TileValues(cst.CSTVisitor):
    """Names of each function that hold tiles, found by following assignments, calls and returns."""

    def __init__(self, name_of: Resolver):
        super().__init__()
        self.name_of = name_of
        self.function = ""  # the functions around the node, as a path
        self.tiles: dict[str, set[str]] = defaultdict(set)
        self.kernels: set[str] = set()  # called from a host, they return arrays
        self.returning: set[str] = set()  # functions that return tiles
        self.parameters: dict[str, list[str]] = {}
        self.changed = False

    def settle(self, module: cst.Module) -> None:
        """Visit the module until nothing new is found."""
        self.changed = True
        while self.changed:
            self.changed = False
            module.visit(self)

    # ---- what is a tile --------------------------------------------------------------------------

    def is_tile(self, node: cst.CSTNode | None) -> bool:
        """Return whether an expression is a tile, or a list of tiles."""
        if isinstance(node, cst.Name):
            return any(node.value in self.tiles[scope] for scope in self.scopes())
        if isinstance(node, cst.Call):
            return self.is_tile_call(node)
        if isinstance(node, cst.Attribute):
            return f".{node.attr.value}" in self.tiles[""]  # of an object: not t.shape
        if isinstance(node, cst.Subscript):
            return self.is_tile(node.value)
        return any(self.is_tile(part) for part in _parts(node))

    def is_tile_call(self, node: cst.Call) -> bool:
        module, _, name = self.name_of(node.func).partition(".")
        if module in ("nl", "nisa"):
            return name not in NOT_TILES
        if isinstance(node.func, cst.Attribute):
            return self.is_tile(node.func.value)  # t.reshape(...)
        return isinstance(node.func, cst.Name) and node.func.value in self.returning - self.kernels

    def scopes(self) -> Iterator[str]:
        scope = self.function
        while scope:
            yield scope
            scope = scope.rpartition(".")[0]
        yield ""

    def add(self, known: set[str], name: str) -> None:
        if name not in known:
            known.add(name)
            self.changed = True

    # ---- where tiles go --------------------------------------------------------------------------

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.function = f"{self.function}.{node.name.value}" if self.function else node.name.value
        self.parameters[node.name.value] = [p.name.value for p in node.params.params]

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.function = self.function.rpartition(".")[0]

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self.bind(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.bind(node.target, node.value)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self.bind(node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.bind(node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        self.bind(node.target, node.iter)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self.bind(node.target, node.iter)

    def bind(self, target: cst.CSTNode, value: cst.CSTNode | None) -> None:
        """Note what an assignment makes a tile."""
        if isinstance(target, (cst.Tuple, cst.List)):
            parts: list[cst.CSTNode | None] = [value] * len(target.elements)
            if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(parts):
                parts = [element.value for element in value.elements]
            for element, part in zip(target.elements, parts, strict=True):
                self.bind(element.value, part)
        elif isinstance(target, cst.Name) and self.is_tile(value):
            self.add(self.tiles[self.function], target.value)
        elif isinstance(target, cst.Attribute) and self.is_tile(value):
            self.add(self.tiles[""], f".{target.attr.value}")
        elif isinstance(target, cst.Subscript) and self.is_tile(value):
            self.bind(target.value, value)  # a list or a dictionary of tiles

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "append" and node.args:
            self.bind(node.func.value, node.args[0].value)
        callee = node.func.value if isinstance(node.func, cst.Name) else ""
        names = self.parameters.get(callee if isinstance(callee, str) else "", [])
        for position, argument in enumerate(node.args):
            name = (
                argument.keyword.value if argument.keyword else next(iter(names[position : position + 1]), "")
            )
            if name in names and self.is_tile(argument.value):
                self.add(self.tiles[str(callee)], name)

    def visit_Return(self, node: cst.Return) -> None:
        if self.is_tile(node.value):
            self.add(self.returning, self.function.rpartition(".")[2])


def _parts(node: cst.CSTNode | None) -> list[cst.CSTNode]:
    """Return the operands that make an operation a tile."""
    if isinstance(node, cst.BinaryOperation):
        return [node.left, node.right]
    if isinstance(node, cst.UnaryOperation):
        return [node.expression]
    if isinstance(node, cst.Comparison):
        return [node.left, *(part.comparator for part in node.comparisons)]
    if isinstance(node, cst.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (cst.Tuple, cst.List)):
        return [element.value for element in node.elements]
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        return [node.elt]
    if isinstance(node, cst.Dict):
        return [element.value for element in node.elements]
    return []
