"""docs/accuracy.md: it has every published figure, and what it says of the quick ones is what comes out."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.accuracy import evidence, kernel_fusion, kiln  # noqa: E402
from benchmarks.accuracy.__main__ import PAGE  # noqa: E402
from benchmarks.accuracy.cases import cases  # noqa: E402
from benchmarks.accuracy.page import bias, error, rows  # noqa: E402
from benchmarks.accuracy.public_kernels import SECTION  # noqa: E402

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
    text = PAGE.read_text()
    for row in rows([case]):
        assert row.line() in text, "make accuracy has new figures: python -m benchmarks.accuracy --write"


def test_the_page_has_the_times_of_public_kernels():
    text = PAGE.read_text()
    assert sum(map(len, kernel_fusion.ATTENTION.values())) == 16
    assert sum(map(len, kernel_fusion.GEMM.values())) == 30
    assert text.count("| kernel-fusion reports |") == 46
    assert text.count("| total and launch |") == len(kiln.MS)


def test_nine_of_ten_times_of_whole_kernels_lie_within_the_widening_of_an_interval():
    count, inside = map(int, re.search(r"Of (\d+) times .* covers (\d+)\.", PAGE.read_text()).groups())
    assert count >= 120 and inside >= 0.9 * count
    known = [(1.2, "trn2", True), (0.7, "trn2", True), (1.2, "trn2", False), (0.7, "trn1", True)]
    assert evidence.covered(known, SECTION) == (inside_of(SECTION) + 2, 62 + 4)


def inside_of(section):
    return evidence.covered([], section)[0]


def test_a_figure_is_used_in_one_of_four_ways():
    uses = {case.name: case.use for case in CASES}
    assert set(uses.values()) == {"fitted", "read", "same source", "never used"}
    assert {use for name, use in uses.items() if "Mamba" in name} == {"read", "same source"}


def test_errors_are_geometric_means():
    assert error([2.0, 0.5]) == pytest.approx(2) and bias([2.0, 0.5]) == pytest.approx(1)
