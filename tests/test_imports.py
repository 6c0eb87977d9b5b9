"""The layers (CONTRIBUTING.md): imports point downwards, libraries use public names, nki stays light."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import nki
import nki.language as nl

SOURCES = Path(__file__).parent.parent / "src"

# A part of nki (a module or a package) may import parts of the rows above its own; a package also itself.
LAYERS = [
    ["errors", "version", "plugins"],
    ["files", "markup", "progress", "reference", "tracebacks"],
    ["machine"],
    ["options", "dtype", "mx"],
    ["ir"],
    ["typing"],
    ["backends", "timing", "check"],
    ["launch", "report"],
    ["isa"],
    ["language", "collectives"],
    ["kernel"],
    ["ranks"],
    ["frameworks"],
    ["nki"],
    ["tune", "testing"],
    ["cli"],
    ["__main__"],
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}

# what a package never knows, whatever the order above allows
NEVER = {
    "machine": set(RANK) - {"errors", "machine"},
    "timing": {"backends", "frameworks", "language", "isa", "kernel", "launch"},
    "backends": {"timing", "frameworks", "report", "kernel", "launch", "isa"},
    "isa": {"timing", "report", "frameworks", "kernel"},
    "language": {"timing", "report", "frameworks", "kernel"},
    "check": {"frameworks"},
    "mx": set(RANK) - {"machine", "mx"},
    "report": {"isa", "language", "kernel", "launch", "backends"},
    "frameworks": {"isa", "language", "backends", "launch"},
}

PUBLIC = {
    "nki",
    "nki.isa",
    "nki.isa.constants",
    "nki.language",
    "nki.collectives",
    "nki.typing",
    "nki.frameworks.torch",
    "nki.dtype",
    "nki.mx",
    "nki.tune",
}


class Import(NamedTuple):
    module: str  # that imports
    imported: str
    name: str  # the name taken from it, or ""
    late: bool  # inside a function
    line: int


def module_name(path: Path) -> str:
    parts = list(path.relative_to(SOURCES).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES.rglob("*.py")}


def part_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


@cache
def imports_of(module: str) -> list[Import]:
    """Every import of our packages in a module, `if TYPE_CHECKING:` left out."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, "", late, child.lineno)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*above, *([child.module] if child.module else [])])
                for alias in child.names:
                    full = f"{base}.{alias.name}"
                    home, name = (full, "") if full in MODULES else (base, alias.name)
                    yield Import(module, home, name, late, child.lineno)
            inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from visit(child, inside)

    found = visit(ast.parse(path.read_text()), False)
    return [i for i in found if i.imported.split(".")[0] in ("nki", "nki_legacy", "nkilib", "trnblas")]


@cache
def between_parts() -> list[Import]:
    found = [i for module in MODULES if module.split(".")[0] == "nki" for i in imports_of(module)]
    return [i for i in found if part_of(i.module) != part_of(i.imported)]


def shown(imports: list[Import]) -> list[str]:
    return sorted({f"{i.module}:{i.line} imports {i.imported}" for i in imports})


# ---- direction -----------------------------------------------------------------------------------


@pytest.mark.tiny
def test_every_part_of_nki_has_its_layer():
    parts = {part_of(module) for module in MODULES if module.split(".")[0] == "nki"}
    assert parts - set(RANK) == set(), "add them to LAYERS"


def edge(found: Import) -> tuple[str, str]:
    return part_of(found.module), part_of(found.imported)


def goes_up(found: Import) -> bool:
    importer, imported = edge(found)
    return RANK.get(imported, -1) >= RANK.get(importer, len(RANK))  # unknown parts: the test above


def test_imports_point_downwards_also_inside_functions():
    assert shown([i for i in between_parts() if goes_up(i)]) == []


def test_no_module_imports_one_that_imports_it_not_even_inside_a_function():
    ahead = {m: {i.imported for i in imports_of(m) if i.imported in MODULES} for m in MODULES}
    settled: set[str] = set()
    while True:
        free = {m for m in ahead if m not in settled and ahead[m] - {m} <= settled}
        if not free:
            break
        settled |= free
    assert sorted(set(MODULES) - settled) == []


@pytest.mark.parametrize("part", NEVER)
def test_what_a_part_must_never_know(part):
    wrong = [i for i in between_parts() if part_of(i.module) == part and part_of(i.imported) in NEVER[part]]
    assert shown(wrong) == []


def test_no_module_of_nki_imports_the_packages_on_top_of_it():
    assert shown([i for i in between_parts() if i.imported.split(".")[0] != "nki"]) == []


