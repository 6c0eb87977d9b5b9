"""Where src turns data into code, or reads what others wrote: a list with a reason for each place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src"
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "joblib", "subprocess", "telnetlib"}
CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
        "os.execv",
        "os.spawnv",
        "tempfile.mktemp",
    ),
    *("np.load", "np.fromfile", "np.memmap", "np.genfromtxt", "np.loadtxt", "torch.load", "runpy.run_path"),
    *("json.load", "json.loads", "open", "ctypes.cast", "ctypes.string_at", "ctypes.memmove", "ctypes.CDLL"),
    *(
        "zipfile.ZipFile",
        "tarfile.open",
        "shutil.unpack_archive",
        "importlib.import_module",
        "ast.literal_eval",
    ),
}
METHODS = {"read_text", "read_bytes", "from_address", "exec_module", "recv", "load_module"}

# (module, what): why it is safe. SECURITY.md explains the borders.
CODE = "the user's own code: it is meant to run"
OURS = "files or texts of the package itself"
POINTER = "pointers that XLA or PyTorch hands to a callback in this process"
NAMED = "modules that the installation or the command line names"
GRADER = "files of who grades: tasks and verdicts, not those of submissions"
METADATA = "of the installed packages, whose code would run anyway"
TRUSTED = {
    ("nki.backends.reference.blas", "ctypes.CDLL"): "the BLAS that numpy has loaded",
    ("nki.check.pages.page", ".read_text"): OURS,
    ("nki.check.releases", ".read_text"): OURS,
    ("nki.cli.docs", ".read_text"): OURS,
    ("nki.cli.listing", "importlib.import_module"): "modules that the catalogue of a library names",
    ("nki.cli.script", ".exec_module"): CODE,
    ("nki.cli.script", "ast.literal_eval"): "literals of the command line",
    ("nki.cli.script", "importlib.import_module"): NAMED,
    ("nki.files", "json.loads"): "the reader of all JSON",
    ("nki.frameworks.custom_call", "json.loads"): "what this process wrote into its own module for XLA",
    ("nki.frameworks.jax", ".from_address"): POINTER,
    ("nki.frameworks.jax", "ctypes.CDLL"): "the C++ runtime, if it is loaded already",
    ("nki.frameworks.jax", "ctypes.cast"): POINTER,
    ("nki.frameworks.jax", "ctypes.memmove"): POINTER,
    ("nki.frameworks.jax", "ctypes.string_at"): POINTER,
    ("nki.frameworks.torch", "ctypes.cast"): "the address of an object that the caller holds",
    ("nki.kernel.words", ".from_address"): "the addresses of objects that the caller keeps alive",
    ("nki.reference.__init__", ".read_text"): OURS,
    ("nki.ir.file", "zipfile.ZipFile"): "of a regular file; sizes are checked and nothing is extracted",
    ("nki.ir.instruction_class", "exec"): "constructors made of the names of our own annotations",
    ("nki.isa.public", "exec"): "functions made of the names of our own annotations",
    ("nki.kernel.kernel", "import pickle"): "for PicklingError: a kernel is pickled by its name, never read",
    ("nki.testing.notebook", "compile"): CODE,
    ("nki.testing.notebook", "eval"): CODE,
    ("nki.testing.notebook", "exec"): CODE,
    ("nki.kernel.user_function", "importlib.import_module"): CODE,
    ("nki.plugins", "importlib.import_module"): NAMED,
    ("nki.ranks.lifetime", "ctypes.CDLL"): "prctl of the C library",
    ("nki.report.html", ".read_text"): OURS,
    ("nki.tune.space", "ast.literal_eval"): "literals of the command line",
    ("nki.typing", "compile"): CODE,
    ("nki.typing", "eval"): CODE,
    ("nki_legacy.commands.old_names", "importlib.import_module"): OURS,
    ("nki_legacy.commands.source_file", ".read_bytes"): "what it has written itself",
    ("nki.cli.script", "runpy.run_path"): CODE,
    ("nki_legacy.stubs.finder", "importlib.import_module"): NAMED,
    ("nki_grading.confine", "ctypes.CDLL"): "the C library, to enter the sandbox",
    ("nki_grading.child", "json.loads"): "the job that the grader passes to its own child",
    ("nki_grading.command", ".read_bytes"): GRADER,
    ("nki_grading.command", ".read_text"): GRADER,
    ("nki_grading.puzzles.__init__", ".read_text"): OURS,
    ("nki_grading.roles", ".read_bytes"): "what it has written itself",
    ("nki_grading.roles", "json.loads"): "headers from the sandbox: length, nesting and sizes are checked",
    ("nki_grading.sandbox", ".recv"): "an exit code from our own server",
    ("nki_grading.sandbox", "import subprocess"): "starts our own server and child, without a shell",
    ("nki_grading.task", ".exec_module"): GRADER,
    ("nki_grading.task", "importlib.import_module"): OURS,
    ("nki_mcp.reference", ".read_text"): OURS,
    ("nki_mcp.reference", "importlib.import_module"): OURS,
    ("open_nki.installation", ".read_bytes"): METADATA,
    ("nkilib.docs", ".read_text"): OURS,
    ("open_nki.installation", ".read_text"): METADATA,
    ("open_nki.installation", "ast.literal_eval"): METADATA,
    ("open_nki.installation", "json.loads"): METADATA,
    ("nkilib.catalogue.__init__", "importlib.import_module"): OURS,
}


def name_of(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def dangerous(tree: ast.Module) -> Iterator[str]:
    """Yield every import and call of a module that the lists above name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"import {node.module}"
        elif isinstance(node, ast.Call):
            called = name_of(node.func)
            if called in CALLS and not is_write(node):
                yield called
            if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                yield f".{node.func.attr}"
            if any(word.arg in ("shell", "allow_pickle") and is_true(word.value) for word in node.keywords):
                yield "shell or allow_pickle"


def is_write(call: ast.Call) -> bool:
    mode = call.args[1] if len(call.args) > 1 else None
    return (
        name_of(call.func) == "open"
        and isinstance(mode, ast.Constant)
        and set(str(mode.value)) & set("wax") != set()
    )


def is_true(value: ast.expr) -> bool:
    return not (isinstance(value, ast.Constant) and value.value is False)


@cache
def found() -> dict[tuple[str, str], list[str]]:
    places: dict[tuple[str, str], list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for what in dangerous(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault((module, what), []).append(str(path))
    return places


def test_every_place_that_could_run_data_is_listed_with_its_reason():
    assert found().keys() - TRUSTED.keys() == set()


def test_every_place_of_the_list_still_exists():
    assert TRUSTED.keys() - found().keys() == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import pickle", ["import pickle"]),
        ("from marshal import loads", ["import marshal"]),
        ("def f():\n    import yaml", ["import yaml"]),
        ("eval('1')", ["eval"]),
        ("np.load(f, allow_pickle=True)", ["np.load", "shell or allow_pickle"]),
        ("run(x, shell=s)", ["shell or allow_pickle"]),
        ("open(p)", ["open"]),
        ("open(p, 'w')", []),
        ("Path(p).read_text()", [".read_text"]),
        ("pipe.recv()", [".recv"]),
    ],
)
def test_the_walk_finds_what_it_is_for(text, expected):
    assert list(dangerous(ast.parse(text))) == expected
