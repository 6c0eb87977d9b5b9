"""docs/comparison.md: what it says of Open NKI is still so, and the marks that probes rely on are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import peers  # noqa: E402
from benchmarks.compare import __main__ as compare  # noqa: E402
from benchmarks.compare import nki_mistakes, page  # noqa: E402
from benchmarks.compare.problems import problems  # noqa: E402

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


def test_pytorch_solves_the_same_problems():
    pytest.importorskip("torch")
    answers = compare.times("torch")["times"]
    assert answers.keys() == problems().keys() and all(answer["right"] for answer in answers.values())


def test_the_benchmark_of_peers_names_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(peers, "ROOT", Path("nowhere"))
    (row,) = peers.rows("triton_viz", "triton-viz")
    assert row == ("triton-viz", "not installed: make compare", "")


def test_the_benchmark_of_peers_has_a_row_for_each_problem(monkeypatch):
    found = {name: {"first": 3.0, "again": 2.0, "right": name != "softmax"} for name in problems()}
    monkeypatch.setattr(peers, "ask", lambda *words: [{"times": found}])
    values = [value for _, value, _ in peers.rows("nki", "Open NKI")]
    assert values == ["3.0x, 2.0x", "3.0x, 2.0x (result differs)", "3.0x, 2.0x"]
