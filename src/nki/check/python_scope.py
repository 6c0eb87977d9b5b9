"""What can be known of the names in one function without running it: a light local inference.

A *kind* is a class: `list`, `str`, the user's own class, or one of Tile, Mask and Register. `None` means
unknown, and no rule speaks about the unknown. Names bound in ways that disagree are unknown too.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nki.check import python_rules as rules

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
NoneType = type(None)
MISSING = object()


class Tile:
    """Kind of every tensor: its shape is known while tracing, its values are not."""


class Mask(Tile):
    """Kind of a comparison's result, the one tensor whose truth value looks at its elements."""


class Register:
    """Kind of a VirtualRegister."""


RESULTS: dict[str, type] = {
    **{f"nki.language.{name}": Tile for name in rules.TILE_FUNCTIONS},
    **{f"nki.language.{name}": Mask for name in rules.MASK_FUNCTIONS},
    **dict.fromkeys(rules.REGISTER_FUNCTIONS, Register),
}


def is_kind(kind: type | None, *wanted: type) -> bool:
    return kind is not None and issubclass(kind, wanted)


def is_nki_object(kind: type) -> bool:
    return any(cls.__name__ == "NKIObject" for cls in kind.__mro__)


def defines_eq(kind: type) -> bool:
    return any("__eq__" in vars(cls) for cls in kind.__mro__[:-1])


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
        for name, value in _bound_by(node):
            found.setdefault(name, []).append(value)
    return {name: values for name, values in found.items() if name not in outside}


def _bound_by(node: ast.AST) -> Iterator[tuple[str, Binding]]:
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
class Source:
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


