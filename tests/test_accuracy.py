"""docs/accuracy.md: it has every published figure, and what it says of the quick ones is what comes out."""

import sys
from pathlib import Path

import pytest

import nki

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.accuracy.__main__ import PAGE, row  # noqa: E402
from benchmarks.accuracy.cases import cases  # noqa: E402

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_page_has_every_published_figure(case):
    text = PAGE.read_text()
    if case.long and f"| {case.name} |" not in text:
        assert case.name in text.partition("Not timed for this page:")[2]
        return
    for name, unit, published, _ in case.figures:
        assert f"| {case.name} | {name} | {published:,g} {unit} |" in text


@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=lambda case: case.name)
def test_what_the_page_says_is_what_the_model_says(case):
    profile = nki.profile(case.kernel, target=case.target)(*case.arguments)
    text = PAGE.read_text()
    for figure in case.figures:
        line, _ = row(case, figure, profile)
        assert line in text, "make accuracy has new figures: python -m benchmarks.accuracy --write"


def test_some_figures_only_judge_and_nothing_is_chosen_by_them():
    held_back = [case for case in CASES if case.use == "held back"]
    assert len(held_back) >= 6 and {case.use for case in CASES} == {"held back", "rule", "fitted"}
