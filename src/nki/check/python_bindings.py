"""What a file binds: its imports, the names of each function, and the names that are bound again or changed.

Everything here reads the syntax tree. Nothing is run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from nki.check import python_rules as rules

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node below `nodes`, without looking into functions and classes defined there."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Definition):
            waiting += ast.iter_child_nodes(node)


def all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    starred = [arg for arg in (arguments.vararg, arguments.kwarg) if arg]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def root_name(node: ast.AST) -> str | None:
    """`table` of `table[0].rows`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


Binding = ast.expr | None  # the value bound (starred: one item of it), or nothing known


def bindings_of(function: Function) -> dict[str, list[Binding]]:
    """The local names of a function, each with everything that is ever bound to it."""
    found: dict[str, list[Binding]] = {arg.arg: [None] for arg in all_arguments(function.args)}
    outside: set[str] = set()
    for node in own_nodes(function.body):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            outside.update(node.names)
        for name, value in bound_by(node):
            found.setdefault(name, []).append(value)
    return {name: values for name, values in found.items() if name not in outside}


def bound_by(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpack(target, value)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield from _unpack(target, value)
        case ast.AugAssign(target=ast.Name(id=name) as target):
            yield name, target  # neither hides the name nor changes its kind
        case ast.NamedExpr(target=target, value=value):
            yield from _unpack(target, value)
        case ast.For(target=target, iter=iterated) | ast.AsyncFor(target=target, iter=iterated):
            yield from _unpack(target, ast.Starred(value=iterated))
        case ast.comprehension(target=target) | ast.withitem(optional_vars=ast.expr() as target):
            yield from _unpack(target, None)
        case ast.alias(name=name, asname=asname):
            yield asname or name.partition(".")[0], None
        case ast.arg(arg=name):
            yield name, None
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, None
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name, None


def _unpack(target: ast.expr, value: Binding) -> Iterator[tuple[str, Binding]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ((ast.Tuple() | ast.List()), (ast.Tuple() | ast.List())) if len(target.elts) == len(value.elts):
            for part, bound in zip(target.elts, value.elts, strict=True):
                yield from _unpack(part, bound)
        case ((ast.Tuple() | ast.List()), _):
            for part in target.elts:
                yield from _unpack(part, None)
        case ast.Starred(value=part), _:
            yield from _unpack(part, None)


def _definitions(
    node: ast.AST, enclosing: tuple[Function, ...] = ()
) -> Iterator[tuple[Definition, tuple[Function, ...]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child, enclosing
        inner = (*enclosing, child) if isinstance(child, Function) else enclosing
        yield from _definitions(child, inner)


@dataclass
class SourceFile:
    """One parsed file."""

    filename: str
    lines: list[str]
    tree: ast.Module

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> full name, of every import statement of the file."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                found.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names})
        return found

    @cached_property
    def star_imports(self) -> set[str]:
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]
        return {node.module for node in nodes if node.module and node.names[0].name == "*"}

    @cached_property
    def definitions(self) -> list[tuple[Definition, tuple[Function, ...]]]:
        """Every function and class of the file, with the functions around it, outermost first."""
        return list(_definitions(self.tree))

    @cached_property
    def unstable(self) -> set[str]:
        return unstable_names(self.tree)


def unstable_names(scope: ast.Module | Function) -> set[str]:
    """Variables of a module or function that are bound more than once, or whose object is changed."""
    counts = _count(scope.body)
    if not isinstance(scope, ast.Module):
        counts.update(arg.arg for arg in all_arguments(scope.args))
    rebound = {name for name, count in counts.items() if count > 1}
    declared = ast.Global if isinstance(scope, ast.Module) else ast.Nonlocal
    from_inside = {name for node in ast.walk(scope) if isinstance(node, declared) for name in node.names}
    return rebound | from_inside | (set(_changed(scope.body)) & counts.keys())


def _count(body: Iterable[ast.AST]) -> Counter[str]:
    """How often each name is bound; branches that exclude each other count once, loops twice."""
    counts: Counter[str] = Counter()
    for node in body:
        match node:
            case ast.If(body=then, orelse=other):
                counts += _count(then) | _count(other)
            case ast.Try(body=tried, handlers=handlers, orelse=other, finalbody=final):
                tries = _count([*tried, *other])
                for handler in handlers:
                    tries |= _count(handler.body)
                counts += tries + _count(final)
            case ast.For(target=target, body=looped):
                once = Counter(name for name, _ in _unpack(target, None)) + _count(looped)
                counts += once + once
            case ast.While(body=looped):
                counts += _count(looped) + _count(looped)
            case ast.With(body=inner):
                counts += _count(inner)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                counts.update(name for name, _ in bound_by(node))
    return counts


def _changed(body: Iterable[ast.AST], hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names whose object is changed in place, here or in a function defined here."""
    for node in own_nodes(body):
        if isinstance(node, Function):
            yield from _changed(node.body, hidden | bindings_of(node).keys())
        elif isinstance(node, ast.ClassDef):
            yield from _changed(node.body, hidden)
        elif (name := _changed_by(node)) is not None and name not in hidden:
            yield name


def _changed_by(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return root_name(node)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in rules.MUTATORS:
            return root_name(owner)
        case ast.AugAssign(target=ast.Name(id=name)):
            return name
    return None
