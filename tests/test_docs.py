"""The documents match the code: docs/isa.md is up to date, and every Python snippet runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import nki.cli.docs
from documented_kernels import checked, show_source

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = "<!-- not run -->"
INTENDED = {"checks.md": ["race"]}  # findings that a page shows on purpose
FRAMEWORKS = {
    "agents.md": "mcp",
    "torch.md": "torch",
    "jax.md": "jax",
    "models.md": "torch transformers jax",
    "trnblas.md": "torch",
}  # pages that need another package


def test_nothing_asks_for_a_name_that_no_index_has():
    texts = [*DOCUMENTS, *(ROOT / "docs").rglob("*.md")]
    texts += [path for part in ("src", "examples", "tools") for path in (ROOT / part).rglob("*.py")]
    wrong = [
        path.name
        for path in texts
        if re.search(r"pip install\W+open-nki|open-nki\[", path.read_text("utf-8"))
    ]
    assert wrong == []


# ---- docs/isa.md ---------------------------------------------------------------------------------


@pytest.mark.tiny
def test_the_page_of_instructions_matches_the_code():
    assert (ROOT / nki.cli.docs.PAGE).read_text() == nki.cli.docs.page(), (
        "docs/isa.md is stale: run `make docs`"
    )


def test_the_command_writes_the_page(tmp_path, capsys):
    target = tmp_path / "new" / "isa.md"
    nki.cli.docs.main([str(target)])
    assert target.read_text() == nki.cli.docs.page()
    assert str(target) in capsys.readouterr().out


def test_every_documented_instruction_has_one_row():
    api = json.loads((ROOT / "tests" / "data" / "documented_api.json").read_text())
    rows = re.findall(r"^\| `(\w+\.\w+)` \|", nki.cli.docs.page(), re.MULTILINE)
    assert sorted(name for name in rows if name.startswith("nisa.")) == sorted(
        f"nisa.{name}" for name in api["nki.isa"]["functions"]
    )
    assert len(rows) == len(set(rows))


def test_every_cell_of_the_table_of_instructions_is_filled():
    rows = [
        line.strip("| ").split(" | ") for line in nki.cli.docs.page().splitlines() if line.startswith("| `")
    ]
    assert {len(row) for row in rows} == {6, 2}  # instructions, and functions that issue none
    assert all(cell.strip() for row in rows for cell in row)


def test_the_page_shows_generations_and_engines_of_each_instruction():
    page = nki.cli.docs.page()
    assert re.search(r"`nisa.nc_matmul_mx` \| tensor \| trn3 \|", page)
    assert re.search(r"`nisa.sendrecv` \| DMA \| trn2, trn3 \|", page)
    assert re.search(r"`nisa.tensor_tensor` \| vector, gpsimd \| trn1, trn2, trn3 \|", page)
    assert re.search(r"`nisa.register_load` \| sequencer \|", page)


# ---- snippets ------------------------------------------------------------------------------------


def snippets(text: str) -> str:
    """Return the Python blocks of a Markdown text as one program with the same line numbers."""
    program: list[str] = []
    indent: int | None = None  # of the block we are in
    before = ""
    for line in text.splitlines():
        code = line.lstrip()
        if indent is not None and code.startswith("```"):
            indent = None
        elif indent is not None:
            program.append(line[indent:])
            continue
        elif code.rstrip() == "```python" and before != NOT_RUN:
            indent = len(line) - len(code)
        before = code.strip() or before
        program.append("")
    return "\n".join(program)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_snippet_runs_and_its_kernels_pass_nki_check(document, tmp_path, monkeypatch):
    for package in FRAMEWORKS.get(document.name, "").split():
        pytest.importorskip(package, reason=f"{document.name} needs {package}")
    monkeypatch.chdir(tmp_path)  # files that a snippet writes are removed
    monkeypatch.setenv("TRNBLAS_CACHE_DIR", str(tmp_path))
    text = snippets(document.read_text())
    program = compile(text, str(document), "exec", dont_inherit=True)
    show_source(document, text)
    with checked(document, INTENDED.get(document.name, ())):
        exec(program, {"__name__": "snippet"})


# ---- the glossary --------------------------------------------------------------------------------

KNOWN = {  # names and units that a reader knows, and names of projects
    "API", "AWS", "CI", "CPU", "CS149", "CUDA", "DeepSeek", "GB", "GPU", "GiB", "HTML", "JAX", "JSON",
    "KB", "MB", "NKIBench", "NumPy", "PyPI", "PySCF", "PyTorch", "SciPy",
}  # fmt: skip
NO_PROSE = ("glossary.md", "kinds.md", "library.md", "release-changes.md")


def test_the_glossary_has_the_abbreviations_that_pages_use():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorial").glob("*.md")]
    used: dict[str, list[str]] = {}
    for page in pages:
        if page.name in NO_PROSE:
            continue
        prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
        for word in set(re.findall(r"\b[A-Z][A-Za-z]*[A-Z][A-Za-z0-9]*\b", prose)) - KNOWN:
            used.setdefault(word, []).append(page.name)
    missing = {
        word: found
        for word, found in used.items()
        if len(found) > 1 and not re.search(rf"\b{word}", glossary)
    }
    assert missing == {}


@pytest.mark.tiny
def test_snippets_keep_their_line_numbers_and_skip_marked_blocks():
    shown = "one\n\n   ```python\n   x = 1\n     + 1\n   ```\n"
    hidden = "<!-- not run -->\n\n```python\nboom\n```\n```\ntext\n```\n"
    lines = snippets(shown + hidden).split("\n")
    assert lines[3:5] == ["x = 1", "  + 1"]
    assert [i for i, line in enumerate(lines) if line] == [3, 4]
