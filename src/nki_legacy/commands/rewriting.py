"""The walk of `nki migrate`: one pass lists every old place of a file and rewrites those that are safe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m
from libcst.helpers import get_full_name_for_node
from libcst.metadata import (
    BuiltinAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from . import old_names as names
from .tile_values import TileValues


class Place(NamedTuple):
    """Something old in a file."""

    line: int
    column: int
    last: int  # line
    old: str
    new: str
    why: str = ""  # it was not changed; empty: it was


def migrate(source: str) -> tuple[str, list[Place]]:
    """Return the source with every safe change, and every old place of it, in order."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    walk = Migration(source)
    changed = wrapper.visit(walk)
    return changed.code, sorted(walk.places)


class Migration(cst.CSTTransformer):
    """Lists and changes; what it returns and what it lists come from the same visit of a node."""

    METADATA_DEPENDENCIES = (ParentNodeProvider, PositionProvider, QualifiedNameProvider, ScopeProvider)

    def __init__(self, source: str):
        super().__init__()
        self.is_old = names.OLD in source
        self.places: set[Place] = set()
        self.starred: dict[str, str] = {}  # names that a star import of the old API defines -> their module
        self.values = TileValues(self.name_of)
        self.used: set[str] = set()  # names of a star import

    def visit_Module(self, node: cst.Module) -> None:
        for statement in m.findall(node, m.ImportFrom(names=m.ImportStar())):
            assert isinstance(statement, cst.ImportFrom)
            module = get_full_name_for_node(statement.module) if statement.module else None
            if module is not None and module.startswith(f"{names.OLD}."):
                self.starred |= {name: module for name in names.public(module)}
        for name in m.findall(node, m.Name()) if self.starred else ():
            if name.value in self.starred and self.is_use(name) and self.name_of(name):  # type: ignore[attr-defined]
                self.used.add(name.value)  # type: ignore[attr-defined]
        for function in m.findall(node, m.FunctionDef()):
            if any(self.name_of(d.decorator).startswith("nki.") for d in function.decorators):  # type: ignore[attr-defined]
                self.values.kernels.add(function.name.value)  # type: ignore[attr-defined]
        if self.is_old:
            self.values.settle(node)

    # ---- names -----------------------------------------------------------------------------------

    def name_of(self, node: cst.CSTNode) -> str:
        """Return what an expression names, `nl.load`; empty for anything else or for several meanings."""
        node = node.func if isinstance(node, cst.Call) else node
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return ""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        imported = {q.name for q in found if q.source is QualifiedNameSource.IMPORT}
        local = any(q.source is QualifiedNameSource.LOCAL for q in found)
        if isinstance(node, cst.Name) and node.value in self.starred and not imported and not local:
            return names.short_name(f"{self.starred[node.value]}.{node.value}")
        return names.short_name(imported.pop()) if len(found) == len(imported) == 1 else ""

    def meanings(self, node: cst.CSTNode) -> list[str]:
        """Return the old names that a name with several meanings may have."""
        found = self.get_metadata(QualifiedNameProvider, node, set())
        return [q.name for q in found if q.name.startswith(f"{names.OLD}.")] if len(found) > 1 else []

    def note(self, node: cst.CSTNode, old: str, new: str, why: str = "") -> None:
        at = self.get_metadata(PositionProvider, node)
        self.places.add(Place(at.start.line, at.start.column + 1, at.end.line, old, new, why))

    def is_builtin(self, node: cst.CSTNode, name: str) -> bool:
        """Return whether a name is Python's own at a place."""
        scope = self.get_metadata(ScopeProvider, node, None)
        return scope is None or all(isinstance(a, BuiltinAssignment) for a in scope[name])

    def is_use(self, node: cst.CSTNode) -> bool:
        """Return whether a name is read: it is no part of a definition, no attribute, no keyword."""
        parent = self.get_metadata(ParentNodeProvider, node)
        defined = isinstance(parent, (cst.Param, cst.AssignTarget, cst.FunctionDef, cst.ClassDef))
        keyword = isinstance(parent, cst.Arg) and parent.keyword is node
        return not (defined or keyword or (isinstance(parent, cst.Attribute) and parent.attr is node))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if not self.is_use(original_node):
            return updated_node
        short = self.name_of(original_node)
        alone = not isinstance(self.get_metadata(ParentNodeProvider, original_node), cst.Attribute)
        if alone and short in names.NEW and self.is_old_name(original_node):
            why = "the module is used as a value, which is not followed"
            self.note(original_node, original_node.value, "name the module where it is used", why)
        return self.renamed(original_node, updated_node, short)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if get_full_name_for_node(original_node) == "neuronxcc.nki" and self.name_of(original_node) == "nki":
            why = "" if self.is_builtin(original_node, "nki") else "`nki` is another name here"
            self.note(original_node, "neuronxcc.nki", "nki", why)
            return cst.Name("nki", lpar=updated_node.lpar, rpar=updated_node.rpar)
        attribute = original_node.attr.value
        if self.is_old and self.values.is_tile(original_node.value) and not names.is_method(attribute):
            self.note(original_node, f".{attribute}", "no successor", "today's tiles have no such name")
        return self.renamed(original_node, updated_node, self.name_of(original_node))

    def renamed(
        self, node: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute, short: str
    ) -> cst.BaseExpression:
        """Return a name as it is today; what has no safe successor is noted."""
        parent = self.get_metadata(ParentNodeProvider, node)
        if not short:
            if meanings := self.meanings(node):
                self.note(node, meanings[0], "one import", "the name has several meanings here")
            return updated
        if short in names.RANGES:
            if self.is_builtin(node, "range"):
                self.note(node, short, "range")
                return cst.Name("range", lpar=updated.lpar, rpar=updated.rpar)
            self.note(node, short, "range", "`range` is another name here")
        elif short in names.ATTRIBUTES:
            new = names.ATTRIBUTES[short]
            why = "" if isinstance(updated, cst.Attribute) else "it is imported by name"
            self.note(node, short, f"{short.rpartition('.')[0]}.{new}", why)
            return updated.with_changes(attr=cst.Name(new)) if not why else updated
        elif short.startswith("np.") and isinstance(parent, cst.Arg):
            return self.numpy_operator(node, updated, short, parent)
        elif (text := names.advice(short)) is not None and not isinstance(parent, cst.Attribute):
            self.note(node, short, text, "no rewrite is known to be safe")
        return updated

    def numpy_operator(
        self, node: cst.CSTNode, updated: cst.BaseExpression, short: str, argument: cst.Arg
    ) -> cst.BaseExpression:
        """Return nl's operator for numpy's, if it is an argument of an instruction."""
        call = self.get_metadata(ParentNodeProvider, argument)
        position = argument.keyword.value if argument.keyword is not None else ""
        if (
            not isinstance(call, cst.Call)
            or not self.name_of(call).startswith("nisa.")
            or "dtype" in position
        ):
            return updated
        name = short.partition(".")[2]
        name = names.NUMPY_OPERATORS.get(name, name)
        language = next(self.language_names(node), "")
        if names.advice(f"nl.{name}") is not None or name.startswith(("float", "int", "uint", "bool")):
            return updated
        if not language:
            self.note(node, short, f"nl.{name}", "no name of nki.language is imported here")
            return updated
        self.note(node, short, f"{language}.{name}")
        return cst.parse_expression(f"{language}.{name}")

    def language_names(self, node: cst.CSTNode) -> Iterator[str]:
        """Yield the names that nki.language has at a place."""
        scope = self.get_metadata(ScopeProvider, node, None)
        if scope is None:
            return
        for assignment in scope.globals.assignments:
            bound = scope.get_qualified_names_for(assignment.name)
            short = names.short_name(next(iter(bound)).name) if len(bound) == 1 else ""
            if short in ("nl", "nki"):
                yield assignment.name if short == "nl" else f"{assignment.name}.language"

    def is_old_name(self, node: cst.CSTNode) -> bool:
        found = self.get_metadata(QualifiedNameProvider, node, set())
        return any(q.name.startswith(names.OLD) for q in found)

    # ---- calls and operators ---------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:
        short = self.name_of(node)
        module, _, name = short.partition(".")
        if module not in ("nl", "nisa", "nki") or "." in name or short in (*names.RANGES, "nki.jit"):
            return
        old = self.is_old_name(node.func) or (
            isinstance(node.func, cst.Name) and node.func.value in self.starred
        )
        given = [a.keyword.value for a in node.args if a.keyword is not None]
        today = names.parameters(short, old=False) if old and module != "nki" else None
        if old and module == "nisa" and "dst" not in given and names.returns_today_writes(short):
            new = f"{short}(dst, ...), dst made by nl.ndarray"
            self.note(node, f"r = {short}(...)", new, "where the result goes is not known")
            today = None
        for keyword in given:
            if keyword in names.KEYWORDS or (today is not None and keyword not in today):
                new = names.KEYWORDS.get(keyword, "no successor")
                self.note(node, f"{short}({keyword}=)", new, "no rewrite is known to be safe")
        if module == "nl" and today is not None:
            self.check_positions(node, short, len(node.args) - len(given), today)

    def check_positions(self, node: cst.Call, short: str, count: int, today: tuple[str, ...]) -> None:
        """Note an argument that has another meaning at its position today."""
        before = names.parameters(short, old=True) or ()
        for position in range(1, min(count, len(before))):
            if before[position] == "mask" or position >= len(today):
                old, new = f"{short}, argument {position + 1}", f"{before[position]} by keyword"
                self.note(node, old, new, "today it has another position, or none")
        first = node.args[0].value if count else None
        axis = first.evaluated_value if isinstance(first, cst.Integer) else 0
        if short in ("nl.program_id", "nl.num_programs") and axis > 0:
            self.note(node, f"{short}({axis})", "a loop in the kernel", "a launch has one dimension")

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        call = original_node.decorator
        if not isinstance(call, cst.Call) or self.name_of(call) != "nki.jit":
            return updated_node
        shown = cst.Module([]).code_for_node(call)
        unknown = [a for a in call.args if a.keyword is None or a.keyword.value not in names.LEFT_OUT]
        if unknown:
            self.note(call, f"@{shown}", "@nki.jit", "today's jit has no such argument")
            return updated_node
        self.note(call, f"@{shown}", "@nki.jit")
        return updated_node.with_changes(decorator=updated_node.decorator.func)  # type: ignore[attr-defined]

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        self.arithmetic(node, node.operator, node.left, node.right)

    def visit_UnaryOperation(self, node: cst.UnaryOperation) -> None:
        self.arithmetic(node, node.operator, node.expression)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self.arithmetic(node, node.operator, node.target, node.value)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        for part in node.comparisons:
            if not isinstance(part.operator, (cst.Is, cst.IsNot, cst.In, cst.NotIn)):
                self.arithmetic(node, part.operator, node.left, part.comparator)

    def arithmetic(self, node: cst.CSTNode, operator: cst.CSTNode, *operands: cst.CSTNode) -> None:
        """Note an operator on tiles: today's tiles have none."""
        if any(isinstance(o, (cst.List, cst.Tuple, cst.SimpleString)) for o in operands):
            return
        if self.is_old and any(self.values.is_tile(operand) for operand in operands):
            shown = cst.Module([]).code_for_node(node)
            new = names.OPERATORS.get(type(operator).__name__.removesuffix("Assign"), "nl functions")
            self.note(node, shown if len(shown) < 40 else f"{shown[:36]} ...", new, "arithmetic on tiles")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.values.visit_FunctionDef(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self.values.leave_FunctionDef(original_node)
        return updated_node

    def visit_Subscript(self, node: cst.Subscript) -> None:
        indices = [element.slice.value for element in node.slice if isinstance(element.slice, cst.Index)]
        if not self.is_old:
            return
        if any(self.values.is_tile(index) for index in indices):
            self.note(
                node, "x[index_tile, ...]", "x.vector_select(0, index_tile)", "no rewrite is known to be safe"
            )
        is_kernel = isinstance(node.value, cst.Name) and node.value.value in self.values.kernels
        one = (
            len(indices) == 1 and isinstance(indices[0], cst.Integer) and indices[0].evaluated_value in (1, 2)
        )
        if is_kernel and not one:
            shown = cst.Module([]).code_for_node(node)
            self.note(
                node, shown, "a loop in the kernel; kernel[2] for two cores", "a launch has 1 or 2 programs"
            )

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        parent = self.get_metadata(ParentNodeProvider, node)
        if names.OLD in node.value and not isinstance(parent, cst.Expr):  # a docstring may speak of it
            self.note(node, node.value[:40], "today's name", "a string names the old package")

    # ---- imports ---------------------------------------------------------------------------------

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        return updated_node.with_changes(names=[self.imported(alias) for alias in original_node.names])

    def imported(self, alias: cst.ImportAlias) -> cst.ImportAlias:
        """Return `import neuronxcc.nki.language as nl` as it is today."""
        full = get_full_name_for_node(alias.name) or ""
        if full.partition(".")[0] != names.OLD:
            return alias
        new = names.NEW.get(names.short_name(full), "")
        if not new:
            self.note(alias, f"import {full}", "no successor", "today has no such module")
            return alias
        own = alias.asname.name.value if alias.asname else ""  # type: ignore[union-attr]
        self.note(alias, f"import {full}", f"import {new}" + (f" as {own}" if own and own != new else ""))
        path = cst.parse_expression(new)
        return alias.with_changes(name=path, **({"asname": None} if own == new else {}))

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.BaseSmallStatement | cst.RemovalSentinel:
        module = get_full_name_for_node(original_node.module) if original_node.module else None
        if original_node.relative or module is None or module.partition(".")[0] != names.OLD:
            return updated_node
        if isinstance(original_node.names, cst.ImportStar):
            return self.from_star(original_node, updated_node, module)
        listed = list(original_node.names)
        old = f"from {module} import {', '.join(_shown(a) for a in listed)}"
        if module == names.OLD and [_shown(a).split()[0] for a in listed] == ["nki"]:
            whole = cst.Import([listed[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
            self.note(original_node, old, cst.Module([]).code_for_node(whole))
            return whole
        new = names.NEW.get(names.short_name(module), "")
        unknown = [
            a for a in listed if not self.importable(names.short_name(f"{module}.{_shown(a).split()[0]}"))
        ]
        if not new or unknown:
            what = ", ".join(map(_shown, unknown)) or module
            self.note(original_node, old, f"from {new or 'nki'} import ...", f"today has no {what}")
            return updated_node
        kept = [a for a in listed if names.short_name(f"{module}.{_shown(a).split()[0]}") not in names.RANGES]
        self.note(
            original_node, old, f"from {new} import {', '.join(_shown(a) for a in kept)}" if kept else "range"
        )
        return self.importing(updated_node, new, kept)

    def importable(self, short: str) -> bool:
        return (
            bool(short)
            and short not in names.ATTRIBUTES
            and (short in names.NEW or names.advice(short) is None)
        )

    def from_star(
        self, node: cst.ImportFrom, updated: cst.ImportFrom, module: str
    ) -> cst.BaseSmallStatement | cst.RemovalSentinel:
        """Import by name what the file uses of a star import."""
        new = names.NEW.get(names.short_name(module), "")
        short = names.short_name(module)
        used = sorted(name for name in self.used if self.starred[name] == module)
        kept = [n for n in used if f"{short}.{n}" not in names.RANGES]
        if not new or any(not self.importable(f"{short}.{n}") for n in kept):
            self.note(
                node, f"from {module} import *", "import by name", "today's module lacks names that are used"
            )
            return updated
        self.note(node, f"from {module} import *", f"from {new} import {', '.join(kept)}")
        return self.importing(updated, new, [cst.ImportAlias(cst.Name(name)) for name in kept])

    def importing(
        self, node: cst.ImportFrom, module: str, kept: list[cst.ImportAlias]
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if not kept:
            return cst.RemoveFromParent()
        last = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT) if node.lpar is None else kept[-1]
        return node.with_changes(module=cst.parse_expression(module), names=[*kept[:-1], last])


def _shown(alias: cst.ImportAlias) -> str:
    """Return an import as it is written: `load`, `load as l`."""
    return cst.Module([]).code_for_node(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip()
