"""Every public name of nki.isa and nki.language has a complete text, whose example runs."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path

import pytest

import texts
from documented_kernels import checked, show_source
from nki.machine.dtypes import DType
from nki.machine.memories import MemoryRegion
from nki.reference import sections
from test_docs import snippets

ROOT = Path(__file__).parent.parent
FILES = [file.relative_to(ROOT) for file in texts.files()]


def parts_missing(prefix: str, name: str, text: str) -> list[str]:
    """Return which parts of the text of a name are missing."""
    value = getattr(texts.PACKAGES[prefix], name)
    missing = [part for part in ("Example:\n\n```python\n", "See also: `") if part not in text]
    missing += [] if re.search(r"^```output\n[^`]", text, re.MULTILINE) else ["an output"]
    if isinstance(value, type) or not callable(value):
        members = [m.name for m in value] if isinstance(value, enum.EnumMeta) else [""]
        return missing + [f"member {m}" for m in members if f"- `{m}" not in text.partition("Members:")[2]]
    missing += [part for part in ("Operation:\n\n```text\n", "Facts:\n\n- ") if part not in text]
    parameters = set(texts.parameters(value))
    listed = re.findall(r"^- ((?:`\w+`(?:, )?)+):", text.partition("Parameters:")[2], re.MULTILINE)
    explained = set(re.findall(r"\w+", " ".join(listed)))
    return missing + [f"parameter {p}" for p in sorted(parameters - explained)]


def names(prefix: str) -> list[str]:
    """Return the public names that have a text: dtypes, memories and engines are rows of tables."""
    module = texts.PACKAGES[prefix]
    tables = (DType, MemoryRegion, module.engine if prefix == "nisa" else DType)
    values = {n: getattr(module, n) for n in module.__all__}
    return [n for n, v in values.items() if not isinstance(v, tables) and not inspect.ismodule(v)]


@pytest.mark.parametrize("prefix", ["nisa", "nl"])
def test_every_public_name_has_a_complete_text(prefix):
    found = {}
    for file in texts.files():
        if texts.prefix_of(file) == prefix:
            found |= sections(file)
    missing = {name: parts_missing(prefix, name, found.get(name, "")) for name in names(prefix)}
    assert {name: parts for name, parts in missing.items() if parts} == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_examples_print_what_the_text_shows_and_pass_nki_check(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / file).read_text(encoding="utf-8")
    show_source(file, snippets(text))
    with checked(file):
        assert texts.written(file) == text, "the text is stale: run `make docs`"


def test_see_also_names_public_names():
    for file in texts.files():
        for line in re.findall(r"^See also: (.*)\.$", file.read_text(encoding="utf-8"), re.MULTILINE):
            for name in re.findall(r"`([\w.]+)`", line):
                prefix, _, rest = name.rpartition(".")
                home = texts.PACKAGES[prefix or texts.prefix_of(file)] if prefix != "nki" else texts.nki
                assert hasattr(home, rest), f"{file.name}: {name}"


def test_help_shows_the_text():
    import nki.isa as nisa

    text = inspect.getdoc(nisa.tensor_scalar)
    assert text.startswith("dst = (data <op0> operand0) <op1> operand1")
    assert sections(ROOT / "src/nki/reference/isa/elementwise.md")["tensor_scalar"] in text
