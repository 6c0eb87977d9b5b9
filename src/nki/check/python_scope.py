"""What is known of the names in one function without running it: a light local type inference.

A *kind* is a class: `list`, `str`, the user's own class, or TileKind, MaskKind or RegisterKind. `None` means
unknown, and no rule applies to it. Names bound to values of different kinds are unknown too.
"""

from __future__ import annotations

import ast
import builtins
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nki.check import python_rules as rules
from nki.check.python_bindings import Binding, Function, SourceFile, bindings_of, bound_by, own_nodes

NoneType = type(None)
MISSING = object()


class TileKind:
    """Kind of every tensor: its shape is known while tracing, its values are not."""


class MaskKind(TileKind):
    """Kind of a comparison's result, the one tensor whose truth value depends on its elements."""


class RegisterKind:
    """Kind of a VirtualRegister."""


RESULTS: dict[str, type] = {
    **{f"nki.language.{name}": TileKind for name in rules.TILE_FUNCTIONS},
    **{f"nki.language.{name}": MaskKind for name in rules.MASK_FUNCTIONS},
    **dict.fromkeys(rules.REGISTER_FUNCTIONS, RegisterKind),
}


def is_kind(kind: type | None, *wanted: type) -> bool:
    return kind is not None and issubclass(kind, wanted)


def is_nki_object(kind: type) -> bool:
    return any(cls.__name__ == "NKIObject" for cls in kind.__mro__)


def defines_eq(kind: type) -> bool:
    return any("__eq__" in vars(cls) for cls in kind.__mro__[:-1])


@dataclass
class Scope:
    """The names of one function: what they are bound to, here, in the function around it, or globally."""

    function: Function | None
    source: SourceFile
    namespace: Mapping[str, Any]
    parent: Scope | None = None
    known: Mapping[str, type] = field(default_factory=dict)  # kinds of parameters that the context gives

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        return {} if self.function is None else bindings_of(self.function)

    @cached_property
    def kinds(self) -> dict[str, type | None]:
        """The kind of every local name: what all its bindings agree on, found by iteration."""
        kinds: dict[str, type | None] = dict.fromkeys(self.bindings, NoneType)
        self.__dict__["kinds"] = kinds  # `kind` reads it during the iteration
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
            return RegisterKind
        return int if self.kind(iterated) is range or (name or "").endswith("_range") else None

    @cached_property
    def tensor_parameters(self) -> set[str]:
        """Parameters of a kernel that are tensors: those without a default and never bound again."""
        function = self.function
        if function is None or not any(self._is_jit(decorator) for decorator in function.decorator_list):
            return set()
        without_default = function.args.args[: len(function.args.args) - len(function.args.defaults)]
        return {arg.arg for arg in without_default if self.bindings[arg.arg] == [None]}

    def _is_jit(self, decorator: ast.expr) -> bool:
        name = decorator.func if isinstance(decorator, ast.Call) else decorator
        return self.nki_name(name) in ("jit", "nki.jit")

    def binds(self, name: str) -> bool:
        return name in self.bindings or (self.parent is not None and self.parent.binds(name))

    @cached_property
    def local_imports(self) -> set[str]:
        body = self.function.body if self.function else []
        aliases = [node for node in own_nodes(body) if isinstance(node, ast.alias)]
        return {name for alias in aliases for name, _ in bound_by(alias)}

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
        if is_kind(whole, TileKind):
            return TileKind
        same = whole is NoneType or (whole in (list, tuple, str) and isinstance(index, ast.Slice))
        return whole if same else None

    def _kind_of_result(self, function: ast.expr) -> type | None:
        result = RESULTS.get(self.nki_name(function) or "")
        if result is not None:
            return result
        if isinstance(function, ast.Attribute):
            owner = self.kind(function.value)
            if owner in (NoneType, TileKind, MaskKind) and function.attr in rules.TILE_VIEWS:
                return NoneType if owner is NoneType else TileKind
            if owner is dict and function.attr in ("keys", "values", "items"):
                return list
        called = self.resolve(function)
        return called if isinstance(called, type) and called not in (type, super) else None

    def value(self, name: str) -> Any:
        """Return the object behind a name that is not local: global, builtin or MISSING."""
        if self.binds(name):
            return MISSING
        return self.namespace.get(name, getattr(builtins, name, MISSING))

    def resolve(self, node: ast.expr) -> Any:
        """Return the object behind `name` or `module.name`, without running any `__getattr__`."""
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
        """Like `full_name`, with `neuronxcc.nki` and `torch_neuronx.nki` read as `nki`."""
        name = self.full_name(node)
        return None if name is None else re.sub(r"^(neuronxcc|torch_neuronx)\.(?=nki\b)", "", name)

    def constant(self, node: ast.expr | None) -> Any:
        """Return the value of a constant integer expression, or None."""
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.constant(operand)
                return None if value is None else -value
            case ast.BinOp(left=left, op=op, right=right):
                return _evaluate(op, self.constant(left), self.constant(right))
            case ast.Name(id=name):
                bound = self.bindings.get(name, [])
                if len(bound) == 1 and bound[0] is not None and not _has_names(bound[0]):
                    return self.constant(bound[0])
                value = self.value(name)
                return value if isinstance(value, int) else None
        return None

    def length(self, node: ast.expr) -> int | None:
        """Return the number of items of a list or tuple that is written out and never grows."""
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
    """True if a name, once bound, does nothing but give items, so that its length cannot change."""
    nodes = list(ast.walk(function))
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    reads = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
    return len(uses) == 1 + len([node for node in reads if node.value in uses])


def _has_names(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(node))


def _common(kinds: Iterable[type | None]) -> type | None:
    """Return the kind that several bindings share; None among them does not count."""
    found = set(kinds) - {NoneType}
    if found == {TileKind, MaskKind}:
        return TileKind
    return NoneType if not found else found.pop() if len(found) == 1 else None


def _evaluate(op: ast.operator, left: int | None, right: int | None) -> int | None:
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
