"""`nki check --for aws-0.5`: what that release would refuse or do differently (the tables of `releases.md`).

`of_source` reads the names, arguments and methods that a kernel uses, `of_call` what a traced call was given
and issued. `as_seen_by` gives the findings of all other checks the level that they have in the release.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..errors import Site
from ..ir.items import Diagnostic
from ..ir.program import Program
from .findings import CheckFinding
from .python import Checked, check_all, place_of
from .python_checker import Use
from .release_conditions import CONDITIONS
from .releases import ReleaseChange, by_subject, error_codes

MODULES = ("nki.language", "nki.isa", "nki.collectives")


def of_source(fn: Callable, release: str, checked: dict[int, Checked]) -> Iterator[CheckFinding]:
    """Yield what the source of a kernel, and of what it reaches, shows."""
    name = getattr(fn, "__name__", "")
    for unit, known in check_all(fn, checked):
        for use in known.uses:
            for node, change, subject in _of_use(use, release):
                place = place_of(node, unit.source)
                message = change.message(subject, release)
                yield CheckFinding(
                    change.kind, change.level, message, *place, change.notes, change.help, name
                )


Found = tuple[ast.AST, ReleaseChange, str]  # the node, the row that it breaks, and its subject


def _of_use(use: Use, release: str) -> Iterator[Found]:
    table = by_subject(release)
    if use.call is not None:
        yield from _of_call(use, use.call, table)
    elif use.name in table:
        for change in table[use.name]:
            yield use.node, change, use.name
    elif _is_undocumented(use):
        yield use.node, UNDOCUMENTED, use.name


def _is_undocumented(use: Use) -> bool:
    """Whether a name of a documented module is in no release's documentation."""
    module, _, name = use.name.rpartition(".")
    return module in MODULES and module in sys.modules and name not in sys.modules[module].__all__


UNDOCUMENTED = ReleaseChange("", (), "all", "undocumented", "", "", "stubs v2.29.0 to v2.32.0")


def _of_call(use: Use, call: ast.Call, table: Mapping[str, list[ReleaseChange]]) -> Iterator[Found]:
    for change in table.get(f"{use.name}()", []):
        yield use.node, change, use.name
    given = _given(call, use.value)
    if given is None:
        return
    parameters, arguments = given
    for name, value in arguments.items():
        subject = f"{use.name}({name})"
        for change in table.get(subject, []):
            yield value, change, subject
        if name not in parameters and subject not in table:
            yield value, UNDOCUMENTED, subject
        if _is_number(value):
            for change in table.get(f"{use.name}({name}=number)", []):
                yield value, change, subject
    for name in parameters:
        argument = arguments.get(name, ast.Constant(None))
        if isinstance(argument, ast.Constant) and argument.value is None:
            for change in table.get(f"{use.name}({name}=None)", []):
                yield use.node, change, f"{use.name}({name})"


def _given(call: ast.Call, function: Any) -> tuple[set[str], dict[str, ast.expr]] | None:
    """Return the parameters of a function and the arguments of a call by name; None if they are not known."""
    starred = any(isinstance(value, ast.Starred) for value in call.args)
    if (
        not callable(function)
        or isinstance(function, type)
        or starred
        or any(k.arg is None for k in call.keywords)
    ):
        return None
    parameters = inspect.signature(function).parameters
    positional = dict(zip(parameters, call.args, strict=False))
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {*parameters, *(named if open_ended else ())}, {**positional, **named}


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float))


def of_call(program: Program, arguments: Iterable[Any], release: str) -> Iterator[tuple[Diagnostic, str]]:
    """Yield what the arguments and the instructions of a traced call show, each with its level."""
    for subject, changes in by_subject(release).items():
        sites: list[Site | None] = []
        if subject in CONDITIONS:
            sites = list(dict.fromkeys(CONDITIONS[subject](program)))
        elif subject == "[list as argument]" and any(isinstance(value, list) for value in arguments):
            sites = [None]
        for site in sites:
            for change in changes:
                message, notes = change.message(subject, release), list(change.notes)
                yield Diagnostic(change.kind, message, notes, change.help, site), change.level


def as_seen_by(release: str, found: CheckFinding) -> CheckFinding:
    """Return a finding with its level in a release, and what the release or its compiler says of it."""
    for change in by_subject(release).get(f"{{{found.kind}}}", []):
        notes = (f"NKI {release}: {change.what}", *change.notes)
        found = replace(found, level=change.level, notes=(*found.notes, *notes))
    for code in error_codes():
        if code.kind == found.kind and code.words in found.message:
            told = f"AWS's compiler reports {code.code} (source: {code.source})"
            found = replace(found, notes=(*found.notes, told))
    return found
