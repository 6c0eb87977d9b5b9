"""What type checkers find in the tutorial's kernels, as they are and with one mistake each.

mypy is a development dependency. The tests with pyright run only where pyright is installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))

# name of a mistake: (text of the first page, what replaces it, what mypy reports)
MISTAKES = {
    "instruction": ("nisa.tensor_scalar", "nisa.tensor_scalr", '"tensor_scalr"'),
    "keyword": ("operand0=2.0", "operand=2.0", '"operand"'),
    "operator": ("nl.multiply", "nl.multipy", '"multipy"'),
    "operator_in_quotes": ("op0=nl.multiply", 'op0="multiply"', '"op0"'),
    "attribute": ("x.dtype", "x.dtyp", '"dtyp"'),
    "number_for_a_tensor": ("nisa.dma_copy(tile, x)", "nisa.dma_copy(tile, 1)", '"NkiTensor"'),
    "memory": ("buffer=nl.sbuf", 'buffer="sbuf"', '"MemoryRegion"'),
    "argument": ("double(x)[:2]", "double(x, y=1)[:2]", '"y"'),
    "method_of_a_kernel": ("double_rows.trace(x)", "double_rows.trce(x)", '"trce"'),
    "result_of_a_run": ("double(x)[:2]", "double.run(x).reslt", '"reslt"'),
    "result_of_a_profile": ("double(x)[:2]", "nki.profile(double)(x).total_u", '"total_u"'),
    "name_of_nki": ("nki.NkiError", "nki.NkiErorr", '"NkiErorr"'),
}


def code_of(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def module(page: Path) -> str:
    return "page_" + page.stem.replace("-", "_")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with a module for each page of the tutorial and for each mistake."""
    folder = tmp_path_factory.mktemp("tutorial")
    for page in PAGES:
        (folder / f"{module(page)}.py").write_text(code_of(page))
    for name, (before, after, _) in MISTAKES.items():
        assert before in code_of(PAGES[0])
        (folder / f"mistake_{name}.py").write_text(code_of(PAGES[0]).replace(before, after, 1))
    return folder


@pytest.fixture(scope="module")
def mypy(folder) -> dict[str, list[str]]:
    """Return the errors of `mypy --strict`, by module."""
    pytest.importorskip("mypy")
    files = sorted(path.name for path in folder.glob("*.py"))
    (folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")  # it is large
    flags = ["--strict", "--follow-imports=silent", "--no-error-summary", "--cache-dir=cache"]
    command = [sys.executable, "-m", "mypy", *flags, *files]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.stderr and done.returncode < 2, done.stderr + done.stdout
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        found[line.partition(".py:")[0]].append(line)
    return found


@pytest.fixture(scope="module")
def pyright(folder) -> dict[str, list[str]]:
    """Return the errors of pyright, by module."""
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "."]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found = defaultdict(list)
    for problem in json.loads(done.stdout)["generalDiagnostics"]:
        found[Path(problem["file"]).stem].append(problem["message"])
    return found


@pytest.mark.parametrize("page", PAGES, ids=module)
def test_mypy_strict_finds_nothing_in_the_tutorial(page, mypy):
    assert mypy[module(page)] == []


@pytest.mark.parametrize("name", MISTAKES)
def test_mypy_finds_a_mistake_in_a_kernel(name, mypy):
    line, *_ = mypy[f"mistake_{name}"]
    assert MISTAKES[name][2] in line


@pytest.mark.parametrize("page", PAGES, ids=module)
def test_pyright_finds_nothing_in_the_tutorial(page, pyright):
    assert pyright[module(page)] == []


@pytest.mark.parametrize("name", MISTAKES)
def test_pyright_finds_a_mistake_in_a_kernel(name, pyright):
    assert MISTAKES[name][2] in "\n".join(pyright[f"mistake_{name}"])