def test_no_module_of_nki_names_nki_legacy():
    """Not even in a string: it is found by its entry points."""
    named = [name for name, path in MODULES.items() if "nki_legacy" in path.read_text(encoding="utf-8")]
    assert [name for name in named if name.split(".")[0] == "nki"] == []


def test_open_nki_imports_nothing_of_ours_but_the_command():
    """It must work where another distribution has overwritten or removed nki."""
    found = [i for module in MODULES if module.split(".")[0] == "open_nki" for i in imports_of(module)]
    assert [(i.module, i.imported, i.late) for i in found] == [("open_nki.__main__", "nki.cli", True)]


# What nki_legacy uses of nki that users cannot: a change of these modules may break it.
PRIVATE_OF_LEGACY = {
    "cli": "command script terminal",
    "errors": "",
    "files": "",
    "ir": "caches context indexing layout program tensor tree",
    "isa": "enums",
    "kernel": "arrays jit kernel listeners profile pure run specs",
    "language": "allocation creation elementwise operands shared_constants",
    "machine": "dtypes generations machine memories operators",
    "options": "",
    "report": "text",
}


def test_what_nki_legacy_uses_of_the_inside_of_nki_is_listed():
    found: dict[str, set[str]] = {}
    for module in MODULES:
        for i in imports_of(module) if module.split(".")[0] == "nki_legacy" else ():
            package, _, rest = i.imported.partition(".")
            if package == "nki" and i.imported not in PUBLIC:
                part, _, name = rest.partition(".")
                found.setdefault(part, set()).add(name)
    assert {part: " ".join(sorted(names)) for part, names in found.items()} == PRIVATE_OF_LEGACY


def test_importing_the_library_imports_no_kernel():
    loaded = python("import nkilib, sys; print(*sys.modules)").split()
    assert [name for name in loaded if name.partition(".")[0] in ("nkilib", "nki")] == ["nkilib"]


@pytest.mark.parametrize("package", ["nkilib", "trnblas"])
def test_libraries_use_only_what_a_user_can_use(package):
    wrong = []
    for module in MODULES:
        if module.split(".")[0] == package:
            for found in imports_of(module):
                if found.imported.split(".")[0] == "nki" and not is_public(found):
                    wrong.append(found)
    assert [f"{w} {i.name}" for i in wrong for w in shown([i])] == []


def is_public(found: Import) -> bool:
    if found.imported not in PUBLIC or found.name.startswith("_"):
        return False
    home = importlib.import_module(found.imported)
    return not found.name or found.name == "*" or hasattr(home, found.name)


# ---- weight --------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return done.stdout


def test_importing_nki_imports_no_framework():
    code = "import nki, nki.isa, nki.language, nki.collectives, sys; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in python(code).split()}
    assert not loaded & {"torch", "jax", "jaxlib", "scipy", "pandas", "matplotlib", "hypothesis", "pytest"}


def test_importing_nki_imports_nothing_that_only_some_calls_need():
    """What takes its time: `python -X importtime -c "import nki"` shows where a new import comes from."""
    floor = set(python("import numpy, ml_dtypes, sys; print(*sys.modules)").split())
    loaded = set(python("import nki, sys; print(*sys.modules)").split()) - floor
    ours = "check.python cli backends.torch frameworks isa language ranks report timing tune"
    ours += " kernel.profile testing backends.fused ir.parser"
    assert loaded & {f"nki.{name}" for name in ours.split()} == set()
    assert loaded & {"rich", "json", "hashlib", "html", "zipfile", "concurrent.futures", "pathlib"} == set()


def test_names_that_come_later_are_there_all_the_same():
    python("import nki; [getattr(nki, name) for name in dir(nki)]; from nki import Profile, autotune, show")


def test_a_listing_is_read_by_who_has_imported_nki_alone(tmp_path):
    program = doubled.trace(nki.TensorSpec((4, 8), "float32"))
    file = tmp_path / "program"
    program.save(file)
    again = f"import nki; p = nki.Program.load({str(file)!r}); "
    code = again + "print(nki.Program.parse(str(p)) == p, p.profile().kernel)"
    assert python(code).split() == ["True", "doubled"]


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nl.store(out, nl.add(tile, tile))
    return out


@pytest.mark.parametrize("module", ["nki.isa", "nki.language", "nki.collectives", "nki.typing"])
def test_public_modules_can_be_imported_first(module):
    python(f"import {module}")
