"""The supported-Python lint: finds Python that the simulator runs and AWS's front ends do not compile.

`lint(kernel)` checks the kernel and every function and class of the same project that it reaches by name.
It reads source and looks names up; it runs nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nki.check.python_bindings import SourceFile
from nki.check.python_checker import Checker, Hit, LintUnit, Use
from nki.check.python_rules import PROFILES, RULES, Level, Rule
from nki.errors import is_ours

__all__ = ["RULES", "Finding", "Rule", "lint"]


@dataclass(frozen=True)
class Finding:
    """One broken rule at one place of the user's source; `line` and `column` count from 1."""

    code: str
    level: Level
    message: str
    filename: str
    line: int
    column: int
    text: str
    help: str

    def __str__(self) -> str:
        return f"{'NkiError' if self.level == 'E' else 'NkiWarning'}[{self.code}]: {self.described()}"

    def described(self) -> str:
        """Return the message with its line, without the kind: a warning is shown with its class."""
        source = self.text.strip()
        before = self.text[: self.column - 1].lstrip()
        caret = "".join("\t" if character == "\t" else " " for character in before) + "^"
        return "\n".join(
            [
                self.message,
                f"  --> {self.filename}:{self.line}",
                f"   |     {source}",
                f"   |     {caret}",
                f"  help: {self.help}",
            ]
        )


class Checked(NamedTuple):
    """A function or class that was checked: the rules it broke, the names of nki it uses, what it reaches."""

    thing: Any
    unit: LintUnit | None
    hits: list[Hit]
    uses: list[Use]
    reached: list[Any]


def lint(
    fn: Callable,
    profile: Literal["parser", "tracer"] = "parser",
    follow: bool = True,
    checked: dict[int, Checked] | None = None,
) -> list[Finding]:
    """Return what the front end of `profile` would refuse in a kernel, sorted by file and line.

    `follow=False` checks the kernel alone. A function without source gives an empty list. Kernels of one
    library share their helpers: give the same `checked` for all of them, and each helper is checked once.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r}: expected one of {', '.join(PROFILES)}")
    findings: dict[tuple, Finding] = {}
    for unit, known in check_all(fn, {} if checked is None else checked, follow):
        for hit in known.hits:
            if profile in RULES[hit.code].profiles:
                found = _finding(hit, unit.source)
                findings.setdefault((found.filename, found.line, found.column, found.code), found)
    return [findings[key] for key in sorted(findings)]


def check_all(
    fn: object, checked: dict[int, Checked], follow: bool = True
) -> Iterator[tuple[LintUnit, Checked]]:
    """Yield the kernel and, if `follow`, everything of its project that it reaches, each once."""
    kernel = _unwrap(fn)
    if not isinstance(kernel, (types.FunctionType, type)):
        return
    waiting: list[Any] = [kernel]
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        known = checked.get(id(thing))
        if known is None:
            known = checked[id(thing)] = _check(thing)
        if known.unit is not None:
            yield known.unit, known
            if follow:
                waiting += [found for found in known.reached if _same_tree(found, kernel)]


def _check(thing: object) -> Checked:
    unit = _locate(thing)
    if unit is None:
        return Checked(thing, None, [], [], [])
    checker = Checker(unit).run()
    reached = {id(found): found for found in map(_unwrap, checker.reached)}
    return Checked(thing, unit, checker.hits, checker.uses, list(reached.values()))


def _finding(hit: Hit, source: SourceFile) -> Finding:
    return Finding(hit.code, hit.level, hit.message, *place_of(hit.node, source), RULES[hit.code].help)


def place_of(node: ast.AST, source: SourceFile) -> tuple[str, int, int, str]:
    """Return file, line, column and the text of the line; line and column count from 1."""
    line: int = getattr(node, "lineno", 1)
    text = source.lines[line - 1]
    # ast counts columns in bytes
    column = len(text.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore")) + 1
    return source.filename, line, column, text


def _unwrap(thing: object) -> Any:
    """Return the function below kernels, partials, bound methods and well-behaved decorators."""
    seen = set()
    while not isinstance(thing, type) and id(thing) not in seen:
        seen.add(id(thing))
        for name in ("__wrapped__", "func", "__func__"):
            if inspect.getattr_static(thing, name, None) is not None:  # calls no foreign __getattr__
                thing = getattr(thing, name)
                break
    return thing


def _locate(thing: object) -> LintUnit | None:
    """Return the definition of a function or class in its source, or None."""
    if not isinstance(thing, (types.FunctionType, type)):
        return None
    try:
        lines, start = inspect.findsource(thing)
        filename = inspect.getfile(thing)
        source = _parse(filename, "".join(lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if isinstance(thing, type):
        name, owner = thing.__name__, thing
    else:
        name, owner, start = thing.__code__.co_name, None, thing.__code__.co_firstlineno - 1
    for node, enclosing in source.definitions:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if node.name == name and first <= start + 1 <= node.lineno:
            return LintUnit(node, source, _namespace(thing), enclosing, owner)
    return None


@functools.lru_cache(maxsize=512)
def _parse(filename: str, text: str) -> SourceFile:
    return SourceFile(filename, text.split("\n"), ast.parse(text))


def _namespace(thing: types.FunctionType | type) -> dict[str, Any]:
    """Return the objects of the free names of a function or class."""
    if isinstance(thing, type):
        return dict(vars(sys.modules[thing.__module__])) if thing.__module__ in sys.modules else {}
    cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
    return {**thing.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _same_tree(thing: Any, kernel: Any) -> bool:
    """True for code of the kernel's own project: its top-level package, or files below its directory."""
    if not isinstance(thing, (types.FunctionType, type)) or is_ours(thing.__module__):
        return False
    package = (thing.__module__ or "").partition(".")[0]
    if package == (kernel.__module__ or "").partition(".")[0]:
        return True
    try:
        path, home = Path(inspect.getfile(thing)).resolve(), Path(inspect.getfile(kernel)).resolve().parent
    except (OSError, TypeError):
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return home in path.parents and not installed and package not in sys.stdlib_module_names
