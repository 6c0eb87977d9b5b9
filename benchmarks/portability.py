"""How well `nki check --for` knows AWS's releases.

`python -m benchmarks.portability --sdk GIT --library GIT` reads clones of aws-neuron/aws-neuron-sdk and of
aws-neuron/nki-library. Two figures for each release: functions of its documented stubs whose parameters
`src/nki/check/releases.md` gets right, and public kernels that AWS says the release accepts, accepted by
`nki check --for` it. Nothing of the clones is kept.

Left out are kernels that AWS says no release accepts: those of `neuronxcc.nki`, those with
`torch_neuronx.nki_jit`, and the guide to block dimensions.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nki_legacy.stubs
from nki.check.portability import MODULES
from nki.check.releases import by_subject
from nki.cli import main as nki_command

TAGS = {"0.3": "v2.29.0", "0.4": "v2.30.0", "0.5": "v2.31.0", "0.6": "v2.32.0"}
LIBRARY_TAGS = {"0.3": "2.29"}  # later releases of the library are not public
IMPORTS = """\
import math
from dataclasses import dataclass
from enum import Enum
import numpy as np
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject
"""
MAKES = re.compile(r"@(?:nki\.)?jit")
NOT_ACCEPTED = re.compile(r"neuronxcc|nki_jit|par_dim|add_buf|a\[i, j\] = nl")


def extract(git: Path, tag: str, path: str, to: Path) -> Path:
    """Write a folder of a clone at a tag to `to`."""
    archive = subprocess.run(
        ["git", "--git-dir", str(git), "archive", tag, path], check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(to, filter="data")
    return to / path


# ---- names and signatures ------------------------------------------------------------------------


def documented(stub: Path) -> dict[str, list[str]]:
    """The public functions of a stub, with the names of their parameters."""
    found = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = [arg.arg for arg in node.args.args]
    return found


def expected(module: str, release: str) -> dict[str, list[str]]:
    """The same, as the table says: our own functions without what the release lacks."""
    table, home = by_subject(release), importlib.import_module(module)
    absent = {s for s, rows in table.items() if any(row.how in ("missing", "extension") for row in rows)}
    found = {}
    for name in home.__all__:
        value = getattr(home, name)
        if isinstance(value, type) or not callable(value) or f"{module}.{name}" in absent:
            continue
        with contextlib.suppress(ValueError):  # operators that cannot be called
            names = inspect.signature(value).parameters
            found[name] = [p for p in names if f"{module}.{name}({p})" not in absent]
    return found


def compare_stubs(root: Path, release: str) -> tuple[int, list[str]]:
    """How many functions a release documents, and those that the table gets wrong."""
    count, wrong = 0, []
    for module in MODULES:
        stub = documented(root / "api" / module.replace(".", "/") / "__init__.py")
        table = expected(module, release)
        count += len(stub)
        wrong += [f"{module}.{name}" for name, names in stub.items() if table.get(name) != names]
        wrong += [f"{module}.{name} (not in the stub)" for name in set(table) - set(stub)]
    return count, sorted(wrong)


# ---- kernels -------------------------------------------------------------------------------------


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Each code block of the pages that makes a kernel: its name, and its definitions."""
    for page in sorted(root.rglob("*.rst")):
        text = page.read_text(errors="replace")
        blocks = re.findall(r"^( *)\.\. code-block:: python\n((?:\1 +.*\n|\s*\n)+)", text, re.MULTILINE)
        for number, (_, block) in enumerate(blocks):
            code = textwrap.dedent(re.sub(r"^\s+:\w+:.*\n", "", block, flags=re.MULTILINE))
            with contextlib.suppress(SyntaxError):
                if MAKES.search(code):
                    kept = [node for node in ast.parse(code).body if not isinstance(node, ast.Expr)]
                    yield f"{page.stem}_{number}".replace("-", "_"), "\n".join(map(ast.unparse, kept))


def files(root: Path, work: Path) -> list[Path]:
    """The files with kernels that AWS says the release accepts."""
    found = [file for folder in ("examples", "deep-dives") for file in sorted((root / folder).rglob("*.py"))]
    for name, code in pages(root):
        found.append(work / f"{name}.py")
        found[-1].write_text(IMPORTS + code)
    texts = {file: file.read_text() for file in found}
    return [f for f, text in texts.items() if MAKES.search(text) and not NOT_ACCEPTED.search(text)]


def check(target: Path, release: str) -> tuple[list[str], list[str]]:
    """The kernels of a file or folder and the errors in them; what cannot be imported is shown."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        nki_command(["check", "--for", f"aws-{release}", str(target), "--json"])
    if not out.getvalue().startswith("{"):
        print(f"  {target.name} cannot be imported: {err.getvalue().strip().splitlines()[0]}")
        return [], []
    found = json.loads(out.getvalue())
    errors = [one for one in found["findings"] if one["level"] == "error"]
    shown = [f"{target.name}:{e['line']} {e['kernel']}: {e['kind']}: {e['message']}" for e in errors]
    return found["kernels"], shown


def measure(sdk: Path, library: Path | None, release: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        root = extract(sdk, TAGS[release], "nki", work)
        functions, wrong = compare_stubs(root, release)
        targets = files(root, work)
        if library is not None and release in LIBRARY_TAGS:
            targets.append(extract(library, LIBRARY_TAGS[release], "src/nkilib_src", work / "library"))
            sys.path.insert(0, str(targets[-1].parent))
        kernels, errors = 0, []
        for target in targets:
            names, told = check(target, release)
            kernels += len(names)
            errors += told
    refused = len({error.split(": ")[0].split(" ")[-1] for error in errors})
    accepted = f"{kernels - refused} of {kernels} kernels accepted"
    print(f"aws-{release}: {functions - len(wrong)} of {functions} functions as documented, {accepted}")
    for line in [*wrong, *errors]:
        print(f"  {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sdk", type=Path, required=True)
    parser.add_argument("--library", type=Path)
    options = parser.parse_args()
    nki_legacy.stubs.install()  # pages import torch_neuronx
    for release in TAGS:
        measure(options.sdk, options.library, release)


if __name__ == "__main__":
    main()
