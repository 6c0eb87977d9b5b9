"""The visitor that finds what `python_rules` lists in one function or class.

A rule that needs a look at names or kinds is one short method. Rules speak only about what they know: an
unknown kind is never reported.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nki.check import python_rules as rules
from nki.check.python_rules import RULES, Level
from nki.check.python_scope import (
    MISSING,
    Function,
    NoneType,
    Register,
    Scope,
    Source,
    Tile,
    bindings_of,
    defines_eq,
    is_kind,
    is_nki_object,
    unstable_names,
)

ORDERING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
CLASS_STATEMENTS = (ast.AnnAssign, ast.Assign, ast.FunctionDef, ast.AsyncFunctionDef, ast.Pass)


class Hit(NamedTuple):
    """One rule broken at one node."""

    code: str
    level: Level
    message: str
    node: ast.AST


@dataclass
class Unit:
    """A function or class to check, with its file and the objects its names stand for."""

    node: Function | ast.ClassDef
    source: Source
    namespace: Mapping[str, Any]
    enclosing: tuple[Function, ...] = ()  # functions around it, outermost first
    owner: type | None = None  # the class itself, if the unit is one


class Checker(ast.NodeVisitor):
    """Walks one unit; afterwards `hits` holds what it broke and `reached` the objects it names."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.module_scope = self.scope = Scope(None, unit.source, unit.namespace)
        self.hits: list[Hit] = []
        self.reached: list[Any] = []
        self._said: set[tuple[str, str]] = set()
        self._dynamic_loops = 0
        self._loop_bodies = _loop_bodies(unit.node)

    def run(self) -> Checker:
        if isinstance(self.unit.node, ast.ClassDef):
            self._check_class(self.unit.node)
        else:
            self._check_function(self.unit.node)
        return self

    def report(self, code: str, node: ast.AST, message: str = "", level: Level | None = None) -> None:
        rule = RULES[code]
        self.hits.append(Hit(code, level or rule.level, message or rule.summary, node))

    def report_once(self, code: str, name: str, node: ast.AST, message: str) -> None:
        if (code, name) not in self._said:
            self._said.add((code, name))
            self.report(code, node, message)

    def report_value(self, node: ast.expr, how: str) -> None:
        message = f"the value of {self._what(node)} `{ast.unparse(node)}` is {how} in Python"
        self.report("py-runtime-branch", node, message)

    def _what(self, node: ast.expr) -> str:
        return "register" if self.scope.kind(node) is Register else "tensor"

    def _is_run_time(self, node: ast.expr) -> bool:
        return is_kind(self.scope.kind(node), Tile, Register)

    # functions and classes

    def _check_function(self, node: Function, known: Mapping[str, type] | None = None) -> None:
        if isinstance(node, ast.AsyncFunctionDef):
            self.report("py-async", node)
        self._check_decorators(node)
        self._check_signature(node.args)
        outer = self.scope
        parent = outer if outer.function else None
        self.scope = Scope(node, self.unit.source, self.unit.namespace, parent, known or {})
        for statement in node.body:
            self.visit(statement)
        self.scope = outer

    def _check_decorators(self, node: Function | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            name = decorator.func if isinstance(decorator, ast.Call) else decorator
            self._check_legacy(name)
            if self.module_scope.nki_name(name) not in rules.DECORATORS:
                self.report("py-decorator", decorator, f"decorator `{ast.unparse(decorator)}`")

    def _check_signature(self, arguments: ast.arguments) -> None:
        if arguments.vararg:
            self.report("py-varargs", arguments.vararg, f"`*{arguments.vararg.arg}` in a signature")
        elif arguments.kwonlyargs:
            self.report("kw-only-separator", arguments.kwonlyargs[0])
        if arguments.kwarg:
            message = f"`**{arguments.kwarg.arg}` in a signature is legal only while it stays empty"
            self.report("py-varargs", arguments.kwarg, message, level="W")
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            self._check_shadow(argument.arg, argument)

    def _check_class(self, node: ast.ClassDef) -> None:
        self._check_decorators(node)
        for base in node.bases:
            if _last_name(base) not in rules.BASE_CLASSES:
                self.report("py-base-class", base, f"base class `{ast.unparse(base)}`")
            self.visit(base)
        if node.keywords:
            self.report("py-class-keywords", node)
        for statement in node.body:
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not isinstance(statement, CLASS_STATEMENTS) and not docstring:
                self.report("py-class-statement", statement)
            if isinstance(statement, Function):
                self._check_function(statement, self._kind_of_self(statement))

    def _kind_of_self(self, method: Function) -> dict[str, type]:
        static = any(ast.unparse(decorator) == "staticmethod" for decorator in method.decorator_list)
        first = method.args.args[:1]
        return {} if static or not first or self.unit.owner is None else {first[0].arg: self.unit.owner}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        is_body = node.name in self._loop_bodies
        if not is_body:
            self.report("py-inner-def", node, f"`def {node.name}` inside a function")
        self._check_shadow(node.name, node)
        index = dict.fromkeys([argument.arg for argument in node.args.args[:1]], Register)
        self._check_function(node, index if is_body else None)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._check_function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.report("py-class-in-function", node, f"`class {node.name}` inside a function")

    # statements

    def visit(self, node: ast.AST) -> None:
        code = rules.SYNTAX.get(type(node).__name__)
        if code is not None:
            self.report(code, node)
        super().visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self._check_imported(node, [alias.name for alias in node.names])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._check_imported(node, [f"{node.module}.{alias.name}" for alias in node.names])

    def _check_imported(self, node: ast.AST, names: list[str]) -> None:
        for name in names:
            if _is_legacy(name):
                self.report_once("legacy-namespace", "neuronxcc.nki", node, f"`{name}` is imported")

    def visit_Assign(self, node: ast.Assign) -> None:
        places = [place for target in node.targets for place in self._check_target(target)]
        several = len(node.targets) > 1 or not isinstance(node.targets[0], (ast.Subscript, ast.Attribute))
        if several and places:
            self.report("py-mutating-targets", places[0])
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._check_target(node.target)
        self.visit(node.target)
        if node.value is not None:  # and the annotation is for people
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_target(node.target)
        if not isinstance(node.target, ast.Subscript):
            self._check_arithmetic(node, node.op, node.target, node.value)
        self.generic_visit(node)

    def _check_target(self, target: ast.expr) -> list[ast.expr]:
        """Check an assignment's target; the items and attributes in it are returned."""
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [place for part in parts for place in self._check_target(part)]
            case ast.Subscript(value=owner):
                if is_kind(self.scope.kind(owner), Tile):
                    self.report("py-tile-setitem", target, f"assignment into tensor `{ast.unparse(owner)}`")
                return [target]
            case ast.Attribute(value=owner):
                kind = self.scope.kind(owner)
                if kind is not None and kind is not NoneType and not is_nki_object(kind):
                    message = f"`{ast.unparse(target)}` is assigned, `{ast.unparse(owner)}` is no NKIObject"
                    self.report("py-attribute-target", target, message)
                return [target]
        return []

    def visit_For(self, node: ast.For) -> None:
        if node.orelse:
            self.report("py-for-else", node.orelse[0])
        if not isinstance(node.target, ast.Name):
            self.report("py-for-target", node.target, f"`for {ast.unparse(node.target)} in ...`")
        if is_kind(self.scope.kind(node.iter), Tile):
            self.report_value(node.iter, "iterated over")
        dynamic = self.scope.kind_of_item(node.iter) is Register
        if dynamic and self._dynamic_loops:
            self.report("nested-dynamic-range", node)
        self._dynamic_loops += dynamic
        self.generic_visit(node)
        self._dynamic_loops -= dynamic

    def visit_While(self, node: ast.While) -> None:
        if node.orelse:
            self.report("py-while-else", node.orelse[0])
        if self.scope.kind(node.test) is not Register:  # `while reg` is the one test that compiles
            self._check_truth(node.test)
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        match node.items:
            case [ast.withitem(context_expr=ast.Call(func=name, args=[], keywords=[]), optional_vars=None)]:
                if _last_name(name) != "no_reorder":
                    self.report("py-with", node, f"`with {ast.unparse(name)}()`")
            case _:
                self.report("py-with", node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp | ast.Assert) -> None:
        self._check_truth(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_Assert = visit_If

    def _check_truth(self, test: ast.expr) -> None:
        match test:
            case ast.BoolOp(values=parts):
                for part in parts:
                    self._check_truth(part)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._check_truth(operand)
            case _:
                # the truth of an ordinary tensor is its presence: kernels write `if bias:`
                if self._is_run_time(test) and self.scope.kind(test) is not Tile:
                    self.report_value(test, "tested")

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
            self.report("py-in", container, f"`in` on a {kind.__name__.lower()}")

    def _check_comparison(self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> None:
        if isinstance(op, (ast.Is, ast.IsNot)):
            self.report("py-is", node)
            return
        kinds = [self.scope.kind(left), self.scope.kind(right)]
        for side, kind, other in zip((left, right), kinds, reversed(kinds), strict=True):
            by_value = isinstance(op, ORDERING) or other in (int, float, bool)
            if kind is Register or (is_kind(kind, Tile) and by_value):
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
        if name and _is_legacy(name):
            self.report_once("legacy-namespace", "neuronxcc.nki", node, f"`{ast.unparse(node)}` is `{name}`")

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._check_shadow(node.id, node)
            return
        self._check_math(node)
        self._check_legacy(node)
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
        if f"{full}.".startswith("nki.") or _is_legacy(full):
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


def _is_legacy(name: str) -> bool:
    return f"{name}.".startswith("neuronxcc.nki.")


def _has_none(*sides: ast.expr) -> bool:
    return any(isinstance(side, ast.Constant) and side.value is None for side in sides)


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1]


def _loop_bodies(node: ast.AST) -> set[str]:
    """Names of the functions handed to `fori_loop` and `while_loop`: the inner functions that compile."""
    found: set[str] = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _last_name(call.func) in rules.LOOPS_WITH_BODY:
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            found.update(value.id for value in values if isinstance(value, ast.Name))
    return found
