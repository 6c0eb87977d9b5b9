"""What the code declares about a public function: found by reading the functions that it calls.

A rule names its kind of error, and a limit is a field of Machine, so both can be read from the source.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from nki.check.pages import PAGES
from nki.ir import validation
from nki.ir.instruction import Instruction
from nki.language import elementwise
from nki.machine.generations import MACHINES
from nki.machine.operators import Operator

_REPORTS = ("fail", "error", "warn", "refuse")  # functions that take a kind among their first arguments
_MACHINES = ("machine", "m")  # what parameters of type Machine are called
_NO_LIMITS = ("name", "generation", "aliases", "assumed")
_ANYWHERE = ("no-kernel", "platform")  # what every public function reports outside a kernel


@dataclass
class Found:
    """What the functions reached from one can do."""

    kinds: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)
    issues: set[str] = field(default_factory=set)


@cache
def _tree(function: types.FunctionType) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def reached(starts: Iterable[tuple[Any, type | None]]) -> Found:
    """Read functions (with the class whose methods `self` has) and everything in nki that they call."""
    found, seen, queue = Found(), set(), list(starts)
    while queue:
        function, owner = queue.pop()
        function = inspect.unwrap(function)
        is_ours = isinstance(function, types.FunctionType) and str(function.__module__).startswith("nki.")
        if not is_ours or (function, owner) in seen or function.__code__.co_filename == "<string>":
            continue
        seen.add((function, owner))
        for node in ast.walk(_tree(function)):
            if isinstance(node, ast.Call):
                queue += _call(node, function, owner, found)
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in _MACHINES:
                found.limits.add(node.attr)
    return found


def _call(
    node: ast.Call, function: types.FunctionType, owner: type | None, found: Found
) -> Iterator[tuple[Any, type | None]]:
    """Record what a call reports or issues; yield the functions that it calls."""
    target, method_of = _resolve(node.func, function, owner)
    label = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if label.lstrip("_") in _REPORTS:
        texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        found.kinds.update(kind for kind in texts if kind in PAGES and kind not in _ANYWHERE)
    elif isinstance(target, type) and issubclass(target, Instruction):
        found.issues.add(target.public)
    elif isinstance(target, Operator):
        yield elementwise._binary if not target.is_unary else elementwise._unary, None
    elif str(getattr(target, "__module__", "")).startswith("nki.isa") and not label.startswith("_"):
        found.issues.add(label)
        yield target, method_of
    elif target is not None:
        yield target, method_of


def _resolve(node: ast.expr, function: types.FunctionType, owner: type | None) -> tuple[Any, type | None]:
    """Return the object that an expression names, and the class that its `self` is."""
    if isinstance(node, ast.Name):
        return function.__globals__.get(node.id), None
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None, None
    if node.value.id in ("self", "ins") and owner is not None:
        return getattr(owner, node.attr, None), owner
    home = function.__globals__.get(node.value.id)
    return (getattr(home, node.attr, None), None) if isinstance(home, types.ModuleType) else (None, None)


def of_every_instruction() -> Found:
    """Return what holds for every instruction."""
    return reached([(validation.validate, None)])


def of_instruction(function: Any, classes: Iterable[type[Instruction]]) -> Found:
    """Return what an instruction declares beside that."""
    rules = [(getattr(cls, name), cls) for cls in classes for name in ("check", "compute")]
    return reached([(function, None), *rules])


def limits(found: Found) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the numbers of the generations that rules compare with, by their names in Machine."""
    for name in sorted(found.limits.difference(_NO_LIMITS)):
        values = tuple(getattr(machine, name, None) for machine in MACHINES.values())
        if all(isinstance(value, (int, tuple, str)) and not isinstance(value, bool) for value in values):
            yield name, values
