"""`nki migrate`: what of the old API, or of an older release, a file uses, and a rewrite of what is safe."""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nki.cli import script
from nki.cli.command import Command, add_json
from nki.cli.script import UsageError
from nki.cli.terminal import complain, show
from nki.kernel.arrays import TensorSpec

from . import source_file
from .old_names import OLD

if TYPE_CHECKING:
    from .rewriting import Place

OLD_REMAINS = 1


def command_migrate(options: argparse.Namespace) -> int:
    """nki migrate"""
    file, name, _ = script.target(options.file)
    if not isinstance(file, Path):
        raise UsageError(f"{file} is a module; name its file")
    source = source_file.read(file)
    new, places = migrated(file, source.text)
    if options.json:
        facts = [{**place._asdict(), "safe": not place.why} for place in places]
        print(json.dumps({"file": str(file), "findings": facts}, indent=2))
    elif options.diff:
        before, after = lines_of(source.text), lines_of(new)
        sys.stdout.writelines(difflib.unified_diff(before, after, str(file), f"{file}, migrated"))
    else:
        report(file, places)
    if not options.write:
        return OLD_REMAINS if places else 0
    return write(file, name, source, new, places, options)


def migrated(file: Path, text: str) -> tuple[str, list[Place]]:
    """Return the migrated source and every old place; UsageError if that is not possible."""
    try:
        ast.parse(text, str(file))
    except SyntaxError as problem:
        raise UsageError(f"{file}: line {problem.lineno} is no Python: {problem.msg}") from None
    try:
        from .rewriting import migrate
    except ImportError as problem:
        raise UsageError(f"nki migrate needs libcst: pip install libcst ({problem})") from None
    return migrate(text)


def report(file: Path, places: list[Place]) -> None:
    """Print a table of what is old, who can change it, and why --write does not."""
    if not places:
        print(f"{file}: nothing of an older API")
        return
    from nki.report.text import ruled

    table = ruled("line", "old", "today", "by")
    for place in places:
        by = f"you: {place.why}" if place.why else "--write"
        table.add_row(f"{place.line}:{place.column}", place.old, place.new, by)
    show(table)
    yours = sum(bool(place.why) for place in places)
    print(f"{file}: {len(places)} places, {len(places) - yours} that --write can change, {yours} for you")


def write(
    file: Path,
    name: str | None,
    source: source_file.Source,
    new: str,
    places: list[Place],
    options: argparse.Namespace,
) -> int:
    """Rewrite the file, if the new one is as planned and computes what the old one computes."""
    yours = [place for place in places if place.why]
    if yours:
        lines = "".join(f"\n  {file}:{p.line}:{p.column}: {p.old}: {p.why}; today: {p.new}" for p in yours)
        complain(f"nki migrate: {file} is unchanged: these places need a person first{lines}")
        return OLD_REMAINS
    if not places:
        return 0
    values = script.parse_arguments(options.arg)
    if not values:
        raise UsageError(
            "--write compares old and new on random inputs: give --arg NAME=float32[8,8] for each"
        )
    content = source.encode(new)
    difference = unplanned(file, source.text, new, places) or compare(
        file, name, content, values, OLD in source.text
    )
    if difference:
        complain(f"nki migrate: {file} is unchanged: {difference}")
        return OLD_REMAINS
    source_file.replace(file, content)
    print(f"wrote {file}: old and new give the same on random inputs", file=sys.stderr)
    return 0


def lines_of(text: str) -> list[str]:
    """Return the lines as Python counts them: a form feed ends none."""
    return io.StringIO(text, newline="").readlines()


def unplanned(file: Path, old: str, new: str, places: list[Place]) -> str:
    """Return why a rewritten source is not what was planned; empty if it is."""
    try:
        _, left = migrated(file, new)
    except UsageError as problem:
        return str(problem)
    if left:
        return f"line {left[0].line} would still have {left[0].old}"
    matcher = difflib.SequenceMatcher(None, lines_of(old), lines_of(new), autojunk=False)
    touched = {
        line + 1
        for tag, i, j, *_ in matcher.get_opcodes()
        if tag != "equal"
        for line in range(i, max(j, i + 1))
    }
    unknown = touched - {line for place in places for line in range(place.line, place.last + 1)}
    return f"line {min(unknown)} would change, which is not planned" if unknown else ""


def compare(file: Path, name: str | None, new: bytes, values: dict[str, Any], old: bool) -> str:
    """Return why the rewritten file does not compute what the old one does; empty if it does."""
    if old:
        from .. import stubs  # slow to import: a listing does without

        stubs.install()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / file.name
        other.write_bytes(new)
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
    parser.add_argument("--diff", action="store_true", help="print the changes instead of the list")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="as for nki profile; for --write"
    )
    add_json(parser)


COMMAND = Command(
    "migrate",
    "list what of older APIs a file uses",
    """\
List what of the old API (neuronxcc.nki), or of NKI 0.1 to 0.5, a file uses: each with its
line, its replacement, and why it is for you where it is. --write changes the file if no place
is for you and old and new give the same on random inputs. It needs the package libcst.
Exit code 1: something old remains.""",
    command_migrate,
    add_arguments,
    """\
examples:
  nki migrate kernel.py
  nki migrate kernel.py:add --write --arg a=float32[128,512] --arg b=float32[128,512]""",
)
