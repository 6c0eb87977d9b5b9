"""The site: the tutorial shows what its code prints, and the reference has every public name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

import drawings
import pages
from documented_kernels import checked, show_source
from nki.version import PACKAGE
from test_docs import snippets

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted(
    (ROOT / "docs" / "tutorial").glob("[0-9]*.md"), key=lambda page: int(page.stem.split("-")[0])
)

# ---- tutorial ------------------------------------------------------------------------------------


def test_there_are_ten_chapters_with_pictures_and_each_links_to_the_next():
    assert len(CHAPTERS) == 10
    assert [c.stem for c in CHAPTERS if "](../pictures/" not in c.read_text()] == []
    for chapter, following in zip(CHAPTERS, CHAPTERS[1:], strict=False):
        assert f"]({following.name})" in chapter.read_text()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_shows_what_its_code_prints_and_its_kernels_pass_nki_check(chapter, monkeypatch):
    if "import torch" in chapter.read_text():
        pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    relative = chapter.relative_to(ROOT)
    show_source(relative, snippets(chapter.read_text()))
    with checked(relative):
        assert pages.written(relative) == chapter.read_text(), "the page is stale: run `make docs`"


def test_check_reports_a_page_with_wrong_output(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```output\n3\n```\n")
    assert pages.main(["--check", str(page)]) == 1
    assert pages.main([str(page)]) == 0
    assert page.read_text() == "```python\nprint(1 + 1)\n```\n\n```output\n2\n```\n"
    assert pages.main(["--check", str(page)]) == 0


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_converts_to_a_notebook_with_the_same_code(chapter, tmp_path):
    pages.main(["--notebooks", str(tmp_path), str(chapter)])
    made = json.loads((tmp_path / f"{chapter.stem}.ipynb").read_text())
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    code = [block.text for block in pages.blocks(chapter.read_text()) if block.kind == "python"]
    assert [cell["source"] for cell in cells] == [text.rstrip("\n") for text in code]
    printed = [cell["outputs"][0]["text"] for cell in cells if cell["outputs"]]
    assert printed == [b.text for b in pages.blocks(chapter.read_text()) if b.kind == "output"]
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


def test_the_pictures_are_those_that_the_code_draws():
    for name, draw in drawings.PICTURES.items():
        assert (drawings.FOLDER / f"{name}.svg").read_text() == str(draw()), "run `make docs`"


# ---- reference -----------------------------------------------------------------------------------


def test_the_reference_has_every_public_name():
    pytest.importorskip("torch")  # trnblas
    import reference

    texts = reference.pages()
    for name in reference.MODULES:
        module, text = importlib.import_module(name), texts[f"{name}.md"]
        shown = set(re.findall(r"^### (\w+)$|<a id='(\w+)'>", text, re.MULTILINE))
        assert set(reference.public_names(module)) - {a or b for a, b in shown} == set(), name
        assert not re.search(r" at 0x[0-9a-f]+", text), "an address differs in every run"


def test_the_search_knows_every_function_and_class_of_the_reference():
    pytest.importorskip("torch")
    import reference
    from nki_mcp.reference import entries

    known = {one.whole for one in entries()}
    for name in reference.MODULES:
        module = importlib.import_module(name)
        own = [n for n in reference.public_names(module) if callable(getattr(module, n))]
        assert [
            n for n in own if f"{name}.{n}" not in known and n not in ("get_backend", "set_backend")
        ] == []
    assert {"trnblas.get_backend", "trnblas.set_backend"} <= known


def test_the_reference_has_every_kernel_of_the_library():
    pytest.importorskip("torch")
    import library_pages
    import reference

    texts = reference.pages()
    for kernel in library_pages.kernels():
        if kernel.is_built:
            page = f"nkilib/{library_pages.family_of(kernel).name}.md"
            assert f"\n## {kernel.name}\n" in texts[page]
        assert f"`{kernel.name}`" in texts["nkilib.md"]


def test_dir_lists_only_public_names():
    import nki.collectives
    import nki.isa
    import nki.language
    import nki.mx
    import nki.ranks
    import nki.simulator
    import nki.tensor
    import nki.testing
    import nki.tune

    modules = (nki.mx, nki.ranks, nki.simulator, nki.tensor, nki.testing, nki.tune)
    for module in (nki, nki.isa, nki.language, nki.collectives, *modules):
        assert set(dir(module)) <= {*module.__all__, *getattr(module, "_MODULES", ())}
    assert "nc_matmul" in dir(nki.isa) and "vector" not in dir(nki.isa)


# ---- environment variables -----------------------------------------------------------------------

VARIABLE = re.compile(r"^(?:OPEN_NKI|NKI|NEURON|TRNBLAS|UNSAFE|XDG)_[A-Z0-9_]+$")
ANYWHERE = re.compile(VARIABLE.pattern.strip("^$"))


def test_the_page_lists_every_environment_variable():
    page = (ROOT / "docs" / "environment.md").read_text()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ANYWHERE.search(text) else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.match(node.value):
                assert f"`{node.value}`" in page, f"{path}:{node.lineno}"


# ---- the whole -----------------------------------------------------------------------------------


def test_the_site_builds_without_a_warning():
    pytest.importorskip("torch")
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed")
    import build_site

    assert build_site.main() == 0
    site = ROOT / "build" / "site"
    assert (site / "reference" / "nki.isa.html").exists()
    listed = re.findall(r"^- \[.+\]\((.+?)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert [page for page in listed if not (site / page).exists()] == []
    assert {"agents.html", "index.html", "reference/nki.isa.html", "spec/library/moe.html"} <= set(listed)
    home = (site / "index.html").read_text()
    assert "Start the tutorial" in home and 'class="source">Source: <code>docs/index.md' in home
    assert f"Open NKI {PACKAGE}" in home and '<script src="versions.js">' in home
    for chapter in CHAPTERS:
        assert (
            f'href="notebooks/{chapter.stem}.ipynb"'
            in (site / "tutorial" / f"{chapter.stem}.html").read_text()
        )
        assert (site / "tutorial" / "notebooks" / f"{chapter.stem}.ipynb").exists()
    too_large = [page.name for page in site.rglob("*.html") if page.stat().st_size > 400_000]
    assert too_large == [], "a page of more than 400 KB"


def test_sites_of_several_versions_list_each_other(tmp_path):
    import versions

    site = tmp_path / "site"
    site.mkdir()
    versions.write_list(site, [site], ["0.9.0"])
    for name in ("0.9.0", "0.10.0"):
        published = versions.publish(site, name, tmp_path / "versions")
    assert published == ["0.10.0", "0.9.0"]
    listed = {
        name: json.loads((tmp_path / "versions" / name / "versions.js").read_text().splitlines()[0][17:-1])
        for name in published
    }
    assert listed["0.10.0"] == [["0.10.0", "./"], ["0.9.0", "../0.9.0/"]]
    assert listed["0.9.0"] == [["0.10.0", "../0.10.0/"], ["0.9.0", "./"]]
    assert "0.10.0/index.html" in (tmp_path / "versions" / "index.html").read_text()


SAMPLE = ("index", "checks", "reference/nki.isa/iota", "reference/nkilib/rope", "tutorial/7-attention")


def test_pages_have_no_faults_in_a_browser(chromium):
    """A sample, light and dark, wide and narrow; `python tools/site_faults.py` opens every page."""
    import site_faults

    pages = [site_faults.SITE / f"{name}.html" for name in SAMPLE]
    if not all(page.exists() for page in pages):
        pytest.skip("the site is not built: the test before this one builds it")
    assert list(site_faults.faults(chromium, pages)) == []


@pytest.mark.parametrize(
    "page, sentence",
    [
        ("# Title\n\nSee [the page](page.md) first. Then more.\n", "See the page first."),
        ("# Title\n\n<!-- made -->\n\n| a |\n\n```text\nno\n```\n\n`nki` is:\n\n- x\n", "`nki` is"),
        ("# Title\n", ""),
    ],
)
def test_llms_txt_has_the_first_sentence_of_a_page(page, sentence):
    pytest.importorskip("yaml")
    import llms

    assert llms.first_sentence(page) == sentence
