"""The pages of `nki explain`, by kind. Their texts and samples are Markdown files in this folder."""

from __future__ import annotations

from pathlib import Path

from ..python_rules import RULES
from .page import PRELUDE, Page, read_pages

_FOLDER = Path(__file__).parent
_SAMPLES = read_pages(_FOLDER / "python.md")


def _rule_page(code: str) -> Page:
    """Return the page of a rule of the Python check: its own words, and the sample of its code."""
    rule, sample = RULES[code], _SAMPLES.get(code, Page(""))
    meaning = f"{rule.summary}. {rule.help[0].upper()}{rule.help[1:]}."
    return Page(meaning, sample.wrong, sample.right, sample.target)


SECTIONS: dict[str, dict[str, Page]] = {
    "Memories": read_pages(_FOLDER / "memory.md"),
    "Shapes and views": read_pages(_FOLDER / "views.md"),
    "Instructions": read_pages(_FOLDER / "instructions.md"),
    "Running": read_pages(_FOLDER / "running.md"),
    "Releases of AWS's NKI": read_pages(_FOLDER / "releases.md"),
    "Python that compilers refuse": {code: _rule_page(code) for code in RULES},
}
PAGES: dict[str, Page] = {kind: page for pages in SECTIONS.values() for kind, page in pages.items()}

__all__ = ["PAGES", "PRELUDE", "SECTIONS", "Page"]
