"""The visitor that finds what `python_rules` lists in one function or class: its head and its statements."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from nki.check import python_rules as rules
from nki.check.python_bindings import Function
from nki.check.python_expressions import ExpressionChecker, Hit, LintUnit, Use, is_legacy, last_name
from nki.check.python_scope import NoneType, RegisterKind, Scope, TileKind, is_kind, is_nki_object

__all__ = ["Checker", "Hit", "LintUnit", "Use"]

CLASS_STATEMENTS = (ast.AnnAssign, ast.Assign, ast.FunctionDef, ast.AsyncFunctionDef, ast.Pass)


class Checker(ExpressionChecker):
    """Checks one unit."""

    def __init__(self, unit: LintUnit):
        super().__init__(unit)
        self._dynamic_loops = 0
        self._loop_bodies = _loop_bodies(unit.node)

    def run(self) -> Checker:
        if isinstance(self.unit.node, ast.ClassDef):
            self._check_class(self.unit.node)
        else:
            self._check_function(self.unit.node)
        return self

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
            if isinstance(decorator, ast.Call):
                self.use(name, decorator)
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
            if last_name(base) not in rules.BASE_CLASSES:
                self.report("py-base-class", base, f"base class `{ast.unparse(base)}`")
            self.visit(base)
        if node.keywords:
            self.report("py-class-keywords", node)
        if self.unit.owner is not None and _is_frozen(self.unit.owner):
            self.uses.append(Use("[frozen NKIObject]", node))
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
        index = dict.fromkeys([argument.arg for argument in node.args.args[:1]], RegisterKind)
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
            if is_legacy(name):
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
        if node.value is not None:  # the annotation is not compiled
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
                if is_kind(self.scope.kind(owner), TileKind):
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
        if is_kind(self.scope.kind(node.iter), TileKind):
            self.report_value(node.iter, "iterated over")
        dynamic = self.scope.kind_of_item(node.iter) is RegisterKind
        if dynamic and self._dynamic_loops:
            self.report("nested-dynamic-range", node)
        self._dynamic_loops += dynamic
        self.generic_visit(node)
        self._dynamic_loops -= dynamic

    def visit_While(self, node: ast.While) -> None:
        if node.orelse:
            self.report("py-while-else", node.orelse[0])
        if self.scope.kind(node.test) is RegisterKind:  # the one test that compiles
            self.uses.append(Use("[while register]", node))
        else:
            self._check_truth(node.test)
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        match node.items:
            case [ast.withitem(context_expr=ast.Call(func=name, args=[], keywords=[]), optional_vars=None)]:
                if last_name(name) != "no_reorder":
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
                if self._is_run_time(test) and self.scope.kind(test) is not TileKind:
                    self.report_value(test, "tested")


def _is_frozen(owner: type) -> bool:
    parameters = getattr(owner, "__dataclass_params__", None)
    return is_nki_object(owner) and parameters is not None and parameters.frozen


def _loop_bodies(node: ast.AST) -> set[str]:
    """Return the names of functions passed to `fori_loop` and `while_loop`: these compile."""
    found: set[str] = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and last_name(call.func) in rules.LOOPS_WITH_BODY:
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            found.update(value.id for value in values if isinstance(value, ast.Name))
    return found
