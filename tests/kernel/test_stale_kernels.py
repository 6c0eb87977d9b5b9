"""Random kernels whose Python reads what changes: a cached call never differs from an uncached one."""

from __future__ import annotations

import warnings

import pytest
from stale_kernels import SOURCES, Case

import nki.kernel.cache


def wrong_kernels(seeds, path):
    found = []
    for seed in seeds:
        case = Case(seed, path / "file")
        try:
            reasons = [reason for _ in range(5) if (reason := case.stale()) is not None]
        finally:
            case.close()
        found += [(seed, reason) for reason in reasons[:1]]
    return found


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    nki.kernel.cache.clear()
    monkeypatch.setenv("STALE_FUZZ", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_random_kernels_are_never_stale(tmp_path):
    hits = nki.kernel.cache.programs.hits
    assert wrong_kernels(range(400), tmp_path) == []
    assert nki.kernel.cache.programs.hits - hits > 100  # some of them are cached


@pytest.mark.slow
@pytest.mark.parametrize("start", range(400, 5400, 500))
def test_many_random_kernels_are_never_stale(tmp_path, start):
    assert wrong_kernels(range(start, start + 500), tmp_path) == []


def test_the_sources_are_many():
    assert len(SOURCES) > 100
