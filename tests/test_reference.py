"""Every public name of nki.isa, nki.language and nki.collectives has a complete text, whose example runs."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import name_pages
import nki
import nki.language as nl
import patterns
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


@pytest.mark.parametrize("prefix", texts.PACKAGES)
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


# ---- pages -----------------------------------------------------------------------------------------


def test_every_name_has_a_page_with_its_parts():
    pages = name_pages.pages()
    assert set(pages) == {f"{p}/{n}.md" for p, prefix in name_pages.DOCUMENTED.items() for n in names(prefix)}
    for path, page in pages.items():
        assert "## Example\n" in page and "**See also:** [`" in page, path
        assert len(page) < 100_000, path
    for name in ("tensor_scalar", "dma_copy", "nc_matmul"):
        page = pages[f"nki.isa/{name}.md"]
        assert "def compute(" in page and "Source: machine specification [" in page
        assert "| `dst` | `NkiTensor` |" in page and "kinds/shapes-and-views.md#shape" in page


def test_patterns_have_drawings():
    pages = name_pages.pages()
    for name in ("nki.isa/iota", "nki.isa/affine_select", "nki.language/NkiTensor"):
        assert pages[f"{name}.md"].count("<svg") >= 3


@pytest.mark.parametrize("pattern, offset", [([[6, 2], [2, 3]], 0), ([[6, 2], [0, 2], [1, 3]], 3)])
def test_a_drawing_shows_what_an_access_pattern_reads(pattern, offset):
    read = []

    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        read.append(np.asarray(tile.ap(pattern, offset=offset)))
        nl.device_print("tile", tile)

    kernel(np.arange(12, dtype=np.float32).reshape(2, 6))
    assert patterns.places(pattern, offset).tolist() == read[-1].reshape(-1).tolist()


def test_a_drawing_of_iota_shows_its_values():
    values = [5 + 100 * p + 10 * y + x for p in (0, 1) for y in (0, 1) for x in (0, 1, 2)]
    shown = re.findall(r'fill-opacity="1">(-?\d+)<', patterns.iota([[10, 2], [1, 3]], 5, 100))
    assert shown == [str(value) for value in values]
