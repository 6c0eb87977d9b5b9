"""The visitor that finds what `python_rules` lists in expressions: operators, calls, names, literals.

Each rule that needs to know names or kinds is one short method. An unknown kind is never reported.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nki.check import python_rules as rules
from nki.check.python_bindings import Function, SourceFile, bindings_of, unstable_names
from nki.check.python_rules import RULES, Level
from nki.check.python_scope import (
    MISSING,
    NoneType,
    RegisterKind,
    Scope,
    TileKind,
    defines_eq,
    is_kind,
    is_nki_object,
)

ORDERING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Hit(NamedTuple):
    """One rule broken at one node."""

    code: str
    level: Level
    message: str
    node: ast.AST


class Use(NamedTuple):
    """A name of nki, a method of a tensor or a construct that a unit uses, for the checks of releases.

    `value` is what the name stands for, MISSING if it is unknown; `call` is the call that it is used in.
    """

    name: str
    node: ast.AST
    value: Any = MISSING
    call: ast.Call | None = None


@dataclass
class LintUnit:
    """A function or class to check, with its file and the objects its names stand for."""

    node: Function | ast.ClassDef
    source: SourceFile
    namespace: Mapping[str, Any]
    enclosing: tuple[Function, ...] = ()  # functions around it, outermost first
    owner: type | None = None  # the class itself, if the unit is one


class ExpressionChecker(ast.NodeVisitor):
    """Checks the expressions of a unit; `hits` holds what it broke and `reached` the objects it names."""

    def __init__(self, unit: LintUnit):
        self.unit = unit
        self.module_scope = self.scope = Scope(None, unit.source, unit.namespace)
        self.hits: list[Hit] = []
        self.reached: list[Any] = []
        self.uses: list[Use] = []
        self._reported: set[tuple[str, str]] = set()

    def report(self, code: str, node: ast.AST, message: str = "", level: Level | None = None) -> None:
        rule = RULES[code]
        self.hits.append(Hit(code, level or rule.level, message or rule.summary, node))

    def report_once(self, code: str, name: str, node: ast.AST, message: str) -> None:
        if (code, name) not in self._reported:
            self._reported.add((code, name))
            self.report(code, node, message)

    def report_value(self, node: ast.expr, how: str) -> None:
        message = f"the value of {self._what(node)} `{ast.unparse(node)}` is {how} in Python"
        self.report("py-runtime-branch", node, message)

    def _what(self, node: ast.expr) -> str:
        return "register" if self.scope.kind(node) is RegisterKind else "tensor"

    def _is_run_time(self, node: ast.expr) -> bool:
        return is_kind(self.scope.kind(node), TileKind, RegisterKind)

    def use(self, node: ast.expr, call: ast.Call | None = None) -> None:
        """Record a dotted name that belongs to nki."""
        name = self.scope.full_name(node)
        if name is not None and name.startswith("nki."):
            self.uses.append(Use(name, node, self.scope.resolve(node), call))

    def _use_of_tensor(self, node: ast.Attribute) -> None:
        owner = node.value
        is_tensor = is_kind(self.scope.kind(owner), TileKind)
        if is_tensor or (isinstance(owner, ast.Name) and owner.id in self.scope.tensor_parameters):
            self.uses.append(Use(f"NkiTensor.{node.attr}", node))

    # operators

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            if isinstance(op, (ast.In, ast.NotIn)):
                self._check_container(right)
            elif not _has_none(left, right):
                self._check_comparison(node, op, left, right)
        self.generic_visit(node)

    def _check_container(self, container: ast.expr) -> None:
        kind = self.scope.kind(container)
        if kind is not None and not is_kind(kind, tuple, list, str, NoneType):
            self.report("py-in", container, f"`in` on a {kind.__name__.removesuffix('Kind').lower()}")

    def _check_comparison(self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> None:
        if isinstance(op, (ast.Is, ast.IsNot)):
            self.report("py-is", node)
            return
        kinds = [self.scope.kind(left), self.scope.kind(right)]
        for side, kind, other in zip((left, right), kinds, reversed(kinds), strict=True):
            by_value = isinstance(op, ORDERING) or other in (int, float, bool)
            if kind is RegisterKind or (is_kind(kind, TileKind) and by_value):
                self.report_value(side, "compared")
                return
        if all(kind is not None and is_nki_object(kind) and not defines_eq(kind) for kind in kinds):
            self.report("py-object-eq", node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._check_arithmetic(node, node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.Not):
            self._check_arithmetic(node, node.op, node.operand)
        self.generic_visit(node)

    def _check_arithmetic(self, node: ast.AST, op: ast.operator | ast.unaryop, *operands: ast.expr) -> None:
        if isinstance(op, ast.MatMult):
            self.report("py-matmul-operator", node)
        elif not any(is_kind(self.scope.kind(operand), str, list, tuple) for operand in operands):
            for operand in filter(self._is_run_time, operands):  # not "%s" % tile, [tile] * 2
                message = f"arithmetic on {self._what(operand)} `{ast.unparse(operand)}`"
                self.report("py-tile-arithmetic", node, message)

    # calls, names and literals

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg is None:
                self.report("py-starred", keyword.value)
        self.use(node.func, node)
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        name = self.scope.nki_name(node.func) or ""
        if name.startswith(("nki.isa.", "nki.language.", "nki.collectives.")):
            self._check_big_int(values)
        if name.startswith("numpy.") and any(map(self._is_run_time, values)):
            self.report("py-numpy-call", node, f"`{ast.unparse(node.func)}` on a run-time value")
        is_builtin = name in rules.VALUE_READERS and name not in self.unit.namespace
        if name in rules.STATIC_RANGES or (is_builtin and not self.scope.binds(name)):
            for value in filter(self._is_run_time, values):
                self.report_value(value, f"read by `{ast.unparse(node.func)}`")
        if name == "slice" and len(node.args) == 3:
            self._check_step(node.args[2])
        self.generic_visit(node)

    def _check_big_int(self, values: Iterable[ast.expr]) -> None:
        low, high = rules.INT_RANGE
        for value in values:
            number = self.scope.constant(value)
            if number is not None and not low <= number <= high:
                self.report("py-big-int", value, f"{number} needs more than 32 bits")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._check_method(node)
        self._check_math(node)
        self._check_legacy(node)
        self._use_of_tensor(node)
        self.use(node)
        self._reach(node)
        self.generic_visit(node)

    def _check_method(self, node: ast.Attribute) -> None:
        owner = self.scope.kind(node.value)
        if owner is str:
            self.report("py-string-subscript", node, f"string method `{node.attr}`", level="W")
        elif owner is not None and owner in rules.METHODS:
            code, allowed = rules.METHODS[owner]
            if node.attr not in allowed:
                self.report(code, node, f"{owner.__name__} method `{node.attr}`")

    def _check_math(self, node: ast.Attribute | ast.Name) -> None:
        module, _, name = (self.scope.full_name(node) or "").rpartition(".")
        if module == "math" and name not in rules.MATH:
            self.report("py-builtin", node, f"`math.{name}`")

    def _check_legacy(self, node: ast.expr) -> None:
        name = self.scope.full_name(node)
        if name and is_legacy(name):
            self.report_once("legacy-namespace", "neuronxcc.nki", node, f"`{ast.unparse(node)}` is `{name}`")

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._check_shadow(node.id, node)
            return
        self._check_math(node)
        self._check_legacy(node)
        self.use(node)
        if not self.scope.binds(node.id):
            self._check_builtin(node)
            self._check_purity(node)
            self._reach(node)

    def _reach(self, node: ast.expr) -> None:
        value = self.scope.resolve(node)
        if value is not MISSING and not isinstance(value, types.ModuleType):
            self.reached.append(value)

    def _check_shadow(self, name: str, node: ast.AST) -> None:
        full = self.module_scope.imported_name(name, convention=False) or ""
        if f"{full}.".startswith("nki.") or is_legacy(full):
            self.report("py-shadow-nl", node, f"`{name}` is `{full}` in this file and is bound again")

    def _check_builtin(self, node: ast.Name) -> None:
        name = node.id
        if name in rules.HIDDEN_BY_STAR and "nki.language" in self.unit.source.star_imports:
            self.report("py-shadow-nl", node, f"`{name}` is `nl.{name}`: the star import hides Python's own")
        elif name not in self.unit.namespace and name not in rules.BUILTINS:
            value = self.scope.value(name)
            is_exception = isinstance(value, type) and issubclass(value, BaseException)
            if value is not MISSING and not is_exception:
                self.report("py-builtin", node, f"builtin `{name}`")

    def _check_purity(self, node: ast.Name) -> None:
        name = node.id
        around = [function for function in self.unit.enclosing if name in bindings_of(function)]
        if around and name in unstable_names(around[-1]):
            message = f"`{name}` of `{around[-1].name}` is bound again or changed; a cached kernel is stale"
            self.report_once("py-closure-mutable", name, node, message)
        elif not around and name in self.unit.source.unstable:
            message = f"module variable `{name}` is bound again or changed; a cached kernel is stale"
            self.report_once("py-global-read", name, node, message)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        kind, index = self.scope.kind(node.value), node.slice
        if kind is str:
            self.report("py-string-subscript", node, f"subscript of string `{ast.unparse(node.value)}`")
        if kind in (list, tuple, dict, str) and self._is_run_time(index):
            self.report_value(index, "used as index")
        if kind is dict and isinstance(index, ast.Constant) and not isinstance(index.value, str):
            self.report("py-dict-key", node, f"dictionary key `{ast.unparse(index)}`")
        if isinstance(index, ast.Slice):
            self._check_ends(node, index)
        self.generic_visit(node)

    def _check_ends(self, node: ast.Subscript, cut: ast.Slice) -> None:
        length = self.scope.length(node.value)
        for end in filter(None, (cut.lower, cut.upper)):
            value = self.scope.constant(end)
            if length is not None and value is not None and not -length <= value <= length:
                self.report("py-out-of-range-slice", end, f"slice to {value} of {length} items")

    def visit_Slice(self, node: ast.Slice) -> None:
        if node.step is not None:
            self._check_step(node.step)
        self.generic_visit(node)

    def _check_step(self, step: ast.expr) -> None:
        value = self.scope.constant(step)
        if value is not None and value <= 0:
            self.report("py-slice-negative-step", step, f"slice step {value}")

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.report("py-starred", value)
            elif not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                self.report("py-dict-key", key, f"dictionary key `{ast.unparse(key)}`")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        code = rules.LITERALS.get(type(node.value))
        if code is not None:
            self.report(code, node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        if node.format_spec is not None:
            self.report("py-fstring-spec", node, f"format spec of `{ast.unparse(node.value)}`")
        self.visit(node.value)


def is_legacy(name: str) -> bool:
    return f"{name}.".startswith("neuronxcc.nki.")


def _has_none(*sides: ast.expr) -> bool:
    return any(isinstance(side, ast.Constant) and side.value is None for side in sides)


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1]
