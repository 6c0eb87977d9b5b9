"""`nki migrate`: what of the old API, or of an older release, a file uses, and a rewrite of what is safe."""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from nki.cli import script
from nki.cli.command import Command, add_json
from nki.cli.script import UsageError
from nki.cli.terminal import complain, show
from nki.kernel.arrays import TensorSpec

from .migrations import Migration, findings, is_old, rewritten

OLD_REMAINS = 1


def command_migrate(options: argparse.Namespace) -> int:
    """nki migrate"""
    file, name, _ = script.target(options.file)
    if not isinstance(file, Path):
        raise UsageError(f"{file} is a module; name its file")
    source = file.read_bytes().decode("utf-8")  # line ends as they are
    try:
        tree = ast.parse(source, str(file))
    except SyntaxError as problem:
        raise UsageError(f"{file}: line {problem.lineno} is no Python: {problem.msg}") from None
    found = findings(tree)
    if options.json:
        facts = [{"line": f.line, "old": f.old, "new": f.new, "safe": f.edit is not None} for f in found]
        print(json.dumps({"file": str(file), "findings": facts}, indent=2))
    else:
        report(file, found)
    if not options.write:
        return OLD_REMAINS if found else 0
    return write(file, name, source, tree, found, options)


def report(file: Path, found: list[Migration]) -> None:
    """A table of what is old, and who can change it."""
    if not found:
        print(f"{file}: nothing of an older API")
        return
    from nki.report.text import ruled

    table = ruled("line", "old", "today", "by")
    for finding in found:
        table.add_row(str(finding.line), finding.old, finding.new, "--write" if finding.edit else "you")
    show(table)
    hands = sum(f.edit is None for f in found)
    print(f"{file}: {len(found)} places, {len(found) - hands} that --write can change, {hands} for you")


def write(
    file: Path,
    name: str | None,
    source: str,
    tree: ast.Module,
    found: list[Migration],
    options: argparse.Namespace,
) -> int:
    """Rewrite the file, if what comes out computes what it computed."""
    hands = [f for f in found if f.edit is None]
    if hands:
        lines = ", ".join(str(f.line) for f in hands[:8])
        complain(f"nki migrate: {file} is unchanged: lines {lines} need a person first")
        return OLD_REMAINS
    if not found:
        return 0
    new = rewritten(source, found)
    values = script.parse_arguments(options.arg)
    if not values:
        raise UsageError(
            "--write compares old and new on random inputs: give --arg NAME=float32[8,8] for each"
        )
    difference = compare(file, name, new, values, is_old(tree))
    if difference:
        complain(f"nki migrate: {file} is unchanged: {difference}")
        return OLD_REMAINS
    file.write_bytes(new.encode("utf-8"))
    print(f"wrote {file}: old and new give the same on random inputs", file=sys.stderr)
    return 0


def compare(file: Path, name: str | None, new: str, values: dict[str, Any], old: bool) -> str:
    """Why the rewritten file is not the old one; empty when it is."""
    if old:
        from .. import stubs  # slow to import: a listing does without

        stubs.install()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / file.name
        other.write_text(new, encoding="utf-8")
        try:
            before, after = results(file, name, values), results(other, name, values)
        except Exception as problem:  # whatever a script may raise
            return f"it does not run: {type(problem).__name__}: {str(problem).splitlines()[0]}"
    if len(before) != len(after):
        return f"the old kernel gives {len(before)} tensors, the new one {len(after)}"
    for a, b in zip(before, after, strict=True):
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True):
            return "old and new give different values on random inputs"
    return ""


def results(file: Path, name: str | None, values: dict[str, Any]) -> list[np.ndarray]:
    """What the kernel of a file gives for random arrays of the described shapes."""
    generator = np.random.default_rng(0)
    arrays = {key: _random(value, generator) for key, value in values.items()}
    with script.loaded(file) as module:
        kernel = script.find_kernel(module, file, name)
        bound = script.bind(kernel, arrays)
        made = kernel(*bound.args, **bound.kwargs)
    made = made if isinstance(made, (tuple, list)) else [made]
    return [np.asarray(m, dtype=np.float64) for m in made if hasattr(m, "shape")]


def _random(value: Any, generator: np.random.Generator) -> Any:
    if not isinstance(value, TensorSpec):
        return value
    dtype = np.dtype(str(value.dtype))
    if dtype.kind in "iub":
        return generator.integers(0, 2 if dtype.kind == "b" else 100, value.shape).astype(dtype)
    return generator.standard_normal(value.shape).astype(dtype)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="file.py[:kernel]", help="the kernel that --write compares")
    parser.add_argument("--write", action="store_true", help="rewrite the file, after a comparison")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="as for nki profile; for --write"
    )
    add_json(parser)


COMMAND = Command(
    "migrate",
    "list what of older APIs a file uses",
    """\
List what of the old API (neuronxcc.nki), or of NKI 0.1 to 0.5, a file uses: each with its
line and its replacement. --write changes the file where that is safe, if old and new
give the same on random inputs. Exit code 1: something old remains.""",
    command_migrate,
    add_arguments,
    """\
examples:
  nki migrate kernel.py
  nki migrate kernel.py:add --write --arg a=float32[128,512] --arg b=float32[128,512]""",
)
