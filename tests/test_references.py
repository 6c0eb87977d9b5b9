"""References to documents: every page and every section that code, tests and documents name exists."""

from __future__ import annotations

import ast
import itertools
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "docs" / "spec"
PLACES = (
    "src",
    "tests",
    "docs",
    "benchmarks",
    "tools",
    "examples",
    "skills",
    "AGENTS.md",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
)
# names of pages that a tool or a test writes itself, or joins to a folder of their own
LOCAL_NAMES = {
    "docs/machine.md": {"reference/machine.md"},
    "docs/index.md": {"reference/nki.isa.md", "reference/nkilib.md", "about.md"},
    "tools/navigation.py": {"about.md"},
    "tools/pages.py": {"page.md"},
    "tools/build_site.py": {"index.md", "about.md"},
    "src/nki/check/pages/__init__.py": {
        "python.md",
        "memory.md",
        "views.md",
        "instructions.md",
        "running.md",
        "releases.md",
    },
    **dict.fromkeys(
        [f"src/nki/check/{name}.py" for name in ("releases", "release_conditions", "portability")]
        + ["tests/check/release_kernels.py"],
        {"releases.md"},
    ),
    "tools/reference.py": {
        "nkilib.md",
        "command-line.md",
        "machine.md",
        "../library.md",
        "../spec/machine.md",
    },
    "tests/test_site.py": {"page.md", "nkilib.md", "environment.md"},
    "tests/check/test_portability.py": {"releases.md", "release-changes.md"},
    "tests/test_documented_kernels.py": {"wrong.md"},
    "tests/agents/test_skills.py": {"agents.md"},
    "tests/test_docs.py": {
        "agents.md",
        "checks.md",
        "glossary.md",
        "isa.md",
        "jax.md",
        "kinds.md",
        "library.md",
        "models.md",
        "release-changes.md",
        "torch.md",
        "trnblas.md",
    },
    "tests/test_comparison.py": {"comparison.md"},
    "tests/nkilib/test_docs.py": {"library.md"},
    "tests/testing/test_workflow.py": {"testing.md"},
    "tests/timing/test_advisor.py": {"profiling.md"},
    "tests/timing/test_compiler_programs.py": {"compiler.md"},
    "benchmarks/accuracy/__main__.py": {"accuracy.md"},
    "benchmarks/accuracy/evidence.py": {"compiler.md"},
    "tools/library_pages.py": {"reference/nkilib.md", "../library.md"},
    "benchmarks/accuracy/public_kernels.py": {"public_kernels.md"},
    "benchmarks/compare/__main__.py": {"comparison.md"},
    "tests/ranks/test_shard_map.py": {"jax.md"},
    "tests/grading/test_pages.py": {"teachers.md", "contests.md", "grading.md"},
    "tests/test_reference.py": {"kinds/shapes-and-views.md"},
    "tools/name_pages.py": {"../nki.isa.md", "../nki.language/ndarray.md", "../machine.md"},  # of the site
}

NUMBER = r"(?:\d+(?:\.\d+)*|L\d\d)"
REFERENCE = re.compile(
    r"(?<![\w/.*{}-])(?P<page>[\w./-]*[\w-]\.md)\b`?"
    rf"(?: (?P<sections>{NUMBER}(?:(?:, | and | to |-){NUMBER})*)(?![\w%])| \"(?P<title>[^\"]+)\")?"
)
LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<page>[^)#\s]*)(?:#(?P<anchor>[\w-]+))?\)")


def files(place: str, *suffixes: str) -> list[Path]:
    """The files of a place that refer to documents, without this one."""
    start = ROOT / place
    found = [start] if start.is_file() else sorted(start.rglob("*"))
    return [path for path in found if path.name.endswith(suffixes) and path != Path(__file__)]


@cache
def sections(page: Path) -> frozenset[str]:
    """The numbers and titles of a page's headings; of the table of decisions, the numbers of its rows."""
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(rf"^#+ ({NUMBER})\.? ", text, re.MULTILINE))
    found |= set(re.findall(r"^#+ (.*?)$", text, re.MULTILINE))
    if page == SPEC / "decisions.md":
        found |= set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))
    return frozenset(found)


