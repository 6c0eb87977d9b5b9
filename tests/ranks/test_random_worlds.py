"""Random worlds against a numpy model of the specification, bit for bit."""

from __future__ import annotations

import warnings

import pytest

from nki.ranks import run_ranks
from random_worlds import check_world
from support import target


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_worlds_leave_what_the_specification_says(first):
    for seed in range(first, first + 20):
        check_world(seed, run_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2200, 100))
def test_two_thousand_random_worlds(first):
    for seed in range(first, first + 100):
        check_world(seed, run_ranks)


@pytest.mark.parametrize("seed", [3, 8])
def test_processes_leave_the_same_bits(seed):
    check_world(seed, lambda *args: run_ranks(*args, backend="processes", timeout=60))
