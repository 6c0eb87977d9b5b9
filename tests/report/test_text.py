"""The tables: their exact text for stored figures, and that every kernel fits into 100 columns."""

from pathlib import Path

import pytest
from samples import halves, idle, matmul, profiled, spec, spilling, transposing

import nki
from nki.report.text import comparison, size, summary, time

GOLDEN = Path(__file__).parent / "golden"


def saved(name):
    return nki.Profile.load(GOLDEN / f"{name}.json")


@pytest.mark.tiny
def test_the_summary_reads_as_agreed(golden):
    golden("report/golden/tiled.txt", summary(saved("tiled")))


def test_the_comparison_reads_as_agreed(golden):
    golden("report/golden/comparison.txt", comparison(saved("tiled"), saved("blocked_mnk")))


def test_a_profile_compared_with_itself_changes_nothing():
    text = comparison(saved("tiled"), saved("tiled"))
    assert "tiled trn2 (a)" in text and "tiled trn2 (b)" in text
    assert "Both take the same time." in text
    assert "new" not in text and "+0.0 points" in text


def test_the_comparison_names_the_faster_one():
    text = comparison(saved("blocked_mnk"), saved("tiled"))
    assert "The first is 1." in text


def test_every_section_is_there():
    text = summary(saved("tiled"), assumptions=True)
    for title in ("engine", "DMA", "SBUF", "PSUM", "roofline", "bounds", "line", "assumed"):
        assert title in text
    assert "What would help" in text and "What hardware may reject" in text
    assert "nl.exp(y) # [bold]bracket" in text  # source is never markup


def test_sections_without_content_are_left_out():
    text = profiled(idle, spec(128, 128)).summary()
    assert "critical" not in text and "What would help" not in text
    assert text.startswith("idle on trn2, 1 core: 9.4 us modelled, 0 instructions")


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("step", ["single_tile", "tiled", "hoisted", "blocked_mn", "blocked_mnk"])
def test_no_line_is_longer_than_100_columns_or_coloured(step, on):
    for line in matmul(step, on).summary().splitlines():
        assert len(line) <= 100 and "\x1b" not in line and line == line.rstrip()


def test_other_kernels_can_be_shown():
    assert "2 cores" in profiled(halves[2], spec(256, 512)).summary()
    assert "spills move" in profiled(spilling, spec(128, 1024)).summary()
    assert "scalar" in str(profiled(transposing, spec(128, 128), on="trn1"))
    assert "halves trn2 x2" in comparison(profiled(halves[2], spec(256, 512)), matmul())


@pytest.mark.parametrize(
    ("us", "shown"),
    [(0, "0.0 us"), (0.012, "12.0 ns"), (35.68, "35.7 us"), (9999, "9,999.0 us"), (39895, "39.90 ms")],
)
def test_times_have_a_fitting_unit(us, shown):
    assert time(us) == shown


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (5 << 20, "5 MiB"), (3 << 30, "3.00 GiB")],
)
def test_sizes_have_a_fitting_unit(nbytes, shown):
    assert size(nbytes) == shown


def test_a_notebook_gets_the_text_too(monkeypatch):
    import rich.console

    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert summary(saved("tiled")).startswith("tiled on trn2")