@cache
def anchors(page: Path) -> frozenset[str]:
    titles = re.findall(r"^#+ (.*?)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip()).lower() for title in titles
    )


def find_page(name: str, user: Path) -> Path | None:
    """The page that `name` means in the file `user`: beside a document, below docs/, or below the root."""
    places = [ROOT]
    if name.startswith("spec/"):
        places = [ROOT / "docs"]
    if user.suffix == ".md" and user.is_relative_to(ROOT / "docs"):
        places.append(user.parent)
    return next((place / name for place in places if (place / name).is_file()), None)


def wrong_references(text: str, user: Path) -> list[str]:
    """The references of a text that lead nowhere, each as `name` or `name section`."""
    wrong = []
    local = LOCAL_NAMES.get(user.relative_to(ROOT).as_posix(), ())
    for match in REFERENCE.finditer(text):
        name = match["page"]
        if name in local:
            continue
        page = find_page(name, user)
        if page is None:
            wrong.append(name)
            continue
        named = re.findall(NUMBER, match["sections"] or "") + ([match["title"]] if match["title"] else [])
        wrong += [f"{name} {section}" for section in named if section not in sections(page)]
    return wrong


@pytest.mark.parametrize("place", PLACES)
def test_every_page_and_section_that_is_named_exists(place):
    paths = files(place, ".py", ".pyi", ".md", "Makefile")
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if (found := wrong_references(path.read_text(encoding="utf-8"), path))
    }
    assert paths and not wrong


def test_every_link_of_a_document_leads_to_a_page_and_an_anchor():
    generated = re.compile(
        r"reference/|CONTRIBUTING\.md|CHANGELOG\.md|index\.md|about\.md"
    )  # made by tools/build_site.py
    for path in itertools.chain.from_iterable(files(place, ".md") for place in PLACES):
        for match in LINK.finditer(
            re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        ):
            target = (path.parent / match["page"]) if match["page"] else path
            if not target.exists() and generated.match(match["page"]):
                continue
            assert target.exists(), f"{path.relative_to(ROOT)}: {match[0]}"
            if match["anchor"] and target.suffix == ".md":
                assert match["anchor"] in anchors(target), f"{path.relative_to(ROOT)}: {match[0]}"


def test_every_number_of_the_machine_names_a_section():
    source = (ROOT / "src" / "nki" / "machine" / "machine.py").read_text(encoding="utf-8")
    machine = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Machine")
    lines = source.splitlines()
    fields = [lines[n.lineno - 1] for n in machine.body if isinstance(n, ast.AnnAssign)]
    notes = [
        re.search(rf"#.*?(?:(spec/\w+\.md) )?({NUMBER})(?:, {NUMBER})* \[[DSXTUC]\]", line) for line in fields
    ]
    assert fields and all(notes)
    for note in filter(None, notes):
        page = ROOT / "docs" / (note[1] or "spec/machine.md")
        assert set(re.findall(NUMBER, note[0].partition("[")[0].replace(note[1] or "", ""))) <= sections(
            page
        ), note[0]


def test_a_missing_page_and_a_missing_section_are_found():
    user = ROOT / "src" / "nki" / "isa" / "vector.py"
    assert wrong_references("spec/machine.md 6.2, 8 and spec/tensor.md 4 to 7.5 (docs/isa.md)", user) == []
    assert wrong_references("spec/machine.md 6.2, 99", user) == ["spec/machine.md 99"]
    assert wrong_references("spec/decisions.md 13 and 1300", user) == ["spec/decisions.md 1300"]
    assert wrong_references('spec/isa_vector.md "Random model"', user) == []
    assert wrong_references('spec/isa_vector.md "Another model"', user) == [
        "spec/isa_vector.md Another model"
    ]
    assert wrong_references("design.md and spec/nothing.md 3", user) == ["design.md", "spec/nothing.md"]
    assert wrong_references("machine.md 5.2", user) == ["machine.md"]
