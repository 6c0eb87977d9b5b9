"""docs/comparison.md: what it says of Open NKI is still so, and the marks that probes rely on are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.compare import __main__ as compare  # noqa: E402
from benchmarks.compare import nki_mistakes, page  # noqa: E402

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", page.MISTAKES)
def test_open_nki_finds_what_the_page_says(name):
    (row,) = re.findall(rf"^\| {re.escape(page.MISTAKES[name])} \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert page._mistake(compare.probe("nki", name)) == row


def test_every_mistake_in_nki_marks_its_line():
    marks = re.findall(r"# wrong: (\w+)$", Path(nki_mistakes.__file__).read_text(), re.MULTILINE)
    assert marks == [name for name in vars(nki_mistakes) if name in page.MISTAKES]


def test_a_report_names_the_line_or_it_does_not(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("one\ntwo  # wrong: race\n")
    assert compare.names_line((str(source),), "race", 'File "kernel.py", line 2, in kernel')
    assert compare.names_line((str(source),), "race", "--> kernel.py:2")
    assert not compare.names_line((str(source),), "race", "kernel.py:22")


def test_a_system_that_was_not_asked_is_left_out():
    probes = {name: {"outcome": "none"} for name in page.QUESTIONS}
    text = page.written({"nki": {"version": "1", "python": "3", "times": {}, "probes": probes}})
    assert "| Open NKI | 1 |" in text and "Pallas, `InterpretParams`" not in text
