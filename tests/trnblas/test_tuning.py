"""Tiles are chosen by the timing model once, kept on disk, and a bad file is no accident."""

from __future__ import annotations

import json
import logging
import os

import pytest

torch = pytest.importorskip("torch")
from trnblas import tuning  # noqa: E402

KEY = (2048, 100, 2048, torch.bfloat16, (False, False))


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TRNBLAS_CACHE_DIR", str(tmp_path / "cache"))
    tuning.forget()
    yield
    tuning.forget()


@pytest.fixture
def modelled(monkeypatch):
    """The candidates that were modelled; (512, 1024) is the fastest."""
    calls = []

    def model(m, k, n, dtype, layout, tiles):
        calls.append(tiles)
        return 1.0 if tiles == (512, 1024) else 2.0

    monkeypatch.setattr(tuning, "modelled_us", model)
    return calls


def test_the_fastest_candidate_of_the_model_is_taken_once(modelled):
    assert tuning.gemm_tiles(*KEY) == (512, 1024)
    assert sorted(modelled) == sorted(tuning.CANDIDATES)
    assert tuning.gemm_tiles(*KEY) == tuning.gemm_tiles(1500, 70, 1900, *KEY[3:]) == (512, 1024)
    assert len(modelled) == len(tuning.CANDIDATES), "one bucket is modelled once"


def test_another_process_finds_the_choice_on_disk(modelled):
    tuning.gemm_tiles(*KEY)
    tuning.forget()
    assert tuning.gemm_tiles(*KEY) == (512, 1024)
    assert len(modelled) == len(tuning.CANDIDATES)
    assert [p.name for p in tuning.cache_file().parent.iterdir()] == ["tiles.json"], (
        "nothing half written is left"
    )


def test_choices_of_other_processes_are_kept(modelled):
    tuning.gemm_tiles(*KEY)
    tuning.forget()
    tuning.gemm_tiles(2048, 2048, 2048, *KEY[3:])
    assert len(json.loads(tuning.cache_file().read_text())["tiles"]) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 0, "tiles": {}}',
        '{"format": 1, "tiles": {"x": [3, 4]}}',
        '{"format": 1}',
        "\x00\xff",
    ],
)
def test_a_corrupt_cache_is_built_anew_with_a_note(content, modelled, caplog):
    tuning.cache_file().parent.mkdir()
    tuning.cache_file().write_text(content, encoding="latin-1")
    with caplog.at_level(logging.WARNING, "trnblas"):
        assert tuning.gemm_tiles(*KEY) == (512, 1024)
    assert "built anew" in caplog.text and str(tuning.cache_file()) in caplog.text
    assert list(json.loads(tuning.cache_file().read_text())["tiles"].values()) == [[512, 1024]]


def test_a_cache_that_cannot_be_written_is_told_and_does_no_harm(modelled, caplog, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRNBLAS_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert tuning.gemm_tiles(*KEY) == (512, 1024)
    assert "cannot be written" in caplog.text


def test_a_write_that_breaks_off_leaves_the_old_file(modelled, monkeypatch, caplog):
    tuning.gemm_tiles(*KEY)
    before = tuning.cache_file().read_text()

    def fail(*paths):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    tuning.gemm_tiles(2048, 2048, 2048, *KEY[3:])
    assert tuning.cache_file().read_text() == before and "disk full" in caplog.text


def test_autotune_0_takes_the_default(modelled, monkeypatch):
    monkeypatch.setenv("TRNBLAS_AUTOTUNE", "0")
    assert tuning.gemm_tiles(*KEY) == tuning.DEFAULT and modelled == []


def test_small_shapes_need_no_choice(modelled):
    assert tuning.gemm_tiles(500, 5000, 300, *KEY[3:]) == tuning.DEFAULT and modelled == []


def test_buckets_are_powers_of_two():
    assert [tuning.bucket(n) for n in (0, 1, 128, 129, 1000, 2048, 9000)] == [
        128,
        128,
        128,
        256,
        1024,
        2048,
        2048,
    ]


def test_the_model_tells_candidates_apart():
    shape = (1024, 128, 1024, torch.float32, (False, True))
    times = {tiles: tuning.modelled_us(*shape, tiles) for tiles in tuning.distinct(1024, 1024)}
    assert len(times) == 4 and all(time > 10 for time in times.values())
    assert tuning.gemm_tiles(*shape) == min(times, key=times.get)
