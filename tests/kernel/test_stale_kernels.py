"""Random kernels whose Python reads what changes: a cached call never differs from an uncached one."""

from __future__ import annotations

import warnings

import pytest
from stale_kernels import ALL, Case

import nki.kernel.cache


def stale_calls(case):
    try:
        return [reason for _ in range(5) if (reason := case.stale()) is not None][:1]
    finally:
        case.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    nki.kernel.cache.clear()
    monkeypatch.setenv("STALE_FUZZ", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_no_source_is_stale(tmp_path):
    hits = nki.kernel.cache.programs.hits
    cases = (Case(seed, tmp_path / "file", [source]) for seed, source in enumerate(ALL))
    assert [reason for case in cases for reason in stale_calls(case)] == []
    assert nki.kernel.cache.programs.hits - hits > 50  # some of them are cached


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 5500, 500))
def test_random_kernels_are_never_stale(tmp_path, start):
    cases = ((seed, Case(seed, tmp_path / "file")) for seed in range(start, start + 500))
    assert [(seed, reason) for seed, case in cases for reason in stale_calls(case)] == []


def test_the_sources_are_many():
    assert len(ALL) > 260