@dataclass
class Scope:
    """The names of one function: what they are bound to, here, in the function around it, or globally."""

    function: Function | None
    source: Source
    namespace: Mapping[str, Any]
    parent: Scope | None = None
    known: Mapping[str, type] = field(default_factory=dict)  # kinds of parameters that the context gives

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        return {} if self.function is None else bindings_of(self.function)

    @cached_property
    def kinds(self) -> dict[str, type | None]:
        """Kind of every local name: the least solution of "all that is bound to it agrees"."""
        kinds: dict[str, type | None] = dict.fromkeys(self.bindings, NoneType)
        self.__dict__["kinds"] = kinds  # `kind` looks here while the solution grows
        for _ in range(1 + 2 * len(kinds)):
            before = dict(kinds)
            for name, bound in self.bindings.items():
                kinds[name] = self.known.get(name) or _common(self._kind_of_binding(value) for value in bound)
            if kinds == before:
                break
        return kinds

    def _kind_of_binding(self, value: Binding) -> type | None:
        if isinstance(value, ast.Starred):
            return self.kind_of_item(value.value)
        return None if value is None else self.kind(value)

    def kind_of_item(self, iterated: ast.expr) -> type | None:
        if not isinstance(iterated, ast.Call):
            return None
        name = self.nki_name(iterated.func)
        if name == "nki.language.dynamic_range":
            return Register
        return int if self.kind(iterated) is range or (name or "").endswith("_range") else None

    def binds(self, name: str) -> bool:
        return name in self.bindings or (self.parent is not None and self.parent.binds(name))

    @cached_property
    def local_imports(self) -> set[str]:
        body = self.function.body if self.function else []
        aliases = [node for node in own_nodes(body) if isinstance(node, ast.alias)]
        return {name for alias in aliases for name, _ in _bound_by(alias)}

    def _imports(self, name: str) -> bool:
        return name in self.local_imports or (self.parent is not None and self.parent._imports(name))

    def kind(self, node: ast.expr) -> type | None:
        match node:
            case ast.Constant(value=value):
                return type(value)
            case ast.Name(id=name):
                return self._kind_of_name(name)
            case ast.JoinedStr():
                return str
            case ast.List() | ast.ListComp() | ast.BinOp(op=ast.Mult(), left=ast.List()):
                return list
            case ast.Tuple():
                return tuple
            case ast.Dict() | ast.DictComp():
                return dict
            case ast.Set() | ast.SetComp():
                return set
            case ast.NamedExpr(value=value):
                return self.kind(value)
            case ast.IfExp(body=body, orelse=orelse):
                return _common([self.kind(body), self.kind(orelse)])
            case ast.Subscript(value=value, slice=index):
                return self._kind_of_part(self.kind(value), index)
            case ast.Call(func=function):
                return self._kind_of_result(function)
        return None

    def _kind_of_name(self, name: str) -> type | None:
        if name in self.bindings:
            return self.kinds[name]
        if self.parent is not None and self.parent.binds(name):
            return self.parent._kind_of_name(name)
        value = self.value(name)
        return None if value is MISSING else type(value)

    def _kind_of_part(self, whole: type | None, index: ast.expr) -> type | None:
        if is_kind(whole, Tile):
            return Tile
        keeps = whole is NoneType or (whole in (list, tuple, str) and isinstance(index, ast.Slice))
        return whole if keeps else None

    def _kind_of_result(self, function: ast.expr) -> type | None:
        result = RESULTS.get(self.nki_name(function) or "")
        if result is not None:
            return result
        if isinstance(function, ast.Attribute):
            owner = self.kind(function.value)
            if owner in (NoneType, Tile, Mask) and function.attr in rules.TILE_VIEWS:
                return NoneType if owner is NoneType else Tile
            if owner is dict and function.attr in ("keys", "values", "items"):
                return list
        called = self.resolve(function)
        return called if isinstance(called, type) and called not in (type, super) else None

    def value(self, name: str) -> Any:
        """The object behind a name that is not local: global, builtin or MISSING."""
        if self.binds(name):
            return MISSING
        return self.namespace.get(name, getattr(builtins, name, MISSING))

    def resolve(self, node: ast.expr) -> Any:
        """The object behind `name` or `module.name`, without running anybody's `__getattr__`."""
        if isinstance(node, ast.Name):
            return self.value(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return vars(owner).get(node.attr, MISSING) if isinstance(owner, types.ModuleType) else MISSING
        return MISSING

    def full_name(self, node: ast.expr) -> str | None:
        """`nki.language.add` of `nl.add`, through the file's imports; None if it is not a dotted name."""
        if isinstance(node, ast.Attribute):
            owner = self.full_name(node.value)
            return owner and f"{owner}.{node.attr}"
        return self.imported_name(node.id) or node.id if isinstance(node, ast.Name) else None

    def imported_name(self, name: str, convention: bool = True) -> str | None:
        if self.binds(name) and not self._imports(name):
            return None
        imported = self.source.imports.get(name)
        module = self.namespace.get(name)
        if isinstance(module, types.ModuleType) and (imported is None or imported.startswith(".")):
            return module.__name__
        return imported or (rules.CONVENTION.get(name) if convention else None)

    def nki_name(self, node: ast.expr) -> str | None:
        """Like `full_name`, with the old namespace read as the new one."""
        name = self.full_name(node)
        return name.removeprefix("neuronxcc.") if name and name.startswith("neuronxcc.nki") else name

    def constant(self, node: ast.expr | None) -> Any:
        """The number a constant expression stands for, or None."""
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.constant(operand)
                return None if value is None else -value
            case ast.BinOp(left=left, op=op, right=right):
                return _fold(op, self.constant(left), self.constant(right))
            case ast.Name(id=name):
                bound = self.bindings.get(name, [])
                if len(bound) == 1 and bound[0] is not None and not _has_names(bound[0]):
                    return self.constant(bound[0])
                value = self.value(name)
                return value if isinstance(value, int) else None
        return None

    def length(self, node: ast.expr) -> int | None:
        """Number of items of a list or tuple that is written out and never grows."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return None if any(isinstance(item, ast.Starred) for item in items) else len(items)
            case ast.Name(id=name) if name in self.bindings and self.function:
                match self.bindings[name]:
                    case [ast.List() | ast.Tuple() as only] if _is_only_read(name, self.function):
                        return self.length(only)
            case ast.Name(id=name):
                value = self.value(name)
                return len(value) if isinstance(value, tuple) else None
        return None


def _is_only_read(name: str, function: Function) -> bool:
    """True if a name, once bound, does nothing but give items: nobody can have changed its length."""
    nodes = list(ast.walk(function))
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    reads = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
    return len(uses) == 1 + len([node for node in reads if node.value in uses])


def _has_names(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(node))


def _common(kinds: Iterable[type | None]) -> type | None:
    """What several bindings agree on. A name that is also None now and then keeps its other kind."""
    found = set(kinds) - {NoneType}
    if found == {Tile, Mask}:
        return Tile
    return NoneType if not found else found.pop() if len(found) == 1 else None


def _fold(op: ast.operator, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.LShift() if 0 <= right <= 128:
            return left << right
        case ast.Pow() if 0 <= right <= 128:
            return left**right
    return None


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
                counts.update(name for name, _ in _bound_by(node))
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
